"""`tenora bench edge`: its options. It knows what opens an engine's door, which the bench does
not."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from tenora_bench.client import BenchError
from tenora_platform.cli.output import say


def edge(
    rounds: Annotated[int, typer.Option(help="Number of interleaved rounds.")] = 5,
    body_gib: Annotated[
        float, typer.Option(help="Size of each request body sent without a key.")
    ] = 1.0,
    idle: Annotated[int, typer.Option(help="Number of half-open connections.")] = 500,
    model: Annotated[
        Path | None, typer.Option(help="Hugging Face folder whose tokenizer is used.")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json")] = None,
) -> None:
    """What keyless bodies and idle connections cost one API process, at a pretend engine."""
    from tenora_bench.edge import lines, measure_edge
    from tenora_engine.model.default_model import ensure_default_model
    from tenora_platform.processes.engine_address import address_of
    from tenora_platform.secret import ServerSecret

    data = Path(os.environ.get("TENORA_DATA_DIR", ".data"))
    try:
        with tempfile.TemporaryDirectory(prefix="tenora-edge-") as folder:
            result = measure_edge(
                Path(folder),
                model or ensure_default_model(data),
                lambda endpoint, secret: address_of(endpoint, ServerSecret(secret.encode())),
                rounds=rounds,
                body_bytes=int(body_gib * 2**30),
                idle=idle,
            )
    except BenchError as error:
        say(f"bench: {error}", err=True)
        raise typer.Exit(1) from error
    for line in lines(result):
        say(line)
    if json_file is not None:
        json_file.write_text(json.dumps(result, indent=2) + "\n")
