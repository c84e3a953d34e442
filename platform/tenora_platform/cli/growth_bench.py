"""`tenora bench books`: its options, its tables, its exit status."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from tenora_bench.client import BenchError
from tenora_platform.cli.output import terminal

if TYPE_CHECKING:
    from tenora_bench.growth.size import Size


def books(
    tenants: Annotated[
        int, typer.Option(help="One of them has a hundred times the others'.")
    ] = 500,
    versions: Annotated[int, typer.Option(help="Active adapter versions of all tenants.")] = 5_000,
    events: Annotated[int, typer.Option(help="Usage events, of two months and more.")] = 100_000,
    sizes: Annotated[
        str, typer.Option(help="Instead: TENANTS:VERSIONS:EVENTS, comma-separated, growing.")
    ] = "",
    quiet_s: Annotated[float, typer.Option(help="For which nothing is asked, twice.")] = 60.0,
    folder: Annotated[
        Path | None, typer.Option(help="Where the databases are made, and left; else temporary.")
    ] = None,
    model: Annotated[Path | None, typer.Option(help="Hugging Face folder.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json")] = None,
) -> None:
    """Fill a database with the books of many tenants and measure what start-up, every GET route,
    the jobs and doing nothing take of a platform on it, beside a pretend engine (Linux). Exit
    status 1 where a claim does not hold or the books do not reconcile."""
    from tenora_bench.growth.run import measure_growth
    from tenora_engine.model.default_model import ensure_default_model
    from tenora_platform.cli.growth_fill import fill
    from tenora_platform.cli.portal_bench import pretend_arena

    wanted = _sizes(sizes or f"{tenants}:{versions}:{events}")
    base = model or ensure_default_model(Path(os.environ.get("TENORA_DATA_DIR", ".data")))
    try:
        with tempfile.TemporaryDirectory(prefix="tenora-books-") as scratch:
            place = folder or Path(scratch)
            result = measure_growth(
                place, base.resolve(), wanted, fill, pretend_arena, quiet_s=quiet_s
            )
    except BenchError as error:
        terminal(stderr=True, wraps=True).print(f"[red]bench:[/red] {error}", highlight=False)
        raise typer.Exit(1) from error
    if json_file is not None:
        json_file.write_text(json.dumps(result, indent=2) + "\n")
    print_growth(result)
    if not all(each["holds"] for each in result["claims"]):
        raise typer.Exit(1)


def _sizes(text: str) -> list[Size]:
    from tenora_bench.growth.size import size_of

    try:
        return [size_of(each) for each in text.split(",")]
    except ValueError as error:
        raise typer.BadParameter(
            f"{text!r}: must be TENANTS:VERSIONS:EVENTS, comma-separated; {error}",
            param_hint="--sizes",
        ) from error


def print_growth(result: dict[str, Any]) -> None:
    """For a person: what it is of is a row, its size a column."""
    console, results = terminal(wraps=True), result["results"]
    names = [each["size"] for each in results]
    console.print(f"{result['machine']['cpu']}; sizes are tenants/versions/events")
    table = Table("figure", *names, title="start-up, memory (MB), cores while quiet, filling")
    for name in _figures(results[0]):
        table.add_row(name, *(f"{_figures(each)[name]:,.3f}" for each in results))
    console.print(table)
    table = Table("job", *names, title="seconds (MB; steps of progress seen)")
    for number, job in enumerate(results[0]["jobs"]):
        cells = (each["jobs"][number] for each in results)
        table.add_row(
            job["job"], *(f"{c['seconds']:,.1f} ({c['mb']:,.0f}; {c['steps']})" for c in cells)
        )
    console.print(table)
    table = Table("asker", "GET", *names, title="ms, first answer / median of five (status)")
    for number, route in enumerate(results[0]["routes"]):
        cells = (_cell(each["routes"][number]) for each in results)
        table.add_row(route["asker"], route["path"], *cells)
    console.print(table)
    table = Table("claim", "size", "measured", "bound", "holds")
    for each in result["claims"]:
        values = (f"{each[name]:,.2f}" for name in ("measured", "bound"))
        table.add_row(each["claim"], each["size"], *values, "yes" if each["holds"] else "NO")
    console.print(table)


def _figures(result: dict[str, Any]) -> dict[str, float]:
    quiet = result["quiet"]
    return {
        "ready, s": result["ready_s"],
        **{f"{name}, MB": mb for name, mb in quiet["mb"].items()},
        **{f"{name}, cores": cores for name, cores in quiet["cores"].items()},
        **{f"{name} after it all, MB": mb for name, mb in result["after_mb"].items()},
        **{name.replace("_", " "): value for name, value in result["fill"].items()},
    }


def _cell(route: dict[str, Any]) -> str:
    if route["skipped"]:
        return "-"
    status = "" if route["status"] == 200 else f" ({route['status']})"
    return f"{route['first_ms']:,.0f} / {route['median_ms']:,.0f}{status}"
