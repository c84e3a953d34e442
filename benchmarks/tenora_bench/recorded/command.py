"""`tenora bench replay`: the command line of `replay`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tenora_bench.client import BenchError


def replay_command(
    file: Annotated[Path, typer.Argument(help="Of `tenora engine --record FILE`.")],
    model: Annotated[
        Path | None, typer.Option(help="Hugging Face folder, where it lies elsewhere now.")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json")] = None,
) -> None:
    """Run recorded steps again on a fresh executor and compare the tokens; exit status 1 where one
    differs."""
    from tenora_bench.recorded.replay import replay

    console = Console(highlight=False)
    try:
        summary = replay(file, model).summary()
    except BenchError as error:
        Console(stderr=True).print(f"[red]bench:[/red] {error}", highlight=False)
        raise typer.Exit(1) from error
    if json_file is not None:
        json_file.write_text(json.dumps(summary, indent=2) + "\n")
    console.print(
        f"{summary['plans']} plans, {summary['rows']} rows, {summary['tokens']} tokens: "
        f"{summary['differing_rows']} rows differ; a step took {summary['recorded_p50_ms']:.1f} ms "
        f"then, {summary['replayed_p50_ms']:.1f} ms now (medians)"
    )
    for each in summary["first_differences"]:
        console.print(
            f"plan {each['plan']}, sequence {each['sequence']} at {each['position']}: "
            f"{each['recorded']} then, {each['replayed']} now"
        )
    raise typer.Exit(bool(summary["differing_rows"]))
