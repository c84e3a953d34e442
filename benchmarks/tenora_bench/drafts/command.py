"""`tenora bench drafts`: the command line of `measure`, and beside vLLM of `beside`."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from tenora_bench.client import BenchError


def drafts_command(
    rounds: Annotated[int, typer.Option(help="Of all cases, with and without in turns.")] = 5,
    model: Annotated[Path | None, typer.Option(help="Hugging Face folder.")] = None,
    layer: Annotated[Path | None, typer.Option(help="Of the model, trained.")] = None,
    chats: Annotated[
        list[Path] | None,
        typer.Option(
            help='Files to answer instead: JSON lines of "question", or "turns" as in Spec-Bench.'
        ),
    ] = None,
    adapter: Annotated[Path | None, typer.Option(help="PEFT folder that answers them.")] = None,
    compare_with: Annotated[
        str, typer.Option("--compare", help="vllm, or some of vllm-none,vllm-ngram,vllm-suffix.")
    ] = "",
    peer_python: Annotated[
        list[str] | None, typer.Option(help="vllm=VENV or vllm=PYTHON; else this interpreter.")
    ] = None,
    adapters: Annotated[int, typer.Option(help="With --compare: distinct, of ranks 8 to 64.")] = 0,
    json_file: Annotated[Path | None, typer.Option("--json")] = None,
) -> None:
    """Tokens a second with drafts over those without; exit status 1 where an answer differs. With
    --compare over HTTP beside vLLM's drafts."""
    from tenora_bench.drafts.measure import measure
    from tenora_engine.machine import usable_cpus
    from tenora_engine.model.default_model import ensure_default_model

    folder = model or ensure_default_model(Path(os.environ.get("TENORA_DATA_DIR", ".data")))
    try:
        if compare_with:
            names = [each.strip() for each in compare_with.split(",")]
            _compare(
                folder, names, peer_python or [], chats or [], layer, adapters, rounds, json_file
            )
            return
        if adapter is not None and not chats:
            raise BenchError("--adapter wants --chats for it to answer")
        result = measure(folder, rounds, usable_cpus(), layer, chats or [], adapter)
    except BenchError as error:
        Console(stderr=True).print(f"[red]bench:[/red] {error}", highlight=False)
        raise typer.Exit(1) from error
    table = Table("tokens a second, with drafts over without", "median", "least", "most")
    for name, ratio in result["ratios"].items():
        table.add_row(name, *(f"{ratio[part]:.2f}" for part in ("median", "least", "most")))
    Console().print(table)
    if json_file is not None:
        json_file.write_text(json.dumps(result) + "\n")


def _compare(
    model: Path,
    names: list[str],
    peer_python: list[str],
    chats: list[Path],
    layer: Path | None,
    adapters: int,
    rounds: int,
    json_file: Path | None,
) -> None:
    from tenora_bench.adapters import write_adapters
    from tenora_bench.cli import end
    from tenora_bench.drafts.beside import chosen_methods, compare, setup_of, vllm_python
    from tenora_bench.peers.registry import parse_pythons

    if len(chats) != 1:
        raise BenchError("--compare wants one file of --chats, such as Spec-Bench's mt_bench")
    methods = chosen_methods(names)
    python = vllm_python(methods, parse_pythons(peer_python))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)

    def keep(result: dict[str, Any]) -> None:
        if json_file is not None:
            json_file.write_text(json.dumps(result, indent=2) + "\n")

    with tempfile.TemporaryDirectory(prefix="tenora-bench-") as folder:
        scratch = Path(folder)
        folders = write_adapters(scratch / "adapters", model, adapters, [8, 16, 32, 64])
        setup = setup_of(model, folders, python, scratch)
        result = asyncio.run(compare(setup, methods, chats[0], layer, rounds, keep))
    headings = ["tokens_per_s", "tpot_ms", "over_none", "ours_over"]
    headings += ["same_answers", "as_ours", "copied"]
    for case, systems in result["medians"].items():
        table = Table(title=case)
        table.add_column("", no_wrap=True)
        for heading in headings:
            table.add_column(heading.replace("_", " "), justify="right")
        for name, found in systems.items():
            cells = (found.get(heading) for heading in headings)
            table.add_row(name, *("-" if each is None else f"{each:.2f}" for each in cells))
        Console().print(table)
