"""`tenora bench hostile`: its options, its table, its exit status."""

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


def hostile_command(
    rounds: Annotated[int, typer.Option(help="Of a quiet and a hostile half each.")] = 5,
    seconds: Annotated[float, typer.Option(help="Length of one half.")] = 30.0,
    only: Annotated[str, typer.Option(help="Kinds of inputs, comma-separated; else all.")] = "",
    connections: Annotated[int, typer.Option(help="The hostile tenant's.")] = 32,
    nice: Annotated[int, typer.Option(help="Niceness of the hostile client's process.")] = 10,
    ttft_ms: Annotated[float, typer.Option(help="Promised to the other; 0: nothing.")] = 500.0,
    tpot_ms: Annotated[float, typer.Option(help="Promised to the other; 0: nothing.")] = 40.0,
    model: Annotated[Path | None, typer.Option(help="Hugging Face folder.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json")] = None,
) -> None:
    """Measure what a tenant that sends the worst inputs to every route costs another, whose P99s
    are to stay within 1.5 times quiet plus 50 ms; exit status 1 where one does not."""
    from tenora_bench.hostile.measure import measure_hostile
    from tenora_bench.hostile.tenant import KINDS
    from tenora_engine.model.default_model import ensure_default_model

    kinds = tuple(only.split(",")) if only else KINDS
    if unknown := set(kinds) - set(KINDS):
        raise typer.BadParameter(
            f"{', '.join(sorted(unknown))}: must be of {', '.join(KINDS)}", param_hint="--only"
        )
    promised = {"ttft_ms": ttft_ms, "tpot_ms": tpot_ms}
    base = model or ensure_default_model(Path(os.environ.get("TENORA_DATA_DIR", ".data")))
    try:
        with tempfile.TemporaryDirectory(prefix="tenora-bench-") as folder:
            result = measure_hostile(
                Path(folder),
                base.resolve(),
                rounds=rounds,
                seconds=seconds,
                kinds=kinds,
                connections=connections,
                niceness=nice,
                promises={name: each for name, each in promised.items() if each},
            )
    except BenchError as error:
        Console(stderr=True).print(f"[red]bench:[/red] {error}", highlight=False)
        raise typer.Exit(1) from error
    if json_file is not None:
        json_file.write_text(json.dumps(result, indent=2) + "\n")
    show(result)
    if not all(row["holds"] for row in result["rows"]):
        raise typer.Exit(1)


def show(result: dict[str, Any]) -> None:
    """For a person."""
    console = Console(highlight=False)
    console.print(f"{result['machine']['cpu']}, {result['machine']['date']}")
    columns = ("quiet", "hostile", "bound", "ratio", "count", "failed", "holds")
    table = Table("another's", *columns, title="P99 in ms, medians of the rounds")
    for row in result["rows"]:
        times = (row[each] for each in ("quiet_p99_ms", "hostile_p99_ms", "bound_ms"))
        table.add_row(
            row["kind"],
            *(f"{each:,.1f}" for each in times),
            f"{row['ratio']:.2f}",
            str(row["measured"]),
            str(row["failed"]),
            "yes" if row["holds"] else "no",
        )
    console.print(table)
    for number, done in enumerate(result["hostile"], start=1):
        console.print(
            f"round {number}: of the cores the hostile client had {done['hostile_cpu_share']:.0%}, "
            f"the other {done['victim_cpu_share']:.0%}"
        )
        for kind, statuses in sorted(done["statuses"].items()):
            told = ", ".join(f"{status} x {count}" for status, count in sorted(statuses.items()))
            console.print(f"  {kind}: {told}", markup=False)
    for failure in result["failures"]:
        console.print(f"failed: {failure}", markup=False)
