"""/v1/completions in OpenAI's shapes: one or several prompts, whole and as a stream, with echo."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field

from tenora_engine.errors import EngineError
from tenora_engine.events import TokenLogprob
from tenora_platform.errors import ApiError, from_engine
from tenora_platform.inference.beams import with_beams
from tenora_platform.inference.chunks import Chunks, encode
from tenora_platform.inference.generation import Piece
from tenora_platform.inference.logprobs import prompt_logprobs, text_logprobs
from tenora_platform.inference.neutral_fields import refuse_unsupported
from tenora_platform.inference.parameters import (
    bad_words,
    completion_generation,
    completion_prompts,
    sequences_of,
    truncated,
)
from tenora_platform.inference.schemas import (
    Completion,
    CompletionRequest,
    FinishReasonText,
    PromptLogprob,
    Stopped,
    TextChoice,
    TextLogprobs,
)
from tenora_platform.inference.session import InferenceSession, Prompt
from tenora_platform.inference.stops import stopped_by
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
        if body.logprobs is not None:
            generation = dataclasses.replace(generation, offsets=True)
        prompts.append(Prompt(token_ids, with_beams(body, generation)))
    return prompts


class _Choices:
    """What has been said of every choice so far: whether its text began, and its logprobs."""

    def __init__(self, session: InferenceSession, body: CompletionRequest) -> None:
        self._session = session
        self._body = body
        self._per_prompt = sequences_of(body)
        self._echoes: dict[int, str] = {}  # by prompt
        self._begun: set[int] = set()
        self._scored: set[int] = set()

    def text(self, piece: Piece) -> str:
        """The piece's text, behind the prompt's if it is the first and `echo` was asked for."""
        text = piece.text
        if piece.choice not in self._begun and self._body.echo:
            text = self._echo(piece.choice) + text
        self._begun.add(piece.choice)
        return text

    def _echo(self, choice: int) -> str:
        prompt = choice // self._per_prompt
        if prompt not in self._echoes:
            text = self._session.state.engine.text
            skips = self._body.skip_special_tokens
            self._echoes[prompt] = text.decode(self._prompt(choice), skip_special=skips)
        return self._echoes[prompt]

    def _prompt(self, choice: int) -> list[int]:
        return self._session.prompts[choice // self._per_prompt].token_ids

    def prompt_token_ids(self, choice: int) -> list[int] | None:
        return self._prompt(choice) if self._body.return_token_ids else None

    def prompt_logprobs(self, choice: int) -> list[dict[str, PromptLogprob] | None] | None:
        count, session = self._body.prompt_logprobs, self._session
        if count is None:
            return None
        scores = session.prompt_logprobs(choice // self._per_prompt)
        return prompt_logprobs(session.state.engine.text, scores, count)

    def logprobs(
        self, choice: int, tokens: Sequence[TokenLogprob], offsets: Sequence[int]
    ) -> TextLogprobs | None:
        """Of its new tokens; those of the prompt come before the first, where it is echoed."""
        if self._body.logprobs is None:
            return None
        text, first = self._session.state.engine.text, None
        if self._body.echo:
            behind = len(self._echo(choice))
            offsets = [behind + offset for offset in offsets]
        if self._body.echo and choice not in self._scored:
            prompt = self._prompt(choice)
            first = prompt[0]
            most = self._body.logprobs  # there are more where `prompt_logprobs` asked for more
            tokens = [
                *(
                    TokenLogprob(each.token_id, each.logprob, each.top[:most])
                    for each in self._session.prompt_logprobs(choice // self._per_prompt)
                ),
                *tokens,
            ]
            shown = text.detokenizer(skip_special=self._body.skip_special_tokens, offsets=True)
            offsets = [*shown.push(prompt).offsets, *offsets]
        self._scored.add(choice)
        by_id = self._body.return_tokens_as_token_ids
        return text_logprobs(text, tokens, offsets, first, by_id)


@dataclass
class _Answer:
    """One sequence's."""

    choice: int
    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    finish_reason: FinishReasonText | None = None
    stopped: Stopped = field(default_factory=Stopped)

    @property
    def mean_logprob(self) -> float:
        """Of its tokens, as `best_of` compares answers."""
        return sum(each.logprob for each in self.logprobs) / max(len(self.logprobs), 1)


async def completion_whole(session: InferenceSession, body: CompletionRequest) -> Completion:
    """The answer when nothing is streamed. Choices are in the order of prompts, then n: the best of
    `best_of`, the best first."""
    shaping = _Choices(session, body)
    per_prompt = sequences_of(body)
    answers = [_Answer(choice) for choice in range(len(session.prompts) * per_prompt)]
    async with contextlib.aclosing(session.pieces()) as pieces:
        async for piece in pieces:
            answer = answers[piece.choice]
            answer.texts.append(shaping.text(piece))
            answer.token_ids += piece.token_ids
            answer.logprobs += piece.logprobs
            answer.offsets += piece.offsets
            answer.finish_reason = piece.finish_reason
            answer.stopped = stopped_by(session, piece)
    if any(answer.finish_reason is None for answer in answers):
        raise ApiError("The engine ended without finishing the answer.", code="engine_error")
    shown = answers
    if per_prompt > body.n:
        shown = []
        for first in range(0, len(answers), per_prompt):
            ranked = answers[first : first + per_prompt]
            if not body.use_beam_search:  # which gives them in their order
                ranked.sort(key=lambda answer: -answer.mean_logprob)
            shown += ranked[: body.n]
    return Completion(
        id=session.id,
        created=session.created,
        model=body.model,
        choices=[
            TextChoice(
                index=index,
                text="".join(answer.texts),
                logprobs=shaping.logprobs(answer.choice, answer.logprobs, answer.offsets),
                finish_reason=answer.finish_reason,
                **answer.stopped.model_dump(),
                prompt_token_ids=shaping.prompt_token_ids(answer.choice),
                token_ids=answer.token_ids if body.return_token_ids else None,
                prompt_logprobs=shaping.prompt_logprobs(answer.choice),
            )
            for index, answer in enumerate(shown)
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
                logprobs = shaping.logprobs(piece.choice, piece.logprobs, piece.offsets)
                choice = {
                    "index": piece.choice,
                    "text": shaping.text(piece),
                    "logprobs": logprobs.model_dump() if logprobs else None,
                    "finish_reason": piece.finish_reason,
                    **stopped_by(session, piece).model_dump(),
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
