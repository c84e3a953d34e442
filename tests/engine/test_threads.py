"""Who computes with how many threads."""

from __future__ import annotations

import threading

import pytest
import torch

from tenora_engine.threads import call_in_ending_thread, compute_alone


def threads_of_a_new_thread() -> int:
    return call_in_ending_thread(torch.get_num_threads)


def test_one_thread_computes_alone_and_no_other() -> None:
    before, others = torch.get_num_threads(), threads_of_a_new_thread()

    def alone() -> int:
        compute_alone()
        return torch.get_num_threads()

    assert call_in_ending_thread(alone) == 1
    assert torch.get_num_threads() == before
    assert threads_of_a_new_thread() == others


def test_the_thread_has_ended_and_errors_come_through() -> None:
    ran_on = call_in_ending_thread(threading.current_thread)
    assert ran_on is not threading.current_thread()
    assert not ran_on.is_alive()

    def fail() -> None:
        raise ValueError("from within")

    with pytest.raises(ValueError, match="from within"):
        call_in_ending_thread(fail)
