"""The logprobs of sampled tokens and of the likeliest ones. Of equally likely tokens the one with
the lowest id comes first, so what a row is told depends neither on others nor on what they ask."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

if TYPE_CHECKING:
    from tenora_engine.events import TokenLogprob

PEAK_TOKENS = 256
"""Neighbouring tokens of which the highest is found at once. The k-th highest of these is a bound
that k tokens reach and few others: of a row of 49152 the likeliest 20 take 25 us, topk's 69."""

Top = list[tuple[int, float]]


def token_logprobs(
    logits: Tensor,  # [num_samples, vocab], the model's
    chosen: list[int],  # of each sample
    num_top: dict[int, int],  # sample -> alternatives
    at_once: int,  # rows
    named: Mapping[int, list[int]] = MappingProxyType({}),  # sample -> alternatives, by name
) -> list[TokenLogprob | None]:
    """Of the samples of `num_top`; a chosen token that is none has the first one's."""
    found: list[TokenLogprob | None] = [None] * len(chosen)
    if not num_top:
        return found
    from tenora_engine.events import TokenLogprob  # `make gpu` runs where there is no msgspec

    asked = list(num_top)
    for begin in range(0, len(asked), at_once):
        rows = asked[begin : begin + at_once]
        part = torch.tensor(rows, device=logits.device)
        # Each row's sum is by itself, unlike what exp().sum() would give.
        distribution = logits.index_select(0, part).float().log_softmax(dim=1)
        ids = torch.tensor([max(chosen[row], 0) for row in rows], device=logits.device)
        logprobs = distribution.gather(1, ids.unsqueeze(1)).squeeze(1).tolist()
        tops = likeliest(distribution, [num_top[row] for row in rows])
        for place, row in enumerate(rows):
            if row in named:
                tops[place] = _of_named(distribution[place], named[row])
        for row, logprob, top in zip(rows, logprobs, tops, strict=True):
            found[row] = TokenLogprob(token_id=chosen[row], logprob=logprob, top=top)
    return found


def _of_named(distribution: Tensor, token_ids: list[int]) -> Top:  # [vocab]
    """Falling, of equals the lowest id first."""
    ids = torch.tensor(token_ids, device=distribution.device)
    found = zip(token_ids, distribution[ids].tolist(), strict=True)
    return sorted(found, key=lambda each: (-each[1], each[0]))


def likeliest(values: Tensor, counts: list[int]) -> list[Top]:
    """The `counts` highest of each row of [num_rows, vocab] float32, falling, of equals the lowest
    id first."""
    on_device = values.device.type != "cpu"
    return _on_device(values, counts) if on_device else _on_host(values, counts)


def _on_host(values: Tensor, counts: list[int]) -> list[Top]:
    whole = values.shape[1] // PEAK_TOKENS * PEAK_TOKENS
    peaks = values[:, :whole].reshape(len(values), -1, PEAK_TOKENS).amax(dim=2).numpy()
    rows = zip(values.numpy(), peaks, counts, strict=True)
    return [_highest(row, of_row, count) if count else [] for row, of_row, count in rows]


def _highest(row: npt.NDArray[Any], peaks: npt.NDArray[Any], count: int) -> Top:
    ids = np.arange(row.size)
    if count <= peaks.size:
        ids = np.flatnonzero(row >= np.partition(peaks, -count)[-count])
    ids = ids[np.argsort(-row[ids], kind="stable")[:count]]
    return list(zip(ids.tolist(), row[ids].tolist(), strict=True))


def _on_device(values: Tensor, counts: list[int]) -> list[Top]:
    """By keys of which no two are equal: the value's bits, which then rise as it does, and behind
    them the id."""
    last, most = values.shape[1] - 1, min(max(counts), values.shape[1])
    bits = (values + 0.0).view(torch.int32)  # no -0
    rising = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long()
    keys = (rising << 32) | (last - torch.arange(last + 1, device=values.device))
    ids = last - (keys.topk(most, dim=1).values & 0xFFFFFFFF)
    found = zip(ids.tolist(), values.gather(1, ids).tolist(), counts, strict=True)
    return [list(zip(of[:count], row[:count], strict=True)) for of, row, count in found]
