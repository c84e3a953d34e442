"""`tenora bench drafts`: the command line of `measure`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from tenora_bench.client import BenchError


def drafts_command(
    rounds: Annotated[int, typer.Option(help="Of all cases, with and without in turns.")] = 5,
    model: Annotated[Path | None, typer.Option(help="Hugging Face folder.")] = None,
    layer: Annotated[Path | None, typer.Option(help="Of the model, trained.")] = None,
    chats: Annotated[
        list[Path] | None,
        typer.Option(help='Files to answer instead: JSON lines with "turns", as Spec-Bench has.'),
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json")] = None,
) -> None:
    """Tokens a second with drafts over those without; exit status 1 where an answer differs."""
    from tenora_bench.drafts.measure import measure
    from tenora_engine.model.default_model import ensure_default_model

    folder = model or ensure_default_model(Path(os.environ.get("TENORA_DATA_DIR", ".data")))
    try:
        result = measure(folder, rounds, os.cpu_count() or 1, layer, chats or [])
    except BenchError as error:
        Console(stderr=True).print(f"[red]bench:[/red] {error}", highlight=False)
        raise typer.Exit(1) from error
    table = Table("tokens a second, with drafts over without", "median", "least", "most")
    for name, ratio in result["ratios"].items():
        table.add_row(name, *(f"{ratio[part]:.2f}" for part in ("median", "least", "most")))
    Console().print(table)
    if json_file is not None:
        json_file.write_text(json.dumps(result) + "\n")
