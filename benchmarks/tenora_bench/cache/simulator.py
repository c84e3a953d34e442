"""Simulator: one replay of a trace. The engine's own Scheduler and MemoryManager run under a
virtual clock which a TimingModel moves on; no token is computed and no page has memory."""

from __future__ import annotations

import gc
import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count

import msgspec

from tenora_bench.cache.copier import SimulatedCopier
from tenora_bench.cache.loader import SimulatedLoader
from tenora_bench.cache.timing import TimingModel, step_features
from tenora_bench.client import BenchError
from tenora_bench.metrics import RequestRecord
from tenora_bench.trace import TraceRequest
from tenora_engine.config import EngineConfig, ResolvedConfig, SchedulingPolicy
from tenora_engine.errors import EngineError
from tenora_engine.events import Event, FinishEvent, RefusedEvent
from tenora_engine.memory.manager import MemoryManager
from tenora_engine.memory.policies import EvictionPolicy
from tenora_engine.request import (
    AdapterRef,
    GenerationRequest,
    LateAction,
    SamplingParams,
    Tenant,
)
from tenora_engine.scheduling.plan import ScheduledStep
from tenora_engine.scheduling.scheduler import Scheduler
from tenora_engine.step import StepResult

START_S = 1.0  # an arrival at 0 means "now" to the engine
VOCAB = 2**31 - 1  # one token id for every block there is


class Limits(msgspec.Struct, frozen=True):
    """The engine's own limits (`EngineConfig`), as for a device of that size."""

    max_running: int = 256
    max_step_tokens: int = 2048
    max_prefill_chunk: int = 2048
    max_waiting: int = 100_000
    max_tenant_waiting: int = 100_000
    max_adapters: int = 512
    host_adapter_bytes: int = 64 * 1024**3
    scheduling_policy: SchedulingPolicy = "sla"


@dataclass(frozen=True)
class Targets:
    """TTFT and TPOT in milliseconds that a class of requests has been promised."""

    ttft_ms: float
    tpot_ms: float


TIERS = {"interactive": "priority", "standard": "default", "batch": "flex"}
"""The engine's class for a trace's; any other name is taken as the engine's own."""

CLASS_TARGETS = {"standard": Targets(2_000.0, 200.0), "batch": Targets(30_000.0, 500.0)}
"""Of the classes that nobody gave targets for."""


@dataclass(frozen=True)
class Setup:
    """What a replay needs beside trace and policy. A class has the targets given for it, else
    those of CLASS_TARGETS, else the default's; `late` as in `Tenant`. Host memory keeps evicted KV
    of up to `host_kv_share` times the device's size."""

    timing: TimingModel
    device_bytes: int
    prefix_block_tokens: int = 16
    limits: Limits = field(default_factory=Limits)
    default_targets: Targets = Targets(500.0, 100.0)
    targets: Mapping[str, Targets] = field(default_factory=dict)
    late: LateAction = "best_effort"
    host_kv_share: float = 0.0

    def targets_of(self, sla_class: str) -> Targets:
        return {**CLASS_TARGETS, **self.targets}.get(sla_class, self.default_targets)

    def resolve(self) -> ResolvedConfig:
        """Raises BenchError when the device holds not even one page."""
        timing, limits = self.timing, self.limits
        num_pages = self.device_bytes // timing.page_bytes
        if num_pages < 1:
            raise BenchError(f"{self.device_bytes} bytes hold no page of {timing.page_bytes} bytes")
        engine = EngineConfig(
            model=timing.name,
            served_name=timing.name,
            dtype=timing.model.dtype,
            block_tokens=timing.block_tokens,
            host_kv_bytes=int(self.host_kv_share * self.device_bytes),
            **msgspec.structs.asdict(limits),
        )
        return ResolvedConfig(
            engine=engine,
            model=msgspec.structs.replace(timing.model, vocab=VOCAB, eos_token_ids=()),
            page_elements=timing.page_elements,
            page_bytes=timing.page_bytes,
            num_pages=num_pages,
            workspace_bytes=0,
        )


@dataclass(frozen=True)
class Replay:
    """What came of a trace: a record for each request, in the trace's order; a refused one has an
    `error`. `counters` as in `EngineStats.counters`."""

    records: list[RequestRecord]
    counters: dict[str, float]
    simulated_s: float
    busy_s: float  # of which the device computed


class Simulator:
    """Replays one trace, once, `speed` times as fast as it was written."""

    def __init__(
        self,
        setup: Setup,
        policy: EvictionPolicy,
        trace: Sequence[TraceRequest],
        speed: float = 1.0,
    ) -> None:
        self._setup = setup
        config = setup.resolve()
        self._now_s = START_S
        self._busy_s = 0.0
        self._adapter_bytes = {rank: setup.timing.adapter_bytes(rank) for rank in _ranks(trace)}
        self._loader = SimulatedLoader(setup.timing, setup.limits.host_adapter_bytes, self._clock)
        self._copier = SimulatedCopier(self._loader.host_link, config.page_bytes, self._clock)
        # The timing model's loads of adapters end on the device.
        self.memory = MemoryManager(config, policy, self._clock, at_once_bytes=math.inf)
        for num_bytes in self._adapter_bytes.values():  # as an engine learns from its copies
            self.memory.costs.observe_load(num_bytes, setup.timing.host.load_s(num_bytes), "host")
        self.scheduler = Scheduler(config, self.memory, self._loader, self._clock)
        self._loader.on_complete = self.scheduler.note_load_ended
        self._copier.on_ended = self.scheduler.note_load_ended
        self._arrivals = deque(
            (START_S + request.t_s / speed, number, request) for number, request in enumerate(trace)
        )
        self._prompts = Prompts(setup.prefix_block_tokens)
        self._records: dict[str, RequestRecord] = {}

    def run(self) -> Replay:
        """Replay until everything has ended. Raises BenchError if the scheduler comes to a halt
        with requests left, which would be a defect of the engine."""
        with _garbage_left():
            while self._arrive():
                self._loader.deliver(self._now_s)
                self._copier.deliver(self._now_s)
                if self.scheduler.has_work:
                    self._step()
                else:
                    self._sleep()
        self.memory.check_integrity(self.scheduler.running)
        return Replay(
            list(self._records.values()),
            self.scheduler.counters(),
            self._now_s - START_S,
            self._busy_s,
        )

    def _clock(self) -> float:
        return self._now_s

    def _arrive(self) -> bool:
        """Submit what has arrived. Returns whether anything is left to do."""
        arrivals = self._arrivals
        while arrivals and arrivals[0][0] <= self._now_s:
            self._submit(*arrivals.popleft())
        running, requests = self.scheduler.running, self.scheduler.requests
        return bool(arrivals or running or requests.num_waiting or requests.events)

    def _submit(self, arrival_s: float, number: int, request: TraceRequest) -> None:
        targets = self._setup.targets_of(request.sla_class)
        record = RequestRecord(
            request.tenant, request.adapter, arrival_s, sla_class=request.sla_class
        )
        record.targets_ms = (targets.ttft_ms, targets.tpot_ms)
        self._records[str(number)] = record
        try:
            self.scheduler.submit(
                GenerationRequest(
                    request_id=str(number),
                    tenant=Tenant(
                        key=request.tenant,
                        namespace=request.tenant,
                        tier=TIERS.get(request.sla_class, request.sla_class),
                        ttft_ms=targets.ttft_ms,
                        tpot_ms=targets.tpot_ms,
                        late=self._setup.late,
                    ),
                    prompt_token_ids=self._prompts.make(request),
                    sampling=SamplingParams(
                        temperature=0.0, max_tokens=max(request.output_tokens, 1), ignore_eos=True
                    ),
                    adapter=adapter_of(request),
                    arrival_s=arrival_s,
                )
            )
        except EngineError as error:
            record.error = f"{type(error).__name__}: {error}"

    def _step(self) -> None:
        plan = self.scheduler.schedule(self._copier.take_ended())
        self._copier.apply(plan.memory)
        self.memory.operations.take_staged()
        if not plan.rows:
            self._take_in(self.scheduler.take_events())
            return
        timing = self._setup.timing
        step = self.scheduler.scheduled(plan)
        step_s = timing.step_s(step_features(step, self._bytes_of))
        self._now_s += step_s
        self._busy_s += step_s
        self._take_in(self.scheduler.commit(plan, self._sample(step), step_s))

    def _sample(self, step: ScheduledStep) -> StepResult:
        """A token of its own for each sequence: its last one, which is its alone."""
        tokens = [[item.sequence.token_ids[-1]] if item.samples else [] for item in step]
        return StepResult(tokens, [None] * len(step))

    def _bytes_of(self, ref: AdapterRef) -> int:
        return self._adapter_bytes[ref.rank]

    def _take_in(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, RefusedEvent):
                self._records[event.request_id].error = f"refused: {event.message}"
            if not isinstance(event, FinishEvent):
                continue
            usage, record = event.usage, self._records[event.request_id]
            record.error = event.error
            record.first_token_s = usage.first_token_s
            record.finished_s = usage.finished_s
            record.prompt_tokens = usage.prompt_tokens
            record.cached_tokens = usage.cached_tokens
            record.output_tokens = usage.output_tokens
            record.residency = usage.residency

    def _sleep(self) -> None:
        """To the next arrival or end of a load."""
        times = [self._arrivals[0][0]] if self._arrivals else []
        ends = [self._loader.next_end_s, self._copier.next_end_s]
        times += [end_s for end_s in ends if end_s is not None]
        if not times:
            waiting = self.scheduler.requests.num_waiting
            raise BenchError(f"the scheduler has come to a halt with {waiting} requests waiting")
        self._now_s = max(self._now_s, min(times))


class Prompts:
    """Prompts of which equal blocks are equal tokens within one tenant and adapter, and nothing
    else is: one token id stands for all tokens of a block, one for all that a request shares with
    nobody."""

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._blocks: dict[tuple[str, str | None, str], int] = {}
        self._next_id = count()

    def make(self, request: TraceRequest) -> list[int]:
        tokens: list[int] = []
        for block in request.prefix_blocks:
            key = (request.tenant, request.adapter, block)
            token = self._blocks.get(key)
            if token is None:
                token = self._blocks[key] = next(self._next_id)
            tokens += [token] * self._block_tokens
        del tokens[request.prompt_tokens - 1 :]  # the last token is the request's own
        own = next(self._next_id)
        return tokens + [own] * (request.prompt_tokens - len(tokens))


def simulate(
    setup: Setup, policy: EvictionPolicy, trace: Sequence[TraceRequest], speed: float = 1.0
) -> Replay:
    return Simulator(setup, policy, trace, speed).run()


def adapter_of(request: TraceRequest) -> AdapterRef | None:
    """An adapter belongs to one tenant, so two tenants' "a1" are two adapters."""
    if request.adapter is None:
        return None
    return AdapterRef(f"{request.tenant}/{request.adapter}", request.rank)


def _ranks(trace: Sequence[TraceRequest]) -> set[int]:
    return {request.rank for request in trace}


@contextmanager
def _garbage_left() -> Iterator[None]:
    """No collection of cycles meanwhile: it would walk the whole prefix tree again and again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
