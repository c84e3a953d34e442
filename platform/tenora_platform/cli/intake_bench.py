"""`tenora bench intake` and `tenora bench uploads`: their options, and what the second reads of a
platform that has stopped, which the bench does not know."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tenora_bench.client import BenchError
from tenora_platform.cli.output import say

if TYPE_CHECKING:
    from tenora_bench.intake.crashes import Agreement
    from tenora_platform.settings import Settings
    from tenora_platform.state import AppState

Model = Annotated[Path | None, typer.Option(help="Hugging Face folder.")]
Json = Annotated[Path | None, typer.Option("--json")]
EngineKind = Annotated[
    str, typer.Option(help="real, or pretend (the speed of a model without the model).")
]


def intake(
    rounds: Annotated[
        int,
        typer.Option(
            help="Requests of the other tenant, alone and beside the uploads, alternating."
        ),
    ] = 5,
    requests: Annotated[
        int, typer.Option(help="Length of each half round of the other tenant, in seconds.")
    ] = 200,
    every_s: Annotated[float, typer.Option(help="Seconds between the starts of uploads.")] = 0.5,
    engine: EngineKind = "real",
    model: Model = None,
    json_file: Json = None,
) -> None:
    """What uploads that mean harm cost another tenant: its time to the first token."""
    from tenora_bench.intake.neighbours import lines, measure_neighbours

    with _scratch() as folder:
        result = _told(
            lambda: measure_neighbours(
                Path(folder),
                _base(model),
                rounds=rounds,
                requests=requests,
                every_s=every_s,
                pretend=_pretend(engine),
            )
        )
    _say(lines(result), result, json_file)


def uploads(
    count: Annotated[int, typer.Option(help="Uploads of two tenants.")] = 1000,
    seed: Annotated[int, typer.Option(help="Of the kills.")] = 0,
    engine: EngineKind = "pretend",
    model: Model = None,
    json_file: Json = None,
) -> None:
    """Upload while every process is killed at random. Exit status 1 where registry, store, spool
    and quota do not agree afterwards."""
    from tenora_bench.intake.crashes import lines, measure_crashes

    base = _base(model)
    with _scratch() as folder:
        result = _told(
            lambda: measure_crashes(
                Path(folder),
                base,
                partial(settle, base),
                uploads=count,
                seed=seed,
                pretend=_pretend(engine),
            )
        )
    _say(lines(result), result, json_file)
    if result["faults"]:
        raise typer.Exit(1)


def _scratch() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="tenora-intake-")


def _base(model: Path | None) -> Path:
    from tenora_engine.model.default_model import ensure_default_model

    return model or ensure_default_model(Path(os.environ.get("TENORA_DATA_DIR", ".data")))


def _pretend(engine: str) -> Any:
    from tenora_platform.cli.kills import pretend_engine

    if engine not in ("real", "pretend"):
        raise typer.BadParameter(
            f"--engine must be real or pretend, not {engine!r}", param_hint="--engine"
        )
    return pretend_engine if engine == "pretend" else None


def _told(measure: Any) -> dict[str, Any]:
    try:
        result: dict[str, Any] = measure()
    except BenchError as error:
        say(f"bench: {error}", err=True)
        raise typer.Exit(1) from error
    return result


def _say(lines: Iterator[str], result: dict[str, Any], json_file: Path | None) -> None:
    for line in lines:
        say(line)
    if json_file is not None:
        json_file.write_text(json.dumps(result, indent=2) + "\n")


def settle(model: Path, data_dir: Path) -> Agreement:
    """Gives back and collects all that is nobody's, without waiting for its time, and says whether
    rows, store, spool and quota agree. The platform has stopped."""
    from tenora_platform.embedded.servers import running_servers
    from tenora_platform.settings import Settings

    settings = Settings(data_dir=data_dir, model=str(model))
    with running_servers(settings, settings.server_secret()) as ready:
        return asyncio.run(_settle(ready))


async def _settle(settings: Settings) -> Agreement:
    from sqlalchemy import text

    from tenora_platform.assembly import build_state
    from tenora_platform.operations.metrics import Metrics
    from tenora_platform.processes.engine_address import engine_address
    from tenora_platform.processes.engine_client import shared_engine
    from tenora_platform.registry.collector import Collector
    from tenora_platform.registry.worker import IntakeWorker

    engine = shared_engine(settings, engine_address(settings))
    state = build_state(settings, engine, Metrics())
    try:
        async with state.db.admin_session() as session:
            # Their API processes are gone; nobody waits three minutes here.
            await session.execute(
                text("update uploads set expires_at = now() where status = 'receiving'")
            )
        worker = IntakeWorker(state, release_after=timedelta(0))
        while await worker.run_once():
            continue
        collected = await Collector(state, grace=timedelta(seconds=-60)).sweep()
        return await _agreement(state, collected)
    finally:
        await state.redis.aclose()
        await state.db.close()


def _files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


async def _agreement(state: AppState, collected: int) -> Agreement:
    from sqlalchemy import text

    from tenora_bench.intake.crashes import Agreement
    from tenora_engine.adapters.identity import config_key, weights_key
    from tenora_platform.registry import repository

    async with state.db.admin_session() as session:
        rows = (
            await session.execute(
                text("select id, tenant_id, state, bytes, digest, report from adapter_versions")
            )
        ).all()
        parts = (
            await session.execute(
                text(
                    "select tenant_id, upload_id, upload_parts.id from upload_parts "
                    "join uploads using (tenant_id) where uploads.id = upload_id "
                    "and uploads.status in ('pending', 'completed')"
                )
            )
        ).all()
        declared = (
            await session.execute(
                text(
                    "select tenant_id, sum(bytes) from uploads "
                    "where status in ('pending', 'completed') group by 1"
                )
            )
        ).all()
        tenants = {row.tenant_id for row in rows}
        counted = {each: await repository.stored_bytes(session, each) for each in tenants}
    folder = Path(state.settings.object_store_url)
    there = _files(folder)
    active = [row for row in rows if row.state == "active"]
    owned = {key(row.digest) for row in active for key in (config_key, weights_key)}
    owned |= {f"uploads/{row.upload_id}/{row.id}" for row in parts}
    stored = dict.fromkeys(tenants, 0) | {row.tenant_id: int(row.sum) for row in declared}
    for row in active:
        path = folder / weights_key(row.digest)
        stored[row.tenant_id] += path.stat().st_size if path.exists() else 0
    return Agreement(
        states={
            row.id: (
                row.state,
                [problem["code"] for problem in (row.report or {}).get("problems", [])],
            )
            for row in rows
        },
        owned=len(owned),
        collected=collected,
        unowned=sorted(there - owned),
        missing=sorted(owned - there),
        spooled=[str(path) for path in state.settings.spool_folder.glob("*")],
        quota_apart={
            each: (counted[each], stored[each]) for each in tenants if counted[each] != stored[each]
        },
    )
