"""The answer of /v1/messages as it is made: content blocks, and the events that tell of them
(Anthropic's Messages API, "Streaming messages")."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import msgspec

from tenora_engine.errors import EngineError
from tenora_engine.text.tool_parser import ToolCallArguments
from tenora_platform.errors import ApiError, anthropic_body
from tenora_platform.inference.anthropic.conversation import in_its_words
from tenora_platform.inference.anthropic.schemas import (
    AnthropicMessage,
    MessagesRequest,
    MessageUsage,
    StopReason,
    TextBlock,
    ToolUseBlock,
)
from tenora_platform.inference.choice_reader import ChoiceReader, readers_of
from tenora_platform.inference.session import InferenceSession
from tenora_platform.inference.tool_schemas import ToolCallMade
from tenora_platform.texts import odd_in

Event = dict[str, Any]


class _Output:
    """The content blocks, complete ones and the one that is being said."""

    def __init__(self) -> None:
        self.blocks: list[TextBlock | ToolUseBlock] = []
        self.reason: StopReason | None = None
        self.stop_sequence: str | None = None
        self._open: TextBlock | ToolUseBlock | None = None
        self._texts: list[str] = []

    def add(self, said: str | ToolCallMade | ToolCallArguments) -> Iterator[Event]:
        if isinstance(said, ToolCallMade):
            yield from self._begin(ToolUseBlock(id=said.id, name=said.function.name, input={}))
        elif isinstance(said, ToolCallArguments):
            if said.text:
                self._texts.append(said.text)
                yield self._delta("input_json_delta", partial_json=said.text)
            if said.is_last:
                yield from self._close()
        elif said:
            if not isinstance(self._open, TextBlock):
                yield from self._begin(TextBlock(text=""))
            self._texts.append(said)
            yield self._delta("text_delta", text=said)

    def end(self, reason: StopReason, stop_sequence: str | None) -> Iterator[Event]:
        self.reason, self.stop_sequence = reason, stop_sequence
        yield from self._close()

    def _begin(self, block: TextBlock | ToolUseBlock) -> Iterator[Event]:
        yield from self._close()
        self._open = block
        self.blocks.append(block)
        shown = block.model_dump(exclude_none=True)
        yield {"type": "content_block_start", "index": self._index, "content_block": shown}

    def _close(self) -> Iterator[Event]:
        """What is being said; nothing if nothing is."""
        if self._open is None:
            return
        text = "".join(self._texts)
        if isinstance(self._open, ToolUseBlock):
            self._open.input = _input_of(text)
        else:
            self._open.text = text
        yield {"type": "content_block_stop", "index": self._index}
        self._open, self._texts = None, []

    def _delta(self, kind: str, **more: str) -> Event:
        delta = {"type": kind, **more}
        return {"type": "content_block_delta", "index": self._index, "delta": delta}

    @property
    def _index(self) -> int:
        return len(self.blocks) - 1


def _input_of(arguments: str) -> dict[str, Any]:
    """The object that a call's arguments are. What a model wrote that is none is kept as text."""
    try:
        parsed = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        parsed = None
    fits = isinstance(parsed, dict) and odd_in(parsed) is None
    return parsed if fits else {"arguments": arguments}


async def message_whole(session: InferenceSession, body: MessagesRequest) -> AnthropicMessage:
    """The answer when nothing is streamed."""
    output = _Output()
    async with contextlib.aclosing(_events(session, output)) as events:
        async for _ in events:
            continue
    _require_end(output)
    return _message(session, body, output)


async def message_stream(session: InferenceSession, body: MessagesRequest) -> AsyncGenerator[bytes]:
    """Server-sent events. A failure after the first is an `error` event; one before it is
    raised."""
    output = _Output()
    begun = False
    try:
        async with contextlib.aclosing(_events(session, output)) as events:
            async for some in events:
                if not begun:
                    begun = True
                    message = _message(session, body, _Output()).model_dump()
                    yield _sent({"type": "message_start", "message": message})
                if some:
                    yield b"".join(map(_sent, some))
        _require_end(output)
    except (ApiError, EngineError) as error:
        if not begun:
            raise
        failure = session.fail(error)
        yield _sent(anthropic_body(failure, session.x_request_id))
        return
    delta = {"stop_reason": output.reason, "stop_sequence": output.stop_sequence}
    usage = _usage(session).model_dump(exclude={"service_tier"})
    last = _sent({"type": "message_delta", "delta": delta, "usage": usage})
    yield last + _sent({"type": "message_stop"})


def _sent(event: Event) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), msgspec.json.encode(event))


async def _events(session: InferenceSession, output: _Output) -> AsyncGenerator[list[Event]]:
    """What each piece of the answer adds; nothing while it is held back."""
    (reader,) = readers_of(session)
    with in_its_words():
        async with contextlib.aclosing(session.pieces()) as pieces:
            async for piece in pieces:
                events = [event for said in reader.read(piece) for event in output.add(said)]
                if piece.finish_reason is not None:
                    reason = _reason(reader, piece.finish_reason, piece.matched_stop)
                    stop = piece.matched_stop if reason == "stop_sequence" else None
                    events += output.end(reason, stop)
                yield events


def _reason(reader: ChoiceReader, reason: Any, matched: str | None) -> StopReason:
    finished = reader.finish_reason(reason)
    if finished == "tool_calls":
        return "tool_use"
    if finished == "length":
        return "max_tokens"
    return "end_turn" if matched is None else "stop_sequence"


def _require_end(output: _Output) -> None:
    if output.reason is None:
        raise ApiError("The engine ended without finishing the answer.", code="engine_error")


def _message(session: InferenceSession, body: MessagesRequest, output: _Output) -> AnthropicMessage:
    return AnthropicMessage(
        id=session.id,
        model=body.model,
        content=output.blocks,
        stop_reason=output.reason,
        stop_sequence=output.stop_sequence,
        usage=_usage(session),
    )


def _usage(session: InferenceSession) -> MessageUsage:
    """The engine's meters; before they are complete, the prompt alone."""
    usage = session.usage()
    if not usage.prompt_tokens:
        so_far = session.usage_so_far(begun=False)
        return MessageUsage(input_tokens=so_far["prompt_tokens"], output_tokens=0)
    cached = usage.prompt_tokens_details.cached_tokens
    return MessageUsage(
        input_tokens=usage.prompt_tokens - cached,
        cache_read_input_tokens=cached,
        output_tokens=usage.completion_tokens,
    )
