"""What an experiment is given and what it answers: claims with their bounds, a table, and all that
was measured. It measures nothing itself."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

RESAMPLES = 2000


@dataclass(frozen=True)
class Options:
    """`rounds` None is the experiment's own number; `scratch` is an empty folder of its own."""

    model: Path  # a Hugging Face folder
    scratch: Path
    rounds: int | None = None
    seed: int = 0
    timing: Path | None = None  # a timing model of this machine; None: calibrate where needed


@dataclass(frozen=True)
class Claim:
    """One figure and the bound it has to keep. A figure that could not be had is NaN and keeps
    none."""

    what: str
    figure: float
    must_be: Literal["below", "above", "at least", "at most"]
    bound: float

    @property
    def held(self) -> bool:
        return {
            "below": self.figure < self.bound,
            "above": self.figure > self.bound,
            "at least": self.figure >= self.bound,
            "at most": self.figure <= self.bound,
        }[self.must_be]

    def as_dict(self) -> dict[str, Any]:
        return {**vars(self), "held": self.held}


@dataclass(frozen=True)
class Outcome:
    """`rows` are printed under `columns`; `details` go to the JSON, beside the claims."""

    claims: Sequence[Claim]
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str | float | None]] = ()
    details: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return {"claims": [claim.as_dict() for claim in self.claims], **self.details}


@dataclass(frozen=True)
class Experiment:
    name: str
    help: str  # one line
    run: Callable[[Options], Outcome]


def median_ratio(pairs: Sequence[tuple[float, float]]) -> float:
    """The median over the rounds of (value with, value without) of one over the other."""
    return statistics.median(with_it / without for with_it, without in pairs)


def bootstrap_interval(values: Sequence[float], seed: int = 0) -> tuple[float, float]:
    """Between which the median lies in 95% of the samples drawn from `values` with replacement
    (Efron's percentile interval)."""
    draw = random.Random(seed)
    medians = sorted(
        statistics.median(draw.choices(values, k=len(values))) for _ in range(RESAMPLES)
    )
    cut = RESAMPLES // 40
    return medians[cut], medians[-cut - 1]
