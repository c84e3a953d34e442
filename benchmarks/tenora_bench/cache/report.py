"""From a replay to its figures: CONTRACT.md's object and what only a simulation can see."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from tenora_bench.cache.simulator import Replay, Setup
from tenora_bench.metrics import summarise

COLUMNS = {
    "TTFT ms": "mean_ttft_ms",
    "p50": "p50_ttft_ms",
    "p99": "p99_ttft_ms",
    "TPOT ms": "mean_tpot_ms",
    "tokens/s": "output_tokens_per_s",
    "hit tokens": "prefix_hit_tokens",
    "hit rate %": "prefix_hit_percent",
    "KV evicted": "kv_evictions",
    "adapters evicted": "adapter_evictions",
    "adapter hits %": "adapter_hit_percent",
    "attained %": "slo_percent",
    "least tenant %": "min_tenant_slo_percent",
    "refused": "failed",
    "miss cost s": "miss_cost_s",
}


def figures(replay: Replay, setup: Setup) -> dict[str, Any]:
    """The per-policy object of CONTRACT.md, with evictions by kind, preemptions, loads by tier,
    `failed` (refused or ended by an error) and the least attained of any tenant."""
    targets = setup.default_targets
    result = summarise(replay.records, targets.ttft_ms, targets.tpot_ms)
    counters = {
        name: int(replay.counters.get(name, 0))
        for name in (
            "steps",
            "preemptions",
            "kv_evictions",
            "adapter_evictions",
            "loader_host_loads",
            "loader_store_loads",
        )
    }
    attained = [tenant["slo_attainment"] for tenant in result["tenants"].values()]
    return {
        **result,
        **counters,
        "prefix_hit_tokens": sum(r.cached_tokens for r in replay.records),
        "min_tenant_slo_attainment": min(attained),
        "device_busy_share": replay.busy_s / replay.simulated_s,
    }


def print_policies(title: str, policies: dict[str, dict[str, Any]]) -> None:
    table = Table(title=title)
    table.add_column("policy", no_wrap=True)
    for heading in COLUMNS:
        table.add_column(heading, justify="right")
    for name, result in policies.items():
        shares = {
            "prefix_hit_percent": result.get("prefix_hit_token_rate"),
            "adapter_hit_percent": result.get("adapter_hit_rate"),
            "slo_percent": result.get("slo_attainment"),
            "min_tenant_slo_percent": result.get("min_tenant_slo_attainment"),
        }
        row = result | {key: None if v is None else 100 * v for key, v in shares.items()}
        table.add_row(name, *(_cell(row.get(figure)) for figure in COLUMNS.values()))
    console = Console()
    console.width = max(console.width, 170)
    console.print(table)


def _cell(value: float | int | None) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"
