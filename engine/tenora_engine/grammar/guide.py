"""Guides: how far sequences are in their grammars, and which tokens may come next. It knows neither
requests nor steps; the library is llguidance."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from tenora_engine.errors import InvalidRequestError
from tenora_engine.grammar.closing import JsonAnswer
from tenora_engine.grammar.hints import Hints
from tenora_engine.grammar.least import Least
from tenora_engine.grammar.limits import parser_limits
from tenora_engine.grammar.reasons import reason_of
from tenora_engine.request import Grammar
from tenora_engine.step import Masks

Bits = npt.NDArray[np.int32]
T = TypeVar("T")
_log = logging.getLogger(__name__)

SLOW_S = 0.002
USUAL_S = 0.0001
"""What a tenant's grammars may take in a step and count for nothing: so much in all, or so much a
row. A mask takes 30 us on average."""

ALLOWANCE_S = 0.1
ALLOWANCE_SHARE = 0.01
"""What a grammar may take in slow steps at once, and of all time: everybody waits for it."""

TENANT_ALLOWANCES = 2
"""Of a grammar, what those of all grammars of a tenant may take: there are as many as it writes."""

TOO_SLOW = "the grammar takes too long to follow"

TRIED_TOKENS = 16
"""Of a grammar whose compilation was slow, before anybody follows it."""

_TOKENS_KEPT_MAX, _PIECE_KEPT_MAX = 4096, 64
"""Pieces of JSON of which the tokens are remembered, and bytes of the longest: users write them."""

_WATCHED_STEPS = 8
"""After a slow step, masks are made and timed one by one for so many."""


class Vocabulary:
    """The model's tokens as the library has them, made once."""

    def __init__(
        self, folder: Path, vocab: int, eos_token_ids: Sequence[int], threads: int | None
    ) -> None:
        """`vocab`: logits of a row; beyond the tokenizer's own no grammar allows any. Raises
        InvalidRequestError when the folder's tokenizer cannot be had."""
        from llguidance import LLExecutor, LLTokenizer

        file = folder / "tokenizer.json"
        try:
            text = file.read_text(encoding="utf-8")
            eos = list(eos_token_ids) or None
            self.tokenizer = LLTokenizer(text, n_vocab=vocab, eos_token=eos)
        except Exception as error:  # the library's, of whatever class
            raise InvalidRequestError(
                f"this model has no grammars: {file.name} of its folder cannot be read ({error})"
            ) from error
        self.ends = frozenset(eos_token_ids)
        self.words = -(-vocab // 32)
        ends = np.array(sorted(self.ends), np.int64)
        self._only_ends = np.bitwise_or.reduce(_only(ends, self.words), axis=0)
        self._executor = LLExecutor(threads)
        self._beside = ThreadPoolExecutor(1, thread_name_prefix="masks")
        self._watched = 0
        self.times = StepTimes()
        self._tokens: dict[bytes, list[int]] = {}

    def bytes_of(self, token_id: int) -> bytes:
        return bytes(self.tokenizer.decode_bytes([token_id]))

    def tokens_of(self, text: bytes) -> list[int]:
        """As the tokenizer would write it at the beginning of a text."""
        tokens = self._tokens.get(text)
        if tokens is None:
            tokens = list(self.tokenizer.tokenize_bytes(text))
            if len(text) <= _PIECE_KEPT_MAX and len(self._tokens) < _TOKENS_KEPT_MAX:
                self._tokens[text] = tokens
        return tokens

    def least_tokens(self, least: Least) -> int:
        """How many tokens an answer has that has at least so much."""
        if not least:
            return 0
        longest, most_commas = self._widest
        return least.tokens(longest, most_commas)

    @cached_property
    def _widest(self) -> tuple[int, int]:
        """(the bytes of its longest token, the most commas of one that can be in JSON)."""
        known = self.tokenizer
        ids = [each for each in range(known.vocab_size) if not known.is_special_token(each)]
        tokens = [self.bytes_of(token_id) for token_id in ids]
        commas = (token.count(b",") for token in tokens if b",," not in token)
        return max(map(len, tokens)), max(commas)

    def matcher(self, grammar: str, *, is_plain: bool = False) -> Any:  # llguidance.LLMatcher
        """At its beginning, with its first mask made; `is_plain`: without expressions of whoever
        wrote it. Raises ValueError with the reason why there
        is none."""
        from llguidance import LLMatcher

        made = LLMatcher(
            self.tokenizer, grammar, log_level=0, limits=parser_limits(is_plain=is_plain)
        )
        if not made.is_error():
            made.compute_bitmask()  # copies share what this has found out
        if made.is_error():
            raise ValueError(reason_of(made))
        return made

    def beside(self, make: Callable[[], Bits]) -> Future[Bits]:
        """Make masks in a thread that makes all of them, one call after the other. The guides that
        they are of are not advanced before they are there."""
        return self._beside.submit(make)

    def fill(self, guides: Sequence[Guide]) -> Bits:  # [num_guides, words]
        """Which tokens may come next, a bit each, the first token the lowest bit. A guide that is
        in error allows the end of the sequence only. What the guides have taken since the last time
        is paid for."""
        bits = self._filled(guides)
        self.times.settle()
        return bits

    def _filled(self, guides: Sequence[Guide]) -> Bits:
        bits = np.empty((len(guides), self.words), np.int32)
        address, size = bits.ctypes.data, self.words * 4
        if self._watched:
            self._watched -= 1
            for place, guide in enumerate(guides):
                started_s = time.thread_time()  # what the machine is busy with is not its fault
                if not guide.fill(address + place * size, size):
                    bits[place] = self._only_ends
                self.times.note(guide, guide.allowance, time.thread_time() - started_s)
            return bits
        started = time.perf_counter()
        rows = [(guide.matcher, place) for place, guide in enumerate(guides)]
        try:
            self._executor.unsafe_compute_mask_ptr(rows, address, size, len(guides))
        except BaseException:  # of one of them, whose fault it is to be; a panic is no Exception
            _log.exception("masks of %d guides could not be made at once", len(guides))
            self._watched = _WATCHED_STEPS
            return self._filled(guides)
        if time.perf_counter() - started > SLOW_S:
            self._watched = _WATCHED_STEPS
        return bits


class Allowance:
    """Of one compiled grammar, for all who follow it; or of all that a tenant has, which those of
    its grammars draw on, too."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        *,
        times: int = 1,
        tenant: Allowance | None = None,
    ) -> None:
        self._clock = clock
        self._times = times
        self.tenant = tenant
        self._was_slow = False
        self._left_s = times * ALLOWANCE_S
        self._at_s = clock()

    @property
    def is_spent(self) -> bool:
        """A tenant's is spent for those of its grammars alone that have ever been slow."""
        self._refill()
        if self._left_s < 0:
            return True
        return self._was_slow and self.tenant is not None and self.tenant.is_spent

    @property
    def spent_for_s(self) -> float:
        """Until it is spent no more, if nothing draws on it."""
        self._refill()
        return max(-self._left_s, 0.0) / (self._times * ALLOWANCE_SHARE)

    def spend(self, seconds: float) -> None:
        """Take its part of a slow step from the allowance."""
        self._was_slow = True
        self._refill()
        self._left_s -= seconds
        if self.tenant is not None:
            self.tenant.spend(seconds)

    def _refill(self) -> None:
        now_s = self._clock()
        came_s = (now_s - self._at_s) * self._times * ALLOWANCE_SHARE
        self._left_s = min(self._left_s + came_s, self._times * ALLOWANCE_S)
        self._at_s = now_s


class StepTimes:
    """What guides take from one step's masks to the next's, whatever is asked of them and in which
    thread. A single answer says little: many rows that are each quick make a slow step."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken: dict[object, tuple[Allowance, float]] = {}  # by guide

    def note(self, guide: object, allowance: Allowance, seconds: float) -> None:
        """One of them has taken so long."""
        with self._lock:
            _, before_s = self._taken.get(guide, (allowance, 0.0))
            self._taken[guide] = allowance, before_s + seconds

    def settle(self) -> None:
        """Charge those of a slow step who have taken more than is usual, for all of it."""
        with self._lock:
            taken, self._taken = self._taken, {}
        tenants: dict[Allowance, dict[Allowance, list[float]]] = {}
        for allowance, seconds in taken.values():
            grammars = tenants.setdefault(allowance.tenant or allowance, {})
            grammars.setdefault(allowance, []).append(seconds)
        for grammars in tenants.values():
            rows = [seconds for each in grammars.values() for seconds in each]
            if sum(rows) <= max(SLOW_S, USUAL_S * len(rows)):
                continue
            for allowance, each in grammars.items():
                if sum(each) > USUAL_S * len(each):
                    allowance.spend(sum(each))


class Guide:
    """Of one sequence. It is advanced by every token that the sequence keeps."""

    def __init__(
        self, vocabulary: Vocabulary, matcher: Any, allowance: Allowance | None = None
    ) -> None:
        self.vocabulary = vocabulary
        self.matcher = matcher
        self.allowance = allowance or Allowance()
        self.error: str | None = None  # why it cannot go on
        self.hints: Hints | None = None  # of a JSON schema
        self.characters = 0  # that its grammar counts
        self.least_tokens = 0  # what the counts of a JSON schema demand of every answer
        self.answer: JsonAnswer | None = None  # of what is JSON and is to end in time

    def copy(self) -> Guide:
        """At the same place, to be advanced by itself."""
        other = Guide(self.vocabulary, self.matcher.deep_copy(), self.allowance)
        other.characters = self.characters
        return other

    def begin(self, grammar: Grammar) -> Guide:
        """For one sequence, which wants it so."""
        other = self.copy()
        other.hints = self.hints
        if self.hints is not None:
            other.answer = JsonAnswer(
                other, self.hints, closes=grammar.closes, max_depth=grammar.max_depth
            )
        return other

    def ahead(self, token_ids: Sequence[int]) -> Guide:
        """What it would be after these tokens, which it allows."""
        return self._paid(lambda: self._ahead(token_ids))

    def _ahead(self, token_ids: Sequence[int]) -> Guide:
        other = self.copy()
        for token_id in token_ids:
            if not _safely(partial(other.matcher.consume_token, token_id), otherwise=False):
                other.error = other._failure()
                break
        return other

    def _paid(self, call: Callable[[], T]) -> T:
        started_s = time.thread_time()
        try:
            return call()
        finally:
            self.vocabulary.times.note(self, self.allowance, time.thread_time() - started_s)

    def fill(self, address: int, num_bytes: int) -> bool:
        """Whether its mask could be written there; else it is in error."""
        if self.error is None and _safely(
            lambda: self.matcher.unsafe_compute_mask_ptr(address, num_bytes), otherwise=self
        ):
            self.error = self._failure()
        return self.error is None

    def is_too_slow(self) -> bool:
        """Whether its first masks alone take more than it may have: of some text that it allows."""
        other, left_s = self.matcher.deep_copy(), ALLOWANCE_S
        for place in range(TRIED_TOKENS):
            started_s = time.thread_time()
            mask = other.compute_bitmask()
            took_s = time.thread_time() - started_s
            left_s -= took_s if took_s > SLOW_S else 0.0
            bits = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")
            allowed = np.flatnonzero(bits)
            if left_s < 0 or other.is_stopped() or not len(allowed):
                break
            other.consume_token(int(allowed[(place * 7919) % len(allowed)]))
        return left_s < 0

    def kept(self, token_id: int, room: int) -> int:
        """The token that comes where the model chose this one and `room` are left with it: another
        where JSON is to be closed."""
        if self.answer is None or self.error is not None:
            return token_id
        return self.answer.kept(token_id, room)

    def advance(self, token_id: int) -> bool:
        """Whether more may come after this token: not after one that completes the grammar, and not
        where there is an `error`, as after a token that it does not allow."""
        if self.error is None and self.allowance.is_spent:
            self.error = TOO_SLOW
        elif self.error is None and not self._paid(
            lambda: _safely(lambda: self.matcher.consume_token(token_id), otherwise=False)
        ):
            self.error = self._failure()
        return self.error is None and not self.matcher.is_stopped()

    def can_end(self, token_id: int) -> bool:
        """Whether the text may end here by this token, which is in no text. Where the library has
        given up, its mask has the end of the sequence alone, whatever the grammar says."""
        if self.matcher.is_error() or (
            token_id in self.vocabulary.ends and not self.matcher.is_accepting()
        ):
            self.error = self._failure()
        return self.error is None

    def way(
        self, search: Callable[[Any, Vocabulary], list[int] | None], ahead: Sequence[int]
    ) -> list[int] | None:
        """What is found by a matcher that is as far as this one and these tokens."""

        def look() -> list[int] | None:
            matcher = self.matcher.deep_copy()
            return search(matcher, self.vocabulary) if matcher.consume_tokens([*ahead]) else None

        return self._paid(lambda: _safely(look, otherwise=None))

    def _failure(self) -> str:
        return f"the grammar cannot be followed any further: {reason_of(self.matcher)}"

    def validate(self, token_ids: list[int]) -> int:
        """How many of these tokens, from the first, it would allow one after the other."""
        call = partial(self.matcher.validate_tokens, token_ids)
        return int(self._paid(lambda: _safely(call, otherwise=0)))

    def rollback(self, num_tokens: int) -> None:
        """Take back the last tokens that it was advanced by."""
        if num_tokens and not self.matcher.rollback(num_tokens):
            raise ValueError(f"the grammar cannot go back by {num_tokens} tokens")

    def forced_tokens(self) -> list[int]:
        """The tokens that must come next, as the tokenizer would write them; none where there is a
        choice."""
        call = self.matcher.compute_ff_tokens
        return list(self._paid(lambda: _safely(call, otherwise=())))


def _safely(call: Callable[[], T], otherwise: T) -> T:
    """What the library gives; or that, where it panics (which is no Exception)."""
    try:
        return call()
    except BaseException:
        _log.exception("a grammar could not be followed")
        return otherwise


def next_masks(guides: Sequence[Guide]) -> Bits:  # [num_guides, words]
    """See `Vocabulary.fill`; the guides are of one vocabulary, at least one."""
    return guides[0].vocabulary.fill(guides)


def masks_by_row(
    guided: Sequence[tuple[int, Guide]], forced: Sequence[tuple[int, int]]
) -> tuple[npt.NDArray[np.int64], Masks]:  # [num_rows], of each of them
    """The rows in order, and their masks, which are made beside what follows: of guides, at least
    one, and of rows that only one token may follow, for which the library need not be asked."""
    rows = np.array([row for row, _ in (*guided, *forced)])
    guides = [guide for _, guide in guided]
    tokens = np.array([token_id for _, token_id in forced], np.int64)
    order = np.argsort(rows)

    def make() -> Bits:
        masks = next_masks(guides)
        if len(tokens):
            masks = np.concatenate([masks, _only(tokens, masks.shape[1])])
        return masks[order].reshape(-1)

    return rows[order], Masks(guides[0].vocabulary.beside(make))


def _only(tokens: npt.NDArray[np.int64], words: int) -> Bits:  # [num_tokens, words]
    """Masks of which each allows one token."""
    ones = np.zeros((len(tokens), words), np.uint32)
    ones[np.arange(len(tokens)), tokens >> 5] = np.uint32(1) << (tokens & 31).astype(np.uint32)
    return ones.view(np.int32)
