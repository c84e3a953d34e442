"""Copies the objects of a store into a backup and back, one after the other, as streams. The trash
of the store and its records of database and installation are left out."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from tempfile import TemporaryFile

import msgspec
from obstore.exceptions import BaseError
from obstore.store import ObjectStore

from tenora_platform.audit.witness import OBJECT as AUDIT
from tenora_platform.backup.dump import unpacked
from tenora_platform.backup.manifest import Objects
from tenora_platform.backup.place import (
    CHUNK_BYTES,
    BackupError,
    Place,
    Stored,
    first_line,
    get_stream,
    list_objects,
    put_stream,
)
from tenora_platform.marks import OBJECT as INSTALLATION
from tenora_platform.object_store import PROBE
from tenora_platform.registry.store_identity import OBJECT as DATABASE
from tenora_platform.registry.trash import FOLDER as TRASH

FOLDER = "objects"
LIST = "objects.jsonl.gz"
_OWN = (INSTALLATION, DATABASE, PROBE, AUDIT)


def kept_objects(objects: ObjectStore) -> Iterator[str]:
    """The paths of those that belong into a backup."""
    with _named("read"):
        for path in list_objects(objects):
            if path not in _OWN and not path.startswith(f"{TRASH}/"):
                yield path


def copy_out(objects: ObjectStore, place: Place) -> Objects:
    """Copy every object. One that is gone since it was listed is left out: no row owns it."""
    count = size = 0
    with _named("listed"), TemporaryFile() as lines:  # the list of a large store is large, too
        packer = zlib.compressobj(wbits=31)
        for path in kept_objects(objects):
            stored = _copy(objects, path, place)
            if stored is not None:
                count, size = count + 1, size + stored.bytes
                lines.write(packer.compress(msgspec.json.encode(stored) + b"\n"))
        lines.write(packer.flush())
        lines.seek(0)
        file = place.write(LIST, iter(lambda: lines.read(CHUNK_BYTES), b""))
    return Objects(count=count, bytes=size, file=file)


def _copy(objects: ObjectStore, path: str, place: Place) -> Stored | None:
    def pieces() -> Iterator[bytes]:
        with _named("read"):
            yield first
            yield from rest

    with _named("read"):
        rest = get_stream(objects, path)
        try:
            first = next(rest, b"")
        except FileNotFoundError:
            return None
    written = place.write(f"{FOLDER}/{path}", pieces())
    return Stored(path, written.bytes, written.sha256)


def listed(place: Place, manifest: Objects) -> Iterator[Stored]:
    """The objects of a backup, by their paths in the store. Raises BackupError."""
    left = b""
    for piece in unpacked(place.read(manifest.file), CHUNK_BYTES):
        *lines, left = (left + piece).split(b"\n")
        for line in lines:
            yield msgspec.json.decode(line, type=Stored)


def of_backup(stored: Stored) -> Stored:
    """The same object, where it lies in the backup."""
    return Stored(f"{FOLDER}/{stored.path}", stored.bytes, stored.sha256)


def copy_in(place: Place, manifest: Objects, objects: ObjectStore) -> None:
    """Copy every object into the store, then read each back. Raises BackupError for one that is not
    there as it was written."""
    for stored in listed(place, manifest):
        with _named("written to"):
            put_stream(objects, stored.path, place.read(of_backup(stored)))
    for stored in listed(place, manifest):
        with _named("read"):
            digest = sha256()
            for piece in get_stream(objects, stored.path):
                digest.update(piece)
        if digest.hexdigest() != stored.sha256:
            raise BackupError(f"The object store has damaged {stored.path}: its digest is another.")


@contextmanager
def _named(what: str) -> Iterator[None]:
    try:
        yield
    except (BaseError, OSError, ValueError) as error:
        raise BackupError(f"The object store cannot be {what}: {first_line(error)}.") from error
