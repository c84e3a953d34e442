"""What could not be removed from the object store: set aside and tried again later, so that the
rest goes on. Kept in memory, for a new process may try all of it again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import structlog

from tenora_platform.outages import first_line

FIRST_RETRY_S, RETRY_MAX_S = 60.0, 3600.0
_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Failed:
    delay_s: float
    again_s: float


class SetAside:
    """By key, such as a version's id."""

    def __init__(self, *, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._failed: dict[str, _Failed] = {}

    def __len__(self) -> int:
        """Of those that are still there: one that somebody else removed is not tried again."""
        gone_s = self._clock_s() - RETRY_MAX_S
        for key in [key for key, each in self._failed.items() if each.again_s < gone_s]:
            del self._failed[key]
        return len(self._failed)

    def waiting(self) -> list[str]:
        """The keys that are not to be tried yet."""
        now_s = self._clock_s()
        return [key for key, each in self._failed.items() if each.again_s > now_s]

    @contextmanager
    def trying(self, key: str) -> Iterator[None]:
        """An error of the block sets the key aside. The first is logged; later ones wait longer."""
        try:
            yield
        except Exception as error:
            before = self._failed.get(key)
            delay_s = min(2 * before.delay_s, RETRY_MAX_S) if before else FIRST_RETRY_S
            self._failed[key] = _Failed(delay_s, self._clock_s() + delay_s)
            if before is None:
                reason = f"{type(error).__name__}: {first_line(error)}"
                _log.error("not removed from the object store", what=key, reason=reason)
        else:
            self._failed.pop(key, None)
