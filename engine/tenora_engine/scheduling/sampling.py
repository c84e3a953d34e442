"""What is asked of the samples of a step beside the likeliest token of each, gathered from their
requests as arrays: draws, and what rules change about logits (penalties, bias, tokens that may not
come). Rows that ask for nothing special appear in none of it. Each sequence keeps the state of its
rules, so that a step's work is bounded by the vocabulary, not by how long the sequence is."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence as Rows
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tenora_engine.request import SamplingParams
from tenora_engine.sequence import Sequence
from tenora_engine.step import Draws, Entries, Float32s, Int64s, LogitChanges, Sampling

SMALLEST_TEMPERATURE = float(np.finfo(np.float32).tiny)
"""float32's smallest normal number: logits cannot be divided by less, and long before that only the
likeliest token is left."""

_MASK_64 = (1 << 64) - 1


def plan_sampling(sequences: Rows[Sequence], vocab: int, engine_seed: int) -> Sampling | None:
    """Of one sample a sequence, in order; None where of each the likeliest token is all that is
    wanted. Brings the sequences' rules up to date."""
    if all(sequence.is_plain for sequence in sequences):
        return None
    num_top = {
        row: sequence.request.sampling.logprobs
        for row, sequence in enumerate(sequences)
        if sequence.request.sampling.logprobs is not None
    }
    changes = logit_changes(sequences, vocab)
    draws = _draws(sequences, vocab, engine_seed)
    if changes is None and draws is None and not num_top:
        return None
    return Sampling(changes, draws, num_top)


def is_greedy(params: SamplingParams) -> bool:
    """Whether the likeliest token is taken, the first one of equals."""
    return params.temperature < SMALLEST_TEMPERATURE or params.top_k == 1


def is_plain(params: SamplingParams) -> bool:
    """Whether the likeliest token of the model's own distribution is all that is wanted."""
    return is_greedy(params) and params.logprobs is None and not has_rules(params)


def uniform(
    seeds: Rows[int], indices: Rows[int], positions: Rows[int]
) -> npt.NDArray[np.float32]:  # [num_draws]
    """Numbers in [0, 1), each of which depends on its own three arguments only: the splitmix64
    finaliser (Steele, Lea and Flood 2014) chained over them, its upper 24 bits."""
    state = np.zeros(len(seeds), np.uint64)
    for column in (seeds, indices, positions):
        part = np.array([value & _MASK_64 for value in column], np.uint64)
        state = _mix((state ^ part) + np.uint64(0x9E3779B97F4A7C15))
    return (state >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)


@functools.lru_cache(maxsize=4096)
def request_seed(request_id: str, engine_seed: int) -> int:
    """For a request without a seed of its own: one that stays the same for all of its steps."""
    digest = hashlib.blake2b(f"{engine_seed}:{request_id}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def _mix(value: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def _draws(sequences: Rows[Sequence], vocab: int, engine_seed: int) -> Draws | None:
    chosen = [
        (row, sequence, sequence.request.sampling)
        for row, sequence in enumerate(sequences)
        if not is_greedy(sequence.request.sampling)
    ]
    if not chosen:
        return None
    top_k = [min(params.top_k, vocab) or vocab for _, _, params in chosen]
    top_p = [params.top_p for _, _, params in chosen]
    min_p = [params.min_p for _, _, params in chosen]
    seeds = [
        request_seed(sequence.request.request_id, engine_seed)
        if params.seed is None
        else params.seed
        for _, sequence, params in chosen
    ]
    indices = [sequence.index for _, sequence, _ in chosen]
    positions = [sequence.num_output for _, sequence, _ in chosen]
    max_top_k = max((k for k in top_k if k < vocab), default=0)
    return Draws(
        rows=np.array([row for row, _, _ in chosen]),
        temperature=np.array([params.temperature for _, _, params in chosen], np.float32),
        uniform=uniform(seeds, indices, positions),
        top_k=np.array(top_k) if max_top_k else None,
        top_p=np.array(top_p, np.float32) if min(top_p) < 1.0 else None,
        min_p=np.array(min_p, np.float32) if max(min_p) > 0.0 else None,
        max_top_k=max_top_k,
    )


def has_rules(params: SamplingParams) -> bool:
    """Whether the request changes any logit, ever."""
    return (
        params.repetition_penalty != 1.0
        or params.presence_penalty != 0.0
        or params.frequency_penalty != 0.0
        or bool(params.logit_bias or params.bad_words or params.min_tokens)
        or params.allowed_token_ids is not None
    )


class LogitRules:
    """One sequence's, up to date with its tokens after each `take_in`."""

    def __init__(self, sequence: Sequence, vocab: int) -> None:
        params = sequence.request.sampling
        self.params = params
        # Penalties follow OpenAI (presence and frequency, of the output) and Hugging Face
        # (repetition, of prompt and output).
        self.seen = TokenCounts(vocab, 0) if params.repetition_penalty != 1.0 else None
        counts_output = params.presence_penalty != 0.0 or params.frequency_penalty != 0.0
        self.made = TokenCounts(vocab, sequence.num_prompt) if counts_output else None
        # A token outside the vocabulary has no logit to add to.
        bias = {token: add for token, add in params.logit_bias.items() if 0 <= token < vocab}
        self.bias_tokens = np.array(list(bias), np.int64)
        self.bias = np.array(list(bias.values()), np.float32)
        allowed = params.allowed_token_ids
        self.allowed = None if allowed is None else np.unique(np.array(allowed, np.int64))
        ends = sorted(token for token in sequence.stop_ids if token < vocab)
        self._ends = np.array(ends if params.min_tokens else [], np.int64)

    def take_in(self, token_ids: list[int]) -> None:
        """The sequence's tokens so far; they only grow."""
        for counts in (self.seen, self.made):
            if counts is not None:
                counts.take_in(token_ids)

    def barred(self, sequence: Sequence) -> Int64s:  # [num_barred], some perhaps twice
        """The tokens that may not come next: those that would end the sequence too early or
        complete a bad word (matched within the output)."""
        words = _completions(self.params.bad_words, sequence)
        if sequence.num_output >= self.params.min_tokens:
            return np.array(words, np.int64)
        return np.concatenate([self._ends, np.array(words, np.int64)])


def _completions(words: tuple[tuple[int, ...], ...], sequence: Sequence) -> list[int]:
    if not words:
        return []
    tokens, num_output = sequence.token_ids, sequence.num_output
    last = tokens[-1] if num_output else None
    return [
        word[-1]
        for word in words
        if len(word) == 1
        or (
            word[-2] == last
            and len(word) <= num_output + 1
            and tuple(tokens[1 - len(word) :]) == word[:-1]
        )
    ]


def logit_changes(sequences: Rows[Sequence], vocab: int) -> LogitChanges | None:
    """Of one sample a sequence, in order; None where all stay as they are. Brings the sequences'
    rules up to date."""
    found = _Found(vocab)
    for row, sequence in enumerate(sequences):
        if not has_rules(sequence.request.sampling):
            continue
        if sequence.logit_rules is None:
            sequence.logit_rules = LogitRules(sequence, vocab)
        sequence.logit_rules.take_in(sequence.token_ids)
        found.add(row, sequence.logit_rules, sequence)
    return found.changes()


@dataclass
class _Found:
    """What the rows ask for, piece by piece."""

    vocab: int
    repetition: list[tuple[Int64s, Float32s]] = field(default_factory=list)
    bias: list[tuple[Int64s, Float32s]] = field(default_factory=list)
    penalties: list[tuple[Int64s, Float32s]] = field(default_factory=list)
    allowed_rows: list[int] = field(default_factory=list)
    allowed: list[Int64s] = field(default_factory=list)
    barred: list[Int64s] = field(default_factory=list)

    def add(self, row: int, rules: LogitRules, sequence: Sequence) -> None:
        first, params = row * self.vocab, rules.params
        if rules.seen is not None:
            tokens = rules.seen.tokens
            penalty = np.full(tokens.shape, params.repetition_penalty, np.float32)
            self.repetition.append((first + tokens, penalty))
        if rules.bias.size:
            self.bias.append((first + rules.bias_tokens, rules.bias))
        if rules.made is not None and rules.made.tokens.size:
            sums = params.presence_penalty + params.frequency_penalty * rules.made.counts
            self.penalties.append((first + rules.made.tokens, sums.astype(np.float32)))
        if rules.allowed is not None:
            self.allowed_rows.append(row)
            self.allowed.append(first + rules.allowed)
        barred = rules.barred(sequence)
        if barred.size:
            self.barred.append(first + barred)

    def changes(self) -> LogitChanges | None:
        parts = (self.repetition, self.bias, self.penalties, self.allowed_rows, self.barred)
        if not any(parts):
            return None
        return LogitChanges(
            repetition=_entries(self.repetition),
            bias=_entries(self.bias),
            penalties=_entries(self.penalties),
            allowed_rows=np.array(self.allowed_rows) if self.allowed_rows else None,
            allowed_places=np.concatenate(self.allowed) if self.allowed else None,
            barred=np.concatenate(self.barred) if self.barred else None,
        )


def _entries(pieces: list[tuple[Int64s, Float32s]]) -> Entries | None:
    if not pieces:
        return None
    place, value = (np.concatenate(column) for column in zip(*pieces, strict=True))
    return Entries(place, value)


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
