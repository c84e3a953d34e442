"""Seeds: the peak load of each policy at several sizes of the device, over several seeds of one
workload, and what misses cost there beside the least that they could cost."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from rich.console import Console
from rich.table import Table

from tenora_bench.cache.load import Replays, find_peak
from tenora_bench.cache.miss_costs import least_miss_cost_s, uncached_cost_s
from tenora_bench.cache.simulator import Setup
from tenora_bench.cache.trace_figures import working_set_bytes
from tenora_bench.client import BenchError
from tenora_bench.trace import TraceRequest

STEP = 1.05
"""From the peak of another seed, or of the policy before, outwards: it is often near."""


def parse_seeds(text: str) -> list[int]:
    """`1-5`, `1,2,7`, or both. Raises BenchError."""
    seeds: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        try:
            seeds += range(int(first), int(last or first) + 1)
        except ValueError as error:
            raise BenchError(f"{part!r} is neither a seed nor FIRST-LAST") from error
    return seeds


def measure_peaks(
    setup: Setup,
    trace_of: Callable[[int], list[TraceRequest]],
    policies: Sequence[str],
    shares: Sequence[float],
    seeds: Sequence[int],
    ttft_max_ms: float,
) -> list[dict[str, Any]]:
    """One row for each seed, share of the working set and policy: `requests_per_s` at the peak
    (None where there is none), `min_tenant_slo_attainment` and `miss_cost_s` there, with
    `least_miss_cost_s` and `uncached_cost_s`, what the trace costs with no cache at all."""
    rows: list[dict[str, Any]] = []
    peaks: dict[tuple[float, str], float] = {}  # speeds, of the seed before
    for seed in seeds:
        trace = trace_of(seed)
        rate = len(trace) / (trace[-1].t_s - trace[0].t_s)
        working_set = working_set_bytes(trace, setup.prefix_block_tokens, setup.timing)
        speed = 1.0
        for share in shares:
            at_share = replace(setup, device_bytes=int(share * working_set))
            least_s = least_miss_cost_s(at_share, trace)
            for policy in policies:
                replays = Replays(at_share, policy, trace)
                near = peaks.get((share, policy), speed)
                found = find_peak(replays.at, ttft_max_ms, near=near, step=STEP)
                row: dict[str, Any] = {"seed": seed, "share": share, "policy": policy}
                row |= dict.fromkeys(("requests_per_s", "miss_cost_s", "min_tenant_slo_attainment"))
                row |= {
                    "least_miss_cost_s": least_s,
                    "uncached_cost_s": uncached_cost_s(setup, trace),
                }
                if found["speed"] is not None:
                    speed = peaks[share, policy] = found["speed"]
                    peak = replays.at(speed)
                    row["requests_per_s"] = speed * rate
                    for name in ("miss_cost_s", "min_tenant_slo_attainment"):
                        row[name] = peak[name]
                rows.append(row)
    return rows


def print_peaks(title: str, rows: Sequence[dict[str, Any]]) -> None:
    """Medians over the seeds. A peak that is none counts as 0; `of the first` is the median of
    each seed's ratio to the policy named first."""
    table = Table(title=title)
    headings = ("share", "policy", "peak requests/s", "of the first", "least tenant %")
    for heading in (*headings, "miss cost / least", "saved of what could be %"):
        table.add_column(heading, justify="right")
    first = {(r["seed"], r["share"]): r for r in rows if r["policy"] == rows[0]["policy"]}
    for share, policy in dict.fromkeys((r["share"], r["policy"]) for r in rows):
        same = [r for r in rows if (r["share"], r["policy"]) == (share, policy)]
        held = [r for r in same if r["requests_per_s"] is not None]
        peaks = [r["requests_per_s"] or 0.0 for r in same]
        bases = [first[r["seed"], share]["requests_per_s"] or 0.0 for r in same]
        ratios = [peak / base for peak, base in zip(peaks, bases, strict=True) if base]
        table.add_row(
            f"{100 * share:g}%",
            policy,
            f"{statistics.median(peaks):.2f}",
            _median(ratios, "{:.2f}"),
            _median([100 * r["min_tenant_slo_attainment"] for r in held], "{:.0f}"),
            _median([r["miss_cost_s"] / r["least_miss_cost_s"] for r in held], "{:.3f}"),
            _median([100 * _saved(r) for r in held], "{:.0f}"),
        )
    console = Console(highlight=False)
    console.width = max(console.width, 120)
    console.print(table)


def _saved(row: dict[str, Any]) -> float:
    """Of what the bound saves of an uncached run's cost."""
    could = row["uncached_cost_s"] - row["least_miss_cost_s"]
    return (row["uncached_cost_s"] - row["miss_cost_s"]) / could if could > 0 else 1.0


def _median(values: Sequence[float], form: str) -> str:
    return form.format(statistics.median(values)) if values else "-"
