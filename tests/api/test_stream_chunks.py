"""Chunks of a fixed number of tokens: the same ones however the engine's steps cut an answer, and
of the same text as without."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fake_engine import FakeEngine
from tenora_engine.events import FinishEvent, SequenceEvent, TokenEvent, TokenLogprob
from tenora_engine.request import GenerationRequest, SamplingParams, Tenant
from tenora_platform.inference.generation import Piece, Run
from tenora_platform.inference.parameters import Generation

TEXT = "Grüße an alle! Und so weiter, STOP nicht mehr."


class Burst(FakeEngine):
    """Answers in events of so many tokens."""

    def __init__(self, folder: Path, burst: int) -> None:
        super().__init__(folder)
        self.answer = lambda request, index: TEXT
        self._burst = burst

    async def submit(self, request: GenerationRequest) -> AsyncIterator[SequenceEvent]:
        token_ids: list[int] = []
        logprobs: list[TokenLogprob] = []
        async for event in super().submit(request):
            if isinstance(event, TokenEvent):
                token_ids += event.token_ids
                logprobs += event.logprobs or []
            if token_ids and (len(token_ids) == self._burst or isinstance(event, FinishEvent)):
                yield TokenEvent(request.request_id, 0, token_ids, logprobs)
                token_ids, logprobs = [], []
            if isinstance(event, FinishEvent):
                yield event


async def pieces(folder: Path, burst: int, chunk_tokens: int, **generation: Any) -> list[Piece]:
    sampling = SamplingParams(max_tokens=100, logprobs=0)
    asked = Generation(
        sampling, **{"stop": (), "include_stop": False, "skip_special": True, **generation}
    )
    request = GenerationRequest(
        request_id="r",
        tenant=Tenant(key="t", namespace="t"),
        prompt_token_ids=[5],
        sampling=sampling,
    )
    run = Run(Burst(folder, burst), request, asked, chunk_tokens=chunk_tokens)
    return [piece async for piece in run.pieces()]


@pytest.mark.parametrize("stop", [(), ("STOP",)])
@pytest.mark.parametrize("chunk_tokens", [1, 4, 7, 100])
async def test_chunks_say_nothing_of_steps(
    tmp_path: Path, chunk_tokens: int, stop: tuple[str, ...]
) -> None:
    plain = await pieces(tmp_path, 1, 0, stop=stop)
    expected = await pieces(tmp_path, 1, chunk_tokens, stop=stop)
    for burst in (2, 3, 5, 64):
        assert await pieces(tmp_path, burst, chunk_tokens, stop=stop) == expected
    assert "".join(piece.text for piece in expected) == "".join(piece.text for piece in plain)
    for part in ("token_ids", "logprobs"):
        whole = [each for piece in plain for each in getattr(piece, part)]
        assert [each for piece in expected for each in getattr(piece, part)] == whole
    # What may yet become a stop, or is half a letter, is held back and comes with what follows.
    held = max(len(each.encode()) for each in (*stop, "ü"))
    for piece in expected[:-1]:
        assert chunk_tokens <= len(piece.token_ids) < chunk_tokens + held
