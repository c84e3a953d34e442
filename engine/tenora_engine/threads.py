"""Which threads compute: the one that steps has all cores, nobody else has any.

OpenMP gives every thread that runs a parallel torch op a team of its own, and keeps it for as long
as the thread lives. Once all teams together outnumber the cores, libgomp no longer spins between
two ops but sleeps: on 2 cores, 16 streams fell from 500 to 290 tokens/s because the thread that had
loaded the model was still there. Knows nothing of engines."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from tenora_engine.machine import Machine, this_machine

T = TypeVar("T")

_log = logging.getLogger("tenora_engine")

_default_threads = threading.Lock()


def call_in_ending_thread(call: Callable[[], T]) -> T:
    """The result of `call`, or what it raises, from a thread that ends, and its team with it."""
    with ThreadPoolExecutor(1, "tenora-once") as once:
        return once.submit(call).result()


def set_compute_threads(wanted: int | None) -> int:
    """From now on torch's ops and the compiled kernels' run on so many threads (see
    `compute_threads`), if the calling thread starts them or one that is yet to start; returns how
    many."""
    import torch

    machine = this_machine()
    threads = compute_threads(wanted, torch.get_num_threads(), machine)
    problem = too_many_threads(threads, machine.cpus)
    if problem is not None:
        _log.warning("%s (%s)", problem, machine.describe_cpus())
    torch.set_num_threads(threads)
    return threads


def compute_threads(wanted: int | None, torchs: int, machine: Machine) -> int:
    """As many as the operator says, else as `torchs` would be, which OMP_NUM_THREADS bounds, and
    no more than the process may use: 16 threads that share two cores' time made 5.8 steps a second,
    and two of them 75."""
    return wanted or min(torchs, machine.cpus)


def too_many_threads(threads: int, cpus: int) -> str | None:
    """What to tell an operator who wants more threads than there are processors for; else None."""
    if threads <= cpus:
        return None
    return (
        f"{threads} compute threads (TENORA_THREADS) share {cpus} CPUs; they wait for each "
        "other in every layer, so steps become many times slower. Lower TENORA_THREADS"
    )


def compute_alone() -> None:
    """From now on the calling thread runs torch ops by itself, without a team."""
    import torch  # here: an engine's transport runs without it

    with _default_threads:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        # torch has set the number for threads yet to come as well: put that back.
        call_in_ending_thread(lambda: torch.set_num_threads(threads))
