"""PageCopier: copies KV pages from the host to the device beside the steps, in a thread. It knows
pages by number, and neither what they hold nor for whom."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from tenora_engine.threads import compute_alone

_PAGES_AT_A_TIME = 4  # who cancels a copy waits for at most so many


@dataclass(eq=False)
class PageCopy:
    """Host pages `sources` to device pages `targets`; `seconds` is what it took, once begun."""

    sources: Sequence[int]
    targets: Sequence[int]
    seconds: float = 0.0
    cancelled: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)


class PageCopier(Protocol):
    """Copies one after another. `on_complete` may be called from any thread, after the copy has
    become visible to `take_completed`."""

    on_complete: Callable[[], None] | None

    def start(self, copy: PageCopy) -> None: ...

    def cancel(self, copy: PageCopy) -> None:
        """When this returns, nothing is written to its targets any more."""
        ...

    def take_completed(self) -> list[PageCopy]: ...

    def close(self) -> None: ...


class ThreadPageCopier:
    """One thread; on CUDA a stream of its own, which waits for what the steps had begun when the
    copy was asked for. All methods are the step thread's."""

    def __init__(
        self,
        host_pages: Tensor,  # [host_pages, page_elements]
        device_pages: Tensor,  # [num_pages, page_elements]
    ) -> None:
        self.on_complete: Callable[[], None] | None = None
        self._host = host_pages
        self._device = device_pages
        self._thread = ThreadPoolExecutor(1, "tenora-kv-copier", initializer=compute_alone)
        self._completed: deque[PageCopy] = deque()
        self._stream: torch.cuda.Stream | None = None
        if device_pages.is_cuda:
            self._stream = torch.cuda.Stream(device_pages.device)  # type: ignore[no-untyped-call]

    def start(self, copy: PageCopy) -> None:
        begun = None
        if self._stream is not None:
            begun = torch.cuda.Event()  # type: ignore[no-untyped-call]
            begun.record()
        self._thread.submit(self._run, copy, begun)

    def cancel(self, copy: PageCopy) -> None:
        with copy.lock:
            copy.cancelled = True

    def take_completed(self) -> list[PageCopy]:
        copies = []
        while self._completed:
            copies.append(self._completed.popleft())
        return copies

    def close(self) -> None:
        """Copies not yet begun are dropped, the one under way is finished."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _run(self, copy: PageCopy, begun: torch.cuda.Event | None) -> None:
        started = time.perf_counter()
        if self._stream is not None and begun is not None:
            self._stream.wait_event(begun)
        for first in range(0, len(copy.targets), _PAGES_AT_A_TIME):
            with copy.lock:
                if copy.cancelled:
                    return
                self._copy(copy, slice(first, first + _PAGES_AT_A_TIME))
        copy.seconds = time.perf_counter() - started
        self._completed.append(copy)
        if self.on_complete is not None:
            self.on_complete()

    def _copy(self, copy: PageCopy, part: slice) -> None:
        pairs = zip(copy.sources[part], copy.targets[part], strict=True)
        if self._stream is None:
            for source, target in pairs:
                self._device[target].copy_(self._host[source])
            return
        with torch.cuda.stream(self._stream):
            for source, target in pairs:
                self._device[target].copy_(self._host[source], non_blocking=True)
        self._stream.synchronize()
