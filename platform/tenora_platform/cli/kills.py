"""`tenora bench kills`: its options, its table, its exit status."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from tenora_bench.client import BenchError


def kills(
    times: Annotated[int, typer.Option(help="Of each: engine, Valkey, PostgreSQL.")] = 3,
    row: Annotated[int, typer.Option(help="Then the engine so often in a row.")] = 8,
    stop_s: Annotated[float, typer.Option(help="Then SIGSTOP it for so long; 0: not.")] = 45.0,
    model: Annotated[Path | None, typer.Option(help="Hugging Face folder.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json")] = None,
) -> None:
    """Kill what `tenora up` started, under load. Exit status 1 where anything was lost, doubled,
    not back within 15 s or left behind."""
    from tenora_bench.kills import PARTS, Part, measure_kills
    from tenora_engine.model.default_model import ensure_default_model
    from tenora_platform.cli.books import read_books

    base = model or ensure_default_model(Path(os.environ.get("TENORA_DATA_DIR", ".data")))
    in_a_row: list[Part] = ["engine"]
    order = [*PARTS * times, *in_a_row * row]
    try:
        with tempfile.TemporaryDirectory(prefix="tenora-kills-") as folder:
            result = measure_kills(Path(folder), base, order, read_books, stop_s)
    except BenchError as error:
        Console(stderr=True).print(f"[red]bench:[/red] {error}", highlight=False)
        raise typer.Exit(1) from error
    print_kills(result)
    if json_file is not None:
        json_file.write_text(json.dumps(result, indent=2) + "\n")
    if result["faults"]:
        raise typer.Exit(1)


def print_kills(result: dict[str, Any]) -> None:
    console = Console(highlight=False)
    table = Table("killed", "back after, s", title="under load")
    for event in result["kills"]:
        table.add_row(event["part"], f"{event['back_s']:.1f}")
    console.print(table)
    if result["stopped"] is not None:
        console.print("stopped engine: /readyz after {shown_s:.1f} s".format_map(result["stopped"]))
    console.print(f"{result['answered']} of {result['requests']} requests answered")
    console.print(f"errors: {result['errors'] or 'none'}")
    console.print(f"books: {result['books']}")
    for fault in result["faults"]:
        console.print(f"FAULT: {fault}")
