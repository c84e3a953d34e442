"""/v1/completions in OpenAI's shapes: one or several prompts, whole and as a stream, with echo."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tenora_engine.errors import EngineError
from tenora_platform.errors import ApiError
from tenora_platform.inference.beams import with_beams
from tenora_platform.inference.chunks import Chunks, encode
from tenora_platform.inference.echoes import prompt_echo, refuse_too_long_repeats
from tenora_platform.inference.generation import Piece
from tenora_platform.inference.logprobs import (
    TextScores,
    in_slices,
    prompt_logprobs,
    refuse_too_many_scores,
)
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
    Stopped,
    TextChoice,
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
        echo = prompt_echo(body, text, token_ids)
        prompts.append(Prompt(token_ids, with_beams(body, generation), echo=echo))
    scored = [body.logprobs if body.echo else None, body.prompt_logprobs]
    tokens = sum(len(each.token_ids) for each in prompts)
    refuse_too_many_scores(scored, body.n * tokens)
    refuse_too_long_repeats(body, [each.echo for each in prompts], tokens)
    return prompts


class _Choices:
    """What has been said of every choice so far: whether its text began, and its logprobs."""

    def __init__(self, session: InferenceSession, body: CompletionRequest) -> None:
        self._session = session
        self._body = body
        self._per_prompt = sequences_of(body)
        self._begun: set[int] = set()
        self._scored: dict[int, TextScores] = {}  # by prompt
        self._ranked: dict[int, msgspec.Raw] = {}

    def text(self, piece: Piece) -> str:
        """The piece's text, behind the prompt's if it is the first and `echo` was asked for."""
        text = piece.text
        if piece.choice not in self._begun and self._body.echo:
            text = self._echo(piece.choice) + text
        self._begun.add(piece.choice)
        return text

    def _echo(self, choice: int) -> str:
        return self._session.prompts[choice // self._per_prompt].echo

    def _prompt(self, choice: int) -> list[int]:
        return self._session.prompts[choice // self._per_prompt].token_ids

    def prompt_token_ids(self, choice: int) -> list[int] | None:
        return self._prompt(choice) if self._body.return_token_ids else None

    async def prompt_logprobs(self, choice: int) -> msgspec.Raw | None:
        """vLLM's, where they were asked for; once for all choices of a prompt."""
        count, session = self._body.prompt_logprobs, self._session
        if count is None:
            return None
        prompt = choice // self._per_prompt
        if prompt not in self._ranked:
            scores = session.prompt_logprobs(prompt)
            self._ranked[prompt] = await prompt_logprobs(session.state.engine.text, scores, count)
        return self._ranked[prompt]

    async def scores(self, choice: int) -> TextScores | None:
        """The logprobs of a choice that begins, where they were asked for: those of the prompt, if
        it is echoed."""
        if self._body.logprobs is None:
            return None
        scores = self.no_scores()
        if self._body.echo:
            scores.extend(await self._prompt_scores(choice))
        return scores

    async def scores_of(self, piece: Piece, *, is_first: bool) -> TextScores | None:
        """Of a chunk; one without tokens has none."""
        if is_first:
            scores = await self.scores(piece.choice)
        else:
            has_some = self._body.logprobs is not None and piece.logprobs
            scores = self.no_scores() if has_some else None
        if scores is not None:
            self.add(scores, piece)
        return scores

    def no_scores(self) -> TextScores:
        return TextScores(self._session.state.engine.text, self._body.return_tokens_as_token_ids)

    def add(self, scores: TextScores, piece: Piece) -> None:
        """The logprobs of a piece's own tokens."""
        scores.add(piece.logprobs)
        behind = len(self._echo(piece.choice)) if self._body.echo else 0
        scores.add_offsets(piece.offsets, behind)

    async def _prompt_scores(self, choice: int) -> TextScores:
        """Once for all choices of a prompt."""
        prompt = choice // self._per_prompt
        if prompt not in self._scored:
            token_ids = self._prompt(choice)
            scores, most = self.no_scores(), self._body.logprobs
            scores.add_first(token_ids[0])
            async for some in in_slices(self._session.prompt_logprobs(prompt)):
                # There are more where `prompt_logprobs` asked for more.
                scores.add([msgspec.structs.replace(each, top=each.top[:most]) for each in some])
            text, skips = self._session.state.engine.text, self._body.skip_special_tokens
            shown = text.detokenizer(skip_special=skips, offsets=True)
            scores.add_offsets(shown.push(token_ids).offsets)
            self._scored[prompt] = scores
        return self._scored[prompt]


@dataclass
class _Answer:
    """One sequence's."""

    choice: int
    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    scores: TextScores | None = None
    total_logprob: float = 0.0
    num_scored: int = 0
    finish_reason: FinishReasonText | None = None
    stopped: Stopped = field(default_factory=Stopped)

    @property
    def mean_logprob(self) -> float:
        """Of its tokens, as `best_of` compares answers."""
        return self.total_logprob / max(self.num_scored, 1)


async def completion_whole(session: InferenceSession, body: CompletionRequest) -> bytes:
    """The answer when nothing is streamed, as JSON. Choices are in the order of prompts, then n:
    the best of `best_of`, the best first."""
    shaping = _Choices(session, body)
    per_prompt = sequences_of(body)
    answers = [_Answer(choice) for choice in range(len(session.prompts) * per_prompt)]
    async with contextlib.aclosing(session.pieces()) as pieces:
        async for piece in pieces:
            answer = answers[piece.choice]
            if not answer.texts:
                answer.scores = await shaping.scores(piece.choice)
            answer.texts.append(shaping.text(piece))
            answer.token_ids += piece.token_ids
            ranked = piece.logprobs[: len(piece.logprobs) - piece.scores_end]
            answer.total_logprob += sum(each.logprob for each in ranked)
            answer.num_scored += len(ranked)
            if answer.scores is not None:
                shaping.add(answer.scores, piece)
            answer.finish_reason = piece.finish_reason
            answer.stopped = stopped_by(session, piece)
    if any(answer.finish_reason is None for answer in answers):
        raise ApiError(
            "The engine stopped before the answer was complete; send the request again.",
            code="engine_error",
        )
    shown = list(_best(answers, per_prompt, body))
    completion = Completion(
        id=session.id,
        created=session.created,
        model=body.model,
        choices=[
            TextChoice(
                index=index,
                text="".join(answer.texts),
                finish_reason=answer.finish_reason,
                **answer.stopped.model_dump(),
                prompt_token_ids=shaping.prompt_token_ids(answer.choice),
                token_ids=answer.token_ids if body.return_token_ids else None,
            )
            for index, answer in enumerate(shown)
        ],
        usage=session.usage(),
        service_tier=session.tier,
        system_fingerprint=session.fingerprint,
    )
    made = completion.model_dump()
    for choice, answer in zip(made["choices"], shown, strict=True):
        if answer.scores is not None:
            choice["logprobs"] = answer.scores.json()
        ranked_tokens = await shaping.prompt_logprobs(answer.choice)
        if ranked_tokens is not None:
            choice["prompt_logprobs"] = ranked_tokens
    return encode(made)


def _best(
    answers: Sequence[_Answer], per_prompt: int, body: CompletionRequest
) -> Iterator[_Answer]:
    """The n that are shown of each prompt's."""
    for first in range(0, len(answers), per_prompt):
        ranked = list(answers[first : first + per_prompt])
        if per_prompt > body.n and not body.use_beam_search:  # which gives them in their order
            ranked.sort(key=lambda answer: -answer.mean_logprob)
        yield from ranked[: body.n]


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
                scores = await shaping.scores_of(piece, is_first=piece.choice not in begun)
                choice: dict[str, Any] = {
                    "index": piece.choice,
                    "text": shaping.text(piece),
                    "logprobs": None if scores is None else scores.json(),
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
        failure = session.fail(error)
        yield held + sse(failure.body())
        return
    yield held + DONE
