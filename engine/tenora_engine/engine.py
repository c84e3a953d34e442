"""The engine: the only door to one base model, its memory and its schedule. Single-threaded; it
knows neither threads nor transports (`loop`, `transport`)."""

from __future__ import annotations

import logging
import os
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from tenora_engine.adapters.occupancy import Occupied
from tenora_engine.adapters.pack import footprint
from tenora_engine.client import AbortReason
from tenora_engine.clocks import Clock, steady
from tenora_engine.config import EngineConfig, ResolvedConfig
from tenora_engine.errors import EngineFailedError, MemoryOperationError
from tenora_engine.events import AdapterFootprint, EngineStats, Event, MemoryTier, Residency
from tenora_engine.executor.interface import Executor
from tenora_engine.grammar.compiler import GrammarCompiler
from tenora_engine.grammar.guide import Guide
from tenora_engine.memory.inspection import PageView
from tenora_engine.memory.manager import MemoryManager
from tenora_engine.pace import Pace
from tenora_engine.pages import ArenaPages, Pin, PinState
from tenora_engine.request import AdapterRef, GenerationRequest, Tenant
from tenora_engine.scheduling.admission import check_request
from tenora_engine.scheduling.loads import FindingLoader
from tenora_engine.scheduling.own_layers import OwnLayers
from tenora_engine.scheduling.scheduler import Scheduler
from tenora_engine.step import StepPlan, StepResult
from tenora_engine.step_retry import StepRetry, messages

if TYPE_CHECKING:
    from tenora_engine.executor.draft_layers import DraftLayers
    from tenora_engine.model.loader import LoadedModel

FAILED_STEPS_MAX = 8
"""Failed steps in a row, each with a probe that failed, after which the engine ends."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PagesSnapshot:
    """A copy of the bookkeeping of all pages, as it was between two steps."""

    namespace: str
    view: PageView
    pins: list[PinState]
    config: ResolvedConfig
    loader: FindingLoader

    def describe(self) -> ArenaPages:
        """What it means; once, from any thread: O(pages)."""
        view = self.view.dated()
        kinds, runs, owners = view.runs()
        return ArenaPages(
            at_s=view.at_s,
            policy=view.policy,
            total_pages=self.config.num_pages,
            page_bytes=self.config.page_bytes,
            kinds=kinds,
            runs=runs,
            owners=owners,
            partitions=view.partitions,
            adapters=[adapter for adapter, _ in view.adapters],
            host=self.loader.residencies(),
            departures=view.departures,
            departures_for=self.namespace,
            pins=self.pins,
            pinned_pages=view.pinned_pages,
            pinnable_pages=view.pinnable_pages,
            slots=self.config.engine.max_adapters,
            shared_prefix=self.loader.shared_prefix,
        )


class Engine:
    """One base model, its page arena and its schedule.

    `on_wake` is called, from any thread, when an adapter load or a copy to the device ends and
    `step` may have work again.
    """

    def __init__(
        self,
        config: ResolvedConfig,
        executor: Executor,
        loader: FindingLoader,
        memory: MemoryManager,
        clock: Clock = steady,
        pace: Pace | None = None,  # of what works beside the steps
        layers: OwnLayers | None = None,  # of adapters, as the executor has them
    ) -> None:
        self.config = config
        self.grammars = GrammarCompiler(config)
        self._pace = pace or Pace()
        self.on_wake: Callable[[], None] | None = None
        self._executor = executor
        self._loader = loader
        self._memory = memory
        self._scheduler = Scheduler(
            config,
            memory,
            loader,
            clock,
            can_preempt=executor.can_preempt,
            is_exact=executor.is_exact,
            layers=layers,
        )
        self._requests = self._scheduler.requests
        self._last_step_ms = 0.0
        self.compute_threads = 1
        self._preempted: StepPlan | None = None
        self._planning_s = 0.0  # of that
        self._failed_steps = 0  # in a row
        # Of what that computes, or may: carried out when it has come to its end.
        self._aborts: list[tuple[str, int | None, AbortReason, int | None]] = []
        self._events: list[Event] = []  # of the step by which the engine failed
        loader.on_complete = self._load_ended
        executor.on_copy_ended = self._load_ended

    def submit(
        self,
        request: GenerationRequest,
        guides: Sequence[Guide] | None = None,
        prepared: bytes | None = None,
    ) -> None:
        """Queue all n sequences of a request. Each ends in one FinishEvent of a later `step`, or
        all of them in a RefusedEvent. Where it has a grammar, `guides` are what `grammars` made of
        it; without them they are made here, and waited for. `prepared` is what `prepare` made of
        it; without that this is done here.

        Raises InvalidRequestError (empty prompt, unknown token id, rank above max_rank, an id
        already in flight ...), ContextLengthError (prompt and max_tokens fit neither the model's
        context nor the arena) or QueueFullError.
        """
        self._executor.preempt(False)
        check_request(self.config, request)
        if request.sampling.grammar is not None and guides is None:
            guides = self.grammars.guides(request).result()
        self._scheduler.submit(request, guides or (), prepared)

    def prepare(self, request: GenerationRequest) -> bytes:
        """Count the memory of a request that is to be submitted, check and encode all tokens of its
        prompt, for another thread to spare `submit` that. `submit`, `discard` or `release` is to
        follow.

        Raises InvalidRequestError where it could not run whatever else does, QueueFullError where
        there is no room for it now. From any thread, as `release`.
        """
        check_request(self.config, request)
        return self._requests.coming.prepare(request)

    def release(self, request: GenerationRequest) -> None:
        """It has been prepared and is not to be submitted."""
        self._requests.bytes.release(request)

    def discard(self, request: GenerationRequest, reason: AbortReason) -> None:
        """As `submit` of one that has been prepared, and `abort`, at once: each of its sequences
        ends in a FinishEvent of the next `step`."""
        self._executor.preempt(False)
        self._requests.discard(request, reason)

    def note_refused(self, tenant: Tenant) -> None:
        """Count that there was no room to `prepare` a request of the tenant."""
        self._requests.coming.note_refused(tenant)

    def announce(self, request: GenerationRequest) -> None:
        """The request is about to be submitted, as soon as the step that runs has been preempted or
        has ended. May be called from any thread."""
        if self._scheduler.is_express(request):
            self._executor.preempt(True)

    def sender_of(self, request_id: str) -> str | None:
        """The key of the tenant whose request it is, if it is in flight or something of it is to
        be settled; from any thread."""
        return self._requests.sender_of(request_id)

    def abort(
        self,
        request_id: str,
        index: int | None = None,
        reason: AbortReason = "client_gone",
        output_tokens: int | None = None,
    ) -> None:
        """End one sequence, or all of a request, now; its FinishEvent is in the next `step`. What
        is of a step that was preempted ends when that has come to its end, which nobody's abort
        brings forward.

        `reason="stop"`: a stop string was met in the text; the sequence finishes as "stop" and is
        metered at `output_tokens`. "client_gone" meters what was generated, "cut_off" nothing, and
        "invalid" nothing, as an error of the request's. One that has ended is settled by it, if its
        request `ends_by_text`; an unknown id is no error.
        """
        if self._scheduler.in_flight.has(request_id):
            self._aborts.append((request_id, index, reason, output_tokens))
        else:
            self._requests.abort(request_id, index, reason, output_tokens)

    def forget_adapter(self, namespace: str, digest: str, *, device_only: bool = False) -> None:
        """Give back the namespace's cached KV under the adapter and the adapter's pages and, unless
        `device_only`, packed copies, as soon as the sequences which hold them have ended."""
        self._requests.forget_adapter(namespace, digest, device_only=device_only)

    def forget_namespace(self, namespace: str) -> None:
        """Give back all cached KV of a namespace, the base model's included, as soon as the
        sequences which hold it have ended."""
        self._requests.forget_namespace(namespace)

    def residency(self, ref: AdapterRef) -> Residency:
        """Where the adapter is now: "device", or the tier from which it would come. May be called
        from any thread."""
        return self._scheduler.loads.residency(ref)

    def residencies(self, digests: Sequence[str]) -> Future[dict[str, Residency]]:
        """The same of several, for people: what only Redis knows is waited for, beside the
        steps."""
        on_device = {resident.digest for resident in self._memory.adapters.residents()}
        return self._loader.find(digests, on_device)

    def footprint(self, ranks: Mapping[str, Sequence[int]]) -> AdapterFootprint:
        """See `EngineClient.footprint`."""
        return footprint(self.config, ranks)

    @property
    def has_work(self) -> bool:
        """Whether `step` would do something. False while all that waits, waits for adapters."""
        return self._preempted is not None or bool(self._events) or self._scheduler.has_work

    @property
    def idle_s(self) -> float | None:
        """For how long `step` has nothing to do if nothing comes and no load ends; None: for
        ever."""
        return self._scheduler.idle_s

    def step(self) -> list[Event]:
        """One iteration of the batch, or as much of it as is run before it is preempted for those
        who come meanwhile (`announce`) and ask for no more than their shares: the next call runs
        them first. What an executor fails by ends in an "error" event; the other sequences of its
        plan go on as if that had not been there (`step_retry`), and the pool stays intact. Raises
        EngineFailedError when that will not end: for an error of the device, or when
        FAILED_STEPS_MAX times in a row nothing could be run, not even a token of the engine's own;
        `abandon` has the events then."""
        events, self._events = self._events, []
        started = time.perf_counter()
        plan = self._scheduler.schedule(self._executor.take_ended_copies())
        self._executor.stage(self._memory.operations.take_staged())
        if plan.rows:
            return events + self._execute(plan, time.perf_counter() - started)
        if plan:
            self._execute_memory(plan)
        if self._preempted is not None:
            return events + self._resume()
        return events + self._scheduler.take_events()

    def _resume(self) -> list[Event]:
        plan, self._preempted = self._preempted, None
        assert plan is not None
        events = self._execute(plan, self._planning_s)
        if self._preempted is None and self._aborts:
            self._carry_out_aborts()
            events += self._scheduler.take_events()
        return events

    def _carry_out_aborts(self) -> None:
        aborts, self._aborts = self._aborts, []
        for abort in aborts:
            self._requests.abort(*abort)

    def _execute_memory(self, plan: StepPlan) -> None:
        """One without rows."""
        try:
            self._executor.execute(plan)
        except MemoryOperationError as error:
            raise EngineFailedError(str(error)) from error

    def _execute(self, plan: StepPlan, planning_s: float) -> list[Event]:
        self._pace.begin_step()
        try:
            result = self._executor.execute(plan)
        except Exception as error:
            _log.exception("a step of %d sequences failed", len(plan.rows))
            return self._recover(plan, error)
        finally:
            self._pace.end_step()
        if result is None:
            self._preempted, self._planning_s = plan, planning_s
            self._executor.preempt(False)
            return self._scheduler.take_events()
        self._failed_steps = 0
        if result.seconds is None:
            return self._scheduler.commit(plan, result, None)
        step_s = planning_s + result.seconds
        self._last_step_ms = step_s * 1000
        return self._scheduler.commit(plan, result, step_s)

    def _recover(self, plan: StepPlan, error: Exception) -> list[Event]:
        """What of a step can be run without what it failed by."""
        if is_fatal(error):
            return self._fail(plan, error)
        retry = StepRetry(lambda rows: self._execute_part(plan, rows))
        try:
            retry.run(self._scheduler.in_flight.owners(plan), is_fatal)
        except Exception as fatal:
            return self._fail(plan, fatal)
        if len(retry.failed) == len(plan.rows):
            return self._fail_all(plan, retry.failed)
        self._failed_steps = 0
        events = self._scheduler.fail(plan, messages(retry.failed))
        return events + self._scheduler.commit(plan, retry.result(), None)

    def _execute_part(self, plan: StepPlan, rows: Sequence[int]) -> StepResult:
        part = self._scheduler.in_flight.part(plan, rows)
        try:
            result = self._executor.execute(part)
        finally:
            self._scheduler.in_flight.take(part)
        assert result is not None  # it may not be preempted
        return result

    def _fail_all(self, plan: StepPlan, errors: Mapping[int, Exception]) -> list[Event]:
        """None of a step's rows could be run. That is the engine's fault only if nothing can be:
        one tenant's requests may be all that runs, and each may fail."""
        try:
            self._execute_probe(plan)
        except Exception as error:
            return self._fail(plan, error)
        self._failed_steps = 0
        return self._scheduler.fail(plan, messages(errors))

    def _execute_probe(self, plan: StepPlan) -> None:
        probe = self._scheduler.in_flight.probe(plan)
        try:
            self._executor.execute(probe)
        finally:
            self._scheduler.in_flight.take(probe)

    def _fail(self, plan: StepPlan, error: Exception) -> list[Event]:
        events = self._scheduler.fail(plan, messages(dict.fromkeys(range(len(plan.rows)), error)))
        self._failed_steps += 1
        if isinstance(error, MemoryOperationError):
            self._events += events
            raise EngineFailedError(str(error)) from error
        if not is_of_the_device(error) and self._failed_steps < FAILED_STEPS_MAX:
            return events
        self._events += events
        raise EngineFailedError(
            f"{self._failed_steps} steps in a row failed, the last with {type(error).__name__}: "
            f"{error}; this engine cannot recover and must be restarted"
        ) from error

    def abandon(self, failure: BaseException | None) -> list[Event]:
        """The last events of everything in flight: "error" where the engine failed, "abort" where
        it is stopped. Nothing but `close` may be called after this."""
        events, self._events = self._events, []
        if failure is None:
            self._carry_out_aborts()
            return events + self._requests.abandon("abort", None)
        return events + self._requests.abandon("error", f"the engine failed: {failure}")

    def stats(self) -> EngineStats:
        """A snapshot. O(pages)."""
        scheduler = self._scheduler
        return EngineStats(
            running=len(scheduler.running),
            waiting=self._requests.num_waiting,
            waiting_by_tenant=self._requests.waiting_by_tenant(),
            pool=self._memory.pool_stats(scheduler.running),
            adapters=scheduler.loads.residencies(),
            counters={**scheduler.counters(), **self.grammars.counters()},
            last_step_ms=self._last_step_ms,
            resident_bytes=_resident_bytes(),
            telemetry=scheduler.telemetry_stats(),
            compute_threads=self.compute_threads,
        )

    def pages(self, namespace: str) -> PagesSnapshot:
        """What each page holds, and what would go next if the namespace needed room."""
        view, pins = self._memory.page_view(namespace), self._scheduler.pins.states()
        return PagesSnapshot(namespace, view, pins, self.config, self._loader)

    def set_pins(self, pins: Sequence[Pin]) -> list[PinState]:
        """See `EngineClient.set_pins`."""
        return self._scheduler.pins.set(pins)

    def evict_adapter(self, namespace: str, digest: str) -> int:
        """See `EngineClient.evict_adapter`."""
        return self._scheduler.pins.evict(namespace, digest, self._scheduler.running)

    def take_occupancy(self) -> dict[MemoryTier, Occupied]:
        """What adapters have taken of memory since the last time. From any thread."""
        device = self._memory.adapters.occupancy.take()
        return {"device": device, "host": self._loader.take_occupancy()}

    def check_integrity(self) -> None:
        """Walk all of the memory and what runs. Raises IntegrityError when a page is lost or
        counted twice, or something else that is kept is not what counting anew gives."""
        self._memory.check_integrity(self._scheduler.running)
        self._scheduler.running.check()

    def close(self) -> None:
        """Stop the adapter loader and the copies. Sequences in flight are dropped without events,
        unless `abandon` has given them."""
        self.grammars.close()
        self._loader.close()
        self._scheduler.drafts.close()
        self._executor.close()

    def _load_ended(self) -> None:
        self._scheduler.note_load_ended()
        if self.on_wake is not None:
            self.on_wake()


def build_engine(config: EngineConfig) -> Engine:
    """Load the base model, size the arena by the memory budget, which goes to the log, and put the
    parts together.

    Raises ModelLoadError, MemoryBudgetError or RecordingError.
    """
    import torch

    from tenora_engine.adapters.loader import AdapterLoader
    from tenora_engine.executor.device_memory import DeviceMemory
    from tenora_engine.executor.executor import ModelExecutor
    from tenora_engine.executor.recording import RecordingExecutor
    from tenora_engine.machine import this_machine
    from tenora_engine.memory.budget import beyond_machine, describe, plan_memory
    from tenora_engine.model.loader import load_model, read_model_info

    info = read_model_info(config)
    for warning in info.warnings:
        _log.warning(warning)
    plan_memory(config, info)  # fail before the weights are read
    model = load_model(config)
    if model.draft is None:
        config = msgspec.structs.replace(config, draft_layer=None)
    resolved = plan_memory(config, model.info)
    _log.info("memory budget of the engine:\n%s", describe(resolved))
    problem = beyond_machine(resolved, this_machine())
    if problem is not None:
        _log.warning(problem)
    pace = Pace()
    layers = _adapter_layers(resolved, model, pace)
    executor: Executor = ModelExecutor(resolved, model, DeviceMemory(resolved, pace=pace), layers)
    if config.record is not None:
        executor = RecordingExecutor(executor, Path(config.record), resolved)
    loader, memory = AdapterLoader(resolved, pace=pace), MemoryManager(resolved)
    engine = Engine(resolved, executor, loader, memory, pace=pace, layers=layers)
    if config.device == "cpu":
        engine.compute_threads = torch.get_num_threads()
    engine.grammars.prepare()
    return engine


def _adapter_layers(resolved: ResolvedConfig, model: LoadedModel, pace: Pace) -> DraftLayers | None:
    """None where adapters' own are not kept, or none can run."""
    from tenora_engine.adapters.tiers import StoreTier
    from tenora_engine.executor.draft_layers import DraftLayers

    if not resolved.draft_bytes or model.draft_maker is None:
        return None
    store = StoreTier(resolved.engine.object_store, pace=pace)
    return DraftLayers(model.draft_maker, store, resolved.draft_bytes, pace=pace)


def is_of_the_device(error: BaseException | None) -> bool:
    """Whether an error, or what it came of, says that the accelerator is lost to this process: CUDA
    gives every later call the same answer. Too little of its memory is no such error."""
    while error is not None:
        names = {kind.__name__ for kind in type(error).__mro__}  # torch is not imported for this
        if "OutOfMemoryError" in names:
            return False
        if "AcceleratorError" in names or str(error).startswith("CUDA error"):
            return True
        error = error.__cause__
    return False


def is_fatal(error: Exception) -> bool:
    """Whether nothing can be run after an executor's error, whatever the rows."""
    return isinstance(error, MemoryOperationError) or is_of_the_device(error)


def _resident_bytes() -> int:
    """Resident set of this process; its peak where /proc is missing."""
    try:
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
