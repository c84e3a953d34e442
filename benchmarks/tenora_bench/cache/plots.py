"""PNG plots of a result of `tenora bench cache`; only this needs matplotlib (`tenora[bench]`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tenora_bench.client import BenchError


def plot_load(path: Path, result: dict[str, Any]) -> None:
    """Two panels over the arrival rate, a line a policy: mean TTFT (with its limit), and the
    attainment of the tenant that has the least. Raises BenchError without matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise BenchError("plots need matplotlib: pip install 'tenora[bench]'") from error
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    ttft, attained = figure.subplots(1, 2)
    rate = result["trace_figures"]["requests"] / result["trace_figures"]["seconds"]
    for name, load in result["loads"].items():
        rates = [point["speed"] * rate for point in load["points"]]
        ttft.plot(rates, [point["mean_ttft_ms"] for point in load["points"]], "o-", label=name)
        least = [100 * point["min_tenant_slo_attainment"] for point in load["points"]]
        attained.plot(rates, least, "o-", label=name)
    ttft.axhline(result["ttft_max_ms"], color="grey", linestyle=":")
    ttft.set(xlabel="requests a second", ylabel="mean TTFT, ms", yscale="log")
    attained.set(xlabel="requests a second", ylabel="least tenant attainment, %", ylim=(0, 101))
    ttft.legend()
    figure.suptitle(result["title"])
    figure.savefig(path, dpi=120)
