"""What a request's rules change about the logits of its next token: penalties, bias, and tokens
that may not come. Each sequence keeps its own state, so that a step's work is bounded by the
vocabulary, not by how long the sequence is."""

from __future__ import annotations

from collections.abc import Sequence as Rows
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tenora_engine.request import SamplingParams
from tenora_engine.runner.token_counts import Int64s, TokenCounts
from tenora_engine.sequence import Sequence

NOT_ALLOWED = -3e38
"""The logit of a token outside `allowed_token_ids`: below any other, yet a number, so that a row of
which nothing is left has no NaN."""

BARRED = -1e30
"""At most the logit of a token that may not come now: below any of a model's, above NOT_ALLOWED, so
that a row draws from what is allowed though all of it is barred."""

Float32s = npt.NDArray[np.float32]


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


@dataclass(frozen=True)
class Entries:
    """Single logits to change: `value[i]` is for `place[i]` of the flattened rows, none of them
    twice."""

    place: Tensor  # [num_entries] int64
    value: Tensor  # [num_entries] float32


@dataclass(frozen=True)
class LogitChanges:
    """What a step's rows change. Everything is None where no row asks for it."""

    repetition: Entries | None  # tokens seen in prompt or output, and the row's penalty
    bias: Entries | None  # to add
    penalties: Entries | None  # presence and frequency, to subtract
    allowed_rows: Tensor | None  # [num_rows] int64: rows which only these may follow:
    allowed_places: Tensor | None  # [num_allowed] int64
    barred: Tensor | None  # [num_barred] int64, places

    def applied(self, logits: Tensor) -> Tensor:  # both [num_rows, vocab]; the result float32
        """The logits as the requests want them: penalties and bias first, then what may not come,
        which no bias brings back."""
        adjusted = logits.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
        flat = adjusted.view(-1)
        if self.repetition is not None:
            place, penalty = self.repetition.place, self.repetition.value
            seen = flat.index_select(0, place)
            flat.index_copy_(0, place, torch.where(seen < 0, seen * penalty, seen / penalty))
        if self.bias is not None:
            flat.index_add_(0, self.bias.place, self.bias.value)
        if self.penalties is not None:
            flat.index_add_(0, self.penalties.place, self.penalties.value, alpha=-1)
        if self.allowed_rows is not None and self.allowed_places is not None:
            kept = flat.index_select(0, self.allowed_places)
            adjusted.index_fill_(0, self.allowed_rows, NOT_ALLOWED)
            flat.index_copy_(0, self.allowed_places, kept)
        if self.barred is not None:
            lowered = flat.index_select(0, self.barred).clamp_(max=BARRED)
            flat.index_copy_(0, self.barred, lowered)
        return adjusted


def logit_changes(
    sequences: Rows[Sequence], vocab: int, device: torch.device
) -> LogitChanges | None:
    """Of one row a sequence, in order; None where all stay as they are. Brings the sequences'
    rules up to date."""
    found = _Found(vocab)
    for row, sequence in enumerate(sequences):
        if not has_rules(sequence.request.sampling):
            continue
        if sequence.logit_rules is None:
            sequence.logit_rules = LogitRules(sequence, vocab)
        sequence.logit_rules.take_in(sequence.token_ids)
        found.add(row, sequence.logit_rules, sequence)
    return found.changes(device)


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

    def changes(self, device: torch.device) -> LogitChanges | None:
        parts = (self.repetition, self.bias, self.penalties, self.allowed_rows, self.barred)
        if not any(parts):
            return None

        def entries(pieces: list[tuple[Int64s, Float32s]]) -> Entries | None:
            if not pieces:
                return None
            place, value = (np.concatenate(column) for column in zip(*pieces, strict=True))
            return Entries(torch.from_numpy(place).to(device), torch.from_numpy(value).to(device))

        def places(pieces: list[Int64s]) -> Tensor | None:
            return torch.from_numpy(np.concatenate(pieces)).to(device) if pieces else None

        rows = self.allowed_rows
        return LogitChanges(
            repetition=entries(self.repetition),
            bias=entries(self.bias),
            penalties=entries(self.penalties),
            allowed_rows=torch.tensor(rows, device=device) if rows else None,
            allowed_places=places(self.allowed),
            barred=places(self.barred),
        )
