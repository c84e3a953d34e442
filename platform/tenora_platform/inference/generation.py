"""One prompt through the engine: events become text piece by piece, stop strings end a sequence
early, meters are kept. Knows EngineClient and text; no HTTP, no tenant, no price."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Literal

from tenora_engine.client import EngineClient
from tenora_engine.errors import EngineError
from tenora_engine.events import FinishEvent, SequenceEvent, TokenEvent, TokenLogprob, UsageRecord
from tenora_engine.request import GenerationRequest
from tenora_engine.text.detokenizer import IncrementalDetokenizer
from tenora_platform.errors import ApiError, UnavailableError
from tenora_platform.inference.parameters import Generation

MERGE_QUEUE_MAX = 256  # pieces waiting for a slow client, over all prompts of one request


@dataclass(frozen=True)
class Piece:
    """What one choice gains. The last piece of a choice has a `finish_reason`."""

    choice: int
    text: str
    logprobs: tuple[TokenLogprob, ...]
    finish_reason: Literal["stop", "length"] | None


class _Sequence:
    """One of the n sequences: its text so far, what is held back, and whether a stop string ended
    it."""

    def __init__(self, detokenizer: IncrementalDetokenizer, hidden: frozenset[int]) -> None:
        self._detokenizer = detokenizer
        self._hidden = hidden
        self._pending: list[TokenLogprob] = []
        self._last_hidden = False
        self.stopped_at: int | None = None  # tokens, when a stop string was met

    def push(self, event: TokenEvent) -> str:
        """Text that may be shown now; empty after a stop string."""
        if self.stopped_at is not None:
            return ""
        shown = self._shown(event.token_ids)
        delta = self._detokenizer.push(event.token_ids[:shown])
        if event.logprobs:
            self._pending += event.logprobs[:shown]
        if delta.stopped is not None:
            self.stopped_at = delta.consumed_tokens
        return delta.text

    def _shown(self, token_ids: Sequence[int]) -> int:
        """How many of the tokens are text: a stop token ends the sequence and is not shown."""
        for position, token_id in enumerate(token_ids):
            if token_id in self._hidden:
                return position
        return len(token_ids)

    def flush(self) -> str:
        if self.stopped_at is not None:
            return ""
        delta = self._detokenizer.flush()
        if delta.stopped is not None:
            self.stopped_at = delta.consumed_tokens
        return delta.text

    def take_logprobs(self) -> tuple[TokenLogprob, ...]:
        taken = tuple(self._pending)
        self._pending.clear()
        return taken


class Run:
    """One engine request. `pieces` is iterated once; `usage` has a record for each sequence that
    ended, and `tokens_seen` counts what came whether or not it ended."""

    def __init__(
        self,
        client: EngineClient,
        request: GenerationRequest,
        generation: Generation,
        *,
        first_choice: int = 0,
    ) -> None:
        self.request = request
        self.usage: list[UsageRecord] = []
        self.tokens_seen = 0
        self.begun = False  # the engine was asked and has not refused: it meters what it does
        self.tier = request.tenant.tier  # that serves it, as far as it is known
        self._client = client
        self._first_choice = first_choice
        self._sequences = [
            _Sequence(client.text.detokenizer(generation.stop), generation.hidden_stop_ids)
            for _ in range(generation.sampling.n)
        ]

    async def pieces(self) -> AsyncGenerator[Piece]:
        """Raises what `EngineClient.submit` raises before the first piece, and ApiError when a
        sequence fails. Closing it early aborts what still runs."""
        events = self._client.submit(self.request)
        refused = False
        self.begun = True
        try:
            async for event in events:
                piece = await self._on_event(event)
                if piece is not None:
                    yield piece
        except EngineError:
            refused = True
            self.begun = self.tokens_seen > 0 or bool(self.usage)
            raise
        finally:
            if not refused and len(self.usage) < len(self._sequences):
                # Shielded: whoever cancels the request must not cancel its abort.
                await asyncio.shield(self._client.abort(self.request.request_id))
            if isinstance(events, AsyncGenerator):
                await events.aclose()

    async def _on_event(self, event: SequenceEvent) -> Piece | None:
        sequence = self._sequences[event.index]
        choice = self._first_choice + event.index
        if isinstance(event, FinishEvent):
            self.usage.append(event.usage)
            self._note_tier(event.usage.tier)
            reason = _finish_reason(event, sequence)
            return Piece(choice, sequence.flush(), sequence.take_logprobs(), reason)
        if event.tier is not None:
            self._note_tier(event.tier)
        was_stopped = sequence.stopped_at is not None
        self.tokens_seen += len(event.token_ids)
        text = sequence.push(event)
        if sequence.stopped_at is not None and not was_stopped:
            await self._client.abort(
                self.request.request_id,
                event.index,
                reason="stop",
                output_tokens=sequence.stopped_at,
            )
        return Piece(choice, text, sequence.take_logprobs(), None) if text else None

    def _note_tier(self, tier: str) -> None:
        """Where one of its sequences was relegated, the request was."""
        if tier != self.request.tenant.tier:
            self.tier = tier

    def count_tokens(self) -> int:
        """Prompt and output tokens, as far as they are known; none if the engine refused. A client
        that left before its first token has its prompt counted: the engine may have run it."""
        if not self.begun:
            return 0
        if len(self.usage) == len(self._sequences):
            return sum(record.prompt_tokens + record.output_tokens for record in self.usage)
        return len(self.request.prompt_token_ids) + self.tokens_seen


def _finish_reason(event: FinishEvent, sequence: _Sequence) -> Literal["stop", "length"]:
    if event.reason == "error":
        raise ApiError(f"The engine failed on this request: {event.error}", code="engine_error")
    if sequence.stopped_at is not None or event.reason == "stop":
        return "stop"
    if event.reason == "abort":
        raise UnavailableError(
            "The engine ended this request before it was complete.", code="request_aborted"
        )
    return "length"


async def merged(runs: Sequence[Run]) -> AsyncGenerator[Piece]:
    """The pieces of all runs as they come. The first failure ends all of them and is raised."""
    if len(runs) == 1:
        async with contextlib.aclosing(runs[0].pieces()) as pieces:
            async for piece in pieces:
                yield piece
        return
    queue: asyncio.Queue[Piece | Exception | None] = asyncio.Queue(MERGE_QUEUE_MAX)
    tasks = [asyncio.create_task(_pump(run.pieces(), queue)) for run in runs]
    running = len(tasks)
    try:
        while running:
            item = await queue.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                running -= 1
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pump(
    pieces: AsyncGenerator[Piece], queue: asyncio.Queue[Piece | Exception | None]
) -> None:
    """The run's pieces into the queue, then None or what ended it. A cancelled run says nothing:
    nobody reads the queue any more."""
    try:
        async with contextlib.aclosing(pieces):
            async for piece in pieces:
                await queue.put(piece)
    except Exception as error:
        await queue.put(error)  # raised again by whoever reads the queue
    else:
        await queue.put(None)
