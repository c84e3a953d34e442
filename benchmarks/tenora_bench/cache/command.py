"""The command line of `tenora bench cache`. What simulates (and imports torch) is imported when the
command runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from tenora_bench.client import BenchError

if TYPE_CHECKING:
    from tenora_bench.cache.simulator import Setup, Targets
    from tenora_bench.cache.timing import TimingModel
    from tenora_bench.cache.workloads import Demand
    from tenora_bench.trace import TraceRequest


BOUND = "belady"
"""Among the policies, but only a bound of their `miss_cost_s`: it replays nothing."""


@contextmanager
def _readable_errors() -> Iterator[None]:
    try:
        yield
    except BenchError as error:
        Console(stderr=True).print(f"[red]bench:[/red] {error}", highlight=False)
        raise typer.Exit(1) from error


def choose_timing(timing: Path | None, calibrate: Path | None, block_tokens: int) -> TimingModel:
    """From a file, from a short run of the engine with a model, or the assumed H200."""
    from tenora_bench.cache.timing import h200_llama3_8b, read_timing

    if timing is not None:
        return read_timing(timing)
    if calibrate is not None:
        from tenora_bench.cache.calibration import calibrate_engine

        return calibrate_engine(calibrate)
    return h200_llama3_8b(block_tokens)


def parse_targets(text: str) -> dict[str, Targets]:
    """`CLASS=TTFT_MS/TPOT_MS,...`. Raises BenchError."""
    from tenora_bench.cache.simulator import Targets

    targets = {}
    for part in filter(None, text.split(",")):
        try:
            name, pair = part.split("=")
            ttft_ms, tpot_ms = map(float, pair.split("/"))
        except ValueError as error:
            raise BenchError(f"{part!r} is not CLASS=TTFT_MS/TPOT_MS") from error
        targets[name] = Targets(ttft_ms, tpot_ms)
    return targets


def run(
    setup: Setup,
    policies: str,
    trace: list[TraceRequest],
    speed: float,
    peak: bool,
    ttft_max_ms: float,
    title: str,
) -> dict[str, Any]:
    """The JSON object of `tenora bench cache`: the policies' figures at `speed` and, with `peak`,
    how each does under load."""
    import msgspec

    from tenora_bench.cache.load import Replays, find_peak
    from tenora_bench.cache.miss_costs import least_miss_cost_s
    from tenora_bench.cache.trace_figures import trace_figures

    names = [name.strip() for name in policies.split(",")]
    replays = {name: Replays(setup, name, trace) for name in names if name != BOUND}
    result: dict[str, Any] = {
        "title": title,
        "timing": msgspec.to_builtins(setup.timing),
        "limits": msgspec.to_builtins(setup.limits),
        "device_bytes": setup.device_bytes,
        "prefix_block_tokens": setup.prefix_block_tokens,
        "speed": speed,
        "ttft_max_ms": ttft_max_ms,
        "trace_figures": trace_figures(trace, setup.prefix_block_tokens, setup.timing),
        "policies": {name: each.at(speed) for name, each in replays.items()},
    }
    if BOUND in names:
        result["policies"][BOUND] = {"miss_cost_s": least_miss_cost_s(setup, trace)}
    if peak:
        result["loads"] = {n: find_peak(each.at, ttft_max_ms) for n, each in replays.items()}
    return result


def run_seeds(
    setup: Setup, workload: str, demand: Demand, policies: str, shares: str, seeds: str, ttft: float
) -> dict[str, Any]:
    """The JSON object of `tenora bench cache --seeds`: peak loads, printed as medians."""
    import msgspec

    from tenora_bench.cache.seeds import measure_peaks, parse_seeds, print_peaks
    from tenora_bench.cache.workloads import generate

    rows = measure_peaks(
        setup,
        lambda seed: generate(workload, replace(demand, seed=seed)),
        [name for name in policies.split(",") if name != BOUND],
        [float(share) for share in shares.split(",")],
        parse_seeds(seeds),
        ttft,
    )
    print_peaks(f"{workload}, seeds {seeds}, mean TTFT < {ttft:g} ms", rows)
    return {"demand": asdict(demand), "timing": msgspec.to_builtins(setup.timing), "peaks": rows}


def device_bytes_of(
    given: int | None, share: float, trace: list[TraceRequest], block: int, timing: TimingModel
) -> int:
    from tenora_bench.cache.trace_figures import working_set_bytes

    return given if given is not None else int(share * working_set_bytes(trace, block, timing))


def print_result(result: dict[str, Any]) -> None:
    from tenora_bench.cache.report import print_policies

    console = Console(highlight=False)
    timing = result["timing"]
    console.print(f"timing model {timing['name']} ({timing['source']}):")
    console.print(json.dumps({key: timing[key] for key in ("step", "host", "store")}))
    console.print("trace: " + json.dumps(result["trace_figures"]))
    print_policies(
        f"{result['title']}, {result['device_bytes'] / 1e9:.2f} GB, speed {result['speed']:g}",
        result["policies"],
    )
    for name, load in result.get("loads", {}).items():
        rate = result["trace_figures"]["requests"] / result["trace_figures"]["seconds"]
        peak = "none" if load["speed"] is None else f"{load['speed'] * rate:.2f} requests/s"
        console.print(f"{name}: peak load at mean TTFT < {result['ttft_max_ms']:g} ms: {peak}")


def cache_command(
    trace: Annotated[Path | None, typer.Option(help="A trace file; else --workload.")] = None,
    workload: Annotated[
        str,
        typer.Option(
            help="slora, zipf-drift, mooncake, azure-code, azure-conversation, overload, on-off, "
            "short-long, shift."
        ),
    ] = "zipf-drift",
    requests: Annotated[int, typer.Option(help="Of a workload, as are the next six.")] = 2000,
    rate: Annotated[float, typer.Option(help="Mean requests a second.")] = 4.0,
    seed: Annotated[int, typer.Option()] = 0,
    adapters: Annotated[int, typer.Option()] = 200,
    tenants: Annotated[int, typer.Option()] = 20,
    skew: Annotated[float, typer.Option(help="s-lora: alpha; else Zipf's exponent.")] = 1.0,
    cv: Annotated[float, typer.Option(help="Of the gaps, where not the workload's own.")] = 1.0,
    write: Annotated[Path | None, typer.Option(help="Keep the workload as a trace file.")] = None,
    policies: Annotated[
        str,
        typer.Option(
            help="joint,static-lru,unified-lru,kv-first,elora,chameleon,belady; elora@fcfs is one "
            "under a scheduler that serves first who came first."
        ),
    ] = "joint,static-lru,unified-lru,elora,belady",
    device_bytes: Annotated[int | None, typer.Option(help="Of the page arena.")] = None,
    device_share: Annotated[
        float, typer.Option(help="Of the working set, unless --device-bytes.")
    ] = 0.25,
    seeds: Annotated[
        str, typer.Option(help="As 1-5: peak loads of a workload over seeds, their medians.")
    ] = "",
    device_shares: Annotated[str, typer.Option(help="With --seeds.")] = "0.1,0.25,0.5",
    host_kv_share: Annotated[
        float, typer.Option(help="Host memory for evicted KV, of the device's size.")
    ] = 0.0,
    host_adapter_bytes: Annotated[
        int, typer.Option(help="Host memory for adapters; the store has the others.")
    ] = 64 * 1024**3,
    speed: Annotated[float, typer.Option(help="Factor on the arrival rate.")] = 1.0,
    peak: Annotated[bool, typer.Option(help="Look for the peak load of each policy.")] = False,
    ttft_max_ms: Annotated[float, typer.Option(help="Mean TTFT that a peak load keeps.")] = 500.0,
    timing: Annotated[Path | None, typer.Option(help="Timing model; else the H200's.")] = None,
    calibrate: Annotated[
        Path | None, typer.Option(help="Measure the timing of the engine with this model.")
    ] = None,
    write_timing_to: Annotated[Path | None, typer.Option("--write-timing")] = None,
    block_tokens: Annotated[int, typer.Option(help="Of a page, unless --timing.")] = 16,
    prefix_block_tokens: Annotated[
        int | None, typer.Option(help="Of a trace file's blocks; default 16.")
    ] = None,
    max_running: Annotated[int, typer.Option()] = 256,
    max_step_tokens: Annotated[int, typer.Option()] = 2048,
    max_adapters: Annotated[int, typer.Option()] = 512,
    targets: Annotated[str, typer.Option(help="CLASS=TTFT_MS/TPOT_MS,...; others 500/100.")] = "",
    plot: Annotated[
        Path | None, typer.Option(help="PNG of TTFT against load; implies --peak.")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json")] = None,
) -> None:
    """Cache policies on a trace, by simulation: the engine's own scheduler and memory under a
    virtual clock."""
    with _readable_errors():
        from tenora_bench.cache.plots import plot_load
        from tenora_bench.cache.simulator import Limits, Setup
        from tenora_bench.cache.timing import write_timing
        from tenora_bench.cache.workloads import PREFIX_BLOCK_TOKENS, Demand, generate
        from tenora_bench.trace import read_trace, write_trace

        model = choose_timing(timing, calibrate, block_tokens)
        if write_timing_to is not None:
            write_timing(write_timing_to, model)
        demand = Demand(requests, rate, seed, adapters, tenants, skew, cv)
        if trace is not None:
            taken, title, size = read_trace(trace), trace.name, prefix_block_tokens or 16
        else:
            taken, title = generate(workload, demand), f"{workload}, seed {seed}"
            size = PREFIX_BLOCK_TOKENS[workload]
        if write is not None:
            write_trace(write, taken)
        setup = Setup(
            timing=model,
            device_bytes=device_bytes_of(device_bytes, device_share, taken, size, model),
            prefix_block_tokens=size,
            limits=Limits(
                max_running=max_running,
                max_step_tokens=max_step_tokens,
                max_prefill_chunk=max_step_tokens,
                max_adapters=max_adapters,
                host_adapter_bytes=host_adapter_bytes,
            ),
            targets=parse_targets(targets),
            host_kv_share=host_kv_share,
        )
        if seeds:
            if trace is not None or plot is not None:
                raise BenchError("--seeds are a workload's, without a trace file or a plot")
            result = run_seeds(setup, workload, demand, policies, device_shares, seeds, ttft_max_ms)
        else:
            searches = peak or plot is not None
            result = run(setup, policies, taken, speed, searches, ttft_max_ms, title)
            print_result(result)
        if plot is not None:
            plot_load(plot, result)
    if json_file is not None:
        json_file.write_text(json.dumps(result, indent=2) + "\n")
