"""`tenora bench portal`: its options and its tables."""

from __future__ import annotations

import json
import os
import signal
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from tenora_bench.client import BenchError
from tenora_platform.cli.output import terminal

if TYPE_CHECKING:
    from tenora_engine.transport.messages import Boot


def portal(
    adapters: Annotated[int, typer.Option(help="Adapters of one tenant.")] = 5_000,
    requests: Annotated[int, typer.Option(help="Requests of that tenant, in 30 days.")] = 100_000,
    others: Annotated[int, typer.Option(help="Other tenants.")] = 20,
    parts: Annotated[str, typer.Option(help="Parts to measure: lists,pages,scrolling,map.")] = (
        "lists,pages,map,scrolling"
    ),
    pause: Annotated[
        bool, typer.Option(help="Fill the database, then wait for Enter before measuring.")
    ] = False,
    model: Annotated[
        Path | None, typer.Option(help="Hugging Face folder whose tokenizer is used.")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json")] = None,
) -> None:
    """How fast the built portal is with much on the platform: pages until they can be used, lists
    scrolled to their end, the memory map; and the answers of the lists. In Debian's Chromium, at a
    pretend engine."""
    from tenora_bench.cli import end
    from tenora_bench.portal.load import PortalLoad
    from tenora_bench.portal.run import PARTS, measure_portal
    from tenora_engine.model.default_model import ensure_default_model
    from tenora_platform.cli.portal_fill import fill

    chosen = frozenset(part for part in PARTS if part in parts.split(","))
    if not chosen:
        raise typer.BadParameter(
            f"unknown part {parts!r}; use {', '.join(PARTS)}", param_hint="--parts"
        )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    base = model or ensure_default_model(Path(os.environ.get("TENORA_DATA_DIR", ".data")))
    load = PortalLoad(adapters, requests, others, datetime.now(UTC))
    try:
        with tempfile.TemporaryDirectory(prefix="tenora-portal-") as folder:
            wait = _wait if pause else (lambda: None)
            result = measure_portal(Path(folder), base, pretend_arena, fill, load, chosen, wait)
    except BenchError as error:
        terminal(stderr=True, wraps=True).print(f"[red]bench:[/red] {error}", highlight=False)
        raise typer.Exit(1) from error
    print_portal(result)
    if json_file is not None:
        json_file.write_text(json.dumps(result, indent=2) + "\n")


def _wait() -> None:
    input("filled; press Enter to start measuring")


def pretend_arena(data_dir: Path, model: Path) -> Boot:
    """For a platform in this data directory, where it will look for one."""
    from tenora_bench.portal.pretend_arena import FACTORY
    from tenora_engine.transport.messages import Boot
    from tenora_platform.processes.engine_address import engine_address
    from tenora_platform.settings import Settings

    settings = Settings(data_dir=data_dir, model=str(model))
    return Boot(settings.to_engine_config(), engine_address(settings), FACTORY)


def print_portal(result: dict[str, Any]) -> None:
    console = terminal(wraps=True)
    console.width = max(console.width, 130)
    console.print(
        f"{result['adapters']:,} adapters and {result['requests']:,} requests of one tenant,"
        f" {result['other_tenants']} others; filled in {result['filled_s']} s"
    )
    for part in ("lists", "pages"):
        if part in result:
            _print_rows(console, part, result[part])
    moving = dict(result.get("scrolling", {}))
    if "map" in result:
        moving["memory map"] = result["map"]
    for name, figures in moving.items():
        rows = {figure.replace("_", " "): {name: value} for figure, value in figures.items()}
        _print_rows(console, "frames", rows)


def _print_rows(console: Console, title: str, rows: dict[str, dict[str, Any]]) -> None:
    table = Table(title)
    for heading in next(iter(rows.values())):
        table.add_column(heading.replace("_", " "), justify="right")
    for name, figures in rows.items():
        table.add_row(name, *(f"{each:,}" for each in figures.values()))
    console.print(table)
