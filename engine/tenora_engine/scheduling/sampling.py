"""What is asked of the samples of a step beside the likeliest token of each, gathered from their
requests as arrays: draws, and what rules change about logits (penalties, bias, tokens that may not
come). Rows that ask for nothing special appear in none of it. Each sequence keeps the state of its
rules, so that a step's work is bounded by the vocabulary, not by how long the sequence is."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence as Rows
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tenora_engine.grammar.guide import Guide, masks_by_row
from tenora_engine.request import SamplingParams
from tenora_engine.sequence import Sequence
from tenora_engine.step import Draws, Entries, Float32s, Int64s, LogitChanges, Sampling

SMALLEST_TEMPERATURE = float(np.finfo(np.float32).tiny)
"""float32's smallest normal number: logits cannot be divided by less, and long before that only the
likeliest token is left."""

_MASK_64 = (1 << 64) - 1
UInt64s = npt.NDArray[np.uint64]
Bools = npt.NDArray[np.bool_]


def plan_sampling(
    sequences: Rows[Sequence],
    vocab: int,
    engine_seed: int,
    drafts: Rows[tuple[int, ...] | None] | None = None,
    given: Rows[list[int]] | None = None,
) -> Sampling | None:
    """Of one sample a sequence, in order, and one after each of its drafts; None where of each the
    likeliest token is all that is wanted. Brings the sequences' rules up to date.

    Before these come samples whose tokens are `given`, for their logprobs. None for its drafts: a
    sequence has no others.
    """
    if given is None and all(sequence.is_plain for sequence in sequences):
        return None
    asked = _Asked(_Drawn(), _Found(vocab))
    if drafts is None and given is None:
        _ask_once(asked, sequences, engine_seed)
        return asked.sampling(vocab)
    first, count = 0, len(sequences)
    each = zip(sequences, drafts or ((),) * count, given or ((),) * count, strict=True)
    for sequence, draft, known in each:
        row = first + len(known)
        asked.give(range(first, row), known, sequence.request.sampling.prompt_logprobs or 0)
        first = row if draft is None else row + 1 + len(draft)
        if draft is not None and not sequence.is_plain:
            asked.add(
                row, sequence, draft, sequence.sampler or _sampler(sequence, vocab, engine_seed)
            )
    return asked.sampling(vocab)


def is_greedy(params: SamplingParams) -> bool:
    """Whether the likeliest token is taken, the first one of equals."""
    return params.temperature < SMALLEST_TEMPERATURE or params.top_k == 1


def is_plain(params: SamplingParams) -> bool:
    """Whether the likeliest token of the model's own distribution is all that is wanted."""
    is_quiet = params.logprobs is None and not params.embeds and params.beams is None
    return is_greedy(params) and is_quiet and not has_rules(params)


def uniform(
    seeds: Rows[int], indices: Rows[int], positions: Rows[int]
) -> npt.NDArray[np.float32]:  # [num_draws]
    """Numbers in [0, 1), each of which depends on its own three arguments only: the splitmix64
    finaliser (Steele, Lea and Flood 2014) chained over them, its upper 24 bits."""
    streams = _chained(_chained(np.zeros(len(seeds), np.uint64), seeds), indices)
    return _unit(_chained(streams, positions))


def _chained(state: UInt64s, column: Rows[int]) -> UInt64s:
    """`column` has numbers of 64 bits, or negative ones."""
    return _next(state, np.array([value & _MASK_64 for value in column], np.uint64))


def _next(state: UInt64s, part: UInt64s) -> UInt64s:
    return _mix((state ^ part) + np.uint64(0x9E3779B97F4A7C15))


def _next_one(state: int, part: int) -> int:
    """As `_chained` of one number."""
    value = ((state ^ (part & _MASK_64)) + 0x9E3779B97F4A7C15) & _MASK_64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK_64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK_64
    return value ^ (value >> 31)


def _unit(state: UInt64s) -> npt.NDArray[np.float32]:
    return (state >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)


def request_seed(request_id: str, engine_seed: int) -> int:
    """For a request without a seed of its own: one that stays the same for all of its steps."""
    digest = hashlib.blake2b(f"{engine_seed}:{request_id}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def _mix(value: UInt64s) -> UInt64s:
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


class Draw(NamedTuple):
    """How one sequence's tokens are drawn: what of it stays the same in all steps."""

    stream: int  # `uniform`'s state after seed and index
    temperature: float
    top_k: int  # the vocabulary where off
    top_p: float
    min_p: float


@dataclass(eq=False, slots=True)
class Sampler:
    """What one sequence asks of its samples."""

    draw: Draw | None  # None: greedy
    rules: LogitRules | None
    num_top: int | None
    embeds: bool = False
    named: list[int] = field(default_factory=list)  # alternatives, in the place of the likeliest
    is_draw: bool = field(init=False)  # and nothing else

    def __post_init__(self) -> None:
        is_quiet = self.num_top is None and not self.embeds
        self.is_draw = self.draw is not None and self.rules is None and is_quiet


def _sampler(sequence: Sequence, vocab: int, engine_seed: int) -> Sampler:
    """The sequence's, made when it is first sampled: rules take room."""
    request, params = sequence.request, sequence.request.sampling
    draw = None
    if not is_greedy(params):
        seed = params.seed
        if seed is None:
            seed = request_seed(request.request_id, engine_seed)
        stream = _next_one(_next_one(0, seed), sequence.index)
        top_k = min(params.top_k, vocab) or vocab
        draw = Draw(stream, params.temperature, top_k, params.top_p, params.min_p)
    rules = LogitRules(sequence, vocab) if has_rules(params) else None
    num_top = params.logprobs if sequence.beams is None else sequence.beams.num_candidates
    named = list(params.logprob_token_ids)
    sequence.sampler = Sampler(draw, rules, num_top, params.embeds, named)
    return sequence.sampler


@dataclass
class _Drawn:
    """The samples that are drawn, one after the other."""

    rows: list[int] = field(default_factory=list)
    draws: list[Draw] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)

    def add(self, row: int, draw: Draw, position: int, count: int) -> None:
        """So many from a row and a position on."""
        if count == 1:
            self.rows.append(row)
            self.draws.append(draw)
            self.positions.append(position)
        else:
            self.rows += range(row, row + count)
            self.draws += [draw] * count
            self.positions += range(position, position + count)

    def columns(self, vocab: int) -> Draws | None:
        if not self.rows:
            return None
        stream, temperature, top_k, top_p, min_p = zip(*self.draws, strict=True)
        max_top_k = max((k for k in top_k if k < vocab), default=0)
        return Draws(
            rows=np.array(self.rows),
            temperature=np.array(temperature, np.float32),
            uniform=_unit(_next(np.array(stream, np.uint64), np.array(self.positions, np.uint64))),
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
        or params.grammar is not None
    )


class LogitRules:
    """One sequence's, up to date with its tokens after each `take_in`."""

    def __init__(self, sequence: Sequence, vocab: int) -> None:
        params = sequence.request.sampling
        self.params = params
        # Penalties follow OpenAI (presence and frequency, of the output) and Hugging Face
        # (repetition, of prompt and output).
        self.seen = TokenCounts(0) if params.repetition_penalty != 1.0 else None
        counts_output = params.presence_penalty != 0.0 or params.frequency_penalty != 0.0
        self.made = TokenCounts(sequence.num_prompt) if counts_output else None
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

    def barred(
        self, sequence: Sequence, ahead: tuple[int, ...] = ()
    ) -> Int64s:  # [num_barred], some perhaps twice
        """The tokens that may not come next, `ahead` being taken for its last ones: those that
        would end the sequence too early or complete a bad word (matched within the output)."""
        words = _completions(self.params.bad_words, sequence, ahead)
        if sequence.num_output + len(ahead) >= self.params.min_tokens:
            return np.array(words, np.int64)
        return np.concatenate([self._ends, np.array(words, np.int64)])


def _completions(
    words: tuple[tuple[int, ...], ...], sequence: Sequence, ahead: tuple[int, ...]
) -> list[int]:
    if not words:
        return []
    tokens, num_output = sequence.token_ids, sequence.num_output + len(ahead)
    if ahead:
        tokens = [*tokens, *ahead]
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


@dataclass
class _Asked:
    """What the samples of a step ask for, one sequence after the other."""

    draws: _Drawn
    found: _Found
    num_top: dict[int, int] = field(default_factory=dict)
    given: dict[int, int] = field(default_factory=dict)
    embedded: list[int] = field(default_factory=list)
    named: dict[int, list[int]] = field(default_factory=dict)

    def give(self, samples: range, token_ids: Rows[int], num_top: int) -> None:
        if samples:
            self.given.update(zip(samples, token_ids, strict=True))
            self.num_top.update(dict.fromkeys(samples, num_top))

    def add(self, row: int, sequence: Sequence, draft: tuple[int, ...], sampler: Sampler) -> None:
        """The sample that follows the sequence's tokens, and one after each of its drafts."""
        if sampler.draw is not None:
            self.draws.add(row, sampler.draw, sequence.num_output, 1 + len(draft))
        if sampler.rules is not None:
            sampler.rules.take_in(sequence.token_ids)
            for ahead in range(1 + len(draft)):
                self.found.add(row + ahead, sampler.rules, sequence, draft[:ahead])
        if sequence.guide is not None:
            self.found.guide(row, sequence.guide, draft, is_forced=_is_forced(sequence))
        if sampler.num_top is not None:
            rows = range(row, row + 1 + len(draft))
            self.num_top.update(dict.fromkeys(rows, sampler.num_top))
            if sampler.named:
                self.named.update(dict.fromkeys(rows, sampler.named))
        if sampler.embeds and not sequence.num_output:
            self.embedded.append(row)

    def sampling(self, vocab: int) -> Sampling | None:
        changes, drawn = self.found.changes(), self.draws.columns(vocab)
        if changes is None and drawn is None and not self.num_top and not self.embedded:
            return None
        return Sampling(changes, drawn, self.num_top, self.given, self.embedded, self.named)


def _is_forced(sequence: Sequence) -> bool:
    """Whether the drafts of this step are all that the grammar allows."""
    return sequence.drafting is not None and sequence.drafting.source == "grammar"


def _ask_once(asked: _Asked, sequences: Rows[Sequence], engine_seed: int) -> None:
    """Of one sample a sequence: nearly all steps of nearly all sequences."""
    vocab, drawn = asked.found.vocab, asked.draws
    rows, draws, positions = drawn.rows.append, drawn.draws.append, drawn.positions.append
    for row, sequence in enumerate(sequences):
        if sequence.is_plain:
            continue
        sampler = sequence.sampler or _sampler(sequence, vocab, engine_seed)
        if sampler.is_draw and sampler.draw is not None:
            rows(row)
            draws(sampler.draw)
            positions(len(sequence.token_ids) - sequence.num_prompt)
        else:
            asked.add(row, sequence, (), sampler)


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
    guided: list[tuple[int, Guide]] = field(default_factory=list)
    forced: list[tuple[int, int]] = field(default_factory=list)  # rows and their only tokens

    def add(self, row: int, rules: LogitRules, sequence: Sequence, ahead: tuple[int, ...]) -> None:
        """What is asked of the sample that follows the sequence's tokens and those `ahead`."""
        first, params = row * self.vocab, rules.params
        if rules.seen is not None:
            tokens, _ = rules.seen.with_more(ahead)
            penalty = np.full(tokens.shape, params.repetition_penalty, np.float32)
            self.repetition.append((first + tokens, penalty))
        if rules.bias.size:
            self.bias.append((first + rules.bias_tokens, rules.bias))
        if rules.made is not None and (rules.made.tokens.size or ahead):
            tokens, counts = rules.made.with_more(ahead)
            sums = params.presence_penalty + params.frequency_penalty * counts
            self.penalties.append((first + tokens, sums.astype(np.float32)))
        if rules.allowed is not None:
            self.allowed_rows.append(row)
            self.allowed.append(first + rules.allowed)
        barred = rules.barred(sequence, ahead)
        if barred.size:
            self.barred.append(first + barred)

    def guide(self, row: int, guide: Guide, draft: tuple[int, ...], *, is_forced: bool) -> None:
        """The sample from `row` on, and one after each of its drafts. Where these `is_forced` each
        is the one token that may come, and no mask has to be made for it."""
        if is_forced and draft:
            self.forced += zip(range(row, row + len(draft)), draft, strict=True)
            self.guided.append((row + len(draft), guide.ahead(draft)))
            return
        self.guided.append((row, guide))
        for ahead, token_id in enumerate(draft, 1):
            guide = guide.ahead((token_id,))
            self.guided.append((row + ahead, guide))

    def changes(self) -> LogitChanges | None:
        parts = (self.repetition, self.bias, self.penalties, self.allowed_rows, self.barred)
        if not any(parts) and not self.guided:
            return None
        mask_rows, masks = masks_by_row(self.guided, self.forced) if self.guided else (None, None)
        return LogitChanges(
            repetition=_entries(self.repetition),
            bias=_entries(self.bias),
            penalties=_entries(self.penalties),
            allowed_rows=np.array(self.allowed_rows) if self.allowed_rows else None,
            allowed_places=np.concatenate(self.allowed) if self.allowed else None,
            barred=np.concatenate(self.barred) if self.barred else None,
            mask_rows=mask_rows,
            masks=masks,
        )


def _entries(pieces: list[tuple[Int64s, Float32s]]) -> Entries | None:
    if not pieces:
        return None
    place, value = (np.concatenate(column) for column in zip(*pieces, strict=True))
    return Entries(place, value)


class TokenCounts:
    """Of `token_ids[start:]`. What is added costs its own length, however long the list is, but for
    moving up what is greater; an array over the vocabulary would be 0.6 MB of each sequence."""

    def __init__(self, start: int) -> None:
        self._end = start
        self._tokens = np.empty(64, np.int64)  # rising
        self._counts = np.empty(64, np.int64)
        self._size = 0

    @property
    def tokens(self) -> Int64s:  # [num_distinct], each once
        return self._tokens[: self._size]

    @property
    def counts(self) -> Int64s:  # [num_distinct], of `tokens`
        return self._counts[: self._size]

    def with_more(self, ahead: tuple[int, ...]) -> tuple[Int64s, Int64s]:
        """Tokens and counts, were those the next ones."""
        if not ahead:
            return self.tokens, self.counts
        more, times = np.unique(np.array(ahead), return_counts=True)
        places, known = self._find(more)
        counts = np.concatenate([self.counts, times[~known]])
        counts[places[known]] += times[known]
        return np.concatenate([self.tokens, more[~known]]), counts

    def take_in(self, token_ids: list[int]) -> None:
        """Count what has been added to the list since the last call. Tokens lie in the
        vocabulary."""
        added = len(token_ids) - self._end
        if added == 1:
            self._add_one(token_ids[-1])
        elif added > 1:
            tokens, counts = np.unique(np.array(token_ids[self._end :]), return_counts=True)
            places, known = self._find(tokens)
            self._counts[places[known]] += counts[known]
            self._tokens = np.insert(self.tokens, places[~known], tokens[~known])
            self._counts = np.insert(self.counts, places[~known], counts[~known])
            self._size = len(self._tokens)
        self._end = len(token_ids)

    def _find(self, tokens: Int64s) -> tuple[Int64s, Bools]:
        """Where each is, or would be; and whether it is there."""
        places = np.searchsorted(self.tokens, tokens)
        known = places < self._size
        known[known] = self._tokens[places[known]] == tokens[known]
        return places, known

    def _add_one(self, token: int) -> None:
        size = self._size
        place = int(self.tokens.searchsorted(token))
        if place < size and self._tokens[place] == token:
            self._counts[place] += 1
            return
        if size == len(self._tokens):
            self._tokens = np.concatenate([self._tokens, np.empty(max(size, 64), np.int64)])
            self._counts = np.concatenate([self._counts, np.empty(max(size, 64), np.int64)])
        for column, value in ((self._tokens, token), (self._counts, 1)):
            column[place + 1 : size + 1] = column[place:size]
            column[place] = value
        self._size = size + 1
