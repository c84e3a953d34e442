"""An Engine without a model, for tests of what carries messages to and from one, in this process or
in a child (`fake_step_engine:build`). Some prompts and model names make it misbehave."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, cast

from tenora_engine.adapters.occupancy import Occupied
from tenora_engine.client import AbortReason
from tenora_engine.config import EngineConfig, ModelInfo, ResolvedConfig
from tenora_engine.errors import (
    AdapterLoadError,
    ContextLengthError,
    MemoryBudgetError,
    ModelLoadError,
)
from tenora_engine.events import (
    AdapterFootprint,
    EngineStats,
    Event,
    FinishEvent,
    FinishReason,
    MemoryTier,
    PoolStats,
    RefusedEvent,
    Residency,
    TokenEvent,
    UsageRecord,
)
from tenora_engine.request import AdapterRef, GenerationRequest, SamplingParams, Tenant
from tenora_engine.scheduling.bills import Bill, Bills, settled
from tenora_engine.transport import wire

if TYPE_CHECKING:  # it brings torch
    from tenora_engine.engine import Engine

TOO_LONG, EXITS, RAISES, LATE = 901, 902, 903, 904  # first prompt tokens with a meaning


def request(
    request_id: str,
    first_token: int = 1,
    max_tokens: int = 3,
    n: int = 1,
    ends_by_text: bool = False,
) -> GenerationRequest:
    return GenerationRequest(
        request_id=request_id,
        tenant=Tenant(key="t", namespace="ns"),
        prompt_token_ids=[first_token, 2],
        sampling=SamplingParams(max_tokens=max_tokens, n=n),
        context={"adapter": "a"},
        ends_by_text=ends_by_text,
    )


def usage_record(
    request_id: str, index: int = 0, output_tokens: int = 0, reason: FinishReason = "length"
) -> UsageRecord:
    return UsageRecord(
        event_id=f"{request_id}:{index}",
        request_id=request_id,
        index=index,
        tenant="t",
        adapter_digest=None,
        context={"adapter": "a"},
        prompt_tokens=2,
        cached_tokens=0,
        output_tokens=output_tokens,
        arrival_s=1.0,
        first_token_s=None,
        finished_s=2.0,
        queue_ms=0.0,
        adapter_load_ms=0.0,
        residency=None,
        tier="default",
        finish_reason=reason,
    )


class FakeStepEngine:
    """One token a step for every sequence: 100, 101, 102, ... What is billed is settled as the real
    one does it."""

    def __init__(self, config: EngineConfig) -> None:
        model = ModelInfo(
            id=config.served_name,
            architecture="llama",
            num_layers=1,
            hidden=8,
            intermediate=8,
            heads=1,
            kv_heads=1,
            head_dim=8,
            vocab=1000,
            context_tokens=512,
            dtype="float32",
            weight_bytes=0,
            modules={"q_proj": (8, 8)},
            eos_token_ids=(0,),
        )
        self.config = ResolvedConfig(
            engine=config,
            model=model,
            page_elements=64,
            page_bytes=256,
            num_pages=4,
            workspace_bytes=0,
        )
        self.on_wake: Callable[[], None] | None = None
        self._outputs: dict[tuple[str, int], int] = {}
        self._requests: dict[str, GenerationRequest] = {}
        self._bills = Bills(time.monotonic)
        self._bill_of: dict[str, Bill] = {}
        self._ended: list[Event] = []
        self._forgotten = 0

    def prepare(self, request: GenerationRequest) -> bytes:
        """Nothing: any prompt is taken as it is."""
        return b""

    def release(self, request: GenerationRequest) -> None:
        """Nothing is counted."""

    def discard(self, request: GenerationRequest, reason: AbortReason) -> None:
        self.submit(request)
        self.abort(request.request_id, reason=reason)

    def submit(
        self, request: GenerationRequest, guides: None = None, prepared: bytes | None = None
    ) -> None:
        if request.prompt_token_ids[0] == TOO_LONG:
            raise ContextLengthError("2000 tokens do not fit 512", "messages")
        self._requests[request.request_id] = request
        self._bill_of[request.request_id] = self._bills.open(request)
        for index in range(request.sampling.n):
            self._outputs[request.request_id, index] = 0

    def abort(
        self,
        request_id: str,
        index: int | None = None,
        reason: AbortReason = "client_gone",
        output_tokens: int | None = None,
    ) -> None:
        if index is None and reason != "stop":
            usage = self._bills.abort(request_id, is_free=reason == "invalid")
        else:
            usage = self._bills.confirm(request_id, index, output_tokens)
        self._ended += settled(usage)
        for key in [k for k in self._outputs if k[0] == request_id and index in (None, k[1])]:
            tokens = self._outputs[key] if output_tokens is None else output_tokens
            self._end(key, "stop" if reason == "stop" else "abort", tokens, is_sure=True)

    def _end(
        self,
        key: tuple[str, int],
        reason: FinishReason,
        output_tokens: int,
        *,
        is_sure: bool = False,
    ) -> None:
        del self._outputs[key]
        usage = usage_record(*key, output_tokens=output_tokens, reason=reason)
        event, request = FinishEvent(*key, reason=reason, usage=usage), self._requests[key[0]]
        left = sum(request_id == key[0] for request_id, _ in self._outputs)
        bill = self._bill_of[key[0]]
        self._ended.append(self._bills.add(request, bill, event, left, is_sure=is_sure))

    def abandon(self, failure: BaseException | None) -> list[Event]:
        for key in list(self._outputs):
            self._end(key, "abort" if failure is None else "error", self._outputs[key])
        self._ended += [event for usage in self._bills.close() for event in settled(usage)]
        events, self._ended = self._ended, []
        return events

    def take_occupancy(self) -> dict[MemoryTier, Occupied]:
        """It holds no adapters."""
        return {}

    def announce(self, request: GenerationRequest) -> None:
        """Its steps are short."""

    def sender_of(self, request_id: str) -> str | None:
        asked = self._requests.get(request_id)
        return None if asked is None else asked.tenant.key

    def forget_adapter(self, namespace: str, digest: str, *, device_only: bool = False) -> None:
        self._forgotten += 1 + 100 * device_only

    def forget_namespace(self, namespace: str) -> None:
        self._forgotten += 10_000

    def residency(self, ref: AdapterRef) -> Residency:
        return "host" if ref.rank == 1 else "store"

    def residencies(self, digests: Iterable[str]) -> Future[dict[str, Residency]]:
        """Told later, as Redis is asked beside the steps; "gone" breaks the asking."""
        found: Future[dict[str, Residency]] = Future()
        asked = list(digests)

        def tell() -> None:
            if "gone" in asked:
                found.set_exception(AdapterLoadError("gone"))
            else:
                found.set_result(dict.fromkeys(asked, "shared"))

        threading.Timer(0.01, tell).start()
        return found

    def footprint(self, ranks: Mapping[str, Sequence[int]]) -> AdapterFootprint:
        if "unknown" in ranks:
            raise AdapterLoadError("no such module")
        return AdapterFootprint(pages=sum(map(sum, ranks.values())), page_bytes=8, host_bytes=9)

    @property
    def idle_s(self) -> float | None:
        return None

    @property
    def has_work(self) -> bool:
        return bool(self._outputs or self._ended)

    def step(self) -> list[Event]:
        time.sleep(0.001)
        events: list[Event] = []
        for key in list(self._outputs):
            asked = self._requests[key[0]]
            if asked.prompt_token_ids[0] == EXITS:
                os._exit(9)
            if asked.prompt_token_ids[0] == RAISES:
                raise RuntimeError("a defect")
            if asked.prompt_token_ids[0] == LATE:
                events.append(RefusedEvent(key[0], "it waited in vain", 700))
                self._outputs.clear()
                break
            events.append(TokenEvent(*key, token_ids=[100 + self._outputs[key]]))
            self._outputs[key] += 1
            if self._outputs[key] == asked.sampling.max_tokens:
                self._end(key, "length", self._outputs[key])
        events, self._ended = events + self._ended, []
        return events

    def stats(self) -> EngineStats:
        return EngineStats(
            running=len(self._outputs),
            waiting=0,
            waiting_by_tenant={},
            pool=PoolStats(4, 256, 4, 0, 0, 0, {}, "...."),
            adapters=[],
            counters={"forgotten": self._forgotten},
            last_step_ms=1.0,
            resident_bytes=1,
        )

    def close(self) -> None:
        """Nothing is held."""


def build(config: EngineConfig) -> Engine:
    """The engine factory. The model's name says what shall go wrong."""
    if config.model == "missing":
        raise ModelLoadError("the folder 'missing' has no config.json")
    if config.model == "large":
        raise MemoryBudgetError("weights take 9 GB, the budget is 2 GB")
    if config.model == "defect":
        raise RuntimeError("a defect while loading")
    if config.model == "exits":
        os._exit(5)
    return cast("Engine", FakeStepEngine(config))


def build_with_short_leases(config: EngineConfig) -> Engine:
    """In a process of its own: its clients are taken for dead after two seconds."""
    wire.CLIENT_LEASE_S = 2.0
    return build(config)


def build_unless_forbidden(config: EngineConfig) -> Engine:
    """Raises MemoryBudgetError while there is a file `forbidden` in the outbox's folder."""
    if config.outbox_dir is not None and Path(config.outbox_dir, "forbidden").exists():
        raise MemoryBudgetError("it is forbidden")
    return build(config)
