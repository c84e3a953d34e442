"""The pretend engine, in which some adapters are bad: those of rank FAILS end every request with an
error, those of rank SLOW have their first token later. The engine process's factory is `build`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import cast

import msgspec

from tenora_bench.api.pretend_engine import PretendEngine
from tenora_engine.config import EngineConfig, ResolvedConfig
from tenora_engine.engine import Engine
from tenora_engine.events import Event, FinishEvent
from tenora_engine.grammar.guide import Guide
from tenora_engine.model.loader import read_model_info
from tenora_engine.request import GenerationRequest
from tenora_engine.text.processor import TextProcessor

FAILS, SLOW, GOOD = 4, 2, 8
SLOW_S = 0.25


class BadEngine(PretendEngine):
    """See the module."""

    def submit(
        self,
        request: GenerationRequest,
        guides: Sequence[Guide] | None = None,
        prepared: bytes = b"",
    ) -> None:
        super().submit(request, guides, prepared)
        rank = request.adapter.rank if request.adapter else None
        for index in range(request.sampling.n):
            sequence = self._running[request.request_id, index]
            if rank == FAILS:
                self._end(sequence, "error")
                ended = cast(FinishEvent, self._ended.pop())
                self._ended.append(_failed(ended))
            elif rank == SLOW:
                sequence.due_ns = time.monotonic_ns() + int(SLOW_S * 1e9)


def _failed(ended: FinishEvent) -> Event:
    return msgspec.structs.replace(ended, error="this adapter is bad")


def build(config: EngineConfig) -> Engine:
    """The engine factory."""
    resolved = ResolvedConfig(
        engine=config,
        model=read_model_info(config),
        page_elements=64,
        page_bytes=256,
        num_pages=1,
        workspace_bytes=0,
    )
    return cast(Engine, BadEngine(resolved, TextProcessor(config.model)))
