"""`tenora bench tools`: the command line of `measure`."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tenora_bench.client import BenchError
from tenora_bench.server import serve


def tools_command(
    folder: Annotated[Path, typer.Argument(help="Of questions, such as BFCL's.")],
    count: Annotated[int, typer.Option(help="Questions, drawn.")] = 400,
    max_tokens: Annotated[int, typer.Option(help="Of an answer.")] = 256,
    model: Annotated[Path | None, typer.Option(help="Hugging Face folder.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json")] = None,
) -> None:
    """Forced calls that parse and fit their functions; exit status 1 where one does not."""
    from tenora_bench.tools.measure import ask_all, questions
    from tenora_engine.model.default_model import ensure_default_model

    path = model or ensure_default_model(Path(os.environ.get("TENORA_DATA_DIR", ".data")))
    try:
        asked = questions(folder, count, seed=0)
        with (
            tempfile.TemporaryDirectory(prefix="tenora-bench-") as scratch,
            serve(Path(scratch), path, []) as server,
        ):
            result = asyncio.run(ask_all(server, asked, max_tokens))
    except BenchError as error:
        Console(stderr=True).print(f"[red]bench:[/red] {error}", highlight=False)
        raise typer.Exit(1) from error
    if json_file is not None:
        json_file.write_text(json.dumps(result, indent=2) + "\n")
    console = Console()
    for outcome, number in sorted(result["outcomes"].items(), key=lambda each: -each[1]):
        console.print(f"{number:5d}  {outcome}", markup=False)
    for wrong in result["wrong"][:5]:
        console.print(f"{wrong['question']}: {wrong['answer']}", markup=False)
    if any(not wrong["outcome"].startswith("refused") for wrong in result["wrong"]):
        raise typer.Exit(1)
