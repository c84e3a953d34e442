"""`tenora bench kills`: its options, its table, its exit status."""

from __future__ import annotations

import json
import os
import tempfile
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from tenora_bench.client import BenchError
from tenora_platform.cli.output import terminal

if TYPE_CHECKING:
    from tenora_engine.transport.messages import Boot


def kills(
    times: Annotated[
        int, typer.Option(help="Number of times that each process is killed, and stopped.")
    ] = 2,
    kills: Annotated[
        int, typer.Option(help="Instead: this many kills in all, at random times, and no stops.")
    ] = 0,
    engine: Annotated[
        str, typer.Option(help="real, or pretend (the speed of a model without the model).")
    ] = ("real"),
    row: Annotated[
        int, typer.Option(help="Afterwards: number of kills of the engine in a row.")
    ] = 0,
    stop_s: Annotated[
        float, typer.Option(help="Afterwards: seconds for which the engine is stopped; 0: not.")
    ] = 10.0,
    seed: Annotated[int, typer.Option(help="Seed of the random order.")] = 0,
    model: Annotated[Path | None, typer.Option(help="Hugging Face folder.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json")] = None,
) -> None:
    """Kill and stop what `tenora up` started, under load and in random order. Exit status 1 where
    anything was lost, doubled, held, not back within 15 s or left behind."""
    from tenora_bench.kills.run import Blow, measure_kills, random_blows, random_kills
    from tenora_engine.model.default_model import ensure_default_model
    from tenora_platform.cli.books import read_books

    if engine not in ("real", "pretend"):
        raise typer.BadParameter(
            f"--engine must be real or pretend, not {engine!r}", param_hint="--engine"
        )
    base = model or ensure_default_model(Path(os.environ.get("TENORA_DATA_DIR", ".data")))
    some = random_kills(kills, seed) if kills else random_blows(times, seed)
    blows = [*some, *[Blow("engine")] * row]
    pretend = pretend_engine if engine == "pretend" else None
    try:
        with tempfile.TemporaryDirectory(prefix="tenora-kills-") as folder:
            result = measure_kills(Path(folder), base, blows, read_books, stop_s, pretend=pretend)
    except BenchError as error:
        terminal(stderr=True, wraps=True).print(f"[red]bench:[/red] {error}", highlight=False)
        raise typer.Exit(1) from error
    print_kills(result)
    if json_file is not None:
        json_file.write_text(json.dumps(result, indent=2) + "\n")
    if result["faults"]:
        raise typer.Exit(1)


def pretend_engine(data_dir: Path, model: Path) -> Boot:
    """For a platform in this data directory, where it will look for one."""
    from tenora_bench.api.pretend_engine import FACTORY
    from tenora_engine.transport.messages import Boot
    from tenora_platform.processes.engine_address import engine_address
    from tenora_platform.settings import Settings

    settings = Settings(data_dir=data_dir, model=str(model))
    return Boot(settings.to_engine_config(), engine_address(settings), FACTORY)


def print_kills(result: dict[str, Any]) -> None:
    console = terminal(wraps=True)
    table = Table("process", "what", "times", "median, s", "worst, s", title="served again after")
    by_kind: dict[tuple[str, str], list[float]] = defaultdict(list)
    for event in result["events"]:
        by_kind[event["part"], event["how"]].append(event["back_s"])
    for (part, how), times in sorted(by_kind.items()):
        table.add_row(part, how, str(len(times)), f"{median(times):.1f}", f"{max(times):.1f}")
    console.print(table)
    if result["stopped_engine_shown_s"] is not None:
        console.print(f"stopped engine: /readyz after {result['stopped_engine_shown_s']:.1f} s")
    console.print(f"{result['answered']} of {result['requests']} requests answered")
    console.print(f"errors: {result['errors'] or 'none'}")
    books = dict(result["books"])
    compared = ", ".join(f"{count} {name}" for name, count in books.pop("compared").items())
    console.print(f"books: {books}")
    console.print(
        f"reconciled: {compared.replace('_', ' ')}".replace(" days", " days of tenants", 1)
    )
    for fault in result["faults"]:
        console.print(f"FAULT: {fault}")
