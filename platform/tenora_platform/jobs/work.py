"""What a kind of job does: steps, each short and done in full or not at all, so that whoever takes
the job over goes on where the last step ended."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tenora_platform.operators.roles import Role

Place = Mapping[str, Any]
"""Where a job goes on, as JSON."""


@dataclass(frozen=True)
class Step:
    """What one step did. `place` None: the job is through. `result` is that of the whole job so
    far."""

    place: Place | None
    done: int  # of all that is to be looked at, so far
    total: int | None  # None: not known
    result: Mapping[str, Any]


@dataclass(frozen=True)
class Asked:
    """A job as a step is given it."""

    spec: Mapping[str, Any]
    asked_by: str
    place: Place | None  # None: at the beginning
    done: int
    total: int | None
    result: Mapping[str, Any]


Work = Callable[[Asked], Awaitable[Step]]
"""Raises ApiError where the job cannot be done: it has failed then. Of UnavailableError, and of
anything else, it is tried again."""


@dataclass(frozen=True)
class Kind:
    """`name` is that of its rows. One of `roles`, or an owner's, has to be that of who asked for as
    long as the job runs."""

    name: str
    roles: tuple[Role, ...]
    work: Work
