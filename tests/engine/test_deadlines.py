"""What waits and cannot be in time any more: refused, relegated or kept, as its plan says, when
that becomes plain, wherever it stands in the queue."""

from __future__ import annotations

import threading

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_fakes import Rig, fix_step_time, make_config, make_ref, make_request, make_tenant
from tenora_engine.errors import ContextLengthError, DeadlineError
from tenora_engine.events import Event, FinishEvent, RefusedEvent
from tenora_engine.loop import EngineLoop
from tenora_engine.memory.costs import CostModel
from tenora_engine.request import GenerationRequest, LateAction, Tenant
from tenora_engine.scheduling.admission import Deadlines
from tenora_engine.scheduling.class_queue import LOWEST_CLASS
from tenora_engine.sequence import Sequence, SequenceState


def promised(late: LateAction, ttft_ms: float = 1000.0, name: str = "promised") -> Tenant:
    return make_tenant(name, ttft_ms=ttft_ms, late=late)


def busy_rig() -> Rig:
    """One place in the batch, which a long answer holds; a token takes a millisecond."""
    rig = Rig.build(make_config(num_pages=64, max_running=1))
    fix_step_time(rig, 0.001)
    rig.engine.submit(make_request("first", [1], ignore_eos=True, max_tokens=50))
    rig.engine.step()
    return rig


def step(rig: Rig, seconds: float = 0.0) -> list[Event]:
    rig.now_s += seconds
    events = rig.engine.step()
    rig.engine.check_integrity()
    return events


def run(rig: Rig, seconds: float = 0.01) -> list[Event]:
    events: list[Event] = []
    while rig.engine.has_work:
        events += step(rig, seconds)
    return events


@pytest.mark.parametrize("n", [1, 3])
def test_what_waited_in_vain_is_refused_as_soon_as_that_is_plain(n: int) -> None:
    rig = busy_rig()
    free = rig.engine.stats().pool.free_pages
    ref = make_ref("x")
    rig.engine.submit(make_request("late", [2] * 20, tenant=promised("refuse"), adapter=ref, n=n))
    assert [e.request_id for e in step(rig, 0.97)] == ["first"]  # 20 tokens take 20 ms
    events = step(rig, 0.02)
    (refused,) = [e for e in events if isinstance(e, RefusedEvent)]
    assert refused.request_id == "late"
    assert "cannot come within 1000 ms any more" in refused.message
    assert 1 <= refused.retry_after_ms <= 60_000
    stats = rig.engine.stats()
    assert (stats.running, stats.waiting, stats.pool.free_pages) == (1, 0, free)
    assert stats.counters["requests_refused"] == 1
    (meter,) = [m for m in stats.telemetry.meters if m.tenant == "promised"]
    assert (meter.ttft_promised, meter.ttft_met, meter.prompt_tokens) == (n, 0, 0)
    assert meter.finished == {}
    assert {e.request_id for e in run(rig)} == {"first"}
    again = make_request("late", [2] * 20, tenant=promised("refuse"))
    rig.engine.submit(again)  # the id is free, and now there is time
    assert [e.usage.prompt_tokens for e in run(rig) if isinstance(e, FinishEvent)] == [20]


def test_best_effort_is_kept() -> None:
    rig = busy_rig()
    rig.engine.submit(make_request("late", [2] * 20, tenant=promised("best_effort")))
    events = run(rig, 1.0)
    assert [e.request_id for e in events if isinstance(e, FinishEvent)] == ["first", "late"]
    assert rig.engine.idle_s is None


def test_what_stands_far_behind_is_relegated_when_it_is_plain() -> None:
    rig = busy_rig()
    for number in range(5):
        rig.engine.submit(make_request(f"r{number}", [2] * 4, tenant=promised("relegate", 5000.0)))
    rig.engine.submit(make_request("last", [3] * 4, tenant=promised("relegate", 1000.0)))
    classes = {s.request.request_id: s for s in rig.engine._scheduler.queue.sequences()}
    step(rig, 1.5)
    assert classes.pop("last").service.class_name == LOWEST_CLASS
    assert {s.service.class_name for s in classes.values()} == {"default"}
    step(rig, 4.0)
    assert {s.service.class_name for s in classes.values()} == {LOWEST_CLASS}
    assert rig.engine.stats().counters["relegations"] == 6
    finished = [e for e in run(rig) if isinstance(e, FinishEvent)]
    assert len(finished) == 7


def test_what_has_run_is_not_refused() -> None:
    """Neither a sequence that was preempted, nor one whose sibling has run or ended."""
    rig = Rig.build(make_config(num_pages=8, max_running=3))
    tenant = promised("refuse", 3000.0)
    for number in range(3):
        name = f"r{number}"
        rig.engine.submit(
            make_request(name, [number] * 4, tenant=tenant, ignore_eos=True, max_tokens=20)
        )
    step(rig)
    rig.engine.submit(make_request("two", [9] * 3, tenant=tenant, n=2, ignore_eos=True))
    rig.engine.abort("two", 1)
    events = run(rig, 0.4)
    assert rig.engine.stats().counters["preemptions"] > 0
    assert not [e for e in events if isinstance(e, RefusedEvent)]
    ended = [e.request_id for e in events if isinstance(e, FinishEvent)]
    assert sorted(ended) == ["r0", "r1", "r2", "two", "two"]


ENDS = ("length", "stop", "abort", "error", "refused at once", "refused late", "relegated")


@pytest.mark.parametrize("late", ["refuse", "relegate", "best_effort"])
@pytest.mark.parametrize("end", ENDS)
def test_an_idle_engine_sleeps_whatever_the_last_request_ended_by(
    end: str, late: LateAction
) -> None:
    rig = Rig.build(make_config(num_pages=64, max_running=1), eos_every=10**9)
    fix_step_time(rig, 0.001)
    tenant = promised(late)
    if end in ("refused late", "relegated"):
        rig.engine.submit(make_request("first", [1], ignore_eos=True, max_tokens=4))
        rig.engine.step()
    if end == "error":
        rig.executor.fails = lambda executed: RuntimeError("out of luck")
    stops = tuple(range(97)) if end == "stop" else ()
    try:
        size = 2000 if end == "refused at once" else 4
        rig.engine.submit(
            make_request("r", [2] * size, tenant=tenant, max_tokens=3, stop_token_ids=stops)
        )
    except (DeadlineError, ContextLengthError):
        assert end == "refused at once"
    if end == "abort":
        rig.engine.abort("r")
    run(rig, 2.0 if end in ("refused late", "relegated") else 0.01)
    for _ in range(3):
        assert not rig.engine.has_work
        assert rig.engine.idle_s is None
        rig.now_s += 5.0


def test_in_order_of_arrival_nobody_is_refused() -> None:
    config = make_config(num_pages=64, max_running=1)
    engine = msgspec.structs.replace(config.engine, scheduling_policy="fcfs")
    rig = Rig.build(msgspec.structs.replace(config, engine=engine))
    for name in ("a", "b"):
        rig.engine.submit(make_request(name, [1], tenant=promised("refuse", 1.0)))
    events = run(rig, 1.0)
    assert not [e for e in events if isinstance(e, RefusedEvent)]


def test_who_waits_for_a_load_that_does_not_end_is_told_in_time() -> None:
    rig = Rig.build(make_config(), instant=False)
    ref = make_ref("slow")
    rig.engine.submit(make_request("r", [2] * 4, tenant=promised("refuse"), adapter=ref))
    step(rig)
    assert not rig.engine.has_work
    idle_s = rig.engine.idle_s
    assert idle_s is not None
    assert 0.99 < idle_s < 0.996  # four tokens of rank 8
    rig.now_s += idle_s + 1e-4
    (refused,) = run(rig, 0.0)  # there is work now
    assert isinstance(refused, RefusedEvent)
    assert (rig.engine.has_work, rig.engine.idle_s) == (False, None)
    assert not rig.loader.in_flight  # nobody waits for it any more


def test_no_deadline_is_too_far_away_to_wait_for() -> None:
    rig = Rig.build(make_config(), instant=False)
    tenant = promised("refuse", 1e300)
    rig.engine.submit(make_request("r", [2], tenant=tenant, adapter=make_ref("slow")))
    step(rig)
    idle_s = rig.engine.idle_s
    assert idle_s is not None
    assert idle_s <= threading.TIMEOUT_MAX


def test_an_idle_loop_wakes_for_a_deadline() -> None:
    rig = Rig.build(make_config(), instant=False)
    come: list[Event] = []
    told = threading.Event()

    def take(events: list[Event]) -> None:
        come.extend(events)
        told.set()

    waits: list[float | None] = []
    loop = EngineLoop(rig.engine, take)
    wait = loop._wakeup.wait

    def advance(timeout: float | None = None) -> bool:
        waits.append(timeout)
        if timeout is not None:
            rig.now_s += timeout + 0.001
            return False
        return wait(timeout)

    loop._wakeup.wait = advance  # type: ignore[method-assign]
    loop.start()
    request = make_request("r", [2] * 4, tenant=promised("refuse"), adapter=make_ref("slow"))
    loop.submit(request).result(20)
    assert told.wait(20)
    loop.stop()
    assert [type(event) for event in come] == [RefusedEvent]
    assert any(0.98 < wait_s < 1.0 for wait_s in waits if wait_s is not None)


def test_kv_on_the_host_counts_as_little_as_it_takes_to_fetch() -> None:
    """A prompt whose prefix the device has given up is accepted where the host still has it."""
    prompt = [7] * 32

    def ask(host_pages: int) -> Rig:
        rig = Rig.build(make_config(num_pages=14, host_pages=host_pages))
        fix_step_time(rig, 0.001)
        tenant = promised("refuse", 25.0)
        for number, tokens in enumerate((prompt, [5] * 32, [6] * 32)):
            rig.engine.submit(
                make_request(f"w{number}", tokens, max_tokens=1, tenant=make_tenant("promised"))
            )
            run(rig)
        again = make_request("again", [*prompt, 8], tenant=tenant)
        rig.engine.submit(again)
        return rig

    with pytest.raises(DeadlineError):
        ask(host_pages=0)
    rig = ask(host_pages=64)
    (sequence,) = rig.engine._scheduler.queue.sequences()
    assert 1.0 <= sequence.service.work < 5.0
    (finished,) = [e for e in run(rig, 0.001) if isinstance(e, FinishEvent)]
    assert finished.usage.cached_tokens == 32


def _request(late: LateAction, ttft_s: float) -> GenerationRequest:
    return make_request("r", [1], tenant=promised(late, ttft_s * 1000))


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["refuse", "relegate", "best_effort"]),
            st.floats(0.01, 50),  # target
            st.floats(0, 1e4),  # work
            st.booleans(),  # whether it starts meanwhile
        ),
        max_size=150,
    ),
    st.lists(st.floats(0, 20), min_size=1, max_size=8),
)
def test_each_is_missed_once_and_when_it_is_due(
    asked: list[tuple[LateAction, float, float, bool]], waits_s: list[float]
) -> None:
    costs = CostModel(make_config())
    deadlines = Deadlines(costs)
    start_s = now_s = 1000.0
    waiting: dict[Sequence, float] = {}
    for late, ttft_s, work, starts in asked:
        sequence = Sequence(_request(late, ttft_s), 0, [1], num_prompt=1)
        sequence.arrival_s, sequence.service.work = now_s, work
        deadlines.watch(sequence)
        if starts:
            sequence.state = SequenceState.RUNNING
        elif late != "best_effort":
            waiting[sequence] = now_s + ttft_s - work * costs.token_s
    assert len(deadlines._heap) <= len(asked)
    for wait_s in waits_s:
        now_s += wait_s
        missed = deadlines.take_missed(now_s)
        assert set(missed) == {s for s, latest_s in waiting.items() if latest_s < now_s}
        assert len(set(missed)) == len(missed)
        for sequence in missed:
            del waiting[sequence]
        assert deadlines.next_s >= now_s >= start_s


def test_what_has_ended_is_not_kept_for_its_deadline() -> None:
    deadlines = Deadlines(CostModel(make_config()))
    for _ in range(10_000):
        sequence = Sequence(_request("refuse", 1e6), 0, [1], num_prompt=1)
        deadlines.watch(sequence)
        sequence.state = SequenceState.FINISHED
    assert len(deadlines._heap) < 200
