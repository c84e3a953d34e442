"""/v1/completions in OpenAI's shapes: one or several prompts, whole and as a stream, with echo."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator

from tenora_engine.errors import EngineError
from tenora_engine.events import TokenLogprob
from tenora_platform.errors import ApiError, from_engine
from tenora_platform.inference.chunks import Chunks, encode
from tenora_platform.inference.generation import Piece
from tenora_platform.inference.logprobs import text_logprobs
from tenora_platform.inference.neutral_fields import refuse_unsupported
from tenora_platform.inference.parameters import (
    bad_words,
    completion_generation,
    completion_prompts,
    truncated,
)
from tenora_platform.inference.schemas import (
    Completion,
    CompletionRequest,
    TextChoice,
    TextLogprobs,
)
from tenora_platform.inference.session import InferenceSession, Prompt
from tenora_platform.inference.stream import DONE, sse
from tenora_platform.state import AppState


def text_prompts(state: AppState, body: CompletionRequest) -> list[Prompt]:
    """Token ids and sampling of each prompt. Raises BadRequestError."""
    refuse_unsupported(body)
    text, model = state.engine.text, state.engine.model
    words, prompts = bad_words(body, text), []
    for prompt in completion_prompts(body, model):
        token_ids = (
            prompt
            if isinstance(prompt, list)
            else text.encode(prompt, body.add_special_tokens, state.settings.allow_control_tokens)
        )
        token_ids = truncated(token_ids, body, model)
        generation = completion_generation(body, model, len(token_ids), words)
        prompts.append(Prompt(token_ids, generation))
    return prompts


class _Choices:
    """What has been said of every choice so far: whether it began, and how long its text is."""

    def __init__(self, session: InferenceSession, body: CompletionRequest) -> None:
        self._session = session
        self._body = body
        self._lengths: dict[int, int] = {}
        self._token_lengths: dict[int, int] = {}

    def text(self, piece: Piece) -> str:
        """The piece's text, behind the prompt's if it is the first and `echo` was asked for."""
        text = piece.text
        if piece.choice not in self._lengths and self._body.echo:
            text = self._echo(piece.choice) + text
        self._lengths[piece.choice] = self._lengths.get(piece.choice, 0) + len(text)
        return text

    def _echo(self, choice: int) -> str:
        prompt = self._session.prompts[choice // self._body.n]
        return self._session.state.engine.text.decode(prompt.token_ids)

    def prompt_token_ids(self, choice: int) -> list[int] | None:
        if not self._body.return_token_ids:
            return None
        return self._session.prompts[choice // self._body.n].token_ids

    def logprobs(self, choice: int, tokens: tuple[TokenLogprob, ...]) -> TextLogprobs | None:
        if self._body.logprobs is None:
            return None
        offset = self._token_lengths.get(choice, 0)
        shaped = text_logprobs(self._session.state.engine.text, tokens, offset)
        self._token_lengths[choice] = offset + sum(len(token) for token in shaped.tokens)
        return shaped


async def completion_whole(session: InferenceSession, body: CompletionRequest) -> Completion:
    """The answer when nothing is streamed. Choices are in the order of prompts, then n."""
    shaping = _Choices(session, body)
    count = len(session.prompts) * body.n
    texts: list[list[str]] = [[] for _ in range(count)]
    token_ids: list[list[int]] = [[] for _ in range(count)]
    logprobs: list[list[TokenLogprob]] = [[] for _ in range(count)]
    last: dict[int, Piece] = {}
    async with contextlib.aclosing(session.pieces()) as pieces:
        async for piece in pieces:
            texts[piece.choice].append(shaping.text(piece))
            token_ids[piece.choice] += piece.token_ids
            logprobs[piece.choice] += piece.logprobs
            last[piece.choice] = piece
    if len(last) < count or any(piece.finish_reason is None for piece in last.values()):
        raise ApiError("The engine ended without finishing the answer.", code="engine_error")
    return Completion(
        id=session.id,
        created=session.created,
        model=body.model,
        choices=[
            TextChoice(
                index=index,
                text="".join(texts[index]),
                logprobs=shaping.logprobs(index, tuple(logprobs[index])),
                finish_reason=last[index].finish_reason,
                prompt_token_ids=shaping.prompt_token_ids(index),
                token_ids=token_ids[index] if body.return_token_ids else None,
            )
            for index in range(count)
        ],
        usage=session.usage(),
        service_tier=session.tier,
        system_fingerprint=session.fingerprint,
    )


async def completion_stream(
    session: InferenceSession, body: CompletionRequest
) -> AsyncGenerator[bytes]:
    """Server-sent events, as `chat_stream`."""
    include_usage = body.stream_options is not None and body.stream_options.include_usage
    chunks = Chunks(session, "text_completion", body)
    shaping = _Choices(session, body)
    begun: set[int] = set()
    held = b""  # the last chunks of choices go out with what follows them
    try:
        async with contextlib.aclosing(session.pieces()) as pieces:
            async for piece in pieces:
                logprobs = shaping.logprobs(piece.choice, piece.logprobs)
                choice = {
                    "index": piece.choice,
                    "text": shaping.text(piece),
                    "logprobs": logprobs.model_dump() if logprobs else None,
                    "finish_reason": piece.finish_reason,
                }
                if body.return_token_ids:
                    choice["token_ids"] = piece.token_ids
                    if piece.choice not in begun:
                        choice["prompt_token_ids"] = shaping.prompt_token_ids(piece.choice)
                begun.add(piece.choice)
                held += chunks.of(encode(choice))
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
