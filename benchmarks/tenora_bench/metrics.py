"""From the times of single requests to the figures CONTRACT.md names."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass
class RequestRecord:
    """What the client saw of one request. Times are seconds on one monotonic clock."""

    tenant: str
    adapter: str | None
    sent_s: float
    first_token_s: float | None = None
    finished_s: float | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    residency: str | None = None
    error: str | None = None
    sla_class: str = "default"
    targets_ms: tuple[float, float] | None = None  # TTFT and TPOT; None = those of the run
    chunk_times_s: list[float] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)  # where `return_token_ids` was asked for

    @property
    def ttft_ms(self) -> float | None:
        return None if self.first_token_s is None else (self.first_token_s - self.sent_s) * 1e3

    @property
    def tpot_ms(self) -> float | None:
        if self.first_token_s is None or self.finished_s is None or self.output_tokens < 2:
            return None
        return (self.finished_s - self.first_token_s) * 1e3 / (self.output_tokens - 1)


def percentile(values: Sequence[float], share: float) -> float | None:
    """Nearest-rank percentile; None of nothing."""
    if not values:
        return None
    ranked = sorted(values)
    return ranked[max(0, math.ceil(share * len(ranked)) - 1)]


def mean(values: Iterable[float]) -> float | None:
    taken = list(values)
    return statistics.fmean(taken) if taken else None


def summarise(
    records: Sequence[RequestRecord], ttft_target_ms: float, tpot_target_ms: float
) -> dict[str, Any]:
    """The per-run object of CONTRACT.md. A request attains its SLO when both targets are met; one
    that failed does not."""
    done = [r for r in records if r.error is None and r.finished_s is not None]
    ttft = [r.ttft_ms for r in done if r.ttft_ms is not None]
    start = min((r.sent_s for r in records), default=0.0)
    end = max((r.finished_s or r.sent_s for r in records), default=0.0)
    prompt = sum(r.prompt_tokens for r in done)
    adapted = [r for r in done if r.adapter is not None]

    def attains(record: RequestRecord) -> bool:
        if record.error is not None or record.ttft_ms is None:
            return False
        ttft_max_ms, tpot_max_ms = record.targets_ms or (ttft_target_ms, tpot_target_ms)
        return record.ttft_ms <= ttft_max_ms and (record.tpot_ms or 0.0) <= tpot_max_ms

    tenants = {}
    for tenant in sorted({r.tenant for r in records}):
        own = [r for r in records if r.tenant == tenant]
        tenants[tenant] = {
            "requests": len(own),
            "p99_ttft_ms": percentile([r.ttft_ms for r in own if r.ttft_ms is not None], 0.99),
            "slo_attainment": sum(map(attains, own)) / len(own),
        }
    return {
        "requests": len(records),
        "failed": len(records) - len(done),
        "wall_s": end - start,
        "output_tokens": sum(r.output_tokens for r in done),
        "output_tokens_per_s": sum(r.output_tokens for r in done) / max(end - start, 1e-9),
        "mean_ttft_ms": mean(ttft),
        "p50_ttft_ms": percentile(ttft, 0.50),
        "p99_ttft_ms": percentile(ttft, 0.99),
        "mean_tpot_ms": mean(r.tpot_ms for r in done if r.tpot_ms is not None),
        "prefix_hit_token_rate": sum(r.cached_tokens for r in done) / prompt if prompt else 0.0,
        "adapter_hit_rate": (
            sum(r.residency == "device" for r in adapted) / len(adapted) if adapted else None
        ),
        "slo_attainment": sum(map(attains, records)) / len(records) if records else None,
        "tenants": tenants,
    }
