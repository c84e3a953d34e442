"""`tenora bench`: the command line of the measurements; prints a table, writes JSON.

What measures (and imports torch) is imported by the commands themselves: this module is part of the
`tenora` command, whose server must stay small."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.table import Table

from tenora_bench.cache.command import cache_command
from tenora_bench.client import BenchError
from tenora_bench.drafts.command import drafts_command
from tenora_bench.grammars.command import grammars_command
from tenora_bench.hostile.command import hostile_command
from tenora_bench.outputs.command import outputs_command
from tenora_bench.recorded.command import replay_command
from tenora_bench.server import ServerUnderTest, serve
from tenora_bench.tenancy.command import tenancy_command
from tenora_bench.tools.command import tools_command

if TYPE_CHECKING:
    from tenora_bench.comparison import Workload

app = typer.Typer(no_args_is_help=True, help="Measurements, each with --json FILE.")
app.command("cache")(cache_command)
app.command("drafts")(drafts_command)
app.command("grammars")(grammars_command)
app.command("hostile")(hostile_command)
app.command("outputs")(outputs_command)
app.command("replay")(replay_command)
app.command("tenancy")(tenancy_command)
app.command("tools")(tools_command)


def end(signal_number: int, frame: object) -> NoReturn:
    """Leave by way of every context, so that no server stays behind, least of all a paused one."""
    raise SystemExit(128 + signal_number)


@contextmanager
def readable_errors() -> Iterator[None]:
    try:
        yield
    except BenchError as error:
        Console(stderr=True).print(f"[red]bench:[/red] {error}", highlight=False)
        raise typer.Exit(1) from error


@contextmanager
def server_under_test(
    url: str | None, scratch: Path, model: Path, options: list[str]
) -> Iterator[ServerUnderTest]:
    """The server at `url` (its admin key from TENORA_ADMIN_KEY), or one of our own."""
    if url is None:
        with serve(scratch / "data", model, options) as server:
            yield server
        return
    admin_key = os.environ.get("TENORA_ADMIN_KEY")
    if admin_key is None:
        raise BenchError("--url needs the server's admin key in TENORA_ADMIN_KEY")
    yield ServerUnderTest(url, admin_key, None)


def default_model(model: Path | None) -> Path:
    if model is not None:
        return model
    from tenora_engine.model.default_model import ensure_default_model

    return ensure_default_model(Path(os.environ.get("TENORA_DATA_DIR", ".data")))


def write_json(path: Path | None, result: dict[str, Any]) -> None:
    if path is not None:
        path.write_text(json.dumps(result, indent=2) + "\n")


def number(value: Any) -> str:
    if isinstance(value, int):
        return str(value)
    return f"{value:,.1f}" if isinstance(value, float) else "-"


COLUMNS = {
    "output tokens/s": "output_tokens_per_s",
    "TTFT p50 ms": "p50_ttft_ms",
    "TTFT p99 ms": "p99_ttft_ms",
    "TPOT ms": "mean_tpot_ms",
    "rounds": "rounds",
}


def print_table(title: str, runs: dict[str, dict[str, Any]]) -> None:
    table = Table("run", title=title)
    for heading in COLUMNS:
        table.add_column(heading, justify="right")
    for name, run in runs.items():
        table.add_row(name, *(number(run.get(figure)) for figure in COLUMNS.values()))
    Console().print(table)


def print_comparison(result: dict[str, Any]) -> None:
    from tenora_bench.comparison import medians, ratios

    console = Console(highlight=False)
    machine = result["machine"]
    console.print(f"{machine['cpu']}, our kernels: {machine['kernels']}, {machine['date']}")
    for name, load in result["workloads"].items():
        print_table(
            f"{name}: {load['streams']} in flight, {load['prompt_tokens']} tokens in,"
            f" {load['output_tokens']} out; medians",
            medians(result["rounds"], name),
        )
        for pair, value in ratios(result["rounds"], name).items():
            console.print(f"{pair}: {value:.2f}")
    for system, peak in result["peak_memory"].items():
        console.print(
            f"{system}: peak resident {peak['total'] / 1e9:.2f} GB,"
            f" its engine process alone {peak['engine'] / 1e9:.2f} GB"
        )


def run_trace(
    url: str | None,
    scratch: Path,
    model: Path,
    dtype: str,
    trace: Path,
    speed: float,
    block_tokens: int,
    targets_ms: tuple[float, float],
) -> dict[str, Any]:
    from tenora_bench.replay import replay
    from tenora_bench.trace import read_trace

    requests = read_trace(trace)
    with server_under_test(url, scratch, model, ["--dtype", dtype]) as server:
        return asyncio.run(
            replay(server, requests, model, scratch, speed, block_tokens, targets_ms)
        )


def run_comparison(
    url: str | None,
    scratch: Path,
    model: Path,
    settings: dict[str, Any],
    peers: dict[str, Path],
    workloads: dict[str, Workload],
    rounds: int,
    json_file: Path | None,
    append: bool,
) -> dict[str, Any]:
    from tenora_bench.adapters import write_adapters
    from tenora_bench.comparison import begin, compare, setup_of

    if append and json_file is None:
        raise BenchError("--append needs the --json FILE to add to")
    result = begin(json_file if append else None, settings)
    dtype, ranks = settings["dtype"], settings["ranks"]
    folders = write_adapters(scratch / "adapters", model, settings["adapters"], ranks)
    setup = setup_of(model, folders, dtype, workloads, scratch)

    def keep(so_far: dict[str, Any]) -> None:
        write_json(json_file, so_far)

    options = ["--dtype", dtype, "--threads", str(setup.threads)]
    with server_under_test(url, scratch, model, options) as server:
        asyncio.run(compare(server, setup, peers, workloads, rounds, result, keep))
    return result


@app.command("serve")
def serve_command(
    url: Annotated[str | None, typer.Option(help="A running server; else one is started.")] = None,
    trace: Annotated[Path | None, typer.Option(help="Replay this trace file instead.")] = None,
    compare_with: Annotated[
        str, typer.Option("--compare", help="Peers: peft,vllm,llamacpp,... (docs/peers.md)")
    ] = "",
    peer_python: Annotated[
        list[str] | None, typer.Option(help="PEER=VENV or PEER=PYTHON; else this interpreter.")
    ] = None,
    workloads: Annotated[
        str, typer.Option(help="streams16,streams8,single,long,long-single; else the next four.")
    ] = "",
    streams: Annotated[int, typer.Option(help="Requests in flight.")] = 16,
    requests: Annotated[int | None, typer.Option(help="In all; default: streams.")] = None,
    prompt_tokens: Annotated[int, typer.Option()] = 64,
    output_tokens: Annotated[int, typer.Option()] = 64,
    model: Annotated[Path | None, typer.Option(help="Hugging Face folder.")] = None,
    dtype: Annotated[str, typer.Option(help="bfloat16 or float32.")] = "bfloat16",
    adapters: Annotated[int, typer.Option(help="Distinct adapters.")] = 16,
    ranks: Annotated[str, typer.Option(help="Ranks, taken in turn.")] = "8,16,32,64",
    rounds: Annotated[int, typer.Option(help="Counted, interleaved.")] = 5,
    speed: Annotated[float, typer.Option(help="Factor on a trace's arrival rate.")] = 1.0,
    prefix_block_tokens: Annotated[int, typer.Option(help="Tokens of a trace's block.")] = 16,
    ttft_target_ms: Annotated[float, typer.Option(help="Of a trace's requests.")] = 2000.0,
    tpot_target_ms: Annotated[float, typer.Option(help="Of a trace's requests.")] = 200.0,
    json_file: Annotated[Path | None, typer.Option("--json")] = None,
    append: Annotated[bool, typer.Option("--append", help="Add rounds to --json FILE.")] = False,
) -> None:
    """Load on a server: mixed adapters and base only, beside peers; or a trace."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    with readable_errors(), tempfile.TemporaryDirectory(prefix="tenora-bench-") as folder:
        scratch, base = Path(folder), default_model(model)
        if trace is not None:
            targets = (ttft_target_ms, tpot_target_ms)
            result = run_trace(
                url, scratch, base, dtype, trace, speed, prefix_block_tokens, targets
            )
            print_table(f"{result['machine']['cpu']}, trace", {"trace": result["run"]})
        else:
            from tenora_bench.comparison import Workload, choose_workloads
            from tenora_bench.peers.registry import choose, parse_names, parse_pythons

            peers = choose(parse_names(compare_with), parse_pythons(peer_python or []))
            own = Workload(streams, requests or streams, prompt_tokens, output_tokens)
            settings = {
                "model": base.name,
                "dtype": dtype,
                "adapters": adapters,
                "ranks": [int(rank) for rank in ranks.split(",")],
            }
            result = run_comparison(
                url,
                scratch,
                base,
                settings,
                peers,
                choose_workloads(workloads) or {"closed-loop": own},
                rounds,
                json_file,
                append,
            )
            print_comparison(result)
    write_json(json_file, result)


@app.command("kernels")
def kernels_command(
    tokens: Annotated[int, typer.Option(help="Rows of the step.")] = 16,
    adapters: Annotated[int, typer.Option(help="Distinct adapters among them.")] = 16,
    ranks: Annotated[str, typer.Option()] = "8,16,64",
    context: Annotated[int, typer.Option(help="Tokens of context per row.")] = 200,
    rounds: Annotated[int, typer.Option(help="Interleaved turns.")] = 15,
    json_file: Annotated[Path | None, typer.Option("--json")] = None,
) -> None:
    """The CPU's kernels against its ceilings. A GPU's are timed by `make gpu`."""
    from tenora_bench.kernels import run

    result = run(
        tokens=tokens,
        adapters=adapters,
        ranks=[int(rank) for rank in ranks.split(",")],
        context=context,
        rounds=rounds,
    )
    Console().print_json(data=result)
    write_json(json_file, result)


def numbers(text: str) -> list[int]:
    return [int(each) for each in text.split(",")]


def print_steps(result: dict[str, Any]) -> None:
    cells = result["cells"]
    table = Table(title="milliseconds of a decode step, and share")
    table.add_column("")
    for cell in cells:
        table.add_column(f"{cell['name']} x{cell['streams']}", justify="right")
    for phase in cells[0]["phases_ms"]:
        parts = [(cell["phases_ms"][phase], sum(cell["phases_ms"].values())) for cell in cells]
        table.add_row(phase, *(f"{ms:.3f} {ms / whole:4.0%}" for ms, whole in parts))
    table.add_section()
    table.add_row("step, no clock", *(f"{cell['step_ms']:.2f}     " for cell in cells))
    table.add_row("tokens/s", *(f"{cell['tokens_per_s']:.0f}     " for cell in cells))
    console = Console()
    console.width = max(console.width, 18 * (len(cells) + 1))
    console.print(table)
    for cell in cells:
        if "of_weight_floor" in cell:
            console.print(
                f"{cell['name']} x1: {cell['of_weight_floor']:.0%} of the weight-reading floor, "
                f"{result['weight_bytes'] / 1e6:.0f} MB at {result['read_gb_per_s']:.1f} GB/s"
            )


def print_taxes(taxes: list[dict[str, Any]]) -> None:
    table = Table(title="what adapters add to a step, over their bytes at the read bandwidth")
    columns = ("base_ms", "tax_ms", "bytes_ms", "tax_over_bytes", "speed_of_base", "read_gb_per_s")
    for heading in ("streams", "adapters", "ranks", *columns):
        table.add_column(heading, justify="right")
    for tax in taxes:
        table.add_row(
            str(tax["streams"]),
            str(tax["adapters"]),
            "-".join(map(str, tax["ranks"])),
            *(f"{tax[column]:.2f}" for column in columns),
        )
    console = Console()
    console.width = max(console.width, 120)
    console.print(table)


@app.command("step")
def step_command(
    streams: Annotated[str, typer.Option(help="Sequences in the step.")] = "1,16,64",
    adapters: Annotated[int, typer.Option(help="Distinct; 0: base only.")] = 16,
    ranks: Annotated[str, typer.Option(help="Their ranks, taken in turn.")] = "8,16,32,64",
    compare_adapters: Annotated[
        str | None,
        typer.Option(help="Only LoRA's tax, for these numbers of distinct adapters: 1,16,64."),
    ] = None,
    prompt_tokens: Annotated[int, typer.Option()] = 64,
    rounds: Annotated[int, typer.Option(help="Interleaved turns.")] = 5,
    steps: Annotated[int, typer.Option(help="Steps of a turn.")] = 8,
    threads: Annotated[int | None, typer.Option(help="Default: all cores.")] = None,
    model: Annotated[Path | None, typer.Option(help="Hugging Face folder.")] = None,
    dtype: Annotated[str, typer.Option(help="bfloat16 or float32.")] = "bfloat16",
    json_file: Annotated[Path | None, typer.Option("--json")] = None,
) -> None:
    """The raw engine, without HTTP: where a decode step's time goes, or what adapters add to it."""
    from tenora_bench.lora_tax import measure_taxes
    from tenora_bench.step import Workload, measure_steps
    from tenora_engine.machine import usable_cpus

    load = Workload(
        model=default_model(model),
        dtype=dtype,
        threads=threads or usable_cpus(),
        prompt_tokens=prompt_tokens,
        rounds=rounds,
        steps=steps,
    )
    with tempfile.TemporaryDirectory(prefix="tenora-bench-") as folder:
        if compare_adapters is not None:
            result = measure_taxes(load, Path(folder), numbers(compare_adapters), numbers(ranks))
            print_taxes(result["taxes"])
        else:
            result = measure_steps(load, Path(folder), numbers(streams), adapters, numbers(ranks))
            print_steps(result)
    write_json(json_file, result)


@app.command("scheduler")
def scheduler_command(
    running: Annotated[int, typer.Option(help="Sequences in the batch.")] = 256,
    waiting: Annotated[int, typer.Option(help="In the queue behind them.")] = 2000,
    steps: Annotated[int, typer.Option(help="Of each kind of queue.")] = 300,
    policy: Annotated[str, typer.Option(help="Of eviction.")] = "joint",
    step_mb: Annotated[int, typer.Option(help="Read in each step, as weights are.")] = 0,
    json_file: Annotated[Path | None, typer.Option("--json")] = None,
) -> None:
    """The scheduler's own time in a step: `schedule` and `commit`, without a model."""
    from tenora_bench.scheduler import measure_scheduler

    result = measure_scheduler(running, waiting, steps, policy, step_mb)
    queues = result["queue_waits_for"]
    figures = list(next(iter(queues.values())))
    table = Table("the queue waits for", *(figure.replace("_", " ") for figure in figures))
    for name, times in queues.items():
        table.add_row(name, *(f"{times[figure]:.3f}" for figure in figures))
    Console().print(table)
    Console().print(
        "prefix match: {match_p50_ms:.2f} ms for {tokens} tokens".format_map(result["prefix_match"])
    )
    write_json(json_file, result)


@app.command("plot")
def plot_command(
    folder: Annotated[Path, typer.Argument(help="Of figures, *.json.")] = Path("docs/benchmarks"),
) -> None:
    """Plots of measured figures: an SVG beside each JSON file."""
    from tenora_bench.figures import plot_all

    with readable_errors():
        for path in plot_all(folder):
            print(path)


@app.command("quality")
def quality_command(
    text: Annotated[list[Path], typer.Option(help="Text to be read; may be given repeatedly.")],
    tokens: Annotated[int, typer.Option(help="At most so many.")] = 4096,
    model: Annotated[Path | None, typer.Option(help="Hugging Face folder.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json")] = None,
) -> None:
    """What bfloat16 and int8 weights cost in quality, against float32."""
    from tenora_bench.quality import measure_quality

    with readable_errors():
        result = measure_quality(default_model(model), text, tokens)
    table = Table("precision", "perplexity", "KL, nats", "same choice", "change of logprob")
    for row in result["precisions"]:
        table.add_row(
            row["precision"],
            f"{row['perplexity']:.3f}",
            f"{row['divergence']:.5f}",
            f"{row['same_choice']:.1%}",
            f"{row['logprob_change']:.4f}",
        )
    Console().print(table)
    write_json(json_file, result)


@app.command("adapter-quality")
def adapter_quality_command(
    examples: Annotated[Path, typer.Option(help="Folder of adapters and data.")] = Path("examples"),
    model: Annotated[Path | None, typer.Option(help="Hugging Face folder.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json")] = None,
) -> None:
    """What int8 adapter pages cost in quality, against float32."""
    from tenora_bench.adapter_quality import measure_adapter_quality

    with readable_errors():
        result = measure_adapter_quality(default_model(model), examples)
    columns = ("adapter", "base, pages", "bytes", "KL, nats", "same choice", "change of logprob")
    table = Table(*columns, "same greedy answers")
    for row in result["adapters"]:
        answers = row["answers"]
        table.add_row(
            row["adapter"],
            answers["precision"],
            f"{row['adapter_bytes']:,}",
            f"{answers['divergence']:.6f}",
            f"{answers['same_choice']:.1%}",
            f"{answers['logprob_change']:.5f}",
            f"{row['same_greedy']:.0%}",
        )
    Console().print(table)
    write_json(json_file, result)


def main() -> None:
    app()


if __name__ == "__main__":
    main()
