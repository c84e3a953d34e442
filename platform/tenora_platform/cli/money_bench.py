"""`tenora bench money`: its options and its table."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from tenora_bench.client import BenchError
from tenora_platform.cli.output import terminal


def money(
    events: Annotated[
        int, typer.Option(help="Usage events of one month, over all tenants.")
    ] = 1_000_000,
    tenants: Annotated[
        int, typer.Option(help="Number of tenants; one of them has a twentieth of the events.")
    ] = 1_000,
    model: Annotated[Path | None, typer.Option(help="Hugging Face folder.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json")] = None,
) -> None:
    """What storing a month of usage, a tenant's pages, an invoice run and a full reconciliation
    take. The targets are for the defaults; a run of --events 20000 --tenants 50 shows that it
    works. Exit status 1 where one was missed at the defaults."""
    from tenora_bench.money.run import measure_money
    from tenora_engine.model.default_model import ensure_default_model
    from tenora_platform.cli.money_fill import fill

    base = model or ensure_default_model(Path(os.environ.get("TENORA_DATA_DIR", ".data")))
    try:
        with tempfile.TemporaryDirectory(prefix="tenora-money-") as folder:
            result = measure_money(Path(folder), base, fill, tenants=tenants, events=events)
    except BenchError as error:
        terminal(stderr=True, wraps=True).print(f"[red]bench:[/red] {error}", highlight=False)
        raise typer.Exit(1) from error
    print_figures(result)
    if json_file is not None:
        json_file.write_text(json.dumps(result, indent=2) + "\n")
    if result["missed"] and events >= 1_000_000:
        raise typer.Exit(1)


def print_figures(result: dict[str, Any]) -> None:
    from tenora_bench.money.run import TARGETS

    title = f"{result['events']:,} events of {result['tenants']:,} tenants in {result['month']}"
    table = Table("figure", "measured", "target", title=title)
    for name, value in result["figures"].items():
        shown = f"{value:,.1f}" if isinstance(value, float) else f"{value:,}"
        target = f"< {TARGETS[name]:,.0f}" if name in TARGETS else ""
        table.add_row(name.replace("_", " "), shown, target)
    console = terminal(wraps=True)
    console.print(table)
    for name in result["missed"]:
        console.print(f"MISSED: {name}")
