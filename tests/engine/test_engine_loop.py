"""The engine on its thread: commands from others, events back, waking, and stopping."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable

import pytest
import torch

from engine_fakes import VOCAB, Rig, make_config, make_ref, make_request
from tenora_engine.engine import FAILED_STEPS_MAX, Engine
from tenora_engine.errors import EngineFailedError, EngineUnavailableError, InvalidRequestError
from tenora_engine.events import Event, FinishEvent, TokenEvent
from tenora_engine.loop import COMMANDS_PART, COMMANDS_S, EngineLoop
from tenora_engine.step import StepResult

PATIENCE_S = 20.0  # only a hang takes as long


class Sink:
    """Collects what a loop hands out."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.failure: list[BaseException | None] = []
        self._changed = threading.Condition()

    def take(self, events: list[Event]) -> None:
        with self._changed:
            self.events += events
            self._changed.notify_all()

    def stopped(self, failure: BaseException | None) -> None:
        self.failure.append(failure)

    def wait_for_finishes(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.finishes() >= count, PATIENCE_S)

    def finishes(self) -> int:
        return sum(isinstance(event, FinishEvent) for event in self.events)


def start(rig: Rig) -> tuple[EngineLoop, Sink]:
    sink = Sink()
    loop = EngineLoop(rig.engine, sink.take, sink.stopped)
    loop.start()
    return loop, sink


def test_requests_from_many_threads_all_end_once() -> None:
    rig = Rig.build(make_config(max_waiting=1000))
    loop, sink = start(rig)

    def send(number: int) -> None:
        for i in range(10):
            name = f"{number}-{i}"
            loop.submit(make_request(name, [number, i], max_tokens=4)).result(PATIENCE_S)
            if i % 3 == 0:
                loop.abort(name)

    threads = [threading.Thread(target=send, args=(number,)) for number in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    sink.wait_for_finishes(50)
    stats = loop.stats().result(PATIENCE_S)
    assert (stats.running, stats.waiting) == (0, 0)
    loop.call(lambda engine: engine.check_integrity()).result(PATIENCE_S)
    loop.stop()
    assert sink.finishes() == 50
    assert sink.failure == [None]
    assert rig.loader.closed
    assert not loop.alive


def test_errors_come_back_through_the_future() -> None:
    loop, _ = start(Rig.build(make_config()))
    with pytest.raises(InvalidRequestError):
        loop.submit(make_request("r", [])).result(PATIENCE_S)
    loop.stop()


def test_an_idle_loop_wakes_when_a_load_ends() -> None:
    rig = Rig.build(make_config(), instant=False)
    loop, sink = start(rig)
    ref = make_ref("x")
    loop.submit(make_request("r", [1], adapter=ref)).result(PATIENCE_S)
    assert loop.residency(ref).result(PATIENCE_S) == "host"
    steps = loop.stats().result(PATIENCE_S).counters["steps"]
    assert steps == 0
    rig.loader.finish(ref.digest)  # from this thread, as a loader's thread would
    sink.wait_for_finishes(1)
    loop.forget_adapter("ns-t0", ref.digest).result(PATIENCE_S)
    assert rig.loader.forgotten == [ref.digest]
    loop.stop()


def test_a_stopped_loop_refuses_commands() -> None:
    loop, sink = start(Rig.build(make_config()))
    loop.stop()
    loop.stop()
    with pytest.raises(EngineUnavailableError):
        loop.stats()
    assert sink.failure == [None]


def test_what_kills_the_loop_is_told_and_later_commands_fail() -> None:
    rig = Rig.build(make_config())
    loop, sink = start(rig)
    hold = threading.Event()
    blocked = loop.call(lambda engine: hold.wait(PATIENCE_S))
    rig.memory.cache_blocks = None  # type: ignore[assignment,method-assign]  # breaks every commit
    submitted = loop.submit(make_request("r", [1] * 6))
    hold.set()
    assert blocked.result(PATIENCE_S)
    submitted.result(PATIENCE_S)
    loop._thread.join(PATIENCE_S)
    assert isinstance(sink.failure[0], TypeError)
    with pytest.raises(EngineUnavailableError):
        loop.stats()
    assert rig.loader.closed


def break_commits(rig: Rig) -> None:
    rig.memory.cache_blocks = None  # type: ignore[assignment,method-assign]


def break_plans(rig: Rig) -> None:
    rig.engine._scheduler._grow = None  # type: ignore[assignment,method-assign]


def lose_the_device(rig: Rig) -> None:
    """As torch says it, for every call from now on."""

    def run(executed: object) -> StepResult | None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    rig.executor.run = run  # type: ignore[method-assign]


@pytest.mark.parametrize("fault", [break_commits, break_plans, lose_the_device])
def test_when_the_loop_dies_everything_in_flight_ends_with_its_usage(
    fault: Callable[[Rig], None],
) -> None:
    """What runs, what waits, what is held for its sibling and what waits for its adapter."""
    rig = Rig.build(make_config(max_running=2), instant=False)
    loop, sink = start(rig)
    running = make_request("running", [1, 2], ignore_eos=True, max_tokens=50)
    hold, held = threading.Event(), threading.Event()

    def take_and_hold(events: list[Event]) -> None:
        sink.take(events)
        if sum(isinstance(e, TokenEvent) for e in sink.events) == 5:
            held.set()
            hold.wait(PATIENCE_S)

    loop._on_events = take_and_hold
    loop.submit(running).result(PATIENCE_S)
    assert held.wait(PATIENCE_S)
    futures = [
        loop.submit(make_request("several", [3] * 9, n=3)),
        loop.submit(make_request("loads", [4], adapter=make_ref("x"))),
    ]
    fault(rig)
    hold.set()
    for future in futures:
        future.result(PATIENCE_S)
    loop._thread.join(PATIENCE_S)
    assert sink.failure[0] is not None
    ends = [event for event in sink.events if isinstance(event, FinishEvent)]
    names = [event.usage.event_id for event in ends]
    assert sorted(names) == ["loads:0", "running:0", "several:0", "several:1", "several:2"]
    assert {event.reason for event in ends} == {"error"}
    tokens = sum(len(e.token_ids) for e in sink.events if isinstance(e, TokenEvent))
    by_name = {event.usage.event_id: event.usage for event in ends}
    assert tokens >= 5
    assert {(each.prompt_tokens, each.output_tokens) for each in by_name.values()} == {(0, 0)}, (
        "nobody is charged for what the engine broke off"
    )


def test_what_is_in_flight_when_the_loop_is_stopped_is_metered() -> None:
    rig = Rig.build(make_config(), instant=False)
    loop, sink = start(rig)
    loop.submit(make_request("waits", [1], adapter=make_ref("x"))).result(PATIENCE_S)
    loop.stop()
    (end,) = [event for event in sink.events if isinstance(event, FinishEvent)]
    assert (end.reason, end.usage.prompt_tokens) == ("abort", 0)
    assert sink.failure == [None]


def test_a_step_that_fails_is_its_sequences_own_a_row_of_them_is_the_engines() -> None:
    rig = Rig.build(make_config())
    rig.executor.fails = lambda executed: RuntimeError("out of luck")
    for number in range(FAILED_STEPS_MAX - 1):
        rig.engine.submit(make_request(f"bad-{number}", [1]))
        (end,) = rig.engine.step()
        assert isinstance(end, FinishEvent)
        assert end.reason == "error"
    rig.executor.fails = lambda executed: None
    rig.engine.submit(make_request("good", [1], max_tokens=2, ignore_eos=True))
    while rig.engine.has_work:
        rig.engine.step()
    rig.executor.fails = lambda executed: RuntimeError("out of luck")
    for number in range(FAILED_STEPS_MAX):
        rig.engine.submit(make_request(f"worse-{number}", [1]))
        if number < FAILED_STEPS_MAX - 1:
            rig.engine.step()
    with pytest.raises(EngineFailedError, match="8 steps in a row failed, the last with Runtime"):
        rig.engine.step()
    (last,) = rig.engine.abandon(None)
    assert last.request_id == "worse-7"


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (torch.AcceleratorError("an illegal memory access was encountered"), True),
        (RuntimeError("CUDA error: unspecified launch failure"), True),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 MiB"), False),
        (ValueError("CUDA is not what this is about"), False),
    ],
)
def test_an_error_of_the_device_is_the_engines_at_once(error: Exception, lost: bool) -> None:
    rig = Rig.build(make_config())
    rig.executor.fails = lambda executed: error
    rig.engine.submit(make_request("r", [1]))
    if lost:
        with pytest.raises(EngineFailedError, match="must be restarted"):
            rig.engine.step()
        (end,) = rig.engine.abandon(None)
    else:
        (end,) = rig.engine.step()
    assert isinstance(end, FinishEvent)
    assert end.reason == "error"


def test_a_refused_request_leaves_nothing_to_the_garbage_collector() -> None:
    """It may hold a long prompt."""
    loop, _ = start(Rig.build(make_config()))
    gc.disable()
    try:
        refused = loop.submit(make_request("r", [])).exception(PATIENCE_S)
        loop.stats().result(PATIENCE_S)  # the loop has turned to something else
        assert isinstance(refused, InvalidRequestError)
        error = weakref.ref(refused)
        del refused
        assert error() is None
    finally:
        gc.enable()
        loop.stop()


def test_commands_that_take_long_are_bounded_by_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a flood of long ones only so many come before each step as fit COMMANDS_S."""
    rig = Rig.build(make_config())
    sink, now_s = Sink(), [0.0]
    monkeypatch.setattr("tenora_engine.loop.steady", lambda: now_s[0])
    loop = EngineLoop(rig.engine, sink.take, sink.stopped)
    loop.submit(make_request("a", [1, 2], max_tokens=6, ignore_eos=True))

    def long_command(_: Engine) -> int:
        now_s[0] += 0.7 * COMMANDS_S
        return len(sink.events)

    seen = [loop.call(long_command) for _ in range(8)]
    loop.start()
    sink.wait_for_finishes(1)
    counts = [future.result(PATIENCE_S) for future in seen]
    loop.stop()
    assert max(counts.count(each) for each in counts if each < counts[-1]) <= 2


def test_beside_a_long_step_commands_have_a_part_of_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """10 ms between steps of a second each kept what forgets waiting for seconds."""
    rig = Rig.build(make_config())
    sink, now_s = Sink(), [0.0]
    monkeypatch.setattr("tenora_engine.loop.steady", lambda: now_s[0])
    step = rig.engine.step

    def long_step() -> list[Event]:
        now_s[0] += 9.5 * COMMANDS_PART * COMMANDS_S
        return step()

    def command(_: Engine) -> int:
        now_s[0] += COMMANDS_S
        return len(sink.events)

    monkeypatch.setattr(rig.engine, "step", long_step)
    loop = EngineLoop(rig.engine, sink.take, sink.stopped)
    loop.submit(make_request("a", [1, 2], max_tokens=6, ignore_eos=True))
    seen = [loop.call(command) for _ in range(30)]
    loop.start()
    sink.wait_for_finishes(1)
    counts = [future.result(PATIENCE_S) for future in seen]
    loop.stop()
    assert [counts.count(each) for each in sorted(set(counts))[1:3]] == [10, 10]


def test_a_prompt_is_looked_at_by_the_thread_that_brings_it() -> None:
    """Not between steps: the loop has not been started."""
    rig = Rig.build(make_config())
    loop = EngineLoop(rig.engine, lambda events: None)
    refused = loop.submit(make_request("r", [1, VOCAB])).exception(0)
    assert isinstance(refused, InvalidRequestError)
    assert refused.param == "prompt"
