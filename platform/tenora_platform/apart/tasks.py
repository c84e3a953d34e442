"""What runs in processes apart: work on what users wrote that a library does while it keeps
Python's lock, or that may take any time and memory. Each task has bounds of its own."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Task:
    """`module` has `answer(question: bytes) -> bytes`, which may do anything, and `warm_up()`,
    after which it imports nothing and opens no file any more."""

    module: str
    memory_bytes: int  # of address space; a process takes some 60 MiB of it
    cpu_s: int  # of its processor time
    wall_s: float  # that its asker waits, on a busy machine
    nice: int = 0  # how far it stands behind others


TEMPLATE = Task("tenora_platform.templates.process", 512 * 1024**2, cpu_s=1, wall_s=5.0)
SCORING = Task("tenora_platform.evaluations.apart", 512 * 1024**2, cpu_s=2, wall_s=20.0, nice=10)
TASKS = (TEMPLATE, SCORING)
