"""`tenora bench cache` from the command line."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tenora_bench.cache.plots import plot_load
from tenora_bench.cli import app
from tenora_bench.client import BenchError

SMALL = ["--requests", "40", "--adapters", "8", "--tenants", "4", "--rate", "4"]
ROOMY = str(64 * 1024**3)
CONTRACT = {
    "mean_ttft_ms",
    "p50_ttft_ms",
    "p99_ttft_ms",
    "mean_tpot_ms",
    "output_tokens_per_s",
    "prefix_hit_token_rate",
    "adapter_hit_rate",
    "slo_attainment",
    "tenants",
}


def bench(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["cache", *arguments])
    return result.exit_code, result.output


def test_a_workload_and_its_trace_file_give_the_contract_s_figures(tmp_path: Path) -> None:
    trace, first, second = (tmp_path / name for name in ("trace.jsonl", "a.json", "b.json"))
    policies = ["--policies", "joint,unified-lru,belady", "--device-bytes", str(8 * 1024**3)]
    code, output = bench(*SMALL, *policies, "--write", str(trace), "--json", str(first))
    assert code == 0, output
    assert "assumed" in output  # the timing model says what it is
    code, output = bench("--trace", str(trace), *policies, "--json", str(second))
    assert code == 0, output
    made, read = (json.loads(path.read_text()) for path in (first, second))
    assert made["policies"].pop("belady")["miss_cost_s"] > 0
    assert read["policies"].pop("belady")["miss_cost_s"] > 0
    assert list(made["policies"]) == ["joint", "unified-lru"]
    assert made["policies"] == read["policies"]
    for figures in made["policies"].values():
        assert set(figures) >= CONTRACT
        for tenant in figures["tenants"].values():
            assert set(tenant) == {"p99_ttft_ms", "slo_attainment", "requests"}


def test_speed_is_a_factor_on_the_arrival_rate(tmp_path: Path) -> None:
    wall_s = {}
    for speed in ("0.5", "1"):
        path = tmp_path / f"{speed}.json"
        options = ["--policies", "joint", "--device-bytes", ROOMY, "--json", str(path)]
        code, output = bench(*SMALL, *options, "--speed", speed)
        assert code == 0, output
        wall_s[speed] = json.loads(path.read_text())["policies"]["joint"]["wall_s"]
    assert wall_s["0.5"] == pytest.approx(2 * wall_s["1"], rel=0.3)


def test_peak_loads_are_looked_for(tmp_path: Path) -> None:
    path = tmp_path / "peak.json"
    code, output = bench(*SMALL, "--policies", "joint", "--peak", "--json", str(path))
    assert code == 0, output
    assert "peak load at mean TTFT < 500 ms" in output
    assert json.loads(path.read_text())["loads"]["joint"]["points"]


def test_peaks_over_seeds_come_with_the_least_cost_of_misses(tmp_path: Path) -> None:
    path = tmp_path / "peaks.json"
    options = ["--policies", "joint,static-lru", "--seeds", "0-1", "--device-shares", "40"]
    code, output = bench(*SMALL, *options, "--json", str(path))
    assert code == 0, output
    rows = json.loads(path.read_text())["peaks"]
    assert [(r["seed"], r["policy"]) for r in rows] == [
        (seed, policy) for seed in (0, 1) for policy in ("joint", "static-lru")
    ]
    for row in rows:
        assert row["requests_per_s"] > 0
        assert row["least_miss_cost_s"] <= row["miss_cost_s"] <= 1.5 * row["uncached_cost_s"]
    assert "joint" in output


@pytest.mark.parametrize(
    "arguments",
    [
        ["--policies", "clairvoyant"],
        ["--policies", "joint@lottery"],
        ["--seeds", "1-x"],
        ["--seeds", "1", "--trace", "missing.jsonl"],
        ["--workload", "mystery"],
        ["--targets", "interactive=fast"],
        ["--trace", "missing.jsonl"],
        ["--timing", "missing.json"],
        ["--device-bytes", "1"],
    ],
)
def test_bad_options_get_a_named_error(arguments: list[str]) -> None:
    code, output = bench(*SMALL, *arguments)
    assert code == 1, output
    assert "bench:" in output


def load_result() -> dict[str, Any]:
    points = [
        {"speed": speed, "mean_ttft_ms": 100.0 * speed, "min_tenant_slo_attainment": 1 / speed}
        for speed in (1.0, 2.0, 8.0)
    ]
    return {
        "title": "zipf-drift",
        "ttft_max_ms": 500.0,
        "trace_figures": {"requests": 100, "seconds": 10.0},
        "loads": {"joint": {"speed": 4.0, "points": points}},
    }


def test_a_plot_is_a_png(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot_load(tmp_path / "load.png", load_result())
    assert (tmp_path / "load.png").read_bytes().startswith(b"\x89PNG")


def test_a_plot_without_matplotlib_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    with pytest.raises(BenchError, match=r"tenora\[bench\]"):
        plot_load(tmp_path / "load.png", load_result())
