"""Log probabilities in the two APIs' shapes. Knows token texts, not where they came from."""

from __future__ import annotations

from collections.abc import Sequence

from tenora_engine.events import TokenLogprob
from tenora_engine.text.processor import TextProcessor
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


def text_logprobs(
    text: TextProcessor,
    tokens: Sequence[TokenLogprob],
    offset: int,
    first: int | None = None,
) -> TextLogprobs:
    """Completions': parallel lists. `offset` is where the first token's text begins; `first` is a
    token before all others, of which there is no logprob."""
    out = TextLogprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
    if first is not None:
        piece = text.token_text(first)
        out.tokens.append(piece)
        out.token_logprobs.append(None)
        out.top_logprobs.append(None)
        out.text_offset.append(offset)
        offset += len(piece)
    for token in tokens:
        piece = text.token_text(token.token_id)
        out.tokens.append(piece)
        out.token_logprobs.append(_finite(token.logprob))
        # The sampled token is always among them, so that there may be one more than asked for.
        top = [*token.top, (token.token_id, token.logprob)]
        out.top_logprobs.append(
            {text.token_text(token_id): _finite(logprob) for token_id, logprob in top}
        )
        out.text_offset.append(offset)
        offset += len(piece)
    return out
