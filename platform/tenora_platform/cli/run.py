"""Runs the platform in the foreground: checks first what can be checked, then servers, migrations
and the parts, and everything down again in the reverse order."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing, contextmanager, suppress
from functools import partial
from multiprocessing import get_context

import httpx
from rich.console import Console

from tenora_engine.model.default_model import default_model_folder, ensure_default_model
from tenora_platform.admin_key import first_admin_key, one_more_admin_key
from tenora_platform.bootstrap import database_urls, prepare_database
from tenora_platform.cli.checks import (
    check_address,
    check_device,
    check_folders,
    check_model_folder,
    few_files,
    open_to_others,
    plain_http,
)
from tenora_platform.cli.errors import CliError
from tenora_platform.cli.output import terminal
from tenora_platform.embedded.servers import running_servers
from tenora_platform.embedded.tether import tie
from tenora_platform.installation import Installation
from tenora_platform.logs import configure_logging
from tenora_platform.marks import claim_redis, claim_store, mark_of
from tenora_platform.processes.engine_address import engine_address
from tenora_platform.processes.listening import listen
from tenora_platform.processes.supervisor import Supervisor
from tenora_platform.resources import default_draft_layer
from tenora_platform.secret import ServerSecret
from tenora_platform.settings import Settings

WhenReady = Callable[[Settings], Awaitable[None]]
KeepKey = Callable[[Settings, Callable[[], str]], Settings]
"""Settings with an admin key to show; the second makes one, which may raise SecretLostError."""


def run_platform(
    settings: Settings, when_ready: WhenReady, keep_key: KeepKey | None = None
) -> None:
    """Serve until Ctrl-C or SIGTERM. `when_ready` is awaited beside it once requests can be
    served; `keep_key` keeps an admin key for every start, where only the first shows one. Raises
    CliError, EmbeddedServerError, DatabaseSetupError or EngineError."""
    configure_logging(settings.log_level)
    check_address(settings.host, settings.port)
    check_device(settings)
    check_model_folder(settings)
    with ended_by_signals():
        _run(settings, when_ready, keep_key)


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Ctrl-C and SIGTERM end in order what has been started."""
    take_signals()
    with suppress(KeyboardInterrupt):
        yield
    terminal(wraps=True).print("tenora: stopped")


def take_signals() -> None:
    """As KeyboardInterrupt, also where a shell had SIGINT ignored; anew after a loop took them."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.default_int_handler)


def _run(settings: Settings, when_ready: WhenReady, keep_key: KeepKey | None) -> None:
    console = terminal()
    settings = settings.model_copy(update={"data_dir": settings.data_dir.resolve()})
    check_folders(settings)
    for said in filter(
        None, (open_to_others(settings.data_dir), plain_http(settings), few_files())
    ):
        console.print(f"tenora: {said}")
    secret = settings.server_secret()
    with running_servers(settings, secret) as ready:
        assert ready.database_url is not None
        installation = Installation(ready.installation)
        urls = database_urls(ready.database_url, secret, installation)
        prepare_database(urls)
        if keep_key is not None:
            ready = keep_key(ready, partial(one_more_admin_key, ready, urls, secret))
        if (key := first_admin_key(ready, urls, secret)) is not None:
            console.print(f"tenora: admin key (shown once, keep it): {key}")
        claim_servers(settings, secret)
        ready = with_model(ready)
        with closing(listen(ready.host, ready.port)) as listener:
            supervisor = Supervisor(
                ready,
                engine_address(ready),
                listener,
                own_engine=ready.engine is None,
                own_worker=True,
            )
            try:
                asyncio.run(supervisor.run(lambda: _announce(ready, when_ready, console)))
            finally:
                take_signals()


def claim_servers(settings: Settings, secret: ServerSecret) -> None:
    """Raises TakenError if the operator's Redis or object store is another installation's, CliError
    if its URL is none. Those in the data directory are nobody else's."""
    mark = mark_of(Installation(settings.installation), secret)
    try:
        if settings.redis_url is not None:
            claim_redis(settings.redis_url, mark)
    except ValueError as error:
        raise CliError(f"TENORA_REDIS_URL does not work: {error}") from error
    if settings.object_store is not None:
        claim_store(settings.object_store, mark)


def with_model(settings: Settings) -> Settings:
    """With a model folder: the default model's, if none is named, and its draft layer. Making that
    folder takes torch, which the supervisor must not keep: then another process does. Raises
    ModelLoadError."""
    if settings.model is not None:
        return settings
    folder = default_model_folder(settings.data_dir)
    if folder is None:
        with ProcessPoolExecutor(1, get_context("spawn"), tie, (os.getpid(),)) as pool:
            folder = pool.submit(ensure_default_model, settings.data_dir).result()
    layer = settings.draft_layer or default_draft_layer()
    found = layer if layer == "none" or layer.is_file() else None
    made = settings.model_copy(update={"model": str(folder), "draft_layer": found})
    check_model_folder(made)
    return made


async def _announce(settings: Settings, when_ready: WhenReady, console: Console) -> None:
    started = time.monotonic()
    url = base_url(settings)
    console.print(f"tenora: starting on {url} (the engine is loading its model)")
    async with httpx.AsyncClient(base_url=url, trust_env=False) as http:
        warnings = await _ready(http)
        is_built = (await http.get("/")).status_code == 200
    console.print(f"tenora: ready after {time.monotonic() - started:.1f} s")
    for warning in warnings:
        console.print(f"tenora: warning: {warning}", markup=False)
    shown = (
        f"{url}/"
        if is_built
        else ("the portal is not built; to build it, run: make portal (the API runs without it)")
    )
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
