"""The answer of /v1/responses as it is made: items of output, and the events that tell of them.
What is sent whole and what a stream's last event holds is the same object."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator, Iterable, Iterator
from typing import Any

import msgspec
from pydantic import BaseModel

from tenora_engine.errors import EngineError
from tenora_engine.text.tool_parser import ToolCallArguments
from tenora_platform.errors import ApiError
from tenora_platform.ids import new_id
from tenora_platform.inference.choice_reader import readers_of
from tenora_platform.inference.logprobs import ChatScores
from tenora_platform.inference.responses.conversation import NOT_CALLED, in_its_words
from tenora_platform.inference.responses.schemas import (
    IncompleteDetails,
    InputTokensDetails,
    OutputCall,
    OutputItem,
    OutputMessage,
    OutputText,
    RawMessage,
    ResponseFailure,
    ResponseObject,
    ResponseUsage,
    Status,
)
from tenora_platform.inference.responses.storing import Asked, stored
from tenora_platform.inference.session import InferenceSession
from tenora_platform.inference.stream import ClientGoneError
from tenora_platform.inference.tool_schemas import ToolCallMade

Event = dict[str, Any]


class _Output:
    """The items, complete ones and the message or call that is being said."""

    def __init__(self) -> None:
        self.items: list[OutputItem] = []
        self.token_ids: list[int] = []
        self.reason: str | None = None  # why the model ended
        self._open: OutputMessage | None = None
        self._call: OutputCall | None = None
        self._texts: list[str] = []  # of either
        self._scores: list[Any] = []  # of the message's tokens
        self._scores_told = 0

    def score(self, tokens: Iterable[dict[str, Any]]) -> None:
        """The log probabilities of tokens, before what they say."""
        self._scores += tokens

    def add(self, said: str | ToolCallMade | ToolCallArguments) -> Iterator[Event]:
        if isinstance(said, ToolCallMade):
            yield from self._close("completed")
            yield from self._begin_call(said)
        elif isinstance(said, ToolCallArguments):
            if said.text:
                self._texts.append(said.text)
                yield self._of_call("delta", delta=said.text)
            if said.is_last:
                yield from self._close("completed")
        elif said:
            if self._open is None:
                yield from self._begin()
            self._texts.append(said)
            new, self._scores_told = self._scores[self._scores_told :], len(self._scores)
            yield self._event("response.output_text.delta", delta=said, logprobs=new)

    def cut(self) -> None:
        """What was being said stands as far as it came."""
        for _ in self._close("incomplete"):
            continue

    def end(self, reason: str | None) -> Iterator[Event]:
        """An answer that says nothing is an empty message."""
        self.reason = reason
        if not self.items:
            yield from self._begin()
        yield from self._close("incomplete" if reason == "length" else "completed")

    def _begin_call(self, call: ToolCallMade) -> Iterator[Event]:
        self._call = OutputCall(
            id=new_id("fc"),
            status="in_progress",
            call_id=call.id,
            name=call.function.name,
            arguments="",
        )
        self.items.append(self._call)
        yield self._item("response.output_item.added", self._call)

    def _begin(self) -> Iterator[Event]:
        self._open = OutputMessage(id=new_id("msg"), status="in_progress", content=[])
        self.items.append(self._open)
        yield self._item("response.output_item.added", self._open)
        part = OutputText(text="").model_dump()
        yield self._event("response.content_part.added", part=part)

    def _close(self, status: Status) -> Iterator[Event]:
        """What is being said; nothing if nothing is."""
        text = "".join(self._texts)
        if self._call is not None:
            yield self._of_call("done", name=self._call.name, arguments=text)
            self._call.status, self._call.arguments = status, text
            yield self._item("response.output_item.done", self._call)
        elif self._open is not None:
            part = OutputText(text=text, logprobs=self._scores)
            yield self._event("response.output_text.done", text=text, logprobs=self._scores)
            yield self._event("response.content_part.done", part=part.model_dump())
            self._open.status, self._open.content = status, [part]
            yield self._item("response.output_item.done", self._open)
        self._open, self._call, self._texts = None, None, []
        self._scores, self._scores_told = [], 0

    def _of_call(self, kind: str, **more: Any) -> Event:
        assert self._call is not None
        at = {"item_id": self._call.id, "output_index": len(self.items) - 1}
        return {"type": f"response.function_call_arguments.{kind}", **at, **more}

    def _event(self, kind: str, **more: Any) -> Event:
        """Of the message's one part."""
        assert self._open is not None
        at = {"item_id": self._open.id, "output_index": len(self.items) - 1, "content_index": 0}
        return {"type": kind, **at, **more}

    def _item(self, kind: str, item: BaseModel) -> Event:
        return {"type": kind, "output_index": len(self.items) - 1, "item": item.model_dump()}


async def response_whole(session: InferenceSession, asked: Asked) -> ResponseObject:
    """The answer when nothing is streamed."""
    output = _Output()
    async with contextlib.aclosing(_events(session, output)) as events:
        async for _ in events:
            continue
    ended = _ended(session, asked, output)
    await stored(session, asked, ended)
    _show_tokens(session, asked, output, ended)
    return ended


async def response_stream(session: InferenceSession, asked: Asked) -> AsyncGenerator[bytes]:
    """Server-sent events. A failure after the first is `response.failed`; one before it is raised.
    The last one comes when the response has been stored."""
    output = _Output()
    number = 0

    def sent(event: Event) -> bytes:
        nonlocal number
        number += 1
        data = msgspec.json.encode({**event, "sequence_number": number - 1})
        return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), data)

    try:
        async with contextlib.aclosing(_events(session, output)) as events:
            async for some in events:
                if not number:
                    begun = _response(session, asked, _Output(), "in_progress").model_dump()
                    yield sent({"type": "response.created", "response": begun})
                    yield sent({"type": "response.in_progress", "response": begun})
                if some:
                    yield b"".join(map(sent, some))
        ended = _ended(session, asked, output)
    except (ApiError, EngineError) as error:
        if not number:
            raise
        ended = _failed(session, asked, output, error)
    await stored(session, asked, ended)
    _show_tokens(session, asked, output, ended)
    yield sent({"type": f"response.{ended.status}", "response": ended.model_dump()})


async def _events(session: InferenceSession, output: _Output) -> AsyncGenerator[list[Event]]:
    """What each piece of the answer adds; nothing while it is held back."""
    (reader,) = readers_of(session)
    scores = ChatScores(session.state.engine.text)
    with in_its_words():
        async with contextlib.aclosing(session.pieces()) as pieces:
            async for piece in pieces:
                output.token_ids += piece.token_ids
                output.score(scores.said(piece.logprobs))
                events = [event for said in reader.read(piece) for event in output.add(said)]
                if piece.finish_reason is not None:
                    events += output.end(piece.finish_reason)
                yield events


def _show_tokens(
    session: InferenceSession, asked: Asked, output: _Output, response: ResponseObject
) -> None:
    """What the template made of the input, and all that was generated, where the client asked for
    it. It is told once, and not stored."""
    if asked.body.enable_response_messages:
        response.input_messages = [_raw(session, session.prompts[0].token_ids)]
        response.output_messages = [_raw(session, output.token_ids)]


def _raw(session: InferenceSession, token_ids: list[int]) -> RawMessage:
    message = session.state.engine.text.decode(token_ids, skip_special=False)
    return RawMessage(message=message, tokens=token_ids)


def _failed(
    session: InferenceSession, asked: Asked, output: _Output, error: ApiError | EngineError
) -> ResponseObject:
    """What a client has left is incomplete: nothing went wrong with it."""
    output.cut()
    if isinstance(error, ClientGoneError):
        return _response(session, asked, output, "incomplete")
    failure = session.fail(error)
    ended = _response(session, asked, output, "failed")
    ended.error = ResponseFailure(code=failure.code or "server_error", message=failure.message)
    return ended


def _ended(session: InferenceSession, asked: Asked, output: _Output) -> ResponseObject:
    if output.reason is None:
        raise ApiError("The engine ended without finishing the answer.", code="engine_error")
    is_cut = output.reason == "length"
    response = _response(session, asked, output, "incomplete" if is_cut else "completed")
    response.incomplete_details = IncompleteDetails() if is_cut else None
    response.completed_at = None if is_cut else int(time.time())
    usage = session.usage()
    response.usage = ResponseUsage(
        input_tokens=usage.prompt_tokens,
        input_tokens_details=InputTokensDetails(
            cached_tokens=usage.prompt_tokens_details.cached_tokens
        ),
        output_tokens=usage.completion_tokens,
        total_tokens=usage.total_tokens,
    )
    return response


def _response(
    session: InferenceSession, asked: Asked, output: _Output, status: Status
) -> ResponseObject:
    body = asked.body
    choice = body.tool_choice or "auto"
    text = body.text.model_dump(by_alias=True, exclude_none=True) if body.text else {}
    return ResponseObject(
        id=session.id,
        created_at=session.created,
        status=status,
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        metadata=body.metadata or {},
        model=body.model,
        output=output.items,
        parallel_tool_calls=body.parallel_tool_calls,
        previous_response_id=body.previous_response_id,
        store=asked.store,
        service_tier=session.tier,
        temperature=1.0 if body.temperature is None else body.temperature,
        text={"format": {"type": "text"}} | text,
        tool_choice=choice if isinstance(choice, str) else choice.model_dump(),
        tools=[tool.model_dump() for tool in body.tools or () if tool.type not in NOT_CALLED],
        top_p=1.0 if body.top_p is None else body.top_p,
        user=body.user,
    )
