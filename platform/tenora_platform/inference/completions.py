"""/v1/completions in OpenAI's shapes: one or several prompts, whole and as a stream, with echo."""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections import defaultdict
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field

from tenora_engine.errors import EngineError
from tenora_engine.events import TokenLogprob
from tenora_engine.text.detokenizer import TokenOffsets
from tenora_platform.errors import ApiError, from_engine
from tenora_platform.inference.beams import with_beams
from tenora_platform.inference.chunks import Chunks, encode
from tenora_platform.inference.generation import Piece
from tenora_platform.inference.logprobs import PlacedToken, text_logprobs
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
        prompts.append(Prompt(token_ids, with_beams(body, generation)))
    return prompts


class _Choices:
    """What has been said of every choice so far: how long its text is, and where its tokens are."""

    def __init__(self, session: InferenceSession, body: CompletionRequest) -> None:
        self._session = session
        self._text = session.state.engine.text
        self._body = body
        self._per_prompt = sequences_of(body)
        self._lengths: dict[int, int] = {}
        self._offsets: dict[int, TokenOffsets] = {}
        self._placed: defaultdict[int, list[PlacedToken]] = defaultdict(list)  # not said yet

    def text(self, piece: Piece) -> str:
        """The piece's text, behind the prompt's if it is the first and `echo` was asked for."""
        text = piece.text
        if piece.choice not in self._lengths and self._body.echo:
            text = self._text.decode(self._prompt(piece.choice)) + text
        self._lengths[piece.choice] = self._lengths.get(piece.choice, 0) + len(text)
        return text

    def _prompt(self, choice: int) -> list[int]:
        return self._session.prompts[choice // self._per_prompt].token_ids

    def prompt_token_ids(self, choice: int) -> list[int] | None:
        return self._prompt(choice) if self._body.return_token_ids else None

    def logprobs(
        self, choice: int, tokens: Sequence[TokenLogprob], is_last: bool
    ) -> TextLogprobs | None:
        """Of tokens whose text has been said; those of the prompt come before the first, where it
        is echoed. A token whose text is held back comes with it, or at the end."""
        if self._body.logprobs is None:
            return None
        placed, length = self._placed[choice], self._lengths.get(choice, 0)
        offsets = self._offsets.get(choice)
        if offsets is None:
            offsets = self._offsets[choice] = self._begin(choice)
        for token in tokens:
            placed.append(PlacedToken(token.token_id, offsets.place(token.token_id), token))
        said = len(placed)
        if not is_last:
            said = bisect_right(placed, length, key=lambda token: token.offset)
        shaped = text_logprobs(self._text, placed[:said], length if is_last else None)
        del placed[:said]
        return shaped

    def _begin(self, choice: int) -> TokenOffsets:
        """Place the tokens of an echoed prompt."""
        if self._body.echo:
            offsets, prompt = self._text.offsets(), self._prompt(choice)
            known = [None, *self._session.prompt_logprobs(choice // self._per_prompt)]
            for token_id, logprob in zip(prompt, known, strict=False):
                placed = PlacedToken(token_id, offsets.place(token_id), logprob)
                self._placed[choice].append(placed)
            return self._text.offsets(self._body.skip_special_tokens, offsets.end())
        return self._text.offsets(self._body.skip_special_tokens)


@dataclass
class _Answer:
    """One sequence's."""

    choice: int
    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: FinishReasonText | None = None

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
            answer.finish_reason = piece.finish_reason
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
                logprobs=shaping.logprobs(answer.choice, answer.logprobs, is_last=True),
                finish_reason=answer.finish_reason,
                prompt_token_ids=shaping.prompt_token_ids(answer.choice),
                token_ids=answer.token_ids if body.return_token_ids else None,
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
                text, is_last = shaping.text(piece), piece.finish_reason is not None
                logprobs = shaping.logprobs(piece.choice, piece.logprobs, is_last)
                choice = {
                    "index": piece.choice,
                    "text": text,
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
