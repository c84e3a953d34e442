"""The distinct tokens of a list that grows, and how often each has come, kept up to date token by
token: what penalties are of. Knows no request."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]


class TokenCounts:
    """Of `token_ids[start:]`. What is added costs its own length, however long the list is."""

    def __init__(self, vocab: int, start: int) -> None:
        self._end = start
        self._place = np.full(vocab, -1, np.int32)  # of a token in the two arrays, -1: never came
        self._tokens = np.empty(64, np.int64)
        self._counts = np.empty(64, np.int64)
        self._size = 0

    @property
    def tokens(self) -> Int64s:  # [num_distinct], each once
        return self._tokens[: self._size]

    @property
    def counts(self) -> Int64s:  # [num_distinct], of `tokens`
        return self._counts[: self._size]

    def take_in(self, token_ids: list[int]) -> None:
        """Count what has been added to the list since the last call. Tokens lie in the
        vocabulary."""
        added = len(token_ids) - self._end
        if added == 1:
            self._add_one(token_ids[-1])
        elif added > 1:
            tokens, counts = np.unique(np.array(token_ids[self._end :]), return_counts=True)
            places = self._place[tokens]
            known = places >= 0
            self._counts[places[known]] += counts[known]
            self._append(tokens[~known], counts[~known])
        self._end = len(token_ids)

    def _add_one(self, token: int) -> None:
        place = self._place[token]
        if place >= 0:
            self._counts[place] += 1
        else:
            self._append(np.array([token]), np.ones(1, np.int64))

    def _append(self, tokens: Int64s, counts: Int64s) -> None:
        end = self._size + len(tokens)
        if end > len(self._tokens):
            room = max(end, 2 * len(self._tokens)) - self._size
            self._tokens = np.concatenate([self.tokens, np.empty(room, np.int64)])
            self._counts = np.concatenate([self.counts, np.empty(room, np.int64)])
        self._tokens[self._size : end] = tokens
        self._counts[self._size : end] = counts
        self._place[tokens] = np.arange(self._size, end)
        self._size = end
