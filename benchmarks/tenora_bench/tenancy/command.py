"""The command line of `tenora bench tenancy`. What measures (and imports torch) is imported when
the command runs."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from tenora_bench.client import BenchError

if TYPE_CHECKING:
    from tenora_bench.tenancy.experiment import Experiment, Options, Outcome


def choose(names: list[str]) -> list[Experiment]:
    """The experiments of these names; all of them for "all". Raises BenchError."""
    from tenora_bench.tenancy.registry import EXPERIMENTS

    if names == ["all"]:
        return list(EXPERIMENTS.values())
    for name in names:
        if name not in EXPERIMENTS:
            raise BenchError(f"no experiment {name!r}; there are {', '.join(EXPERIMENTS)}")
    return [EXPERIMENTS[name] for name in names]


def print_list() -> None:
    from tenora_bench.tenancy.registry import EXPERIMENTS

    table = Table("experiment", "what it shows")
    for each in EXPERIMENTS.values():
        table.add_row(each.name, each.help)
    Console().print(table)


def print_outcome(experiment: Experiment, outcome: Outcome) -> None:
    console = Console(highlight=False)
    console.width = max(console.width, 100)
    if outcome.rows:
        table = Table(outcome.columns[0], title=f"{experiment.name}: {experiment.help}")
        for heading in outcome.columns[1:]:
            table.add_column(heading, justify="right")
        for row in outcome.rows:
            table.add_row(*map(_cell, row))
        console.print(table)
    for claim in outcome.claims:
        verdict = "held" if claim.held else "[red]not held[/red]"
        console.print(
            f"{verdict}: {claim.what}: {_cell(claim.figure)} ({claim.must_be} {claim.bound:g})"
        )


def measure(experiments: list[Experiment], options: Options) -> dict[str, Any]:
    """One after the other, each with a folder of its own in `options.scratch`."""
    from dataclasses import replace

    from tenora_bench.machine import machine

    result: dict[str, Any] = {"machine": machine(), "seed": options.seed, "experiments": {}}
    for experiment in experiments:
        scratch = options.scratch / experiment.name
        scratch.mkdir()
        outcome = experiment.run(replace(options, scratch=scratch))
        print_outcome(experiment, outcome)
        result["experiments"][experiment.name] = outcome.as_dict()
    return result


def tenancy_command(
    experiments: Annotated[
        list[str] | None, typer.Argument(help='Names, or "all"; without any they are listed.')
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Of each experiment; default: its own number.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of arrivals, prompts and workloads.")] = 0,
    model: Annotated[Path | None, typer.Option(help="Hugging Face folder.")] = None,
    timing: Annotated[
        Path | None, typer.Option(help="Of `bench cache --write-timing`; else live-order measures.")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json")] = None,
) -> None:
    """What tenants of one live engine feel of one another, against what is claimed of it."""
    if not experiments:
        print_list()
        return
    from tenora_bench.tenancy.experiment import Options
    from tenora_engine.model.default_model import ensure_default_model

    try:
        chosen = choose(experiments)
        base = model or ensure_default_model(Path(os.environ.get("TENORA_DATA_DIR", ".data")))
        with tempfile.TemporaryDirectory(prefix="tenora-bench-") as folder:
            result = measure(chosen, Options(base, Path(folder), rounds, seed, timing))
    except BenchError as error:
        Console(stderr=True).print(f"[red]bench:[/red] {error}", highlight=False)
        raise typer.Exit(1) from error
    if json_file is not None:
        json_file.write_text(json.dumps(result, indent=2) + "\n")


def _cell(value: str | float | None) -> str:
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 100 else f"{value:,.0f}"
    return "-" if value is None else str(value)
