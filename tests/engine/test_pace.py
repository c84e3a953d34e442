"""Large work beside the steps keeps to its share while steps run; small work, and any while none
do, is done at once."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenora_engine.pace import LINGER_S, QUICK_BYTES, Pace


class Clocks:
    """One thread that works, sleeps, and knows the time."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.worked_s = 0.0
        self.slept_s = 0.0
        self.pace = Pace(lambda: self.now_s, lambda: self.worked_s, self.sleep)

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self.slept_s += seconds

    def work(self, seconds: float) -> None:
        self.now_s += seconds
        self.worked_s += seconds
        self.pace.rest()


def test_nobody_rests_while_nothing_steps() -> None:
    clocks = Clocks()
    clocks.pace.begin(100 * QUICK_BYTES)
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
    clocks.pace.begin(2 * QUICK_BYTES)
    clocks.work(LINGER_S / 2)
    assert clocks.slept_s == pytest.approx(LINGER_S / 2)


@given(st.integers(0, 100 * QUICK_BYTES), st.lists(st.floats(1e-5, 2e-3), min_size=1))
def test_work_keeps_to_its_share(num_bytes: int, pieces: list[float]) -> None:
    clocks = Clocks()
    clocks.worked_s = 5.0  # before it begins
    clocks.pace.begin_step()
    clocks.pace.begin(num_bytes)
    for piece in pieces:
        clocks.work(piece)
    whole_s = clocks.slept_s + sum(pieces)
    share = 1.0 if num_bytes <= QUICK_BYTES else QUICK_BYTES / num_bytes
    assert sum(pieces) == pytest.approx(share * whole_s)


def test_threads_do_not_count_for_one_another() -> None:
    clocks = Clocks()
    clocks.pace.begin_step()
    clocks.pace.begin(10 * QUICK_BYTES)

    def small_work() -> None:
        clocks.pace.begin(1)
        clocks.work(1.0)

    thread = threading.Thread(target=small_work)
    thread.start()
    thread.join()
    assert clocks.slept_s == 0.0
