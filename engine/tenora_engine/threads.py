"""Which threads compute: the one that steps has all cores, nobody else has any.

OpenMP gives every thread that runs a parallel torch op a team of its own, and keeps it for as long
as the thread lives. Once all teams together outnumber the cores, libgomp no longer spins between
two ops but sleeps: on 2 cores, 16 streams fell from 500 to 290 tokens/s because the thread that had
loaded the model was still there. Knows nothing of engines."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

_default_threads = threading.Lock()


def call_in_ending_thread(call: Callable[[], T]) -> T:
    """The result of `call`, or what it raises, from a thread that ends, and its team with it."""
    with ThreadPoolExecutor(1, "tenora-once") as once:
        return once.submit(call).result()


def compute_alone() -> None:
    """From now on the calling thread runs torch ops by itself, without a team."""
    import torch  # here: an engine's transport runs without it

    with _default_threads:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        # torch has set the number for threads yet to come as well: put that back.
        call_in_ending_thread(lambda: torch.set_num_threads(threads))
