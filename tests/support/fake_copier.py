"""A PageCopier without threads, which a test lets finish, fail or be cancelled at any time."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from tenora_engine.executor.page_copier import PageCopy


class FakeCopier:
    """Copies end when the test says so (`finish`), or at once if `instant`; a cancelled one may
    have written some of its pages."""

    def __init__(self, device_pages: Tensor, instant: bool = True) -> None:
        self.instant = instant
        self.on_complete: Callable[[], None] | None = None
        self.in_flight: dict[PageCopy, None] = {}
        self.fail_next = False
        self.closed = False
        self._device = device_pages
        self._completed: list[PageCopy] = []

    def start(self, copy: PageCopy) -> None:
        self.in_flight[copy] = None
        if self.instant:
            self.finish(copy)

    def finish(self, copy: PageCopy) -> None:
        del self.in_flight[copy]
        copy.failed, self.fail_next = self.fail_next, False
        if not copy.failed:
            self._device[list(copy.targets)] = copy.host[list(copy.sources)]
        copy.seconds = 1e-6
        self._completed.append(copy)
        if self.on_complete is not None:
            self.on_complete()

    def cancel(self, copy: PageCopy) -> None:
        if self.in_flight.pop(copy, self) is None:
            self._device[copy.targets[0]] = copy.host[copy.sources[0]]

    def take_completed(self) -> list[PageCopy]:
        completed, self._completed = self._completed, []
        return completed

    def close(self) -> None:
        self.closed = True
