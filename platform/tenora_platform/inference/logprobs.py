"""Log probabilities in the two APIs' shapes. Knows token texts, not where they came from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tenora_engine.events import TokenLogprob
from tenora_engine.text.processor import TextProcessor
from tenora_engine.text.token_bytes import bytes_name
from tenora_platform.inference.schemas import (
    ChatLogprobs,
    ChatTokenLogprob,
    TextLogprobs,
    TopLogprob,
)

LOWEST = -9999.0  # what OpenAI writes for "practically never"; JSON has no -inf


def _finite(logprob: float) -> float:
    return max(logprob, LOWEST)


def chat_logprobs(text: TextProcessor, tokens: Sequence[TokenLogprob]) -> ChatLogprobs:
    """Chat's: a list of tokens, each with its likeliest alternatives."""
    return ChatLogprobs(
        content=[
            ChatTokenLogprob(
                token=text.token_text(token.token_id),
                logprob=_finite(token.logprob),
                bytes=list(text.token_bytes(token.token_id)),
                top_logprobs=[_top(text, token_id, logprob) for token_id, logprob in token.top],
            )
            for token in tokens
        ]
    )


def _top(text: TextProcessor, token_id: int, logprob: float) -> TopLogprob:
    return TopLogprob(
        token=text.token_text(token_id),
        logprob=_finite(logprob),
        bytes=list(text.token_bytes(token_id)),
    )


@dataclass(frozen=True)
class PlacedToken:
    """A token and where it begins in its choice's text, in characters. `logprob` is None of the
    first of an echoed prompt."""

    token_id: int
    offset: int
    logprob: TokenLogprob | None


def text_logprobs(
    text: TextProcessor, tokens: Sequence[PlacedToken], length: int | None = None
) -> TextLogprobs:
    """Completions': parallel lists. No offset lies beyond `length`, where a stop string has cut the
    text."""
    out = TextLogprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
    for token in tokens:
        out.tokens.append(text.token_name(token.token_id))
        out.text_offset.append(token.offset if length is None else min(token.offset, length))
        if token.logprob is None:
            out.token_logprobs.append(None)
            out.top_logprobs.append(None)
            continue
        out.token_logprobs.append(_finite(token.logprob.logprob))
        # The sampled token is always among them, so that there may be one more than asked for.
        top = dict([*token.logprob.top, (token.token_id, token.logprob.logprob)])
        out.top_logprobs.append(_by_name(text, top))
    return out


def _by_name(text: TextProcessor, top: Mapping[int, float]) -> dict[str, float]:
    """An entry for each token, also where two have the same text: the second has the name of its
    bytes, a third that of its id."""
    named: dict[str, float] = {}
    for token_id, logprob in top.items():
        name = text.token_name(token_id)
        if name in named:
            name = bytes_name(text.token_bytes(token_id))
        if name in named:
            name = f"token_id:{token_id}"
        named[name] = _finite(logprob)
    return named
