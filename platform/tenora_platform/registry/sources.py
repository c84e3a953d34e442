"""Folders outside Tenora that the operator lets tenants import adapters from: objects of a store by
known names, or files of a directory that no symbolic link leads out of. Knows no adapter."""

from __future__ import annotations

import asyncio
import os
import re
import stat
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import unquote, urlsplit

import obstore
from obstore.store import ObjectStore

from tenora_platform.errors import BadRequestError
from tenora_platform.object_store import open_object_store

TENANT = "{tenant}"
_PATH = re.compile(
    r"(?!.*(?:\A|/)\.{1,2}(?:/|\Z))[A-Za-z0-9._=+-]{1,128}(?:/[A-Za-z0-9._=+-]{1,128}){0,15}"
)
_READ_BYTES = 1024 * 1024


class Folder(Protocol):
    """The files right in one folder, by name. A file that is gone raises FileNotFoundError."""

    async def size(self, name: str) -> int:
        """In bytes."""
        ...

    def read(self, name: str, begin: int, end: int) -> AsyncIterator[bytes]:
        """The bytes `begin:end`, in pieces."""
        ...


def allowed_roots(prefixes: str, tenant_id: str) -> list[str]:
    """What a tenant's sources may begin with. `prefixes` is the operator's setting: URLs joined by
    commas, in which {tenant} stands for the tenant's id."""
    given = [prefix.strip().rstrip("/") for prefix in prefixes.split(",") if prefix.strip()]
    return [prefix.replace(TENANT, tenant_id) + "/" for prefix in given]


def open_source(prefixes: str, tenant_id: str, source: str) -> Folder:
    """The folder that `source` names. Only what follows an allowed root is the caller's text, and
    it is a plain path. Raises BadRequestError (param "source")."""
    roots = allowed_roots(prefixes, tenant_id)
    if not roots:
        raise BadRequestError(
            "This installation does not allow imports. Upload the adapter, or ask the operator "
            "to set TENORA_IMPORT_PREFIXES.",
            param="source",
            code="imports_not_allowed",
        )
    matching = [root for root in roots if source.startswith(root)]
    if not matching:
        raise BadRequestError(
            f"source must start with {' or '.join(roots)}.",
            param="source",
            code="source_not_allowed",
        )
    root = max(matching, key=len)
    path = source[len(root) :].rstrip("/")
    if _PATH.fullmatch(path) is None:
        raise BadRequestError(
            f"After {root}, source must be the path of a folder: up to 16 names of letters, "
            "digits, '.', '_', '=', '+' and '-', separated by '/'.",
            param="source",
            code="source_not_allowed",
        )
    if urlsplit(root).scheme == "file":
        return _Directory(unquote(urlsplit(root).path), path)
    return ObjectFolder(open_object_store(root.rstrip("/")), path)


@dataclass(frozen=True)
class ObjectFolder:
    """Objects of a store that begins at a URL of the operator's."""

    store: ObjectStore
    path: str

    async def size(self, name: str) -> int:
        size: int = (await obstore.head_async(self.store, f"{self.path}/{name}"))["size"]
        return size

    async def read(self, name: str, begin: int, end: int) -> AsyncIterator[bytes]:
        if begin == end:
            return
        result = await obstore.get_async(
            self.store, f"{self.path}/{name}", options={"range": (begin, end)}
        )
        async for chunk in result.stream(min_chunk_size=_READ_BYTES):
            yield bytes(chunk)


@dataclass(frozen=True)
class _Directory:
    """Files of a directory. From `root` on, each name is opened in the directory before it and no
    link is followed, so that nobody who writes there can point elsewhere, not even meanwhile."""

    root: str
    path: str

    async def size(self, name: str) -> int:
        return await asyncio.to_thread(self._size, name)

    def _size(self, name: str) -> int:
        fd = self._open(name)
        try:
            return os.fstat(fd).st_size
        finally:
            os.close(fd)

    async def read(self, name: str, begin: int, end: int) -> AsyncIterator[bytes]:
        fd = await asyncio.to_thread(self._open, name)
        try:
            while begin < end:
                piece = await asyncio.to_thread(os.pread, fd, min(_READ_BYTES, end - begin), begin)
                if not piece:
                    return
                begin += len(piece)
                yield piece
        finally:
            os.close(fd)

    def _open(self, name: str) -> int:
        """Raises FileNotFoundError for what is no plain file too."""
        fd = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for part in self.path.split("/"):
                fd = _step(fd, part, os.O_DIRECTORY)
            fd = _step(fd, name, os.O_NONBLOCK)
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise FileNotFoundError(name)
        except BaseException as error:
            os.close(fd)
            if isinstance(error, OSError):
                raise FileNotFoundError(name) from error
            raise
        return fd


def _step(fd: int, name: str, flags: int) -> int:
    """`name` in the directory `fd`, which is closed if that succeeds."""
    deeper = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | flags, dir_fd=fd)
    os.close(fd)
    return deeper


async def read_whole(folder: Folder, name: str, bytes_max: int) -> bytes | None:
    """A small file; None where there is none. Raises BadRequestError for a larger one."""
    try:
        size = await folder.size(name)
        if size > bytes_max:
            raise BadRequestError(
                f"{name} has {size} bytes; at most {bytes_max} are allowed.", param="source"
            )
        return b"".join([piece async for piece in folder.read(name, 0, size)])
    except FileNotFoundError:
        return None


async def existing(folder: Folder, names: Sequence[str]) -> dict[str, int]:
    """Which of these there are, with their sizes."""
    found = {}
    for name in names:
        try:
            found[name] = await folder.size(name)
        except FileNotFoundError:
            continue
    return found
