"""Quantiles of histograms, as Prometheus computes them: linear within a bucket. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from tenora_engine.telemetry import BOUNDS_S


def quantile_ms(counts: Sequence[int], part: float) -> float | None:
    """Of times counted by BOUNDS_S, in milliseconds; above the last bound that bound. None without
    any."""
    total = sum(counts)
    if not total:
        return None
    wanted, below, lower_s = part * total, 0, 0.0
    for count, upper_s in zip(counts, BOUNDS_S, strict=False):
        if count and below + count >= wanted:
            return (lower_s + (upper_s - lower_s) * (wanted - below) / count) * 1000
        below += count
        lower_s = upper_s
    return BOUNDS_S[-1] * 1000
