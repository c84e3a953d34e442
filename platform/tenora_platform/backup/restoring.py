"""Restores a backup into an empty place: every check first, then database and objects. A restore
that was interrupted is known by a table of its database, and goes on when it is run again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import LiteralString

import redis
from alembic.config import Config
from alembic.script import ScriptDirectory
from obstore.store import ObjectStore
from psycopg import sql
from psycopg.errors import LockNotAvailable
from sqlalchemy import Connection, text

from tenora_platform.admin_key import keep_made_keys, made_keys
from tenora_platform.audit.service import AuditLog
from tenora_platform.audit.witness import Witness
from tenora_platform.backup.connections import Link, connected
from tenora_platform.backup.load import load, relations
from tenora_platform.backup.manifest import Manifest, check_seal
from tenora_platform.backup.objects import copy_in, kept_objects, listed, of_backup
from tenora_platform.backup.place import BackupError, Place, Stored, first_line
from tenora_platform.bootstrap import UNFINISHED, prepare_database
from tenora_platform.db import Database, DatabaseUrls
from tenora_platform.erasure.holding import hold_erasures
from tenora_platform.installation import Installation
from tenora_platform.jobs.repository import end_open
from tenora_platform.marks import KEY, claim_store, mark_of
from tenora_platform.object_store import open_object_store
from tenora_platform.registry.store_identity import StoreIdentity
from tenora_platform.resources import migrations_folder
from tenora_platform.secret import ServerSecret, keep_secret, kept_secret
from tenora_platform.settings import Settings


def check_backup(settings: Settings, place: Place, manifest: Manifest) -> ServerSecret:
    """The server secret of the backup, which this version can restore and of which every file is as
    it was written. Raises BackupError."""
    secret = _secret(settings, place, manifest)
    check_seal(manifest, secret, place.location)
    if manifest.installation != settings.installation:
        raise BackupError(
            f"{place.location} is of the installation {manifest.installation!r}, not of "
            f"{settings.installation!r}: set TENORA_INSTALLATION={manifest.installation}."
        )
    scripts = Config()
    scripts.set_main_option("script_location", str(migrations_folder()).replace("%", "%%"))
    known = {each.revision for each in ScriptDirectory.from_config(scripts).walk_revisions()}
    if manifest.revision not in known:
        raise BackupError(
            f"{place.location} was made by a newer Tenora ({manifest.tenora}, revision "
            f"{manifest.revision}): restore it with that version or a later one."
        )
    for file in manifest.files:
        _read_through(place, file)
    for stored in listed(place, manifest.objects):
        _read_through(place, of_backup(stored))
    return secret


def _read_through(place: Place, file: Stored) -> None:
    for _ in place.read(file):
        pass


def _secret(settings: Settings, place: Place, manifest: Manifest) -> ServerSecret:
    configured = settings.secret.get_secret_value() if settings.secret else None
    secret = kept_secret(settings.data_dir, configured)
    if secret is None and manifest.secret is not None:
        secret = ServerSecret(b"".join(place.read(manifest.secret)))
    if secret is None:
        raise BackupError(
            f"{place.location} was made without the server secret, and there is none here: set "
            "TENORA_SECRET to that of the installation, or put its file `secret` into "
            f"{settings.data_dir}."
        )
    if secret.fingerprint != manifest.secret_fingerprint:
        where = "TENORA_SECRET" if configured else f"{settings.data_dir / 'secret'}"
        raise BackupError(
            f"{where} is another server secret (fingerprint {secret.fingerprint[:8]}) than that of "
            f"the backup ({manifest.secret_fingerprint[:8]}): with it no key would open, and what "
            "is encrypted could not be read."
        )
    return secret


def restore_backup(
    settings: Settings, urls: DatabaseUrls, place: Place, manifest: Manifest
) -> list[str]:
    """Fill database and object store, whose record names this database in the end; the deleted
    tenants that are not erased until the operator confirms it. Jobs that ran have failed. Raises
    BackupError where they or Redis are not empty, unless by this very restore, and for an object
    that cannot be read back.
    """
    objects = open_object_store(settings.object_store_url)
    token = f"{manifest.seal} {settings.object_store_url}"
    if not _goes_on(urls, token):
        _refuse_filled(settings, objects)
    if settings.object_store is not None:
        mark = mark_of(Installation(settings.installation), urls.secret)
        claim_store(settings.object_store, mark)
    if settings.secret is None:
        keep_secret(settings.data_dir, urls.secret)
    if manifest.admin_keys and not made_keys(settings):
        keep_made_keys(settings, manifest.admin_keys)
    prepare_database(urls, manifest.revision, may_prepare=_marked(token))
    with _alone(urls):
        if not _is_loaded(urls, manifest):
            load(urls, place, manifest)
        prepare_database(urls, may_prepare=lambda _: None)
        copy_in(place, manifest.objects, objects)
        return asyncio.run(_adopt(urls, objects, manifest))


_MARK = sql.Identifier(UNFINISHED)


@contextmanager
def _alone(urls: DatabaseUrls) -> Iterator[None]:
    """No other restore fills the database while the block runs; at its end the mark goes."""
    with connected(urls.owner) as link, link.transaction():
        _lock(link, "ACCESS EXCLUSIVE")
        yield
        link.execute(sql.SQL("DROP TABLE {}").format(_MARK))


def _lock(link: Link, mode: LiteralString) -> None:
    """The mark, until the transaction ends. Raises BackupError where another restore has it."""
    try:
        link.execute(sql.SQL("LOCK TABLE {} IN {} MODE NOWAIT").format(_MARK, sql.SQL(mode)))
    except LockNotAvailable as error:
        raise BackupError("Another restore into this database is running.") from error


def _goes_on(urls: DatabaseUrls, token: str) -> bool:
    """Whether this restore was begun before; else the database is empty. Raises BackupError."""
    with connected(urls.owner) as link, link.transaction():
        found = link.execute("SELECT to_regclass(%s) IS NOT NULL", (UNFINISHED,)).fetchone()
        if found == (True,):
            _lock(link, "ACCESS SHARE")
            if link.execute(sql.SQL("SELECT token FROM {}").format(_MARK)).fetchone() != (token,):
                raise BackupError(
                    "The restore of another backup, or into another object store, has not come to "
                    "its end in this database. Restore into an empty one."
                )
            return True
        there = relations(link, "rpvmS")
    if there:
        raise BackupError(
            f"The database is not empty (it has {there[0]}). A restore writes only into an empty "
            "place: name another TENORA_DATABASE_URL or --data-dir."
        )
    return False


def _is_loaded(urls: DatabaseUrls, manifest: Manifest) -> bool:
    """Whether a restore that was interrupted had come past the rows: only with them the database is
    migrated further than the backup was. In another schema they could not be loaded again."""
    with connected(urls.owner) as link:
        found = link.execute("SELECT version_num FROM alembic_version").fetchone()
    return found != (manifest.revision,)


def _marked(token: str) -> Callable[[Connection], None]:
    """What leaves a mark in a database before anything else is made there."""

    def mark(connection: Connection) -> None:
        connection.execute(text(f"CREATE TABLE IF NOT EXISTS {UNFINISHED} (token text)"))
        statement = f"INSERT INTO {UNFINISHED} SELECT :token WHERE NOT EXISTS (TABLE {UNFINISHED})"
        connection.execute(text(statement), {"token": token})
        connection.commit()

    return mark


def _refuse_filled(settings: Settings, objects: ObjectStore) -> None:
    """Raises BackupError for objects in the store, and for keys in an operator's Redis: what others
    cached of another database would be believed."""
    path = next(kept_objects(objects), None)
    if path is not None:
        raise BackupError(
            f"The object store {settings.object_store_url} is not empty (it has {path}). A restore "
            "writes only into an empty place: name another TENORA_OBJECT_STORE or --data-dir."
        )
    if settings.redis_url is None:
        return
    try:
        with redis.Redis.from_url(settings.redis_url, socket_connect_timeout=5) as client:
            used = any(key != KEY.encode() for key in client.scan_iter(count=1000))
    except (redis.RedisError, ValueError) as error:
        raise BackupError(f"TENORA_REDIS_URL cannot be used: {first_line(error)}.") from error
    if used:
        raise BackupError(
            "The Redis database at TENORA_REDIS_URL is not empty. A restore begins with an empty "
            "one: name another (redis://host:6379/1), or flush it."
        )


async def _adopt(urls: DatabaseUrls, objects: ObjectStore, manifest: Manifest) -> list[str]:
    db = Database(urls).patient()
    try:
        store = StoreIdentity(db, objects)
        async with db.admin_session() as session:
            record = await store.adopt(session)
            audit, actor = AuditLog(urls.secret), "command line"
            held = await hold_erasures(session, audit, actor)
            await end_open(session, "Restored from a backup. Start it again if it is needed.")
            await audit.append(
                session,
                actor=actor,
                action="backup.restore",
                target=record.database,
                after={"at": manifest.at, "tenora": manifest.tenora},
            )
        # First, as `tenora store adopt` does: the copy is of entries that came after the backup.
        await Witness(objects, urls.secret).forget()
        await store.write(record)
        return held
    finally:
        await db.close()
