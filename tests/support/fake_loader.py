"""A loader for engine tests, whose packed adapters say by their numbers whose they are."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future

import torch

from tenora_engine.adapters.loader import LoadResult
from tenora_engine.adapters.occupancy import Occupied
from tenora_engine.adapters.packed import PackedAdapter
from tenora_engine.config import LORA_MODULES, ResolvedConfig
from tenora_engine.errors import AdapterLoadError
from tenora_engine.events import AdapterResidency, Residency
from tenora_engine.request import AdapterRef

_TAG_VALUES = 1 << 20  # exact in float32


def tag(text: str) -> int:
    """A small number that stands for a text."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") % _TAG_VALUES


def pack(config: ResolvedConfig, ref: AdapterRef) -> PackedAdapter:
    """An adapter whose every granule is two elements: its tag, twice. Five granules a page."""
    per_page = 5
    num_pages = -(-ref.rank // per_page)
    rows = torch.arange(ref.rank, dtype=torch.int32)
    ones = torch.ones((1, len(LORA_MODULES)), dtype=torch.int32)
    return PackedAdapter(
        digest=ref.digest,
        layout_key="fake",
        pages=torch.full((num_pages, config.page_elements), float(tag(ref.digest))),
        granule_page=(rows // per_page).unsqueeze(0),
        granule_start=(rows % per_page * 2).unsqueeze(0),
        rank=ones * ref.rank,
        a_offset=ones * 0,
        b_offset=ones,
        scale=ones.float(),
    )


class FakeLoader:
    """Loads end when the test says so (`finish`), or at once if `instant`."""

    def __init__(self, config: ResolvedConfig, instant: bool = True) -> None:
        self.config = config
        self.instant = instant
        self.on_complete: Callable[[], None] | None = None
        self.in_flight: dict[str, AdapterRef] = {}
        self.started: list[str] = []
        self.forgotten: list[str] = []
        self.uses: list[str] = []
        self.moved: set[str] = set()  # to be told of
        self.tiers: dict[str, Residency] = {}  # of what the host has not
        self.bad: set[str] = set()  # digests that cannot be loaded
        self.begun: set[str] = set()  # and those that cannot be cancelled
        self.closed = False
        self.shared_prefix = ""
        self._completed: list[LoadResult] = []

    def start(self, ref: AdapterRef, tenant_key: str = "") -> None:
        if ref.digest in self.in_flight:
            return
        self.started.append(ref.digest)
        self.in_flight[ref.digest] = ref
        if self.instant:
            self.finish(ref.digest)

    def finish(self, digest: str) -> None:
        ref = self.in_flight.pop(digest)
        error = AdapterLoadError(f"{digest} is broken") if digest in self.bad else None
        packed = pack(self.config, ref) if error is None else None
        self._completed.append(LoadResult(ref, packed, error, "store", 5.0))
        if self.on_complete is not None:
            self.on_complete()

    def cancel(self, digest: str) -> bool:
        if digest in self.begun:
            return False
        return self.in_flight.pop(digest, None) is not None

    def used(self, digest: str, tenant_key: str) -> None:
        self.uses.append(digest)

    def take_occupancy(self) -> Occupied:
        return {}

    def take_completed(self) -> list[LoadResult]:
        completed, self._completed = self._completed, []
        return completed

    def residency(self, ref: AdapterRef) -> Residency:
        return self.tier(ref.digest)

    def tier(self, digest: str) -> Residency:
        return self.tiers.get(digest, "host" if digest in self.started else "store")

    def take_moved(self) -> set[str]:
        moved, self.moved = self.moved, set()
        return moved

    def find(
        self, digests: Iterable[str], on_device: Collection[str]
    ) -> Future[dict[str, Residency]]:
        found: Future[dict[str, Residency]] = Future()
        below = {digest: self.residency(AdapterRef(digest, 1)) for digest in digests}
        found.set_result({d: "device" if d in on_device else tier for d, tier in below.items()})
        return found

    def residencies(self) -> list[AdapterResidency]:
        return []

    def forget(self, digest: str) -> None:
        self.forgotten.append(digest)

    def counters(self) -> dict[str, float]:
        return {"starts": float(len(self.started))}

    def close(self) -> None:
        self.closed = True
