"""The object store's trash: what a sweep takes away lies under `trash/<day>/` for a week, under its
own path. It knows no rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

import obstore
from obstore.exceptions import BaseError
from obstore.store import ObjectStore

from tenora_platform.outages import first_line

FOLDER = "trash"
KEPT = timedelta(days=7)


@dataclass(frozen=True, slots=True)
class Trashed:
    """One object in the trash: where it lay, since which day it is here, and its size."""

    path: str
    day: date
    size: int

    @property
    def key(self) -> str:
        return f"{FOLDER}/{self.day}/{self.path}"

    @property
    def deleted_on(self) -> date:
        """The first day on which a sweep deletes it."""
        return self.day + KEPT + timedelta(days=1)  # it may have come at the end of its day


class Stuck(dict[str, str]):
    """Objects that could not be moved or deleted, and why. Those behind them are all the same."""

    def note(self, path: str, error: Exception) -> None:
        self[path] = f"{type(error).__name__}: {first_line(error)}"


class Trash:
    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects

    async def put(self, paths: Iterable[str], stuck: Stuck) -> int:
        """Move these objects here; how many were still there and could be moved."""
        moved = 0
        for path in paths:
            try:
                key = f"{FOLDER}/{_today()}/{path}"
                await obstore.rename_async(self._objects, path, key)
            except FileNotFoundError:
                continue
            except (BaseError, OSError) as error:
                stuck.note(path, error)
                continue
            moved += 1
        return moved

    async def contents(self) -> list[Trashed]:
        """Everything, the oldest day first."""
        found = []
        async for page in obstore.list(self._objects, FOLDER, chunk_size=1000):
            for meta in page:
                day, _, path = meta["path"].removeprefix(f"{FOLDER}/").partition("/")
                try:
                    found.append(Trashed(path, date.fromisoformat(day), meta["size"]))
                except ValueError:
                    continue  # nothing that we have put here
        return sorted(found, key=lambda each: (each.day, each.path))

    async def bring_back(self, trashed: Iterable[Trashed]) -> list[str]:
        """Move objects to where they lay, and say which; not over what lies there by now."""
        back = []
        for each in trashed:
            if await self._lies(each.path):  # S3 has no renaming that asks this itself
                continue
            try:
                await obstore.rename_async(self._objects, each.key, each.path)
            except FileNotFoundError:
                continue
            back.append(each.path)
        return back

    async def _lies(self, path: str) -> bool:
        try:
            await obstore.head_async(self._objects, path)
        except FileNotFoundError:
            return False
        return True

    async def empty(self, stuck: Stuck) -> int:
        """Delete what has lain here for a week; how many objects."""
        today = _today()
        old = [each.key for each in await self.contents() if each.deleted_on <= today]
        deleted = 0
        for key in old:
            try:
                await obstore.delete_async(self._objects, key)
                deleted += 1
            except FileNotFoundError:
                continue
            except (BaseError, OSError) as error:
                stuck.note(key, error)
        return deleted


def _today() -> date:
    return datetime.now(UTC).date()
