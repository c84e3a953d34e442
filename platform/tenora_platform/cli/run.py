"""Runs the platform in the foreground: checks first what can be checked, then servers, migrations,
engine and HTTP, and everything down again in the reverse order."""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import uvloop
from rich.console import Console

from tenora_engine.model.default_model import ensure_default_model
from tenora_platform.admin_key import has_admin_key, make_admin_key
from tenora_platform.app import create_app, portal_folder
from tenora_platform.bootstrap import database_urls, prepare_database
from tenora_platform.cli.errors import CliError
from tenora_platform.embedded.servers import running_servers
from tenora_platform.installation import Installation
from tenora_platform.logs import configure_logging
from tenora_platform.portal import Portal
from tenora_platform.secret import load_secret
from tenora_platform.serving import PlatformServer, connection_limits
from tenora_platform.settings import Settings

WhenReady = Callable[[Settings], Awaitable[None]]


def run_platform(settings: Settings, when_ready: WhenReady) -> None:
    """Serve until Ctrl-C or SIGTERM. `when_ready` is awaited beside it once requests can be
    served. Raises CliError, EmbeddedServerError, DatabaseSetupError or EngineError."""
    configure_logging(settings.log_level)
    check_address(settings.host, settings.port)
    check_device(settings)
    if settings.model is not None:
        check_model_folder(Path(settings.model), dummy=settings.load_format == "dummy")
    # Both end what has been started in order, also when a shell had SIGINT ignored.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.default_int_handler)
    console = Console(highlight=False, soft_wrap=True)
    try:
        _run(settings, when_ready, console)
    except KeyboardInterrupt:
        console.print("tenora: stopped")


def _run(settings: Settings, when_ready: WhenReady, console: Console) -> None:
    settings = settings.model_copy(update={"data_dir": settings.data_dir.resolve()})
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    configured = settings.secret.get_secret_value() if settings.secret else None
    secret = load_secret(settings.data_dir, configured)
    if not has_admin_key(settings):
        key = make_admin_key(settings, secret)
        console.print(f"tenora: admin key (shown once, keep it): {key}")
    with running_servers(settings, secret) as ready:
        assert ready.database_url is not None
        installation = Installation(ready.installation)
        prepare_database(database_urls(ready.database_url, secret, installation))
        if ready.model is None:
            folder = ensure_default_model(ready.data_dir)
            ready = ready.model_copy(update={"model": str(folder)})
        failure = uvloop.run(_serve(ready, when_ready, console))
    if failure is not None:
        raise failure


async def _serve(settings: Settings, when_ready: WhenReady, console: Console) -> Exception | None:
    """Why the engine could not start, or None after an ordinary end."""
    failures: list[Exception] = []

    def on_engine_failure(error: Exception) -> None:
        failures.append(error)
        server.should_exit = True

    app = create_app(settings, on_engine_failure=on_engine_failure)
    server = PlatformServer(
        app,
        settings,
        limits=connection_limits(settings),
        end_all=app.state.tenora.flights.end_all,
    )
    announcing = asyncio.create_task(_announce(settings, when_ready, console))
    try:
        await server.serve()
    finally:
        announcing.cancel()
        await asyncio.gather(announcing, return_exceptions=True)
    return failures[0] if failures else None


async def _announce(settings: Settings, when_ready: WhenReady, console: Console) -> None:
    started = time.monotonic()
    url = base_url(settings)
    console.print(f"tenora: starting on {url} (the engine is loading its model)")
    async with httpx.AsyncClient(base_url=url, trust_env=False) as http:
        warnings = await _ready(http)
    console.print(f"tenora: ready after {time.monotonic() - started:.1f} s")
    for warning in warnings:
        console.print(f"tenora: warning: {warning}", markup=False)
    portal = Portal(settings.portal_dir or portal_folder())
    shown = f"{url}/" if portal.built else "not built; run: make portal (the API runs without it)"
    console.print(f"  portal     {shown}")
    console.print(f"  API        {url}/v1")
    console.print(f"  API docs   {url}/docs")
    await when_ready(settings)


async def _ready(http: httpx.AsyncClient) -> list[str]:
    """Wait until requests can be served; the caller ends the wait if they never will be. What the
    probe warns of."""
    while True:
        try:
            if (answer := await http.get("/readyz")).status_code == 200:
                warnings: list[str] = answer.json()["warnings"]
                return warnings
        except httpx.TransportError:
            pass  # not listening yet
        await asyncio.sleep(0.1)


def base_url(settings: Settings) -> str:
    """Where this process can reach itself."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)
    return f"http://[{host}]:{settings.port}" if ":" in host else f"http://{host}:{settings.port}"


def check_address(host: str, port: int) -> None:
    """Raises CliError if the address cannot be listened on, before anything is started."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen(1)
    except OSError as error:
        raise CliError(
            f"Cannot listen on {host}:{port}: {error.strerror or error}.",
            "Is another server, perhaps another Tenora, running there? Choose another --port.",
        ) from error


def check_device(settings: Settings) -> None:
    """Raises CliError when a GPU is asked for that this torch cannot use."""
    if settings.device != "cuda":
        return
    import torch

    if torch.cuda.is_available():
        return
    if torch.version.cuda is None:
        why = f"torch {torch.__version__} is built without CUDA"
        hint = "Install a build of torch with CUDA, or leave --device out to run on the CPU."
    else:
        why = f"torch {torch.__version__} (CUDA {torch.version.cuda}) finds no GPU"
        hint = "Does nvidia-smi see one? Leave --device out to run on the CPU."
    raise CliError(f"--device cuda cannot be had: {why}.", hint)


def check_model_folder(folder: Path, *, dummy: bool) -> None:
    """Raises CliError for what is plainly not a model folder; the engine looks closer."""
    if not folder.is_dir():
        raise CliError(
            f"The model folder {folder} does not exist.",
            "--model takes a Hugging Face folder (config.json, *.safetensors, tokenizer.json); "
            "leave it out for the default model.",
        )
    if not (folder / "config.json").is_file():
        raise CliError(f"{folder} has no config.json, so it is not a Hugging Face model folder.")
    if not dummy and not any(folder.glob("*.safetensors")) and not any(folder.glob("*.gguf")):
        raise CliError(
            f"{folder} has no weights (*.safetensors).",
            "With a config only, --load-format dummy runs it on random weights.",
        )
