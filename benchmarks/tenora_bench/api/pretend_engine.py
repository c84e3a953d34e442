"""An engine without a model, at a pace that the request sets: its tokens' texts say when they were
made (`stamps`). The engine process serves it as it serves the real one: the factory is `build`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from tenora_bench.api.stamps import Stamps, stamp_tokens
from tenora_engine.adapters.occupancy import Occupied
from tenora_engine.client import AbortReason
from tenora_engine.config import EngineConfig, ResolvedConfig
from tenora_engine.engine import Engine
from tenora_engine.events import (
    EngineStats,
    Event,
    FinishEvent,
    FinishReason,
    MemoryTier,
    PoolStats,
    Residency,
    TokenEvent,
    UsageRecord,
)
from tenora_engine.grammar.guide import Guide
from tenora_engine.model.loader import read_model_info
from tenora_engine.request import AdapterRef, GenerationRequest
from tenora_engine.text.processor import TextProcessor

FACTORY = "tenora_bench.api.pretend_engine:build"


@dataclass
class _Sequence:
    """One that runs. `due_ns` lies on a grid of its own pace, so that all of one pace have their
    tokens in one step, as a real engine's have."""

    request: GenerationRequest
    index: int
    pace_ns: int
    due_ns: int
    began_s: float
    made: int = 0


class PretendEngine:
    """The part of `Engine` that its loop uses. A request's seed is its pace, microseconds from one
    token to the next; without one the next comes with the next step."""

    def __init__(self, config: ResolvedConfig, text: TextProcessor) -> None:
        self.config = config
        self.on_wake: Callable[[], None] | None = None
        tokens = stamp_tokens(vocabulary(text))
        self._ids = list(tokens)
        self._stamps = Stamps(list(tokens.values()))
        self._running: dict[tuple[str, int], _Sequence] = {}
        self._ended: list[Event] = []

    def prepare(self, request: GenerationRequest) -> bytes:
        """It looks at no prompt."""
        return b""

    def release(self, request: GenerationRequest) -> None:
        """It counts no memory."""

    def discard(self, request: GenerationRequest, reason: AbortReason) -> None:
        self.submit(request)
        self.abort(request.request_id, reason=reason)

    def sender_of(self, request_id: str) -> str | None:
        running = list(self._running.values())  # of the engine's thread
        same = (each.request for each in running if each.request.request_id == request_id)
        return next((each.tenant.key for each in same), None)

    def submit(
        self,
        request: GenerationRequest,
        guides: Sequence[Guide] | None = None,
        prepared: bytes = b"",
    ) -> None:
        pace_ns = (request.sampling.seed or 0) * 1000
        now_ns = time.monotonic_ns()
        due_ns = now_ns if not pace_ns else (now_ns // pace_ns + 1) * pace_ns
        for index in range(request.sampling.n):
            sequence = _Sequence(request, index, pace_ns, due_ns, time.time())
            self._running[request.request_id, index] = sequence

    def take_occupancy(self) -> dict[MemoryTier, Occupied]:
        """It holds no adapters."""
        return {}

    def announce(self, request: GenerationRequest) -> None:
        """Its steps are short."""

    def abort(
        self,
        request_id: str,
        index: int | None = None,
        reason: AbortReason = "client_gone",
        output_tokens: int | None = None,
    ) -> None:
        ids = [key for key in self._running if key[0] == request_id and index in (None, key[1])]
        for key in ids:
            sequence = self._running[key]
            if output_tokens is not None:
                sequence.made = output_tokens
            self._end(sequence, "stop" if reason == "stop" else "abort")

    def abandon(self, failure: BaseException | None) -> list[Event]:
        for sequence in list(self._running.values()):
            self._end(sequence, "abort" if failure is None else "error")
        return self._take_ended()

    def forget_adapter(self, namespace: str, digest: str, *, device_only: bool = False) -> None:
        """It holds none."""

    def forget_namespace(self, namespace: str) -> None:
        """It holds none."""

    def residency(self, ref: AdapterRef) -> Residency:
        return "device"

    @property
    def has_work(self) -> bool:
        return bool(self._ended) or self._next_ns() <= time.monotonic_ns()

    @property
    def idle_s(self) -> float | None:
        if not self._running:
            return None
        return max(0.0, (self._next_ns() - time.monotonic_ns()) / 1e9)

    def _next_ns(self) -> float:
        return min((each.due_ns for each in self._running.values()), default=float("inf"))

    def step(self) -> list[Event]:
        now_ns = time.monotonic_ns()
        token = self._ids[self._stamps.place_at(now_ns)]
        events: list[Event] = []
        for sequence in [each for each in self._running.values() if each.due_ns <= now_ns]:
            sequence.due_ns += sequence.pace_ns
            sequence.made += 1
            request = sequence.request
            events.append(TokenEvent(request.request_id, sequence.index, [token]))
            if sequence.made == request.sampling.max_tokens:
                self._end(sequence, "length")
        return events + self._take_ended()

    def _take_ended(self) -> list[Event]:
        ended, self._ended = self._ended, []
        return ended

    def _end(self, sequence: _Sequence, reason: FinishReason) -> None:
        request = sequence.request
        del self._running[request.request_id, sequence.index]
        now_s = time.time()
        usage = UsageRecord(
            event_id=f"{request.request_id}:{sequence.index}",
            request_id=request.request_id,
            index=sequence.index,
            tenant=request.tenant.key,
            adapter_digest=request.adapter.digest if request.adapter else None,
            context=request.context,
            prompt_tokens=len(request.prompt_token_ids) if sequence.index == 0 else 0,
            cached_tokens=0,
            output_tokens=sequence.made,
            arrival_s=sequence.began_s - request.waited_s,
            first_token_s=sequence.began_s,
            finished_s=now_s,
            queue_ms=0.0,
            adapter_load_ms=0.0,
            residency="device" if request.adapter else None,
            tier=request.tenant.tier,
            finish_reason=reason,
        )
        self._ended.append(FinishEvent(request.request_id, sequence.index, reason, usage))

    def stats(self) -> EngineStats:
        return EngineStats(
            running=len(self._running),
            waiting=0,
            waiting_by_tenant={},
            pool=PoolStats(1, self.config.page_bytes, 1, 0, 0, 0, {}, "."),
            adapters=[],
            counters={},
            last_step_ms=0.0,
            resident_bytes=1,
        )

    def close(self) -> None:
        """It holds nothing."""


def vocabulary(text: TextProcessor) -> dict[int, str]:
    """The text of every token."""
    return {token: text.token_text(token) for token in range(text.vocab_size)}


def build(config: EngineConfig) -> Engine:
    """The engine factory: of the model it reads the config and the tokenizer only."""
    resolved = ResolvedConfig(
        engine=config,
        model=read_model_info(config),
        page_elements=64,
        page_bytes=256,
        num_pages=1,
        workspace_bytes=0,
    )
    return cast(Engine, PretendEngine(resolved, TextProcessor(config.model)))
