"""Whose a Redis database and an object store are. What lies in them is called alike in every
installation, so each needs its own; this notices where two have one. It knows no other key."""

from __future__ import annotations

import asyncio
import contextlib
import re
from pathlib import Path
from typing import TYPE_CHECKING

from tenora_engine.remote_store import PREFIXES, open_remote
from tenora_platform.installation import Installation
from tenora_platform.secret import ServerSecret

if TYPE_CHECKING:
    from obstore.store import ObjectStore
    from redis.asyncio import Redis

KEY = "tenora:installation"
OBJECT = "tenora-installation"
_REDIS = (
    "in TENORA_REDIS_URL: add another database number (redis://host:6379/1), or use another server"
)
_STORE = "in TENORA_OBJECT_STORE: a prefix is enough (s3://bucket/prefix)"
_MARK = re.compile(rb"[A-Za-z0-9._-]{1,64}/[0-9a-f]{16}")
_LIFE_S = 7 * 24 * 3600  # after its last process; then the database is anybody's again
_EVERY_S = 5.0  # how soon a Redis that was emptied is marked again


class TakenError(Exception):
    """What we were told to use is another installation's; says what to do."""

    def __init__(self, what: str, holder: str, mine: str, setting: str, mark: str) -> None:
        name, me = holder.partition("/")[0], mine.partition("/")[0]
        whose = f"{name!r}" if name != me else f"also named {name!r}, with another secret"
        super().__init__(
            f"The {what} belongs to another Tenora installation, {whose}. Give each "
            f"installation its own {setting}. If the other installation no longer exists, or "
            f"the secret of this one has changed, delete its {mark}."
        )


def mark_of(installation: Installation, secret: ServerSecret) -> str:
    """Its name, and a fingerprint of its secret: others may have the same name elsewhere."""
    return f"{installation.name}/{secret.mac('redis-mark', installation.name)[:16]}"


def claim_redis(url: str, mark: str) -> None:
    """Before anything starts. Raises TakenError, ValueError for what is no URL; a Redis that is
    away is found out later."""
    import redis

    client = redis.Redis.from_url(url, socket_connect_timeout=2, socket_timeout=5)
    with contextlib.suppress(redis.RedisError), client:
        client.set(KEY, mark, nx=True, ex=_LIFE_S)
        if not is_mark(client.get(KEY)):
            client.set(KEY, mark, ex=_LIFE_S)
        compare(client.get(KEY), mark)


def claim_store(location: str, mark: str) -> None:
    """Before anything is kept there: whoever shares it removes what its own tables do not know.
    Raises TakenError, and obstore's BaseError for settings that are not understood; a store that is
    away is found out later."""
    import obstore
    from obstore.exceptions import BaseError

    try:
        objects = _store(location)
    except (BaseError, OSError):
        if location.partition("://")[0] in PREFIXES:
            raise
        return  # of a folder it is said where folders are looked at
    with contextlib.suppress(BaseError, OSError):
        try:
            result = obstore.get(objects, OBJECT)
            # A folder's store cannot read what is empty.
            content = (
                bytes(result.bytes()) if result.meta["size"] else b"unknown: the mark is empty"
            )
            found = content.decode(errors="replace")
        except FileNotFoundError:
            obstore.put(objects, OBJECT, mark.encode())
            return
        if found != mark:
            raise TakenError("object store", found, mark, _STORE, f"object {OBJECT}")


def _store(location: str) -> ObjectStore:
    """As the application opens it, but not waited for."""
    from obstore.store import LocalStore

    if "://" not in location:
        return LocalStore(prefix=Path(location), mkdir=True)
    return open_remote(location, timeout_s=5, tries=1)


async def keep(redis: Redis, mark: str) -> None:
    """For as long as the process lives; raises TakenError."""
    from redis.exceptions import RedisError

    while True:
        with contextlib.suppress(RedisError):  # others say that it is away
            await look(redis, mark)
        await asyncio.sleep(_EVERY_S)


async def look(redis: Redis, mark: str) -> None:
    """Mark it if nobody has. Raises TakenError or RedisError."""
    await redis.set(KEY, mark, nx=True, ex=_LIFE_S)
    if not is_mark(await redis.get(KEY)):
        await redis.set(KEY, mark, ex=_LIFE_S)
    compare(await redis.get(KEY), mark)
    await redis.expire(KEY, _LIFE_S)


def is_mark(found: object) -> bool:
    """Whether Redis' key holds what an installation writes there; the rest is nobody's."""
    return isinstance(found, bytes) and _MARK.fullmatch(found) is not None


def compare(found: object, mark: str) -> None:
    """What Redis' key holds with our own mark. Raises TakenError."""
    if isinstance(found, bytes) and (holder := found.decode(errors="replace")) != mark:
        raise TakenError("Redis database", holder, mark, _REDIS, f"key {KEY}")
