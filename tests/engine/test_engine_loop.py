"""The engine on its thread: commands from others, events back, waking, and stopping."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest

from engine_fakes import Rig, make_config, make_ref, make_request
from tenora_engine.errors import EngineUnavailableError, InvalidRequestError
from tenora_engine.events import Event, FinishEvent
from tenora_engine.loop import EngineLoop

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
