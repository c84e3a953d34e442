"""`tenora bench api`: its options and its table. It knows what opens an engine's door, which the
bench does not."""

from __future__ import annotations

import json
import os
import signal
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from tenora_bench.client import BenchError
from tenora_platform.cli.output import terminal

COLUMNS = {
    "whole/s": ("rates", "whole", "requests_per_s"),
    "streamed/s": ("rates", "streamed", "requests_per_s"),
    "whole, ms": ("rates", "whole", "processor_ms"),
    "streamed, ms": ("rates", "streamed", "processor_ms"),
    "a request, ms": ("costs", "request_ms"),
    "a token, us": ("costs", "token_us"),
    "added p50, ms": ("latency", "p50_ms"),
    "added p99, ms": ("latency", "p99_ms"),
}


def api(
    workers: Annotated[
        str, typer.Option(help="Number of API processes of each platform measured.")
    ] = "1,2",
    rounds: Annotated[int, typer.Option(help="Number of interleaved rounds.")] = 3,
    streams: Annotated[
        int, typer.Option(help="Concurrent requests while latency is measured.")
    ] = 200,
    litellm: Annotated[
        bool,
        typer.Option(
            help="Also measure LiteLLM's proxy (from PyPI, installed under the data folder)."
        ),
    ] = True,
    model: Annotated[
        Path | None, typer.Option(help="Hugging Face folder whose tokenizer is used.")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json")] = None,
) -> None:
    """What the API adds to a token and takes for a request, with keys, limits and usage, at a
    pretend engine; beside LiteLLM's proxy."""
    from tenora_bench.api.run import measure_api
    from tenora_bench.cli import end
    from tenora_engine.model.default_model import ensure_default_model
    from tenora_platform.processes.engine_address import address_of
    from tenora_platform.secret import ServerSecret

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    data = Path(os.environ.get("TENORA_DATA_DIR", ".data"))
    try:
        with tempfile.TemporaryDirectory(prefix="tenora-api-") as folder:
            result = measure_api(
                Path(folder),
                model or ensure_default_model(data),
                lambda endpoint, secret: address_of(endpoint, ServerSecret(secret.encode())),
                workers=[int(each) for each in workers.split(",")],
                rounds=rounds,
                streams=streams,
                litellm_folder=data / "litellm" if litellm else None,
            )
    except BenchError as error:
        terminal(stderr=True, wraps=True).print(f"[red]bench:[/red] {error}", highlight=False)
        raise typer.Exit(1) from error
    print_costs(result)
    if json_file is not None:
        json_file.write_text(json.dumps(result, indent=2) + "\n")


def print_costs(result: dict[str, Any]) -> None:
    console = terminal(wraps=True)
    console.width = max(console.width, 140)
    table = Table("medians", title="requests per second, CPU time of the API, added latency")
    for heading in COLUMNS:
        table.add_column(heading, justify="right")
    for name, figures in result["medians"].items():
        table.add_row(name, *(_at(figures, path) for path in COLUMNS.values()))
    console.print(table)
    for name, figures in result["medians"].items():
        for key, ratios in figures.items():
            if key.startswith("rates_over_"):
                said = ", ".join(f"{kind} {ratio:.2f}x" for kind, ratio in ratios.items())
                console.print(f"{name} over {key.removeprefix('rates_over_')}: {said}")
    if result["litellm_does"]:
        console.print(f"litellm {result['versions']['litellm']}: {result['litellm_does']}")


def _at(figures: dict[str, Any], path: tuple[str, ...]) -> str:
    value: Any = figures
    for key in path:
        value = value.get(key, {})
    return f"{value:,.2f}" if isinstance(value, int | float) else "-"
