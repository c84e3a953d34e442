"""`tenora bench grammars`: the command line of `measure`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from tenora_bench.client import BenchError


def grammars_command(
    folder: Annotated[Path, typer.Argument(help="Of schemas, such as MaskBench's data.")],
    count: Annotated[int, typer.Option(help="Schemas, drawn.")] = 2000,
    most: Annotated[int, typer.Option(help="Tokens of an answer; 0 for no answers.")] = 256,
    rounds: Annotated[int, typer.Option(help="Of the comparisons, in turns; 0 for none.")] = 5,
    model: Annotated[Path | None, typer.Option(help="Hugging Face folder.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json")] = None,
) -> None:
    """How many JSON schemas compile, how fast, and what a guided step takes; exit status 1 where an
    answer that ended by stop does not fit its schema."""
    from tenora_bench.grammars.measure import measure
    from tenora_engine.machine import usable_cpus
    from tenora_engine.model.default_model import ensure_default_model

    path = model or ensure_default_model(Path(os.environ.get("TENORA_DATA_DIR", ".data")))
    try:
        result = measure(path, folder, count, most, rounds, usable_cpus())
    except BenchError as error:
        Console(stderr=True).print(f"[red]bench:[/red] {error}", highlight=False)
        raise typer.Exit(1) from error
    if json_file is not None:
        json_file.write_text(json.dumps(result, indent=2) + "\n")
    _print(result)
    if result["answers"].get("invalid"):
        raise typer.Exit(1)


def _print(result: dict[str, Any]) -> None:
    console = Console()
    console.print(
        "{compiled} of {schemas} schemas compile; P50 {compile_p50_ms:.2f} ms, "
        "P99 {compile_p99_ms:.1f} ms, the slowest {compile_max_ms:.0f} ms".format_map(result)
    )
    for reason, count in result["refusals"].items():
        console.print(f"  refused {count}: {reason}", markup=False)
    if result["answers"]:
        console.print(
            "answers: {reasons}; {valid} of those that ended by stop are valid".format_map(
                result["answers"]
            ),
            markup=False,
        )
        for wrong in result["answers"]["invalid"][:10]:
            console.print(f"  {wrong['schema']}: {wrong['answer']}", markup=False)
    table = Table("in turns", "median", "least", "most")
    for name, ratio in result["ratios"].items():
        table.add_row(name, *(f"{ratio[part]:.3f}" for part in ("median", "least", "most")))
    console.print(table)
