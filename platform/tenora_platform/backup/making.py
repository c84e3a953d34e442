"""Makes a backup of an installation, which may be serving: the database at one moment, then the
objects, then the manifest. What the rows of that moment own is not deleted meanwhile."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from urllib.parse import unquote, urlsplit

from msgspec import UNSET
from obstore.store import ObjectStore

from tenora_engine.private_folders import make_private
from tenora_platform.admin_key import made_keys
from tenora_platform.backup.dump import Snapshot, nothing_deleted
from tenora_platform.backup.manifest import FILE, FORMAT, SECRET_FILE, Manifest, encode, sealed
from tenora_platform.backup.objects import copy_out
from tenora_platform.backup.place import BackupError, Place
from tenora_platform.bootstrap import migration_state
from tenora_platform.db import Base, Database, DatabaseUrls
from tenora_platform.object_store import open_object_store
from tenora_platform.registry.whole import Fault, StoreReader
from tenora_platform.settings import Settings


def make_backup(
    settings: Settings, urls: DatabaseUrls, location: str, *, with_secret: bool
) -> Manifest:
    """Raises BackupError; what was written by then is no backup, for it has no manifest."""
    import tenora_platform.app  # noqa: F401 - every room's tables

    _refuse_within_store(location, settings.object_store_url)
    if "://" not in location:
        make_private(Path(location))
    place = Place(location)
    if not place.is_empty():
        raise BackupError(
            f"{location} is not empty. A backup needs an empty place of its own; one without a "
            f"{FILE} was interrupted and can be removed."
        )
    with nothing_deleted(urls) as fence:
        with ExitStack() as links:
            dumped = Snapshot(urls, Base.metadata.tables, links).dump(place)
        if dumped.revision != migration_state(urls)[1]:
            raise BackupError("The database was migrated meanwhile: make the backup again.")
        store = open_object_store(settings.object_store_url)
        objects = copy_out(store, place)
        damaged = asyncio.run(_look(urls, store))
        secret = place.write(SECRET_FILE, [urls.secret.root]) if with_secret else None
        manifest = Manifest(
            format=FORMAT,
            tenora=version("tenora"),
            revision=dumped.revision,
            installation=settings.installation,
            postgresql=dumped.postgresql,
            at=dumped.at,
            finished_at=datetime.now(UTC),
            secret_fingerprint=urls.secret.fingerprint,
            secret=secret,
            admin_keys=list(made_keys(settings)),
            months=dumped.months,
            tables=dumped.tables,
            sequences=dumped.sequences,
            objects=objects,
            damaged=damaged or UNSET,
        )
        fence.execute("SELECT 1")  # lost with its connection, it would have guarded nothing
        manifest = sealed(manifest, urls.secret)
        place.finish(FILE, encode(manifest))
    return manifest


async def _look(urls: DatabaseUrls, objects: ObjectStore) -> list[Fault]:
    """Find objects that are missing or have another digest. Copying alone does not notice them."""
    db = Database(urls).patient()
    try:
        return (await StoreReader(db, objects).read_all()).faults
    finally:
        await db.close()


def _plain(location: str) -> str:
    """One way of writing a place that has several: a folder's path, an `s3://` URL."""
    kind, separator, rest = location.partition("://")
    if not separator:
        return str(Path(location).resolve())
    if kind.lower() == "file":
        return str(Path(unquote(urlsplit(location).path)).resolve())
    names = {"s3a": "s3", "adl": "abfs", "azure": "az", "abfss": "abfs"}
    return f"{names.get(kind.lower(), kind.lower())}://{rest}"


def _refuse_within_store(location: str, store: str) -> None:
    """Raises BackupError where a backup would be copied into itself."""
    here, there = _plain(location), _plain(store)
    if f"{here.rstrip('/')}/".startswith(f"{there.rstrip('/')}/"):
        raise BackupError(f"{location} lies in the object store {store}. Name a place outside it.")
