"""An engine without a model, for tests of the HTTP layer alone: it answers what it is told to,
meters it as the real one does, and records what it was asked."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tenora_engine.client import AbortReason
from tenora_engine.config import ModelInfo
from tenora_engine.errors import AdapterBusyError, EngineError
from tenora_engine.events import (
    AdapterFootprint,
    EngineStats,
    EngineTotals,
    FinishEvent,
    FinishReason,
    PoolStats,
    Residency,
    SequenceEvent,
    TokenEvent,
    TokenLogprob,
    UsageRecord,
)
from tenora_engine.pages import ArenaPages, PageOwner, Pin, PinState
from tenora_engine.request import AdapterRef, GenerationRequest, SamplingParams
from tenora_engine.telemetry import TelemetryStats
from tenora_engine.text.processor import TextProcessor
from tenora_engine.transport.totals import Totals

_CHAT = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_byte_tokenizer(folder: Path) -> None:
    """A tokenizer with one token a byte, and a chat template, as a model folder has them."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {"<|im_start|>": 0, "<|im_end|>": 1}
    vocab |= {letter: index for index, letter in enumerate(alphabet, start=2)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"chat_template": _CHAT, "eos_token": "<|im_end|>", "bos_token": "<|im_start|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text(json.dumps({"eos_token_id": 1, "model_type": "llama"}))


class FakeEngine:
    """An EngineClient. `answer` makes the text of a sequence; `gate`, when set to an Event, is
    waited for before every token; `refusal` is raised by the next `submit`s."""

    def __init__(self, folder: Path) -> None:
        write_byte_tokenizer(folder)
        self.text = TextProcessor(folder)
        self.model = ModelInfo(
            id="fake-base",
            architecture="llama",
            num_layers=2,
            hidden=16,
            intermediate=32,
            heads=2,
            kv_heads=1,
            head_dim=8,
            vocab=self.text.vocab_size,
            context_tokens=512,
            dtype="float32",
            weight_bytes=4096,
            modules={
                "q_proj": (16, 16),
                "k_proj": (16, 8),
                "v_proj": (16, 8),
                "o_proj": (16, 16),
                "gate_proj": (16, 32),
                "up_proj": (16, 32),
                "down_proj": (32, 16),
            },
            eos_token_ids=(1,),
        )
        self.ready = False
        self.refuses: str | None = None
        self.answer: Callable[[GenerationRequest, int], str] = default_answer
        self.gate: asyncio.Event | None = None
        self.refusal: EngineError | None = None
        self.start_error: EngineError | None = None
        self.requests: list[GenerationRequest] = []
        self.aborted: list[tuple[str, int | None, AbortReason]] = []
        self.forgotten: list[tuple[str, str]] = []
        self.forgotten_namespaces: list[str] = []
        self.where: dict[str, Residency] = {}  # digest -> residency; else "store"
        self.telemetry = TelemetryStats()
        self.arena: ArenaPages | None = None
        self.pins: list[Pin] = []
        self.unpinnable: dict[str, str] = {}
        self.sick: set[str] = set()  # digests whose logits are no numbers
        self.users: dict[str, int] = {}  # digest -> running requests
        self.evicted: list[tuple[str, str]] = []
        self.outbox: list[UsageRecord] = []
        self.totals = Totals(None)
        self.keeps_usage = False  # and gives it to nobody
        self._filled = asyncio.Event()
        self._stops: dict[tuple[str, int], tuple[AbortReason, int | None]] = {}
        self._unsure: dict[tuple[str, int], UsageRecord] = {}  # until their texts' ends are known

    async def start(self) -> None:
        if self.start_error is not None:
            raise self.start_error
        self.ready = True

    async def stop(self) -> None:
        self.ready = False

    async def submit(self, request: GenerationRequest) -> AsyncIterator[SequenceEvent]:
        if self.refusal is not None:
            raise self.refusal
        self.requests.append(request)
        left = set(range(request.sampling.n))
        try:
            for index in range(request.sampling.n):
                async for event in self._sequence(request, index):
                    yield event
                left.discard(index)
        finally:
            for index in left:
                await self.abort(request.request_id, index)

    async def _sequence(
        self, request: GenerationRequest, index: int
    ) -> AsyncIterator[SequenceEvent]:
        if request.adapter is not None and request.adapter.digest in self.sick:
            usage = self._meter(request, index, 0, "error")
            error = f"the adapter {request.adapter.digest} produces logits that are no numbers"
            yield FinishEvent(request.request_id, index, "error", usage, error, fault="weights")
            return
        allowed = request.sampling.allowed_token_ids
        wanted = list(allowed or self.text.encode(self.answer(request, index)))
        most = request.sampling.max_tokens
        tokens = wanted[:most]
        reason: FinishReason = "length" if len(wanted) > most else "stop"
        made = 0
        key = (request.request_id, index)
        if not index and (said := self._of_prompt(request)) is not None:
            yield said
        try:
            for token in tokens:
                while self.gate is not None and not self.gate.is_set() and key not in self._stops:  # noqa: ASYNC110
                    await asyncio.sleep(0.001)  # the real one aborts what waits, too
                if key in self._stops:
                    break
                made += 1
                scored = _scored(request.sampling, token, index)
                logprobs = None if scored is None else [scored]
                yield TokenEvent(request.request_id, index, [token], logprobs)
                await asyncio.sleep(0)
            else:
                if reason == "stop":
                    made += 1  # the stopping token is metered, not shown
        except GeneratorExit:
            self._meter(request, index, made, "abort")
            raise
        if key in self._stops:
            why, at = self._stops[key]
            reason = "stop" if why == "stop" else "abort"
            made = at if at is not None else made
        usage = self._meter(request, index, made, reason)
        stop_token = 1 if reason == "stop" and key not in self._stops else None
        settled = list[UsageRecord]() if key in self._unsure else None
        yield FinishEvent(
            request.request_id,
            index,
            reason,
            usage,
            stop_token_id=stop_token,
            settled=settled,
            stop_logprob=_scored(request.sampling, stop_token, index),
        )

    def _of_prompt(self, request: GenerationRequest) -> TokenEvent | None:
        """Logprobs of -1, and an embedding of 3 and its length."""
        count = request.sampling.prompt_logprobs
        if count is not None:
            scores = [
                TokenLogprob(token, -1.0, [(token, -1.0)][:count])
                for token in request.prompt_token_ids[1:]
            ]
            return TokenEvent(request.request_id, 0, [], prompt_logprobs=scores)
        if request.sampling.embeds:
            embedding = [3.0, float(len(request.prompt_token_ids))]
            return TokenEvent(request.request_id, 0, [], embedding=embedding)
        return None

    def _meter(
        self, request: GenerationRequest, index: int, made: int, reason: FinishReason
    ) -> UsageRecord:
        now = time.time()
        adapter = request.adapter
        record = UsageRecord(
            event_id=f"{request.request_id}:{index}",
            request_id=request.request_id,
            index=index,
            tenant=request.tenant.key,
            adapter_digest=adapter.digest if adapter else None,
            context=request.context,
            prompt_tokens=len(request.prompt_token_ids) if index == 0 and reason != "error" else 0,
            cached_tokens=0,
            output_tokens=made,
            arrival_s=now - request.waited_s,
            first_token_s=now,
            finished_s=now,
            queue_ms=0.0,
            adapter_load_ms=0.0,
            residency=self.where.get(adapter.digest, "store") if adapter else None,
            tier=request.tenant.tier,
            finish_reason=reason,
            accepted_draft_tokens=3 if request.prediction_token_ids else 0,
            rejected_draft_tokens=2 if request.prediction_token_ids else 0,
        )
        key = request.request_id, index
        if self._stops.get(key, ("",))[0] == "cut_off":
            record = record.freed()
        if request.ends_by_text and reason != "abort" and key not in self._stops:
            self._unsure[key] = record
        else:
            self._bill(record)
        return record

    def _bill(self, record: UsageRecord) -> None:
        self.outbox.append(record)
        self.totals.add(0, [record])
        self._filled.set()

    async def abort(
        self,
        request_id: str,
        index: int | None = None,
        reason: AbortReason = "client_gone",
        output_tokens: int | None = None,
    ) -> None:
        self.aborted.append((request_id, index, reason))
        indexes = [index] if index is not None else list(range(128))
        for each in indexes:
            self._stops[request_id, each] = (reason, output_tokens)
            if (unsure := self._unsure.pop((request_id, each), None)) is not None:
                is_stop = reason == "stop" and output_tokens is not None
                self._bill(unsure.ended_by_text(output_tokens or 0) if is_stop else unsure)

    async def forget_adapter(
        self, namespace: str, digest: str, *, device_only: bool = False
    ) -> None:
        self.forgotten.append((namespace, digest))

    async def forget_namespace(self, namespace: str) -> None:
        self.forgotten_namespaces.append(namespace)

    async def residency(self, adapter: AdapterRef) -> Residency:
        return self.where.get(adapter.digest, "store")

    async def residencies(self, digests: Sequence[str]) -> dict[str, Residency]:
        return {digest: self.where.get(digest, "store") for digest in digests}

    async def footprint(self, ranks: Mapping[str, Sequence[int]]) -> AdapterFootprint:
        """A page a rank row, wherever it is."""
        rows = sum(max(of_layers) for of_layers in zip(*ranks.values(), strict=True))
        return AdapterFootprint(pages=rows, page_bytes=1024, host_bytes=1024 * rows + 100)

    async def stats(self) -> EngineStats:
        pool = PoolStats(
            total_pages=4,
            page_bytes=1024,
            free_pages=2,
            live_kv_pages=1,
            cached_kv_pages=0,
            adapter_pages=1,
            tenants={request.tenant.namespace: {"live_kv": 1} for request in self.requests[-1:]},
            page_map="L.A.",
        )
        return EngineStats(
            running=0,
            waiting=0,
            waiting_by_tenant={},
            pool=pool,
            adapters=[],
            counters={"steps": float(len(self.requests))},
            last_step_ms=1.0,
            resident_bytes=1 << 20,
            telemetry=self.telemetry,
        )

    async def pages(self, namespace: str = "") -> ArenaPages:
        stats = await self.stats()
        if self.arena is not None:
            return replace(self.arena, departures_for=namespace)
        return ArenaPages(
            at_s=time.time(),
            policy="joint",
            total_pages=stats.pool.total_pages,
            page_bytes=stats.pool.page_bytes,
            kinds=[4, 0, 0, 0],
            runs=[4, 0, 0, 0],
            owners=[PageOwner("", "")],
            partitions=[],
            adapters=[],
            host=[],
            departures=[],
            departures_for=namespace,
            pins=self.pin_states(),
            pinned_pages=0,
            pinnable_pages=1,
            slots=4,
        )

    async def set_pins(self, pins: Sequence[Pin]) -> Sequence[PinState]:
        self.pins = list(pins)
        return self.pin_states()

    def pin_states(self) -> list[PinState]:
        """As `unpinnable` says: why, by digest."""
        states = []
        for pin in self.pins:
            of = pin.tenant.namespace, pin.adapter.digest
            why = self.unpinnable.get(pin.adapter.digest)
            if why is None:
                states.append(PinState(*of, "pinned", 2))
            else:
                states.append(PinState(*of, "refused", reason=why))
        return states

    async def evict_adapter(self, namespace: str, digest: str) -> int:
        if digest in self.users:
            many = self.users[digest]
            raise AdapterBusyError(f"{many} requests run on the adapter", many)
        self.evicted.append((namespace, digest))
        return 2

    async def unacknowledged_usage(self) -> Sequence[UsageRecord]:
        while not self.outbox or self.keeps_usage:
            self._filled.clear()
            await self._filled.wait()
        return list(self.outbox[:256])

    async def acknowledge_usage(self, event_ids: Sequence[str]) -> None:
        known = set(event_ids)
        self.outbox = [record for record in self.outbox if record.event_id not in known]

    async def usage_totals(self, since: str) -> EngineTotals:
        return self.totals.view(since, [])


def default_answer(request: GenerationRequest, index: int) -> str:
    """Says which adapter it ran with, so that a mix-up shows."""
    adapter = request.adapter.digest[7:15] if request.adapter else "base"
    return f"Hello from {adapter}."


def _scored(sampling: SamplingParams, token_id: int | None, index: int) -> TokenLogprob | None:
    """Where logprobs were asked for, of a token if there is one."""
    if sampling.logprobs is None or token_id is None:
        return None
    likely = -0.5 / max(index, 1)
    top = [(token_id, likely)][: sampling.logprobs]
    return TokenLogprob(
        token_id, likely, top + [(each, -2.0) for each in sampling.logprob_token_ids]
    )
