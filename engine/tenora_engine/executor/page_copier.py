"""PageCopier: copies pages from the host to the device beside the steps, in threads. It knows pages
by number, and neither what they hold nor for whom."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from time import perf_counter
from typing import Protocol

import torch
from torch import Tensor

from tenora_engine.pace import Pace
from tenora_engine.threads import compute_alone

_log = logging.getLogger(__name__)

_PAGES_AT_A_TIME = 4  # who cancels a copy waits for at most so many


@dataclass(eq=False)
class PageCopy:
    """Pages `sources` of `host` to device pages `targets`; `seconds` is what that took, rests left
    out. What is in the targets of one that `failed` is nobody's."""

    host: Tensor  # [host_pages, page_elements]
    sources: Sequence[int]
    targets: Sequence[int]
    seconds: float = 0.0
    cancelled: bool = False
    failed: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)


class PageCopier(Protocol):
    """Copies beside the steps. `on_complete` may be called from any thread, after the copy has
    become visible to `take_completed`."""

    on_complete: Callable[[], None] | None

    def start(self, copy: PageCopy) -> None: ...

    def cancel(self, copy: PageCopy) -> None:
        """When this returns, nothing is written to its targets any more."""
        ...

    def take_completed(self) -> list[PageCopy]: ...

    def close(self) -> None: ...


class MakeCopier(Protocol):
    """Makes one for the pages of an arena; it does `parallel` copies at a time, at `pace`."""

    def __call__(
        self, device_pages: Tensor, parallel: int = 1, pace: Pace | None = None
    ) -> PageCopier: ...


class ThreadPageCopier:
    """A thread for each copy at a time, first come, first served; on CUDA a stream of its own,
    which waits for what the steps had begun when the copy was asked for. There the link copies, not
    a core, so that nothing is paced. All methods are the step thread's."""

    def __init__(
        self,
        device_pages: Tensor,  # [num_pages, page_elements]
        parallel: int = 1,
        pace: Pace | None = None,
    ) -> None:
        self.on_complete: Callable[[], None] | None = None
        self._device = device_pages
        self._pace = None if device_pages.is_cuda else pace
        self._threads = ThreadPoolExecutor(
            parallel, "tenora-page-copier", initializer=compute_alone
        )
        self._completed: deque[PageCopy] = deque()
        self._stream: torch.cuda.Stream | None = None
        if device_pages.is_cuda:
            self._stream = torch.cuda.Stream(device_pages.device)  # type: ignore[no-untyped-call]

    def start(self, copy: PageCopy) -> None:
        begun = None
        if self._stream is not None:
            begun = torch.cuda.Event()  # type: ignore[no-untyped-call]
            begun.record()
        self._threads.submit(self._run, copy, begun)

    def cancel(self, copy: PageCopy) -> None:
        with copy.lock:
            copy.cancelled = True

    def take_completed(self) -> list[PageCopy]:
        copies = []
        while self._completed:
            copies.append(self._completed.popleft())
        return copies

    def close(self) -> None:
        """Copies not yet begun are dropped, those under way are finished."""
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _run(self, copy: PageCopy, begun: torch.cuda.Event | None) -> None:
        try:
            self._copy_all(copy, begun)
        except Exception:  # who waits for it must not wait for ever
            _log.exception("a copy of %d pages failed", len(copy.targets))
            copy.failed = True
        if copy.cancelled:
            return
        self._completed.append(copy)
        if self.on_complete is not None:
            self.on_complete()

    def _copy_all(self, copy: PageCopy, begun: torch.cuda.Event | None) -> None:
        if self._stream is not None and begun is not None:
            self._stream.wait_event(begun)
        if self._pace is not None:
            self._pace.begin(len(copy.targets) * self._device[0].nbytes)
        for first in range(0, len(copy.targets), _PAGES_AT_A_TIME):
            with copy.lock:
                if copy.cancelled:
                    return
                started = perf_counter()
                self._copy(copy, slice(first, first + _PAGES_AT_A_TIME))
                copy.seconds += perf_counter() - started
            if self._pace is not None:
                self._pace.rest()

    def _copy(self, copy: PageCopy, part: slice) -> None:
        pairs = zip(copy.sources[part], copy.targets[part], strict=True)
        if self._stream is None:
            for source, target in pairs:
                self._device[target].copy_(copy.host[source])
            return
        with torch.cuda.stream(self._stream):
            for source, target in pairs:
                self._device[target].copy_(copy.host[source], non_blocking=True)
        self._stream.synchronize()
