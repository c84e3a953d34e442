"""/v1/chat/completions in OpenAI's shapes: a session's pieces made whole, or as a stream."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

from tenora_engine.errors import EngineError
from tenora_engine.events import TokenLogprob
from tenora_engine.text.chat_template import Renders
from tenora_platform.errors import ApiError, BadRequestError, from_engine
from tenora_platform.inference.chunks import Chunks, encode
from tenora_platform.inference.generation import Piece
from tenora_platform.inference.logprobs import chat_logprobs
from tenora_platform.inference.messages import template_messages
from tenora_platform.inference.neutral_fields import refuse_unsupported
from tenora_platform.inference.parameters import bad_words, chat_generation, truncated
from tenora_platform.inference.schemas import (
    AssistantMessage,
    ChatChoice,
    ChatCompletion,
    ChatCompletionRequest,
)
from tenora_platform.inference.session import InferenceSession, Prompt
from tenora_platform.inference.stream import DONE, sse
from tenora_platform.state import AppState


def chat_prompt(
    state: AppState, body: ChatCompletionRequest, template: Renders | None = None
) -> Prompt:
    """Tokens of the conversation, through the base model's chat template or this one. Raises
    BadRequestError, InvalidRequestError (the template refuses the messages)."""
    refuse_unsupported(body)
    text, model = state.engine.text, state.engine.model
    token_ids = truncated(chat_tokens(state, body, template), body, model)
    words = bad_words(body, text)
    return Prompt(token_ids, chat_generation(body, model, len(token_ids), words))


def chat_tokens(
    state: AppState, body: ChatCompletionRequest, template: Renders | None = None
) -> list[int]:
    """All of the conversation, whether or not it fits. Raises as `chat_prompt` does."""
    return state.engine.text.encode_chat(
        template_messages(body.messages),
        add_generation_prompt=_opens_an_answer(body),
        continue_final_message=body.continue_final_message,
        control_tokens=state.settings.allow_control_tokens,
        template_arguments=body.chat_template_kwargs,
        template=template,
    )


def _opens_an_answer(body: ChatCompletionRequest) -> bool:
    if body.add_generation_prompt is None:
        return not body.continue_final_message
    if body.add_generation_prompt and body.continue_final_message:
        raise BadRequestError(
            "Either continue_final_message or add_generation_prompt can be true, not both.",
            param="continue_final_message",
            code="invalid_value",
        )
    return body.add_generation_prompt


@dataclass
class _Collected:
    """One choice of an answer that is not streamed."""

    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    last: Piece | None = None

    def add(self, piece: Piece) -> None:
        self.texts.append(piece.text)
        self.token_ids += piece.token_ids
        self.logprobs += piece.logprobs
        self.last = piece


async def chat_whole(session: InferenceSession, body: ChatCompletionRequest) -> ChatCompletion:
    """The answer when nothing is streamed."""
    choices = [_Collected() for _ in range(body.n)]
    async with contextlib.aclosing(session.pieces()) as pieces:
        async for piece in pieces:
            choices[piece.choice].add(piece)
    return ChatCompletion(
        id=session.id,
        created=session.created,
        model=body.model,
        choices=[_choice(session, body, index, choice) for index, choice in enumerate(choices)],
        usage=session.usage(),
        service_tier=session.tier,
        system_fingerprint=session.fingerprint,
        prompt_token_ids=session.prompts[0].token_ids if body.return_token_ids else None,
    )


def _choice(
    session: InferenceSession, body: ChatCompletionRequest, index: int, collected: _Collected
) -> ChatChoice:
    if collected.last is None or collected.last.finish_reason is None:
        raise ApiError("The engine ended without finishing the answer.", code="engine_error")
    text = session.state.engine.text
    return ChatChoice(
        index=index,
        message=AssistantMessage(content="".join(collected.texts)),
        logprobs=chat_logprobs(text, collected.logprobs) if body.logprobs else None,
        finish_reason=collected.last.finish_reason,
        token_ids=collected.token_ids if body.return_token_ids else None,
    )


async def chat_stream(
    session: InferenceSession, body: ChatCompletionRequest
) -> AsyncGenerator[bytes]:
    """Server-sent events. A failure after the first is an `error` event, as OpenAI's clients expect
    it; one before the first is raised."""
    include_usage = body.stream_options is not None and body.stream_options.include_usage
    chunks = Chunks(session, "chat.completion.chunk", body)
    begun: set[int] = set()
    held = b""  # the last chunks of choices go out with what follows them
    try:
        async with contextlib.aclosing(session.pieces()) as pieces:
            async for piece in pieces:
                if piece.choice not in begun:
                    role = {"role": "assistant", "content": ""}
                    more: dict[str, Any] = {}
                    if body.return_token_ids and not begun:
                        more["prompt_token_ids"] = session.prompts[0].token_ids
                    begun.add(piece.choice)
                    held += chunks.rare([_delta(piece.choice, role, None, None)], **more)
                held += chunks.of(_piece(session, body, piece))
                if piece.finish_reason is None:
                    yield held
                    held = b""
        if include_usage:
            held += chunks.rare([], usage=session.usage().model_dump())
    except (ApiError, EngineError) as error:
        if not begun:
            raise
        failure = error if isinstance(error, ApiError) else from_engine(error)
        yield held + sse(failure.body())
        return
    yield held + DONE


def _piece(session: InferenceSession, body: ChatCompletionRequest, piece: Piece) -> bytes:
    """The choice of its chunk. Nearly all of them are a text and nothing more."""
    if piece.finish_reason is None and not body.logprobs and not body.return_token_ids:
        return b'{"index":%d,"delta":{"content":%b},"logprobs":null,"finish_reason":null}' % (
            piece.choice,
            encode(piece.text),
        )
    delta = {"content": piece.text} if piece.text else {}
    logprobs = None
    if body.logprobs and piece.logprobs:
        logprobs = chat_logprobs(session.state.engine.text, piece.logprobs).model_dump()
    choice = _delta(piece.choice, delta, logprobs, piece.finish_reason)
    return encode({**choice, "token_ids": piece.token_ids} if body.return_token_ids else choice)


def _delta(
    index: int, delta: dict[str, str], logprobs: dict[str, Any] | None, reason: str | None
) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
