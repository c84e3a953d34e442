"""The whole engine under random submit, abort, load, forget and failure: pages are conserved after
every step, outputs are those of each sequence run alone, and every sequence ends exactly once."""

from __future__ import annotations

import contextlib

import hypothesis.strategies as st
import msgspec
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from engine_fakes import (
    VOCAB,
    ExecutedPlan,
    FakeExecutor,
    Rig,
    expected_output,
    make_config,
    make_ref,
    make_request,
    make_tenant,
)
from tenora_engine.engine import FAILED_STEPS_MAX
from tenora_engine.errors import (
    AdapterBusyError,
    ContextLengthError,
    DeadlineError,
    InvalidRequestError,
    QueueFullError,
)
from tenora_engine.events import Event, FinishEvent, RefusedEvent, SettledEvent, TokenEvent
from tenora_engine.memory.adapter_arrivals import AT_ONCE_BYTES
from tenora_engine.memory.partitions import PIN_SHARE
from tenora_engine.memory.policies import POLICIES, make_policy
from tenora_engine.pages import Pin
from tenora_engine.request import AdapterRef, GenerationRequest, Tenant
from tenora_engine.step import StepPlan, StepResult

REFS = [make_ref(f"a{i}", rank) for i, rank in enumerate((1, 3, 8, 8, 5, 2))]
BROKEN = make_ref("broken", 4)
TENANTS = [
    make_tenant("t0"),
    make_tenant("t1", weight=3.0, tpot_ms=50.0),
    make_tenant("t2", tpot_ms=200.0),
    make_tenant("refuse", tier="priority", ttft_ms=2000.0, tpot_ms=400.0, late="refuse"),
    make_tenant("relegate", tier="priority", weight=2.0, ttft_ms=1500.0, late="relegate"),
    make_tenant("flex", tier="flex", ttft_ms=1000.0),
]
_WORDS = ("broken", "out of luck", "but this engine has", "copied to the device")
PREFIXES = [[7] * 24, [5, 6] * 12, list(range(24))]


def _time_steps(rig: Rig, token_s: float) -> None:
    """From now on every step takes so long for each of its tokens, as far as the scheduler is told:
    what it learns is the same however busy this machine is."""
    scheduler = rig.engine._scheduler
    commit = scheduler.commit

    def commit_timed(plan: StepPlan, result: StepResult, step_s: float | None) -> list[Event]:
        return commit(plan, result, token_s * plan.num_tokens)

    scheduler.commit = commit_timed  # type: ignore[method-assign]


class EngineMachine(RuleBasedStateMachine):
    rig: Rig
    share: float  # of the arena, guaranteed to each tenant
    policy: str
    step_s = 0.5

    def __init__(self) -> None:
        super().__init__()
        self.pinned_most = 0  # pages, at any time
        self.requests: dict[str, GenerationRequest] = {}
        self.tokens: dict[tuple[str, int], list[int]] = {}
        self.finished: dict[tuple[str, int], FinishEvent] = {}
        self.refused: set[str] = set()  # while they waited
        self.aborted: dict[tuple[str, int], int | None] = {}
        # Aborted while a step was paused, which runs to its end first: it may end them otherwise.
        self.raced: set[tuple[str, int]] = set()

    @initialize(
        num_pages=st.integers(6, 48),
        chunk=st.integers(1, 7),
        budget=st.integers(1, 16),
        slots=st.integers(1, 4),
        caching=st.booleans(),
        instant=st.booleans(),
        policy=st.sampled_from(list(POLICIES)),
        block_tokens=st.sampled_from((2, 4)),
        sharing=st.sampled_from(("none", "shares", "strict")),
        at_once_bytes=st.sampled_from((0, 200, AT_ONCE_BYTES)),
        can_preempt=st.booleans(),
        step_s=st.sampled_from((0.5, 0.02)),
    )
    def start(
        self,
        num_pages: int,
        chunk: int,
        budget: int,
        slots: int,
        caching: bool,
        instant: bool,
        policy: str,
        block_tokens: int,
        sharing: str,
        at_once_bytes: int,
        can_preempt: bool,
        step_s: float,
    ) -> None:
        self.step_s = step_s
        strict = sharing == "strict" and policy != "static-lru"
        # All tenants' shares fit the arena; in strict mode three do, and the others wait.
        self.share = {"none": 0.0, "shares": 0.15, "strict": 0.3}[sharing]
        config = make_config(
            num_pages=num_pages,
            block_tokens=block_tokens,
            max_prefill_chunk=chunk,
            max_step_tokens=budget,
            max_running=5,
            max_adapters=slots,
            max_waiting=24,
            context_tokens=40,
            prefix_caching=caching,
            strict_isolation=strict,
        )
        self.policy = policy
        self.rig = Rig.build(
            config,
            instant=instant,
            policy=make_policy(policy),
            at_once_bytes=at_once_bytes,
            can_preempt=can_preempt,
        )
        assert isinstance(self.rig.executor, FakeExecutor)
        _time_steps(self.rig, 0.001)
        self.rig.loader.bad.add(BROKEN.digest)

    @rule(
        prefix=st.sampled_from(PREFIXES),
        shared=st.integers(0, 20),
        own=st.lists(st.lists(st.integers(0, 95), min_size=1, max_size=6), min_size=1, max_size=4),
        tenant=st.sampled_from(TENANTS),
        adapter=st.sampled_from([None, None, *REFS, BROKEN]),
        max_tokens=st.integers(1, 14),
        n=st.sampled_from((1, 1, 1, 2, 3)),
        stop=st.sampled_from(((), (), (3,), (10, 20, 30))),
        ignore_eos=st.booleans(),
        wrong_every=st.sampled_from((0, 0, 1, 4, 99)),
    )
    def submit(
        self,
        prefix: list[int],
        shared: int,
        own: list[list[int]],
        tenant: Tenant,
        adapter: AdapterRef | None,
        max_tokens: int,
        n: int,
        stop: tuple[int, ...],
        ignore_eos: bool,
        wrong_every: int = 0,
    ) -> None:
        """Predicted are the answers, but for a token in so many; or nothing."""
        for tail in own:
            request = make_request(
                f"r{len(self.requests)}",
                prefix[:shared] + tail,
                tenant=msgspec.structs.replace(
                    tenant,
                    min_memory_share=self.share,
                    max_memory_share=self.share * 2 or 1.0,
                ),
                adapter=adapter,
                max_tokens=max_tokens,
                n=n,
                stop_token_ids=stop,
                ignore_eos=ignore_eos,
            )
            if wrong_every:
                right, _ = expected_output(request, 0, 40, self.rig.executor.eos_every)
                guess = [(t + (k % wrong_every == 2)) % VOCAB for k, t in enumerate(right)]
                request = msgspec.structs.replace(request, prediction_token_ids=guess)
            self._submit(request)

    def _holders(self) -> set[str]:
        """Namespaces of which something is in flight, pinned or on its way."""
        flights = self.rig.engine._requests.flights.values()
        arrivals = self.rig.memory.arrivals
        held = {flight.request.tenant.namespace for flight in flights}
        held |= {
            each.namespace for each in self.rig.memory.adapters.residents() if not each.is_idle
        }
        return held | {arrival.adapter.namespace for arrival in arrivals}

    def _submit(self, request: GenerationRequest) -> None:
        engine, config = self.rig.engine, self.rig.config
        context = min(self._least_pages() * config.engine.block_tokens, 40)
        total = len(request.prompt_token_ids) + request.sampling.max_tokens
        try:
            engine.submit(request)
        except ContextLengthError:
            assert total > context - self.pinned_most * config.engine.block_tokens
            return
        except DeadlineError:
            assert request.tenant.late == "refuse"
            engine.check_integrity()
            return
        except QueueFullError as error:
            if "strict isolation" in str(error):
                assert len(self._holders() - {request.tenant.namespace}) >= 3, "who has a share"
                return
            assert engine.stats().waiting + request.sampling.n > config.engine.max_waiting
            return
        except InvalidRequestError:
            assert self.share, "no partition or no adapter slot for it"
            return
        assert total <= context or self.share
        self.requests[request.request_id] = request

    @rule()
    def step(self) -> None:
        self.rig.now_s += self.step_s
        self._take(self.rig.engine.step())

    @rule()
    def pause(self) -> None:
        """As if a request were announced while the next step runs, if it can be paused; what the
        machine does next is done while it is."""
        self.rig.executor.preempt(True)
        self.step()

    @rule(count=st.integers(2, 12))
    def steps(self, count: int) -> None:
        for _ in range(count):
            self.step()

    @precondition(lambda self: self.requests)
    @rule(pick=st.integers(0, 1000), index=st.none() | st.integers(0, 2), stop=st.booleans())
    def abort(self, pick: int, index: int | None, stop: bool) -> None:
        request = list(self.requests.values())[pick % len(self.requests)]
        indices = range(request.sampling.n) if index is None else (index,)
        metered = 1 if stop else None
        for i in indices:
            key = (request.request_id, i)
            ended = key in self.finished or request.request_id in self.refused
            if i < request.sampling.n and not ended:
                self.aborted[key] = metered
                if self.rig.engine._preempted is not None:
                    self.raced.add(key)
        self.rig.engine.abort(request.request_id, index, "stop" if stop else "client_gone", metered)
        self._take(self.rig.engine.step())
        names = self.refused | {name for name, _ in self.finished}
        assert all(name in names for name, _ in self.aborted), "ended within one step"

    @precondition(lambda self: self.rig.loader.in_flight)
    @rule(pick=st.integers(0, 1000))
    def finish_load(self, pick: int) -> None:
        digests = list(self.rig.loader.in_flight)
        self.rig.loader.finish(digests[pick % len(digests)])

    @precondition(lambda self: self.rig.adapter_copier.in_flight)
    @rule(pick=st.integers(0, 1000), fails=st.sampled_from((False, False, False, True)))
    def finish_copy(self, pick: int, fails: bool) -> None:
        copier = self.rig.adapter_copier
        copies = list(copier.in_flight)
        copier.fail_next = fails
        copier.finish(copies[pick % len(copies)])

    @precondition(lambda self: len(self.rig.memory.arrivals) > 0)
    @rule(pick=st.integers(0, 1000))
    def forget_while_copied(self, pick: int) -> None:
        arrivals = list(self.rig.memory.arrivals)
        adapter = arrivals[pick % len(arrivals)].adapter
        self.rig.engine.forget_adapter(adapter.namespace, adapter.digest)
        self.rig.engine.check_integrity()

    @precondition(lambda self: len(self.finished) > 4)
    @rule(tenant=st.sampled_from(TENANTS), adapter=st.sampled_from(REFS))
    def forget(self, tenant: Tenant, adapter: AdapterRef) -> None:
        self.rig.engine.forget_adapter(tenant.namespace, adapter.digest)
        self.rig.engine.check_integrity()

    @rule(refs=st.lists(st.sampled_from([*REFS, BROKEN]), max_size=3, unique=True))
    def pin(self, refs: list[AdapterRef]) -> None:
        tenant = msgspec.structs.replace(
            TENANTS[0], min_memory_share=self.share, max_memory_share=self.share * 2 or 1.0
        )
        self.rig.engine.set_pins([Pin(tenant, ref) for ref in refs])
        self._note_pins()
        self.rig.engine.check_integrity()

    @rule(tenant=st.sampled_from(TENANTS), adapter=st.sampled_from(REFS))
    def evict(self, tenant: Tenant, adapter: AdapterRef) -> None:
        with contextlib.suppress(AdapterBusyError):
            self.rig.engine.evict_adapter(tenant.namespace, adapter.digest)
        self.rig.engine.check_integrity()

    # One more in a row and the engine gives up, as it should (tests/engine/test_engine_loop.py).
    @precondition(lambda self: self.rig.engine._failed_steps < FAILED_STEPS_MAX - 1)
    @precondition(lambda self: len(self.finished) > 4)
    @rule(which=st.integers(0, 4))
    def fail_a_step(self, which: int) -> None:
        """Whatever its rows are, or by some of them."""

        def fails(executed: ExecutedPlan) -> Exception | None:
            is_bad = any(item.sequence.number % 4 == which for item in executed.scheduled)
            return RuntimeError("out of luck") if is_bad or which == 4 else None

        self.rig.executor.fails = fails
        events = self.rig.engine.step()
        self.rig.executor.fails = lambda executed: None
        self._take(events)

    def _take(self, events: list[Event]) -> None:
        for event in events:
            assert event.request_id not in self.refused, "an event after the last one"
            if isinstance(event, RefusedEvent):
                self._check_refusal(event)
                continue
            assert not isinstance(event, SettledEvent), "of bodies with several parts"
            key = (event.request_id, event.index)
            assert key not in self.finished, "an event after the last one"
            if isinstance(event, TokenEvent):
                assert event.token_ids
                self.tokens.setdefault(key, []).extend(event.token_ids)
            else:
                self.finished[key] = event
                self._check_finish(key, event)
        self.rig.engine.check_integrity()
        running, memory = self.rig.engine._scheduler.running, self.rig.memory
        for sequence in running:
            competitors = memory.competitors(sequence, running)
            assert memory.num_competitors(sequence, running) == len(competitors)
        engine = self.rig.engine
        assert engine.has_work or engine.idle_s is None or engine.idle_s > 0, "idle, but awake"
        self._note_pins()
        pool = engine.stats().pool
        assert pool.total_pages == (
            pool.free_pages + pool.live_kv_pages + pool.cached_kv_pages + pool.adapter_pages
        )

    def _note_pins(self) -> None:
        pinned = self.rig.memory.pinning.pinned_pages
        self.pinned_most = max(self.pinned_most, pinned)
        assert pinned <= self.rig.config.num_pages * PIN_SHARE

    def _check_refusal(self, event: RefusedEvent) -> None:
        self.refused.add(event.request_id)
        tenant = self.requests[event.request_id].tenant
        assert (tenant.late, tenant.ttft_ms is None) == ("refuse", False)
        assert 1 <= event.retry_after_ms <= 60_000
        begun = {name for name, _ in (*self.tokens, *self.finished)}
        assert event.request_id not in begun, "refused after it had begun"

    def _check_finish(self, key: tuple[str, int], event: FinishEvent) -> None:
        request = self.requests[key[0]]
        tokens = self.tokens.get(key, [])
        context = self.rig.config.model.context_tokens
        eos_every = self.rig.executor.eos_every
        output, reason = expected_output(request, key[1], context, eos_every)
        usage = event.usage
        assert tokens == output[: len(tokens)]
        metered = self.aborted.get(key)
        as_aborted = "abort" if metered is None else "stop"
        ended_itself = event.reason != as_aborted or event.stop_token_id is not None
        if key in self.aborted and not (key in self.raced and ended_itself):
            assert event.reason == as_aborted
            assert usage.output_tokens == min(len(tokens), 1000 if metered is None else metered)
        elif event.reason == "error":
            assert event.error is not None
            assert any(word in event.error for word in _WORDS)
            assert usage.output_tokens == 0
        elif event.reason == "length" and len(tokens) < len(output):
            self._check_out_of_pages(request, len(tokens))
        else:
            assert (event.reason, usage.output_tokens) == (reason, len(output))
            shown = output[:-1] if reason == "stop" else output
            assert tokens == shown
            assert event.stop_token_id == (output[-1] if reason == "stop" else None)
        assert usage.cached_tokens <= usage.prompt_tokens
        if key[1] > 0:
            assert usage.prompt_tokens == usage.cached_tokens == 0

    def _check_out_of_pages(self, request: GenerationRequest, num_output: int) -> None:
        """Only beside its adapter can a sequence that was accepted fill the arena."""
        assert request.adapter is not None
        config = self.rig.config
        tokens = len(request.prompt_token_ids) + num_output
        blocks = -(-tokens // config.engine.block_tokens)
        assert blocks + -(-request.adapter.rank // 5) > self._least_pages() - self.pinned_most

    def _least_pages(self) -> int:
        """What a sequence can have for certain: its share, or what the others' shares leave."""
        pages = self.rig.config.num_pages
        minimum = int(self.share * pages)
        if self.rig.config.engine.strict_isolation:
            return minimum
        if self.policy == "static-lru":
            return pages - min(max(int(pages * 0.2), 1), pages - 1)
        if not self.share:
            return pages
        return min(int(2 * self.share * pages), pages - (len(TENANTS) - 1) * minimum)

    def teardown(self) -> None:
        if not hasattr(self, "rig"):
            return
        rig = self.rig
        for _ in range(4000):
            for digest in list(rig.loader.in_flight):
                rig.loader.finish(digest)
            for copier in (rig.copier, rig.adapter_copier):
                for copy in list(copier.in_flight):
                    copier.finish(copy)
            in_flight = rig.loader.in_flight or rig.copier.in_flight
            if not (rig.engine.has_work or in_flight or rig.adapter_copier.in_flight):
                break
            self.step()
        answered = [r for r in self.requests.values() if r.request_id not in self.refused]
        due = {(r.request_id, i) for r in answered for i in range(r.sampling.n)}
        assert set(self.finished) == due, "every sequence ends exactly once"
        assert not rig.engine.has_work
        rig.now_s += 10.0  # beyond every deadline of TENANTS
        assert rig.engine.idle_s is None, "nothing is in flight, whatever it ended by"
        stats = rig.engine.stats()
        assert (stats.running, stats.waiting, stats.pool.live_kv_pages) == (0, 0, 0)
        assert stats.pool.free_pages + stats.pool.cached_kv_pages + stats.pool.adapter_pages == (
            stats.pool.total_pages
        )
        assert all(item.references == 0 for item in stats.adapters)
        assert stats.counters["requests_finished"] == len(answered)
        assert isinstance(rig.executor, FakeExecutor)
