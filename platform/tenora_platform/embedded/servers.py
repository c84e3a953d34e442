"""The servers a platform needs, found or started: the operator's by URL, else embedded ones under
the data directory. It knows the two kinds of servers, not what is kept in them."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tenora_engine.private_folders import make_private
from tenora_platform.embedded.postgres import EmbeddedPostgres
from tenora_platform.embedded.process import EmbeddedServerError
from tenora_platform.embedded.upkeep import upheld
from tenora_platform.embedded.valkey import EmbeddedValkey
from tenora_platform.secret import ServerSecret
from tenora_platform.settings import Settings

_OTHERS_CONNECTIONS = 24  # another worker beside ours, or a person's psql


@contextmanager
def running_servers(settings: Settings, secret: ServerSecret) -> Iterator[Settings]:
    """The settings with the URLs of servers that run for as long as the block does; one that dies
    is started again. Raises EmbeddedServerError; what was started by then is stopped."""
    with ExitStack() as stack:
        data_dir = settings.data_dir.resolve()
        stack.enter_context(_only_one(data_dir))
        database_url, redis_url = settings.database_url, settings.redis_url
        if database_url is None:
            connections = settings.connections_needed + _OTHERS_CONNECTIONS
            postgres = EmbeddedPostgres(data_dir / "postgres", secret, connections=connections)
            stack.enter_context(upheld(postgres))
            database_url = postgres.url
        if redis_url is None:
            valkey = EmbeddedValkey(data_dir / "valkey", secret)
            stack.enter_context(upheld(valkey))
            redis_url = valkey.url
        yield settings.with_urls(database_url=database_url, redis_url=redis_url)


def found_servers(
    settings: Settings, secret: ServerSecret, *, database: bool = True, redis: bool = True
) -> Settings:
    """The settings with the URLs of servers that run already: the operator's, else those of a
    `tenora serve` on the same data directory. Raises EmbeddedServerError where one that is asked
    for is neither."""
    data_dir = settings.data_dir.resolve()
    found = {
        "database_url": settings.database_url
        or (database and EmbeddedPostgres(data_dir / "postgres", secret).running_url()),
        "redis_url": settings.redis_url
        or (redis and EmbeddedValkey(data_dir / "valkey", secret).running_url()),
    }
    for name, url in found.items():
        if url is None:
            raise EmbeddedServerError(
                f"TENORA_{name.upper()} is not set, and no `tenora serve` is running on "
                f"{data_dir}. Set it, or give the --data-dir of a running one."
            )
    return settings.model_copy(update={name: url or None for name, url in found.items()})


@contextmanager
def _only_one(data_dir: Path) -> Iterator[None]:
    """One platform at a time on a data directory. The kernel frees the lock of a killed one."""
    make_private(data_dir)
    path = data_dir / "lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.read(descriptor, 32).decode(errors="replace").strip()
            raise EmbeddedServerError(
                f"Another Tenora (process {holder or 'unknown'}) is using the data directory "
                f"{data_dir}. Stop it, or choose another --data-dir."
            ) from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)
