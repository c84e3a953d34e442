"""The parts of a platform as commands of their own: `tenora engine`, `api`, `worker`, `migrate`.
They find each other by the data directory or by URLs; the server secret is what they share."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager

from tenora_engine.sealing import Seal
from tenora_platform.admin_key import has_admin_key
from tenora_platform.bootstrap import database_urls, migration_state, prepare_database
from tenora_platform.cli.checks import (
    check_data_dir,
    check_device,
    check_folders,
    check_model_folder,
)
from tenora_platform.cli.errors import CliError
from tenora_platform.cli.output import terminal
from tenora_platform.cli.run import (
    base_url,
    claim_servers,
    ended_by_signals,
    take_signals,
    with_model,
)
from tenora_platform.db import DatabaseUrls
from tenora_platform.embedded.postgres import EmbeddedPostgres
from tenora_platform.embedded.process import EmbeddedServerError
from tenora_platform.embedded.servers import found_servers, running_servers
from tenora_platform.gpu import choose_device
from tenora_platform.installation import Installation
from tenora_platform.logs import configure_logging
from tenora_platform.processes.engine_address import engine_address
from tenora_platform.processes.listening import listen
from tenora_platform.processes.presence import Presence, this_process
from tenora_platform.redis_client import open_redis, redis_seal
from tenora_platform.secret import ServerSecret, kept_secret
from tenora_platform.settings import Settings


def engine(settings: Settings) -> None:
    """Run the engine alone: model, arena, usage outbox. API processes and workers share it."""
    settings = _prepared(settings)
    address = engine_address(settings)
    claim_servers(settings, settings.server_secret())
    try:
        settings = found_servers(settings, settings.server_secret(), database=False)
    except EmbeddedServerError:
        _say("TENORA_REDIS_URL is not set, so this engine shares no Redis with other engines")
    config = settings.to_engine_config()
    if settings.redis_url is not None:
        _say_present(settings.redis_url, redis_seal(settings.server_secret()))
    _say(f"engine {config.served_name} ({config.device}, {config.dtype}) at {address.endpoint}")
    _say(f"device {config.device}: {choose_device(settings.device).why}")
    logging.getLogger("tenora_engine").setLevel(logging.INFO)
    from tenora_engine.transport.server import serve_engine  # torch comes with it

    told = {"Listening": "loading the model", "Loaded": "the engine serves"}
    failure = serve_engine(config, address, report=lambda report: _say(told[type(report).__name__]))
    if failure is not None:
        _say(f"the engine failed: {failure}")
        os._exit(1)  # its threads may hang on a lost device


def api(settings: Settings) -> None:
    """Run the API alone: N processes behind one port, at an engine that runs elsewhere."""
    from tenora_platform.processes.supervisor import Supervisor

    settings = _prepared(settings)
    address = engine_address(settings)
    settings = _with_servers(settings)
    if not has_admin_key(settings, _urls(settings, settings.server_secret())):
        raise CliError(
            "There is no admin key yet.", "Set TENORA_ADMIN_KEY, or run `tenora serve` once."
        )
    with ended_by_signals(), closing(listen(settings.host, settings.port)) as listener:
        supervisor = Supervisor(settings, address, listener, own_engine=False, own_worker=False)
        _say(f"{settings.workers} API processes on {base_url(settings)}, engine {address.endpoint}")

        async def nothing_more() -> None:
            return

        try:
            asyncio.run(supervisor.run(nothing_more))
        finally:
            take_signals()


def worker(settings: Settings) -> None:
    """Run a worker alone: intake of adapters, usage, what is left over. Several may run."""
    import uvloop

    from tenora_platform.processes.worker import Stop, work

    settings = _prepared(settings)
    address = engine_address(settings)
    settings = _with_servers(settings)

    async def until_signalled() -> None:
        stop = Stop()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop)
        await work(settings, address, stop, lambda: _say(f"worker, engine {address.endpoint}"))

    with ended_by_signals():
        uvloop.run(until_signalled())


def migrate(settings: Settings) -> None:
    """Bring the database to this version's schema, its roles included."""
    configure_logging(settings.log_level)
    with reached_database(settings) as urls:
        prepare_database(urls)
        _say(f"the database is at revision {migration_state(urls)[0]}")


@contextmanager
def reached_database(settings: Settings) -> Iterator[DatabaseUrls]:
    """The operator's database or that of the data directory; ours is started for as long as it
    takes, if it does not run. Raises EmbeddedServerError."""
    settings = settings.model_copy(update={"data_dir": settings.data_dir.resolve()})
    secret = settings.server_secret()
    with ExitStack() as stack:
        try:
            ready = found_servers(settings, secret, redis=False)
        except EmbeddedServerError:
            ready = stack.enter_context(running_servers(settings, secret))
        yield _urls(ready, secret)


def require_installation(settings: Settings) -> None:
    """Raises CliError where a command that only looks would make a new installation, or a secret;
    EmbeddedServerError where the database is damaged."""
    own = EmbeddedPostgres(settings.data_dir / "postgres", ServerSecret(b""))
    if settings.database_url is None and own.is_to_be_made():
        raise CliError(
            f"There is no Tenora installation in {settings.data_dir.resolve()}.",
            "Give its folder (--data-dir, TENORA_DATA_DIR) or its database (TENORA_DATABASE_URL).",
        )
    if kept_secret(settings.data_dir, _configured(settings)) is None:
        raise CliError(
            f"The server secret of the installation is not in {settings.data_dir.resolve()}.",
            "Set TENORA_SECRET, or give the data directory that has its file `secret` (--data-dir, "
            "TENORA_DATA_DIR).",
        )


def _configured(settings: Settings) -> str | None:
    return settings.secret.get_secret_value() if settings.secret else None


def _say_present(redis_url: str, seal: Seal) -> None:
    """From a thread, for as long as this engine lives."""

    async def keep() -> None:
        engine = this_process("engine")
        async with open_redis(redis_url) as redis:
            await Presence(redis, seal, lambda: [engine]).keep()

    threading.Thread(target=lambda: asyncio.run(keep()), name="presence", daemon=True).start()


def _prepared(settings: Settings) -> Settings:
    """Complete as far as this machine goes. Raises CliError for what cannot be."""
    configure_logging(settings.log_level)
    check_device(settings)
    settings = settings.model_copy(update={"data_dir": settings.data_dir.resolve()})
    check_data_dir(settings)
    check_model_folder(settings)
    return with_model(settings)


def _with_servers(settings: Settings) -> Settings:
    """With servers that run, whose schema is ours. Raises CliError, EmbeddedServerError,
    TakenError or DatabaseSetupError."""
    check_folders(settings)
    secret = settings.server_secret()
    settings = found_servers(settings, secret)
    require_current(_urls(settings, secret))
    claim_servers(settings, secret)
    return settings


def require_current(urls: DatabaseUrls) -> None:
    """Raises CliError where the schema is not this version's."""
    current, head = migration_state(urls)
    if current != head:
        raise CliError(
            f"The database is at revision {current}, but this version of Tenora needs {head}.",
            "Run: tenora migrate",
        )


def _urls(settings: Settings, secret: ServerSecret) -> DatabaseUrls:
    assert settings.database_url is not None  # found by now
    return database_urls(settings.database_url, secret, Installation(settings.installation))


def _say(text: str) -> None:
    terminal().print(f"tenora: {text}", markup=False)
