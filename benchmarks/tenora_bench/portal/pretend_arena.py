"""A pretend engine with a big page arena that is always in motion, for the memory map: thousands of
pages in short runs of many tenants. The engine process serves it as it serves the real one."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import cast

from tenora_bench.api.pretend_engine import PretendEngine
from tenora_engine.config import EngineConfig, ResolvedConfig
from tenora_engine.engine import Engine
from tenora_engine.events import Residency
from tenora_engine.model.loader import read_model_info
from tenora_engine.pages import KINDS, ArenaPages, PageOwner, Pin, PinState
from tenora_engine.text.processor import TextProcessor

FACTORY = "tenora_bench.portal.pretend_arena:build"
PAGES = 8192
_TENANTS = 24
_RUN_MAX = 8  # pages of equal neighbours
_MOVED = 0.05  # of the runs, from one look to the next
_BASE = "BASE"


@dataclass(frozen=True)
class Snapshot:
    """As `tenora_engine.engine.PagesSnapshot`."""

    found: ArenaPages

    def describe(self) -> ArenaPages:
        return self.found


class ArenaEngine(PretendEngine):
    def __init__(self, config: ResolvedConfig, text: TextProcessor) -> None:
        super().__init__(config, text)
        self._chance = random.Random(0)
        self._owners = [
            PageOwner("", ""),
            *(PageOwner(f"tenant-{number:02}", _BASE) for number in range(_TENANTS)),
        ]
        self._arena: list[tuple[int, int, int, int]] = []
        while (left := PAGES - sum(run[0] for run in self._arena)) > 0:
            self._arena.append(self._run(min(left, self._chance.randint(1, _RUN_MAX))))

    def _run(self, pages: int) -> tuple[int, int, int, int]:
        kind = self._chance.randrange(3)  # free, live, cached
        owner = self._chance.randint(1, _TENANTS) if kind else 0
        since = int(time.time() - self._chance.uniform(0, 600)) if kind == 2 else 0
        return pages, kind, owner, since

    def pages(self, namespace: str) -> Snapshot:
        """Some of it has changed hands since the last look."""
        for place in self._chance.sample(range(len(self._arena)), int(_MOVED * len(self._arena))):
            self._arena[place] = self._run(self._arena[place][0])
        runs, at_s = list(self._arena), time.time()
        kinds = [sum(run[0] for run in runs if run[1] == kind) for kind in range(len(KINDS))]
        found = ArenaPages(
            at_s=at_s,
            policy="joint",
            total_pages=PAGES,
            page_bytes=self.config.page_bytes,
            kinds=kinds,
            runs=[number for run in runs for number in run],
            owners=self._owners,
            partitions=[],
            adapters=[],
            host=[],
            departures=[],
            departures_for=namespace,
            pins=[],
            pinned_pages=0,
            pinnable_pages=PAGES // 4,
            slots=64,
        )
        return Snapshot(found)

    def residencies(self, digests: Sequence[str]) -> Future[dict[str, Residency]]:
        """Every fourth is on the device."""
        found: Future[dict[str, Residency]] = Future()
        found.set_result(
            {each: "device" if number % 4 == 0 else "store" for number, each in enumerate(digests)}
        )
        return found

    def set_pins(self, pins: Sequence[Pin]) -> list[PinState]:
        """There are none."""
        return []


def build(config: EngineConfig) -> Engine:
    """The engine factory: of the model it reads the config and the tokenizer only."""
    resolved = ResolvedConfig(
        engine=config,
        model=read_model_info(config),
        page_elements=64,
        page_bytes=65536,
        num_pages=PAGES,
        workspace_bytes=0,
    )
    return cast(Engine, ArenaEngine(resolved, TextProcessor(config.model)))
