"""What sampling needs to know about the rows of one step, gathered from their requests. Rows that
ask for nothing special appear in none of it."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence as Rows
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tenora_engine.request import SamplingParams
from tenora_engine.runner.logit_rules import LogitChanges, has_rules, logit_changes
from tenora_engine.sequence import Sequence

SMALLEST_TEMPERATURE = float(np.finfo(np.float32).tiny)
"""float32's smallest normal number: logits cannot be divided by less, and long before that only the
likeliest token is left."""

_MASK_64 = (1 << 64) - 1


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

    def split(self, num_rows: int) -> list[Draws]:
        """Parts of at most `num_rows` draws, in order."""
        if self.rows.shape[0] <= num_rows:
            return [self]
        places = torch.arange(self.rows.shape[0], device=self.rows.device)
        return [self.of(part) for part in torch.split(places, num_rows)]

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
class SamplingInputs:
    """Everything is None where no row asks for it."""

    num_rows: int
    changes: LogitChanges | None  # before temperature and filters
    draws: Draws | None
    logprob_rows: Tensor | None  # [num_logprob_rows] int64
    num_top: dict[int, int]  # row -> alternatives to report

    @property
    def likeliest_only(self) -> bool:
        """Whether each row takes its likeliest token and nothing else is asked for."""
        asked = (self.changes, self.draws, self.logprob_rows)
        return all(wish is None for wish in asked)


def build_sampling_inputs(
    sequences: Rows[Sequence], vocab: int, engine_seed: int, device: torch.device
) -> SamplingInputs:
    """One row a sequence, in order."""
    if all(_is_plain(sequence.request.sampling) for sequence in sequences):
        return SamplingInputs(len(sequences), None, None, None, {})
    num_top = {
        row: sequence.request.sampling.logprobs
        for row, sequence in enumerate(sequences)
        if sequence.request.sampling.logprobs is not None
    }
    return SamplingInputs(
        num_rows=len(sequences),
        changes=logit_changes(sequences, vocab, device),
        draws=_draws(sequences, vocab, engine_seed, device),
        logprob_rows=torch.tensor(list(num_top), device=device) if num_top else None,
        num_top=num_top,
    )


def is_greedy(params: SamplingParams) -> bool:
    """Whether the likeliest token is taken, the first one of equals."""
    return params.temperature < SMALLEST_TEMPERATURE or params.top_k == 1


def _is_plain(params: SamplingParams) -> bool:
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


def _draws(
    sequences: Rows[Sequence], vocab: int, engine_seed: int, device: torch.device
) -> Draws | None:
    chosen = [
        (row, sequence, sequence.request.sampling)
        for row, sequence in enumerate(sequences)
        if not is_greedy(sequence.request.sampling)
    ]
    if not chosen:
        return None

    def column(values: Rows[float] | npt.NDArray[np.float32]) -> Tensor:
        return torch.from_numpy(np.array(values, np.float32)).to(device).unsqueeze(1)

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
        rows=torch.tensor([row for row, _, _ in chosen], device=device),
        temperature=column([params.temperature for _, _, params in chosen]),
        uniform=column(uniform(seeds, indices, positions)),
        top_k=torch.tensor(top_k, device=device).unsqueeze(1) if max_top_k else None,
        top_p=column(top_p) if min(top_p) < 1.0 else None,
        min_p=column(min_p) if max(min_p) > 0.0 else None,
        max_top_k=max_top_k,
    )
