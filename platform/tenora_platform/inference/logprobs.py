"""Log probabilities in the two APIs' shapes. Knows token texts, not where they came from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tenora_engine.events import TokenLogprob
from tenora_engine.text.processor import TextProcessor
from tenora_platform.inference.schemas import (
    ChatLogprobs,
    ChatTokenLogprob,
    PromptLogprob,
    TextLogprobs,
    TopLogprob,
)

LOWEST = -9999.0  # what OpenAI writes for "practically never"; JSON has no -inf


def _finite(logprob: float) -> float:
    return max(logprob, LOWEST)


def chat_logprobs(
    text: TextProcessor, tokens: Sequence[TokenLogprob], by_id: bool = False
) -> ChatLogprobs:
    """Chat's: a list of tokens, each with its likeliest alternatives; with `by_id` called
    `token_id:123`."""
    return ChatLogprobs(
        content=[
            ChatTokenLogprob(
                **_top(text, token.token_id, token.logprob, by_id).model_dump(),
                top_logprobs=[_top(text, *each, by_id) for each in token.top],
            )
            for token in tokens
        ]
    )


def _top(text: TextProcessor, token_id: int, logprob: float, by_id: bool) -> TopLogprob:
    return TopLogprob(
        token=_id_label(token_id) if by_id else text.token_text(token_id),
        logprob=_finite(logprob),
        bytes=list(text.token_bytes(token_id)),
    )


def text_logprobs(
    text: TextProcessor,
    tokens: Sequence[TokenLogprob],
    offsets: Sequence[int],
    first: int | None = None,
    by_id: bool = False,
) -> TextLogprobs:
    """Completions': parallel lists. `offsets` say where each token's text begins; `first` is a
    token before all others, of which there is no logprob; with `by_id` tokens are called
    `token_id:123`."""
    out = TextLogprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=list(offsets))
    if first is not None:
        out.tokens.append(_id_label(first) if by_id else text.token_label(first))
        out.token_logprobs.append(None)
        out.top_logprobs.append(None)
    for token in tokens:
        # The sampled token is always among them, so that there may be one more than asked for.
        top = dict(token.top)
        top.setdefault(token.token_id, token.logprob)
        labels = {each: _id_label(each) for each in top} if by_id else _labels(text, top)
        out.tokens.append(labels[token.token_id])
        out.token_logprobs.append(_finite(token.logprob))
        out.top_logprobs.append({labels[token_id]: _finite(top[token_id]) for token_id in top})
    return out


def prompt_logprobs(
    text: TextProcessor, tokens: Sequence[TokenLogprob], count: int
) -> list[dict[str, PromptLogprob] | None]:
    """vLLM's, of a prompt whose tokens from the second on these are: at each place the token and
    the `count` likeliest."""
    found: list[dict[str, PromptLogprob] | None] = [None]
    for token in tokens:
        ranks = {token_id: place for place, (token_id, _) in enumerate(token.top, start=1)}
        said = dict([(token.token_id, token.logprob), *token.top[:count]])
        found.append(
            {
                str(token_id): PromptLogprob(
                    logprob=_finite(logprob),
                    rank=ranks.get(token_id),
                    decoded_token=text.token_label(token_id),
                )
                for token_id, logprob in said.items()
            }
        )
    return found


def _id_label(token_id: int) -> str:
    return f"token_id:{token_id}"


def _labels(text: TextProcessor, token_ids: Iterable[int]) -> dict[int, str]:
    """One for each. Of two tokens that stand for the same bytes the second is called by its id."""
    labels: dict[int, str] = {}
    taken: set[str] = set()
    for token_id in token_ids:
        label = text.token_label(token_id)
        if label in taken:
            label = _id_label(token_id)
        taken.add(label)
        labels[token_id] = label
    return labels
