"""Choosing tokens from logits, all samples of a step in one call. Knows no requests: what is asked
for comes with the plan (`step.Sampling`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from tenora_engine.executor.logprobs import token_logprobs
from tenora_kernels.compiled.decoder import NO_NUMBER

if TYPE_CHECKING:
    from tenora_engine import step
    from tenora_engine.events import TokenLogprob

CANDIDATES = 1024
"""How many of the likeliest tokens top_p looks at before a row's whole vocabulary is sorted; they
nearly always hold the mass asked for."""

BLOCK = 256
"""Neighbouring tokens summed at once in a draw: sums are twelve times as fast as running sums."""


PART_ROWS = 16
"""Rows sampled together on the CPU, whose cache holds their 3 MB; what is larger the allocator
fetches from the system anew each time: 64 rows at once took 14 ms, in parts 1.7."""

SORTED_ROWS = 2
"""Rows whose whole vocabulary is sorted together: each takes five times as much as its logits."""

NOT_ALLOWED = -3e38
"""The logit of a token outside `allowed_token_ids`: below any other, yet a number, so that a row of
which nothing is left has no NaN."""

BARRED = -1e30
"""At most the logit of a token that may not come now: below any of a model's, above NOT_ALLOWED, so
that a row draws from what is allowed though all of it is barred."""


MASKED = -3.3e38
"""The logit of a token that a grammar does not allow: below all others, so that a row of whose
allowed tokens none is left draws from what its grammar allows."""

OPEN = -1
"""In place of a token that is yet to be drawn."""


@dataclass(frozen=True)
class Sampled:
    """One token a row, and logprobs where a row asked for them."""

    token_ids: list[int]
    logprobs: list[TokenLogprob | None]
    embeddings: dict[int, list[float]] = field(default_factory=dict)  # by row


Put = Callable[[npt.NDArray[Any]], Tensor]
"""Takes an array of a plan to the device."""


@dataclass(frozen=True)
class Entries:
    """Single logits to change: `value[i]` is for `place[i]` of the flattened samples."""

    place: Tensor  # [num_entries] int64, row by row
    value: Tensor  # [num_entries] float32

    def between(self, first: int, end: int) -> Entries | None:
        """Return those of some places, counted from `first`; None where there are none."""
        part = _between(self.place, first, end)
        return None if part is None else Entries(self.place[part] - first, self.value[part])


@dataclass(frozen=True)
class Changes:
    """`step.LogitChanges` on the device."""

    repetition: Entries | None
    bias: Entries | None
    penalties: Entries | None
    allowed_rows: Tensor | None  # int64, and so the others
    allowed_places: Tensor | None
    barred: Tensor | None
    mask_rows: Tensor | None
    masks: Tensor | None  # [num_guided, ceil(vocab / 32)] int32

    @classmethod
    def of(cls, planned: step.LogitChanges, put: Put) -> Changes:
        """All but the masks, which may still be made: see `with_masks`."""

        def entries(values: step.Entries | None) -> Entries | None:
            return None if values is None else Entries(put(values.place), put(values.value))

        def places(values: npt.NDArray[np.int64] | None) -> Tensor | None:
            return None if values is None else put(values)

        return cls(
            entries(planned.repetition),
            entries(planned.bias),
            entries(planned.penalties),
            places(planned.allowed_rows),
            places(planned.allowed_places),
            places(planned.barred),
            places(planned.mask_rows),
            None,
        )

    def with_masks(self, planned: step.LogitChanges, put: Put) -> Changes:
        """Waits for them."""
        if planned.mask_rows is None or planned.masks is None:
            return self
        masks = put(planned.masks.bits).view(len(planned.mask_rows), -1)
        return replace(self, masks=masks)

    def of_rows(self, first: int, end: int, vocab: int) -> Changes | None:
        """Return those of some samples, counted from `first`; None where there are none."""
        places = first * vocab, end * vocab

        def entries(values: Entries | None) -> Entries | None:
            return None if values is None else values.between(*places)

        def of(column: Tensor | None, start: int, stop: int) -> Tensor | None:
            part = None if column is None else _between(column, start, stop)
            return None if column is None or part is None else column[part] - start

        guided = None if self.mask_rows is None else _between(self.mask_rows, first, end)
        changes = Changes(
            entries(self.repetition),
            entries(self.bias),
            entries(self.penalties),
            of(self.allowed_rows, first, end),
            of(self.allowed_places, *places),
            of(self.barred, *places),
            of(self.mask_rows, first, end),
            None if self.masks is None or guided is None else self.masks[guided],
        )
        return None if all(each is None for each in vars(changes).values()) else changes


def _between(column: Tensor, first: int, end: int) -> slice | None:
    """Where a column, of which no row comes before an earlier one, has what lies from `first` to
    before `end`; None: nowhere."""
    start, stop = np.searchsorted(column.numpy(), (first, end)).tolist()
    return slice(start, stop) if start < stop else None


@dataclass(frozen=True)
class Draws:
    """The rows whose token is drawn; the others are greedy."""

    rows: Tensor  # [num_draws] int64
    temperature: Tensor  # [num_draws, 1] float32, above 0
    uniform: Tensor  # [num_draws, 1] float32, in [0, 1), of (seed, sequence index, position)
    top_k: Tensor | None  # [num_draws, 1] int64, the vocabulary where off; None where all are
    top_p: Tensor | None  # [num_draws, 1] float32, 1 where off; None where all are
    min_p: Tensor | None  # [num_draws, 1] float32, 0 where off; None where all are
    max_top_k: int  # the largest top_k that is on, 0 where all are off

    @classmethod
    def of_plan(cls, planned: step.Draws, put: Put) -> Draws:
        def column(values: npt.NDArray[Any]) -> Tensor:
            return put(values).unsqueeze(1)

        return cls(
            rows=put(planned.rows),
            temperature=column(planned.temperature),
            uniform=column(planned.uniform),
            top_k=None if planned.top_k is None else column(planned.top_k),
            top_p=None if planned.top_p is None else column(planned.top_p),
            min_p=None if planned.min_p is None else column(planned.min_p),
            max_top_k=planned.max_top_k,
        )

    def of_rows(self, first: int, end: int) -> Draws | None:
        """Return those of some samples, counted from `first`; None where all are greedy."""
        part = _between(self.rows, first, end)
        if part is None:
            return None
        draws = self.of(torch.arange(part.start, part.stop))
        return replace(draws, rows=draws.rows - first)

    def of(self, chosen: Tensor) -> Draws:
        """Some of the draws: `chosen` are their places here, int64."""

        def some(column: Tensor | None) -> Tensor | None:
            return None if column is None else column.index_select(0, chosen)

        return Draws(
            rows=self.rows.index_select(0, chosen),
            temperature=self.temperature.index_select(0, chosen),
            uniform=self.uniform.index_select(0, chosen),
            top_k=some(self.top_k),
            top_p=some(self.top_p),
            min_p=some(self.min_p),
            max_top_k=self.max_top_k,
        )


@dataclass(frozen=True)
class Asked:
    """`step.Sampling` on the device."""

    changes: Changes | None
    draws: Draws | None
    num_top: dict[int, int]
    given: dict[int, int]
    named: dict[int, list[int]] = field(default_factory=dict)

    @classmethod
    def of(cls, planned: step.Sampling, put: Put) -> Asked:
        """All but masks: see `with_masks`."""
        return cls(
            None if planned.changes is None else Changes.of(planned.changes, put),
            None if planned.draws is None else Draws.of_plan(planned.draws, put),
            planned.num_top,
            planned.given,
            planned.named,
        )

    def with_masks(self, planned: step.Sampling, put: Put) -> Asked:
        """Waits for those of its changes, if there are any."""
        if self.changes is None or planned.changes is None:
            return self
        return replace(self, changes=self.changes.with_masks(planned.changes, put))


def sample(
    logits: Tensor,  # [num_samples, vocab], the model's, any float dtype; left as they are
    planned: step.Sampling | None,
) -> Sampled:
    """`choose` by what a plan asks for."""

    def put(values: npt.NDArray[Any]) -> Tensor:
        return torch.from_numpy(values).to(logits.device)

    asked = None if planned is None else Asked.of(planned, put).with_masks(planned, put)
    return choose(logits, asked)


def choose(
    logits: Tensor,  # [num_samples, vocab], the model's, any float dtype; left as they are
    asked: Asked | None,
) -> Sampled:
    """Penalties, bias and what may not come, then temperature, top_k, top_p, min_p, then the draw.

    A sample's token depends on its own logits and on what it asks for only. On the CPU some are
    chosen at a time, so that float32 is held of PART_ROWS rows at most. The host waits for the
    device once, for the tokens, and again for logprobs and for what a draw leaves open.
    """
    adjusted, on_cpu = logits, logits.device.type == "cpu"
    changes, draws = (None, None) if asked is None else (asked.changes, asked.draws)
    if on_cpu:
        parts = _parts(logits, changes, draws)
        token_ids = torch.cat([_tokens(*part) for part in parts])
    else:
        adjusted = logits if changes is None else changed(logits, changes)
        token_ids = _tokens(adjusted, None, draws)
    if asked is not None and asked.given:
        _give(token_ids, asked.given)
    chosen: list[int] = token_ids.tolist()
    if draws is not None and not on_cpu and OPEN in chosen:
        chosen = _drawn_again(adjusted, draws, token_ids).tolist()
    num_top, named = ({}, {}) if asked is None else (asked.num_top, asked.named)
    at_once = PART_ROWS if on_cpu else logits.shape[0]
    return Sampled(chosen, token_logprobs(logits, chosen, num_top, at_once, named))


def _parts(
    logits: Tensor, changes: Changes | None, draws: Draws | None
) -> Iterator[tuple[Tensor, Changes | None, Draws | None]]:
    """PART_ROWS samples at most, and what they ask for."""
    num_samples, vocab = logits.shape
    if num_samples <= PART_ROWS:
        yield logits, changes, draws
        return
    for first in range(0, num_samples, PART_ROWS):
        end = min(first + PART_ROWS, num_samples)
        yield (
            logits[first:end],
            None if changes is None else changes.of_rows(first, end, vocab),
            None if draws is None else draws.of_rows(first, end),
        )


def _tokens(
    logits: Tensor,  # [num_samples, vocab]
    changes: Changes | None,
    draws: Draws | None,
) -> Tensor:  # [num_samples] int64
    num_samples, device = logits.shape[0], logits.device
    adjusted = logits if changes is None else changed(logits, changes)
    if draws is not None and draws.rows.shape[0] == num_samples:
        token_ids = torch.empty(num_samples, dtype=torch.int64, device=device)
    else:
        token_ids = _likeliest(adjusted)
    if draws is not None:
        rows = adjusted.index_select(0, draws.rows).float()
        token_ids.index_copy_(0, draws.rows, draw(rows, draws, wait=device.type == "cpu"))
    return token_ids


def _give(token_ids: Tensor, given: dict[int, int]) -> None:
    """Their tokens to samples that have numbers for logits."""
    rows = torch.tensor(list(given), device=token_ids.device)
    wanted = torch.tensor(list(given.values()), device=token_ids.device)
    is_none = token_ids.index_select(0, rows) == NO_NUMBER
    token_ids.index_copy_(0, rows, wanted.masked_fill_(is_none, NO_NUMBER))


def _drawn_again(adjusted: Tensor, draws: Draws, token_ids: Tensor) -> Tensor:
    """`token_ids`, those that were left open drawn with the whole vocabulary sorted."""
    left = draws.of((token_ids.index_select(0, draws.rows) == OPEN).nonzero().squeeze(1))
    rows = adjusted.index_select(0, left.rows).float()
    return token_ids.index_copy_(0, left.rows, draw(rows, left, wait=True))


def changed(
    logits: Tensor,  # [num_samples, vocab]
    changes: Changes,
) -> Tensor:  # [num_samples, vocab] float32
    """The logits as the requests want them: penalties and bias first, then what may not come,
    which no bias brings back."""
    adjusted = logits.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
    flat = adjusted.view(-1)
    if changes.repetition is not None:
        place, penalty = changes.repetition.place, changes.repetition.value
        seen = flat.index_select(0, place)
        flat.index_copy_(0, place, torch.where(seen < 0, seen * penalty, seen / penalty))
    if changes.bias is not None:
        flat.index_add_(0, changes.bias.place, changes.bias.value)
    if changes.penalties is not None:
        flat.index_add_(0, changes.penalties.place, changes.penalties.value, alpha=-1)
    if changes.allowed_rows is not None and changes.allowed_places is not None:
        kept = flat.index_select(0, changes.allowed_places)
        adjusted.index_fill_(0, changes.allowed_rows, NOT_ALLOWED)
        flat.index_copy_(0, changes.allowed_places, kept)
    if changes.barred is not None:
        places = changes.barred
        flat.index_copy_(0, places, flat.index_select(0, places).clamp_(max=BARRED))
    if changes.mask_rows is not None and changes.masks is not None:
        mask = mask_on_host if adjusted.device.type == "cpu" else mask_on_device
        mask(adjusted, changes.mask_rows, changes.masks)
    return adjusted


def mask_on_host(
    logits: Tensor,  # [num_samples, vocab] float32, changed in place
    rows: Tensor,  # [num_guided] int64
    masks: Tensor,  # [num_guided, ceil(vocab / 32)] int32
) -> None:
    """What bits of 0 stand for becomes MASKED."""
    values, words = logits.numpy(), masks.numpy().view(np.uint8)
    for row, bits in zip(rows.tolist(), words, strict=True):
        allowed = np.unpackbits(bits, count=logits.shape[1], bitorder="little")
        np.putmask(values[row], allowed == 0, MASKED)


def mask_on_device(logits: Tensor, rows: Tensor, masks: Tensor) -> None:
    """The same, by torch alone."""
    places = torch.arange(32, dtype=torch.int32, device=masks.device)
    bits = masks.unsqueeze(2).bitwise_right_shift(places).bitwise_and_(1)
    barred = bits.view(masks.shape[0], -1)[:, : logits.shape[1]] == 0
    logits.index_copy_(0, rows, logits.index_select(0, rows).masked_fill_(barred, MASKED))


def draw(
    logits: Tensor,  # [num_draws, vocab] float32, left as they are
    draws: Draws,
    wait: bool = True,
) -> Tensor:  # [num_draws] int64
    """Invert the cumulative distribution of what the filters leave, in the order of token ids:
    first over blocks of neighbouring tokens, then within the block.

    Unless it may `wait` for the device, a row is left OPEN whose top_p reaches beyond CANDIDATES.
    NO_NUMBER where a logit is none, or infinite.
    """
    weights = filtered_weights(logits, draws, wait)
    vocab = weights.shape[1]
    blocks = _blocks(weights)
    cumulative = blocks.sum(dim=2).cumsum(dim=1)
    target = _below(cumulative[:, -1:], draws.uniform * cumulative[:, -1:])
    block = torch.searchsorted(cumulative, target, right=True).clamp(max=blocks.shape[1] - 1)
    before = (cumulative.gather(1, (block - 1).clamp(min=0))).where(block > 0, 0.0)
    within = blocks[torch.arange(len(blocks), device=blocks.device), block.squeeze(1)].cumsum(dim=1)
    rest = _below(within[:, -1:], target - before)
    tokens = (block * BLOCK + torch.searchsorted(within, rest, right=True)).clamp(max=vocab - 1)
    if not wait:
        tokens = tokens.masked_fill(cumulative[:, -1:] == 0, OPEN)
    return tokens.masked_fill(cumulative[:, -1:].isnan(), NO_NUMBER).squeeze(1)


def filtered_weights(
    logits: Tensor,  # [num_draws, vocab] float32
    draws: Draws,
    wait: bool = True,
) -> Tensor:  # [num_draws, vocab] float32
    """Each token's weight (not normalised) after temperature and filters, 0 where it is cut; all
    are 0 in a row that `draw` is to leave open.

    Every filter is a lower bound on the scaled logit, so tokens of equal logits stay or go
    together, and what a row keeps does not depend on how the others are filtered.
    """
    # The highest is 0 before it is scaled: no temperature makes it overflow. Not as powers of two:
    # torch rounds exp2 otherwise at the end of a tensor, that is by how many rows there are.
    below = logits - logits.amax(dim=1, keepdim=True)
    weights = below.mul_(1.0 / draws.temperature).exp_()
    bound: Tensor | None = None
    if draws.top_k is not None or draws.top_p is not None:
        bound = _top_bound(weights, draws, wait)
    if draws.min_p is not None:
        bound = draws.min_p if bound is None else torch.maximum(bound, draws.min_p)
    return weights if bound is None else _cut(weights, bound)


def _likeliest(logits: Tensor) -> Tensor:  # [num_rows] int64
    """The first of the highest of each row; NO_NUMBER where that is none."""
    if logits.device.type != "cpu":
        token_ids = logits.argmax(dim=1)
    else:
        # 64 rows of 49152 in bfloat16: numpy's takes 0.4 ms with the copy, torch's max 1.9.
        logits = logits.float()
        token_ids = torch.from_numpy(logits.numpy().argmax(axis=1))
    highest = logits.gather(1, token_ids.unsqueeze(1)).squeeze(1)
    return token_ids.masked_fill_(~highest.isfinite(), NO_NUMBER)


def _blocks(weights: Tensor) -> Tensor:  # [num_rows, ceil(vocab / BLOCK), BLOCK]
    num_rows, vocab = weights.shape
    if vocab % BLOCK:
        weights = functional.pad(weights, (0, -vocab % BLOCK))
    return weights.view(num_rows, -1, BLOCK)


def _sums(weights: Tensor) -> Tensor:  # [num_rows, 1]
    """Of each row, block by block: a single row's sum torch divides among threads, and rounds it
    otherwise than the sums of several."""
    return _blocks(weights).sum(dim=2).sum(dim=1, keepdim=True)


def _below(total: Tensor, value: Tensor) -> Tensor:
    """At most the number before `total`: what is rounded up to the total, or beyond, would lie
    behind the last token that is left."""
    return torch.minimum(value, torch.nextafter(total, torch.zeros_like(total)))


def _cut(weights: Tensor, bound: Tensor) -> Tensor:
    """The weights, 0 where they are below the bound."""
    if weights.device.type != "cpu":
        return weights.masked_fill(weights < bound, 0.0)
    values = weights.numpy()  # a row of 49152: numpy 10 us, torch's mask and fill 46
    return torch.from_numpy(np.multiply(values, values >= bound.numpy()))


def _top_bound(
    weights: Tensor,  # [num_draws, vocab], 1 for the likeliest
    draws: Draws,
    wait: bool,
) -> Tensor:  # [num_draws, 1]
    """The smallest weight that top_k, then top_p over what it leaves, keep."""
    vocab = weights.shape[1]
    count = draws.max_top_k if draws.top_p is None else max(draws.max_top_k, CANDIDATES)
    if weights.device.type == "cpu":  # a larger top_k has its rows looked at whole
        count = min(count, CANDIDATES)
    bound, covered = _bound_among(_highest(weights, min(count, vocab)), weights, draws)
    if not wait:
        return bound.masked_fill(~covered, torch.inf)
    open_rows = (~covered).squeeze(1).nonzero().squeeze(1)
    for some in torch.split(open_rows, SORTED_ROWS) if open_rows.shape[0] else ():
        rest = weights.index_select(0, some)
        full, _ = _bound_among(_highest(rest, vocab), rest, draws.of(some))
        bound = bound.index_copy(0, some, full)
    return bound


def _bound_among(
    best: Tensor,  # [num_draws, candidates], falling
    weights: Tensor,  # [num_draws, vocab]
    draws: Draws,
) -> tuple[Tensor, Tensor]:  # each [num_draws, 1]
    """The bound, and whether it was found among the candidates."""
    candidates, vocab = best.shape[1], weights.shape[1]
    bound = torch.zeros_like(best[:, :1])
    covered = torch.ones_like(bound, dtype=torch.bool)
    if draws.top_k is not None:
        kth = best.gather(1, draws.top_k.clamp(max=candidates) - 1)
        bound = torch.where(draws.top_k < vocab, kth, bound)
        covered = (draws.top_k <= candidates) | (draws.top_k >= vocab)
    if draws.top_p is not None:
        # Ties at the k-th place stay, so the mass top_p is of counts them too.
        left = _cut(weights, bound) if draws.top_k is not None else weights
        wanted = draws.top_p * _sums(left)
        cumulative = best.cumsum(dim=1)
        kept = ((cumulative - best) < wanted).sum(dim=1, keepdim=True).clamp(min=1)
        smallest = best.gather(1, kept - 1)
        is_found = (draws.top_p >= 1.0) | (cumulative[:, -1:] >= wanted) | (smallest < bound)
        covered = covered & is_found
        top_p_bound = torch.where(draws.top_p < 1.0, smallest, torch.zeros_like(bound))
        bound = torch.maximum(bound, top_p_bound)
    return bound, covered


def _highest(weights: Tensor, count: int) -> Tensor:  # [num_rows, count]
    """The `count` highest of each row, falling."""
    if weights.device.type != "cpu":
        return weights.topk(count, dim=1).values
    # A row of 49152: numpy's vectorised partition takes 29 us and its sort 90, torch's topk of 256
    # alone 65-105 and its sort, which keeps indices, 1500.
    values = weights.numpy()
    if count < values.shape[1]:
        values = np.partition(values, -count, axis=1)[:, -count:]
    return torch.from_numpy(np.sort(values, axis=1)).flip(1)
