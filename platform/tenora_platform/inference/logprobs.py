"""Log probabilities in the two APIs' shapes, as JSON: a request may ask for a million of them, and
an object for each would keep everybody waiting. Knows token texts, not where they came from."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from tenora_engine.events import TokenLogprob
from tenora_engine.text.processor import TextProcessor
from tenora_platform.errors import BadRequestError

PROMPT_SCORES_MAX = 2**21
"""Log probabilities of prompts in one answer, some 60 MB of JSON. Those of generated tokens are
bounded by what it takes to generate them."""
SLICE_TOKENS = 64
"""So many tokens' log probabilities are written before others have their turn: some milliseconds
with 20 alternatives each."""
LOWEST = -9999.0  # what OpenAI writes for "practically never"; JSON has no -inf


_encode = msgspec.json.Encoder().encode


def refuse_too_many_scores(counts: Sequence[int | None], tokens: int) -> None:
    """Raises BadRequestError where an answer would hold `counts` alternatives (None: none, nor the
    token) at each of so many tokens of prompts, and that is too much."""
    entries = tokens * sum(count + 1 for count in counts if count is not None)
    if entries > PROMPT_SCORES_MAX:
        raise BadRequestError(
            f"This request asks for {entries} log probabilities of prompt tokens; at most "
            f"{PROMPT_SCORES_MAX} are allowed. Lower n, logprobs, prompt_logprobs or the number "
            "of prompts, or leave echo out.",
            param="logprobs" if counts[0] is not None else "prompt_logprobs",
            code="invalid_value",
        )


async def in_slices(tokens: Sequence[TokenLogprob]) -> AsyncIterator[Sequence[TokenLogprob]]:
    """All of them, some at a time; everybody else's work comes between."""
    for start in range(0, len(tokens), SLICE_TOKENS):
        if start:
            await asyncio.sleep(0)
        yield tokens[start : start + SLICE_TOKENS]


def _finite(logprob: float) -> float:
    return max(logprob, LOWEST)


class ChatScores:
    """Chat's: a list of tokens, each with its likeliest alternatives. With `by_id` tokens are
    called `token_id:123`; `with_itself`, each is among its alternatives."""

    def __init__(
        self, text: TextProcessor, by_id: bool = False, *, with_itself: bool = False
    ) -> None:
        self._text = text
        self._by_id = by_id
        self._with_itself = with_itself
        self._tokens: list[bytes] = []

    def add(self, tokens: Sequence[TokenLogprob]) -> None:
        self._tokens += map(_encode, self.said(tokens))

    def said(self, tokens: Sequence[TokenLogprob]) -> Iterator[dict[str, Any]]:
        """Each token as it is listed; nothing is added."""
        for token in tokens:
            said = self._said(token.token_id, token.logprob)
            top = [self._said(*each) for each in token.top]
            if self._with_itself and all(each != token.token_id for each, _ in token.top):
                top.insert(0, said)
            yield {**said, "top_logprobs": top}

    def json(self) -> msgspec.Raw:
        return msgspec.Raw(b'{"content":[%b],"refusal":null}' % b",".join(self._tokens))

    def _said(self, token_id: int, logprob: float) -> dict[str, Any]:
        return {
            "token": _id_label(token_id) if self._by_id else self._text.token_text(token_id),
            "logprob": _finite(logprob),
            "bytes": list(self._text.token_bytes(token_id)),
        }


class TextScores:
    """Completions': parallel lists. With `by_id` tokens are called `token_id:123`."""

    def __init__(self, text: TextProcessor, by_id: bool = False) -> None:
        self._text = text
        self._by_id = by_id
        self.tokens: list[bytes] = []
        self.token_logprobs: list[bytes] = []
        self.top_logprobs: list[bytes] = []
        self.text_offset: list[bytes] = []

    def add_first(self, token_id: int) -> None:
        """A token before all others, of which there is no logprob."""
        label = _id_label(token_id) if self._by_id else self._text.token_label(token_id)
        self.tokens.append(_encode(label))
        self.token_logprobs.append(b"null")
        self.top_logprobs.append(b"null")

    def add(self, tokens: Sequence[TokenLogprob]) -> None:
        for token in tokens:
            # The token itself is always among them, so there may be one more than asked for.
            top = dict(token.top)
            top.setdefault(token.token_id, token.logprob)
            labels = {each: _id_label(each) for each in top} if self._by_id else self._labels(top)
            self.tokens.append(_encode(labels[token.token_id]))
            self.token_logprobs.append(_encode(_finite(token.logprob)))
            order = (token.token_id, *top)  # itself first, as in vLLM
            said = {labels[token_id]: _finite(top[token_id]) for token_id in order}
            self.top_logprobs.append(_encode(said))

    def add_offsets(self, offsets: Iterable[int], behind: int = 0) -> None:
        """Where each token's text begins, in characters `behind` the text's beginning."""
        self.text_offset += [b"%d" % (behind + offset) for offset in offsets]

    def extend(self, others: TextScores) -> None:
        """With those of the tokens that follow."""
        for name in _LISTS:
            getattr(self, name).extend(getattr(others, name))

    def json(self) -> msgspec.Raw:
        lists = (b'"%b":[%b]' % (n.encode(), b",".join(getattr(self, n))) for n in _LISTS)
        return msgspec.Raw(b"{%b}" % b",".join(lists))

    def _labels(self, token_ids: Iterable[int]) -> dict[int, str]:
        """One for each. Of two tokens that stand for the same bytes the second is called by its
        id."""
        labels: dict[int, str] = {}
        taken: set[str] = set()
        for token_id in token_ids:
            label = self._text.token_label(token_id)
            if label in taken:
                label = _id_label(token_id)
            taken.add(label)
            labels[token_id] = label
        return labels


_LISTS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")


async def prompt_logprobs(
    text: TextProcessor, tokens: Sequence[TokenLogprob], count: int
) -> msgspec.Raw:
    """vLLM's, of a prompt whose tokens from the second on these are: at each place the token and
    the `count` likeliest, by token id; null at the first."""
    found = [b"null"]
    async for some in in_slices(tokens):
        for token in some:
            ranks = {token_id: place for place, (token_id, _) in enumerate(token.top, start=1)}
            said = dict([(token.token_id, token.logprob), *token.top[:count]])
            found.append(
                _encode(
                    {
                        str(token_id): {
                            "logprob": _finite(logprob),
                            "rank": ranks.get(token_id),
                            "decoded_token": text.token_label(token_id),
                        }
                        for token_id, logprob in said.items()
                    }
                )
            )
    return msgspec.Raw(b"[%b]" % b",".join(found))


def _id_label(token_id: int) -> str:
    return f"token_id:{token_id}"
