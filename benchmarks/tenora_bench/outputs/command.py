"""`tenora bench outputs`: the command line of `answers`."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tenora_bench.client import BenchError


def outputs_command(
    requests: Annotated[int, typer.Option(help="Greedy ones, of eight tenants.")] = 1000,
    adapters: Annotated[int, typer.Option(help="Distinct; more than there are slots.")] = 12,
    model: Annotated[Path | None, typer.Option(help="Hugging Face folder.")] = None,
    compare: Annotated[
        Path | None, typer.Option(help="What another version's --json wrote, on this machine.")
    ] = None,
    record: Annotated[
        Path | None, typer.Option(help="For all steps, to run again by `bench replay`.")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json")] = None,
) -> None:
    """What many requests are answered, amid preemption, express steps, adapters and KV that come
    and go; exit status 1 where another version answered one of them differently."""
    from tenora_bench.outputs.answers import answer, differences
    from tenora_engine.machine import usable_cpus
    from tenora_engine.model.default_model import ensure_default_model

    folder = model or ensure_default_model(Path(os.environ.get("TENORA_DATA_DIR", ".data")))
    console = Console()
    try:
        with tempfile.TemporaryDirectory(prefix="tenora-bench-") as scratch:
            result = answer(folder, Path(scratch), requests, adapters, usable_cpus(), record)
        if json_file is not None:
            json_file.write_text(json.dumps(result) + "\n")
        happened = ", ".join(f"{name} {value:.0f}" for name, value in result["happened"].items())
        console.print(f"{result['digest']} in {result['seconds']:.0f} s: {happened}")
        differing = differences(result, json.loads(compare.read_text())) if compare else []
    except BenchError as error:
        Console(stderr=True).print(f"[red]bench:[/red] {error}", highlight=False)
        raise typer.Exit(1) from error
    if compare is not None:
        console.print(f"{len(differing)} of {requests} differ {differing[:5]}")
        raise typer.Exit(bool(differing))
