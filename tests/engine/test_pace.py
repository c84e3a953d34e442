"""Work beside the steps keeps to its share while steps run, and to nothing while none do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenora_engine.pace import BURST_S, LINGER_S, SHARE, Pace


class Clocks:
    """One thread that works, sleeps, and knows the time."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.worked_s = 0.0
        self.slept_s = 0.0
        self.pace = Pace(lambda: self.now_s, lambda: self.worked_s, self.sleep)
        self.pace.begin()

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self.slept_s += seconds

    def work(self, seconds: float) -> None:
        self.now_s += seconds
        self.worked_s += seconds
        self.pace.rest()


def test_nobody_rests_while_nothing_steps() -> None:
    clocks = Clocks()
    clocks.work(1.0)
    clocks.pace.begin_step()
    clocks.pace.end_step()
    clocks.now_s += 2 * LINGER_S
    clocks.work(1.0)
    assert clocks.slept_s == 0.0


def test_between_two_steps_it_rests_as_in_them() -> None:
    clocks = Clocks()
    clocks.pace.begin_step()
    clocks.pace.end_step()
    clocks.work(LINGER_S / 2)
    assert clocks.slept_s > 0.0


def test_a_little_work_does_not_rest() -> None:
    clocks = Clocks()
    clocks.pace.begin_step()
    clocks.work(BURST_S / 2)
    clocks.work(BURST_S / 2)
    assert clocks.slept_s == 0.0


def test_what_was_done_before_is_not_counted() -> None:
    clocks = Clocks()
    clocks.pace.begin_step()
    clocks.worked_s += 5.0
    clocks.pace.begin()
    clocks.work(BURST_S)
    assert clocks.slept_s == 0.0


@given(st.lists(st.floats(1e-5, 2e-3), min_size=1, max_size=200))
def test_work_keeps_to_its_share(pieces: list[float]) -> None:
    clocks = Clocks()
    clocks.pace.begin_step()
    begun_s = clocks.now_s
    for piece in pieces:
        clocks.work(piece)
    worked_s = sum(pieces)
    assert worked_s <= BURST_S + SHARE * (clocks.now_s - begun_s) + 1e-9
    assert clocks.slept_s <= worked_s / SHARE  # and no longer than it must


def test_threads_share_it() -> None:
    clocks = Clocks()
    clocks.pace.begin_step()
    clocks.work(BURST_S)
    assert clocks.slept_s == 0.0
    clocks.pace._thread = type(clocks.pace._thread)()  # another thread comes
    clocks.pace.begin()
    clocks.work(BURST_S)
    assert clocks.slept_s == pytest.approx(BURST_S / SHARE - BURST_S, rel=0.2)
