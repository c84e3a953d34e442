"""Where a backup lies: a folder or a store of objects, written and read as streams, each file with
its digest. It knows files, not what is in them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

import msgspec
import obstore
from obstore.exceptions import BaseError
from obstore.store import ObjectStore

from tenora_platform.object_store import open_object_store

CHUNK_BYTES = 5 * 1024 * 1024
"""What is held of a file at once, a few times; the least that S3 takes as a part."""


class BackupError(Exception):
    """A backup that cannot be made or restored; says why in a sentence."""


class Stored(msgspec.Struct, frozen=True):
    """A file of a backup."""

    path: str
    bytes: int
    sha256: str


class Place:
    """One backup's, or where one is to be."""

    def __init__(self, location: str) -> None:
        self.location = location
        self.folder = None if "://" in location else Path(location).resolve()
        if self.folder is not None and not self.folder.is_dir():
            raise BackupError(f"{location} is no folder.")
        with self._named("cannot be used"):
            self._files: ObjectStore = open_object_store(str(self.folder or location))

    def is_empty(self) -> bool:
        if self.folder is not None:  # what an interrupted writer left is not listed
            return not any(self.folder.iterdir())
        with self._named("cannot be read"):
            return next(list_objects(self._files), None) is None

    def write(self, path: str, pieces: Iterable[bytes]) -> Stored:
        """Write a file, whole or not at all."""
        with self._named("cannot be written to"):
            return put_stream(self._files, path, pieces)

    def finish(self, path: str, content: bytes) -> None:
        """Write the file that says that all others are there: they are on the disk by then."""
        if self.folder is not None:
            os.sync()
        self.write(path, [content])
        if self.folder is not None:
            os.sync()

    def read(self, file: Stored) -> Iterator[bytes]:
        """The content in pieces. Raises BackupError at its end if it is not what was written."""
        digest, count = sha256(), 0
        with self._named("cannot be read", file.path):
            for piece in get_stream(self._files, file.path):
                digest.update(piece)
                count += len(piece)
                yield piece
        if (count, digest.hexdigest()) != (file.bytes, file.sha256):
            raise BackupError(
                f"{self.location} is damaged: {file.path} has other contents than were written."
            )

    def content(self, path: str) -> bytes | None:
        """A small file, None where there is none."""
        with self._named("cannot be read"):
            try:
                return b"".join(get_stream(self._files, path))
            except FileNotFoundError:
                return None

    @contextmanager
    def _named(self, what: str, path: str = "") -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            missing = f"{path} is missing" if path else "a file of it is missing"
            raise BackupError(f"{self.location} is damaged: {missing}.") from error
        except (BaseError, OSError, ValueError) as error:
            raise BackupError(f"{self.location} {what}: {first_line(error)}.") from error


def list_objects(objects: ObjectStore) -> Iterator[str]:
    """The paths of all objects, as the store has them."""
    for page in obstore.list(objects, chunk_size=1000):
        for meta in page:
            yield meta["path"]


def get_stream(objects: ObjectStore, path: str) -> Iterator[bytes]:
    """The pieces of an object. Raises FileNotFoundError."""
    found = obstore.get(objects, path)
    if found.meta["size"]:  # a folder's store cannot read an empty one
        for piece in found.stream(min_chunk_size=CHUNK_BYTES):
            yield bytes(piece)


def put_stream(objects: ObjectStore, path: str, pieces: Iterable[bytes]) -> Stored:
    """Write an object, whole or not at all: what `pieces` raises leaves nothing."""
    digest, count = sha256(), 0
    with obstore.open_writer(objects, path, buffer_size=CHUNK_BYTES, max_concurrency=2) as writer:
        for piece in pieces:
            digest.update(piece)
            count += len(piece)
            writer.write(piece)
    return Stored(path, count, digest.hexdigest())


def first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip(".")
