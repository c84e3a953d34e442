"""One prompt through the engine: events become text piece by piece, stop strings end a sequence
early, meters are kept. Knows EngineClient and text; no HTTP, no tenant, no price."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from bisect import bisect_right
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Literal

import msgspec

from tenora_engine.client import AbortReason, EngineClient
from tenora_engine.errors import EngineError, InvalidRequestError
from tenora_engine.events import (
    FinishEvent,
    SequenceEvent,
    TokenEvent,
    TokenLogprob,
    UsageRecord,
)
from tenora_engine.request import GenerationRequest, Tenant
from tenora_engine.text.detokenizer import IncrementalDetokenizer
from tenora_platform.errors import (
    ApiError,
    BadRequestError,
    DamagedAdapterError,
    SickWeightsError,
    UnavailableError,
    from_engine,
)
from tenora_platform.inference.parameters import Generation

LAST_WORDS_S = 20.0
"""So long a request that was ended waits for its meters: for the engine's step to end."""
MERGE_QUEUE_MAX = 256  # pieces waiting for a slow client, over all prompts of one request


class Piece(msgspec.Struct, frozen=True):
    """What one choice gains. The last piece of a choice has a `finish_reason`."""

    choice: int
    text: str
    token_ids: tuple[int, ...]  # all that were generated, the one that stopped it too
    logprobs: tuple[TokenLogprob, ...]
    finish_reason: Literal["stop", "length"] | None
    offsets: tuple[int, ...] = ()  # of `logprobs`, where wanted: where each token's text begins
    matched_stop: str | None = None  # of a last piece: the stop string that ended it
    stop_token_id: int | None = None  # the same of a stop token
    scores_end: bool = False  # the last of `logprobs` is of a stop token that is not in the text


class _Sequence:
    """One of the n sequences: its text so far, what is held back, and whether a stop string ended
    it."""

    def __init__(self, detokenizer: IncrementalDetokenizer, generation: Generation) -> None:
        self._detokenizer = detokenizer
        self._include_stop = generation.include_stop
        self._scores_end = generation.scores_end
        self._has_end = False  # `_logprobs`, as `Piece.scores_end` says
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprob] = []
        self._offsets: list[int] = []  # of `_token_ids`, where wanted
        self._length = 0  # of the text that is in pieces
        self._held = ""
        self.consumed = 0  # tokens, up to where a stop string was met
        self.stopped_at: int | None = None  # tokens, when a stop string was met
        self._matched: str | None = None  # that stop string
        self._stop_token_id: int | None = None
        self.is_told = False  # the engine, of that

    def push(self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprob] = ()) -> str:
        """Text that may be shown now; empty after a stop string."""
        if self.stopped_at is not None:
            return ""
        delta = self._detokenizer.push(token_ids)
        new = delta.consumed_tokens - self.consumed
        self.consumed = delta.consumed_tokens
        self._token_ids += token_ids[:new]
        self._logprobs += logprobs[:new]
        self._offsets += delta.offsets
        if delta.stopped is not None:
            self.stopped_at, self._matched = delta.consumed_tokens, delta.stopped
        return delta.text

    def finish(self, stop_token_id: int | None, logprob: TokenLogprob | None = None) -> str:
        """The text that was held back. A token that ended the sequence shows if it was asked to."""
        if self.stopped_at is not None:
            return ""
        text = ""
        self._stop_token_id = stop_token_id
        if stop_token_id is not None and self._include_stop:
            text = self.push([stop_token_id], () if logprob is None else (logprob,))
        elif stop_token_id is not None:
            self._token_ids.append(stop_token_id)
            if logprob is not None and self._scores_end:
                self._logprobs.append(logprob)
                self._offsets.append(sys.maxsize)  # behind the text
                self._has_end = True
        delta = self._detokenizer.flush()  # nothing, if the push has met a stop string
        if delta.stopped is not None and self.stopped_at is None:
            is_behind = stop_token_id is not None and not self._include_stop
            self._matched = delta.stopped
            self.stopped_at = delta.consumed_tokens + is_behind  # met since it has ended
        return text + delta.text

    @property
    def num_pending(self) -> int:
        """Tokens that may be shown and are in no piece yet: where it is told where they begin, not
        those within what is held back, which a stop string may yet take away."""
        if not self._offsets:
            return len(self._token_ids)
        return bisect_right(self._offsets, self._length + len(self._held))

    def hold(self, text: str) -> None:
        """For the next piece."""
        self._held += text

    def piece(
        self, choice: int, text: str, finish_reason: Literal["stop", "length"] | None
    ) -> Piece:
        """Everything new in it that may be shown."""
        self._held += text
        text, count = self._held, len(self._token_ids)
        if finish_reason is None:
            count = self.num_pending
        self._length, self._held = self._length + len(text), ""
        logprobs = tuple(self._logprobs[:count])
        # Behind the end is what a stop string took away.
        offsets = tuple(min(each, self._length) for each in self._offsets[: len(logprobs)])
        token_ids = tuple(self._token_ids[:count])
        matched = self._matched if finish_reason is not None else None
        stop_token_id = self._stop_token_id if matched is None else None
        made = Piece(
            choice,
            text,
            token_ids,
            logprobs,
            finish_reason,
            offsets,
            matched,
            stop_token_id,
            self._has_end,
        )
        for kept in (self._token_ids, self._logprobs, self._offsets):
            del kept[:count]
        return made


class Run:
    """One engine request. `pieces` is iterated once; `tokens_seen` counts what came of the answer
    whether or not it ended."""

    def __init__(
        self,
        client: EngineClient,
        request: GenerationRequest,
        generation: Generation,
        *,
        first_choice: int = 0,
        chunk_tokens: int = 0,  # of each piece of a choice but the last; 0: what an event has
    ) -> None:
        self.request = msgspec.structs.replace(request, ends_by_text=generation.ends_by_text)
        self._made_s = time.monotonic()  # from then on it is the platform that it waits for
        self._billed: list[UsageRecord] = []  # by the engine's word
        self._taken: list[UsageRecord] = []  # what the sequences took that have ended
        self.tokens_seen = 0
        self.prompt_logprobs: list[TokenLogprob] = []  # from the prompt's second token on
        self.embedding: list[float] | None = None  # of the prompt, where it was asked for
        self.begun = False  # the engine was asked and has not refused: it meters what it does
        self.tier = request.tenant.tier  # that serves it, as far as it is known
        self._ended_by: ApiError | None = None
        self._is_faulted = False  # by the engine's word: the request is, or the weights
        self._is_free = False  # or what it is part of cannot be answered
        self._client = client
        self._first_choice = first_choice
        self._chunk_tokens = chunk_tokens
        self._sequences = [
            _Sequence(
                client.text.detokenizer(
                    generation.stop,
                    generation.include_stop,
                    generation.skip_special,
                    generation.sampling.min_tokens,
                    shown=generation.tools.form.marks if generation.tools else (),
                    offsets=generation.offsets,
                    patterns=generation.stop_patterns,
                ),
                generation,
            )
            for _ in range(generation.sampling.n)
        ]

    def serve(self, tenant: Tenant) -> None:
        """In another tier than was meant when it was made; before `pieces`."""
        self.request = msgspec.structs.replace(self.request, tenant=tenant)
        self.tier = tenant.tier

    @property
    def usage(self) -> list[UsageRecord]:
        """The records that are billed. Those of all prompts of a body are with the last that ended;
        where stop strings may end them each has its own, as the engine bills them once it knows
        what it has been told: that is not waited for."""
        if not self.request.ends_by_text:
            return self._billed
        if len(self._taken) < len(self._sequences):
            return []
        is_free = self._is_faulted or self._is_free
        return [record.freed() for record in self._taken] if is_free else self._taken

    async def pieces(self) -> AsyncGenerator[Piece]:
        """Raises what `EngineClient.submit` raises before the first piece, and ApiError when a
        sequence fails. Closing it early aborts what still runs."""
        waited_s = time.monotonic() - self._made_s
        events = self._client.submit(msgspec.structs.replace(self.request, waited_s=waited_s))
        refused = False
        if self._ended_by is not None:
            raise self._ended_by
        self.begun = True
        try:
            async for event in events:
                for piece in await self._on_event(event):
                    yield piece
        except EngineError:
            refused = True
            self.begun = self.tokens_seen > 0 or bool(self._taken)
            raise
        finally:
            if not refused and len(self._taken) < len(self._sequences):
                # Shielded: whoever cancels the request must not cancel its abort.
                await asyncio.shield(self._client.abort(self.request.request_id))
                await self._last_words(events)
            if isinstance(events, AsyncGenerator):
                await events.aclose()

    async def _last_words(self, events: AsyncIterator[SequenceEvent]) -> None:
        """What the engine meters of the sequences that `end`, or a fault, has ended with the first
        of them."""
        if self._ended_by is None and not self._is_faulted:
            return
        with contextlib.suppress(TimeoutError, EngineError):
            async with asyncio.timeout(LAST_WORDS_S):
                async for event in events:
                    if isinstance(event, FinishEvent):
                        self._note_end(event, self._sequences[event.index])
                    else:
                        self.tokens_seen += len(event.token_ids)

    async def _on_event(self, event: SequenceEvent) -> list[Piece]:
        sequence = self._sequences[event.index]
        choice = self._first_choice + event.index
        if isinstance(event, FinishEvent):
            text = sequence.finish(event.stop_token_id, event.stop_logprob)
            self._note_end(event, sequence)
            await self._tell_stop(event.index, sequence)
            await self._tell_ends()
            self._note_tier(event.usage.tier)
            if self._ended_by is not None and event.reason in ("abort", "error"):
                raise self._ended_by
            return [sequence.piece(choice, text, _finish_reason(event, sequence))]
        if event.tier is not None:
            self._note_tier(event.tier)
        self.prompt_logprobs += event.prompt_logprobs or ()
        self.embedding = event.embedding or self.embedding
        before = sequence.consumed
        pieces = self._shown(event, sequence, choice)
        self.tokens_seen += sequence.consumed - before
        await self._tell_stop(event.index, sequence)
        return pieces

    def _note_end(self, event: FinishEvent, sequence: _Sequence) -> None:
        """What it took; up to its stop string, which may have ended it before the engine did."""
        usage, at = event.usage, sequence.stopped_at
        self._taken.append(usage if at is None else usage.ended_by_text(at))
        self._billed += event.billed
        is_free = event.reason == "error" or event.fault == "platform"
        self._is_faulted |= is_free and at is None

    async def _tell_stop(self, index: int, sequence: _Sequence) -> None:
        """The engine is told once where a stop string was met, if one was, whether or not the
        sequence still runs."""
        if sequence.stopped_at is not None and not sequence.is_told:
            sequence.is_told = True
            await self._client.abort(
                self.request.request_id,
                index,
                reason="stop",
                output_tokens=sequence.stopped_at,
            )

    async def _tell_ends(self) -> None:
        """When all have ended the engine is told that no other stop string was met."""
        if not self.request.ends_by_text or len(self._taken) < len(self._sequences):
            return
        if any(sequence.stopped_at is None for sequence in self._sequences):
            await self._client.abort(self.request.request_id, reason="stop")

    def _shown(self, event: TokenEvent, sequence: _Sequence, choice: int) -> list[Piece]:
        """What of the event's tokens goes out now."""
        logprobs = event.logprobs or ()
        if not self._chunk_tokens:
            text = sequence.push(event.token_ids, logprobs)
            if sequence.consumed >= self.request.sampling.max_tokens:  # it ends with this token
                sequence.hold(text)
                return []
            return [sequence.piece(choice, text, None)] if text else []
        pieces: list[Piece] = []
        for place, token_id in enumerate(event.token_ids):
            sequence.hold(sequence.push([token_id], logprobs[place : place + 1]))
            if sequence.num_pending >= self._chunk_tokens:
                pieces.append(sequence.piece(choice, "", None))
        return pieces

    def _note_tier(self, tier: str) -> None:
        """Where one of its sequences was relegated, the request was."""
        if tier != self.request.tenant.tier:
            self.tier = tier

    async def end(self, error: ApiError) -> None:
        """End it from outside: the engine bills what it did, unless the platform ends it or it is
        part of what cannot be answered (`_abort_reason`), and `pieces` raises `error`."""
        self._ended_by = error
        if not self.begun:  # and never will
            return
        reason = _abort_reason(error)
        self._is_free = reason != "client_gone"
        await self._client.abort(self.request.request_id, reason=reason)

    def count_tokens(self) -> int:
        """Prompt and output tokens as the engine metered them; none if it refused. Where it has
        not said so in time, the prompt, which it may have run, and what was seen; the same where
        it could not be answered, which is not billed but has had its time."""
        if not self.begun:
            return 0
        if len(self._taken) == len(self._sequences) and not self._is_faulted:
            return sum(record.prompt_tokens + record.output_tokens for record in self._taken)
        return len(self.request.prompt_token_ids) + self.tokens_seen

    def count_output(self) -> int:
        """Output tokens so far, as they are metered once all sequences have ended."""
        if len(self._taken) == len(self._sequences):
            return sum(record.output_tokens for record in self._taken)
        return self.tokens_seen


def _abort_reason(error: ApiError) -> AbortReason:
    """Who ends a request that ends so: it itself, the platform, or whoever asked."""
    if isinstance(error, BadRequestError):
        return "invalid"
    is_ours = error.status == 429 or error.status >= 500 or error.code == "tenant_suspended"
    return "cut_off" if is_ours else "client_gone"


def _finish_reason(event: FinishEvent, sequence: _Sequence) -> Literal["stop", "length"]:
    if sequence.stopped_at is not None:  # whatever the engine met behind it
        return "stop"
    if event.reason == "error" and event.fault == "request":
        raise from_engine(InvalidRequestError(event.error or "", event.param))
    if event.reason == "error" and event.fault == "weights":
        code = "model_produces_nan" if event.usage.adapter_digest is None else None
        raise SickWeightsError(
            f"The model could not choose a next token: {event.error}.", code=code
        )
    if event.reason == "error" and event.fault == "damage":
        raise DamagedAdapterError
    if event.reason == "error" and event.fault == "store":
        raise UnavailableError(
            "The adapter cannot be loaded now: its storage does not answer.",
            code="adapter_unavailable",
        )
    if event.reason == "error":
        raise ApiError(
            f"The engine failed while it ran this request: {event.error}", code="engine_error"
        )
    if event.reason == "stop":
        return "stop"
    if event.reason == "abort":
        raise UnavailableError(
            "The engine stopped this request before it was complete; send it again.",
            code="request_aborted",
        )
    return "length"


def merged(runs: Sequence[Run], at_once: int | None = None) -> AsyncGenerator[Piece]:
    """The pieces of all runs as they come, of so many `at_once` (None: of all). The first failure
    ends all of them and is raised, when the engine has metered them."""
    return runs[0].pieces() if len(runs) == 1 else _interleaved(runs, at_once or len(runs))


async def _interleaved(runs: Sequence[Run], at_once: int) -> AsyncGenerator[Piece]:
    queue: asyncio.Queue[Piece | Exception | None] = asyncio.Queue(MERGE_QUEUE_MAX)
    places = asyncio.Semaphore(at_once)
    tasks = [asyncio.create_task(_pump(run.pieces(), queue, places)) for run in runs]
    running = len(tasks)
    try:
        while running:
            item = await queue.get()
            if isinstance(item, Exception):
                await _end_all(runs, item, tasks, queue)
                raise item
            if item is None:
                running -= 1
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _end_all(
    runs: Sequence[Run],
    error: Exception,
    tasks: Sequence[asyncio.Task[None]],
    queue: asyncio.Queue[Piece | Exception | None],
) -> None:
    reason = from_engine(error) if isinstance(error, EngineError) else error
    if not isinstance(reason, ApiError):
        reason = ApiError(str(error))
    for run in runs:
        await run.end(reason)
    unread = asyncio.create_task(_unread(queue))  # or who waits for room in it would never end
    await asyncio.wait(tasks, timeout=LAST_WORDS_S)
    unread.cancel()


async def _unread(queue: asyncio.Queue[Piece | Exception | None]) -> None:
    while True:
        await queue.get()


async def _pump(
    pieces: AsyncGenerator[Piece],
    queue: asyncio.Queue[Piece | Exception | None],
    places: asyncio.Semaphore,
) -> None:
    """The run's pieces into the queue, once there is a place, then None or what ended it. A
    cancelled run says nothing: nobody reads the queue any more."""
    try:
        async with places, contextlib.aclosing(pieces):
            async for piece in pieces:
                await queue.put(piece)
    except Exception as error:
        await queue.put(error)  # raised again by whoever reads the queue
    else:
        await queue.put(None)
