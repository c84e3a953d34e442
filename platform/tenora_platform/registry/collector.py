"""Collector: moves objects of the store that no row owns to the trash. A crash between a commit and
the deletion that follows it, or between an upload and its commit, leaves such. Rows alone decide:
so the rows have to be those of the store (`store_identity.py`), and the objects few.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import structlog
from msgspec.structs import replace
from obstore.store import LocalStore
from sqlalchemy import update

from tenora_platform.locks import lock, try_lock
from tenora_platform.registry import repository
from tenora_platform.registry.identity_table import DatabaseIdentityRow
from tenora_platform.registry.inventory import (
    CONTENTS,
    PREFIXES,
    Inventory,
    digest_of,
    take_inventory,
)
from tenora_platform.registry.spool import Spool
from tenora_platform.registry.store_identity import SWEEPING, identity
from tenora_platform.registry.store_told import StoreTold
from tenora_platform.registry.trash import Stuck, Trash
from tenora_platform.state import AppState

GRACE = timedelta(hours=1)
"""How long an object may wait for the commit of its row; an upload takes minutes."""
EVERY_S = 3600.0
SHARE_MAX = 0.1
FEW = 10
"""A sweep that would move more than this share of all objects, and more than these, moves none:
then it is rather the rows that are gone."""

_UNFINISHED = re.compile(r".+#[0-9]+")
_log = structlog.get_logger(__name__)


class Collector:
    """One of these runs in each worker; an advisory lock in the database lets one sweep at a
    time. Everything under the three prefixes of the store belongs to this database."""

    def __init__(self, state: AppState, *, grace: timedelta = GRACE) -> None:
        self._state = state
        self._trash = Trash(state.objects)
        self._spool = Spool(state.settings.spool_folder)
        self._grace = grace
        self._stuck = Stuck()  # of the last sweep

    async def run(self) -> None:
        """Works for ever, at once and then every hour; cancel it to stop."""
        while True:
            await asyncio.to_thread(self._spool.sweep)
            moved = await self.sweep()
            if moved:
                _log.warning("objects that no row owns were moved to the trash", count=moved)
            await asyncio.sleep(EVERY_S)

    async def sweep(self) -> int:
        """Move what nobody owns and is older than the grace time; how many objects that was. 0
        while another process sweeps, while the store is not this database's, and within the grace
        time after it was adopted."""
        async with self._state.db.admin_session() as session:
            if not await try_lock(session, SWEEPING):
                return 0
            if not await self._state.store.agrees():
                return 0
            known, before = await identity(session), datetime.now(UTC) - self._grace
            found = await take_inventory(session, self._state.objects, before=before)
            self._state.store.tell(missing=len(found.missing))
            if known.adopted_at is None or known.adopted_at > before:
                return 0
            if not self._may_move(found, all_of_it=known.sweep_all):
                return 0
            moved, stuck = 0, Stuck()
            for (prefix, name), paths in found.unowned.items():
                moved += await self._move(prefix, name, paths, stuck)
            moved += await asyncio.to_thread(self._sweep_unfinished, before, stuck)
            deleted = await self._trash.empty(stuck)
            self._tell(stuck)
            if deleted:
                _log.info("objects deleted from the trash", count=deleted)
            if known.sweep_all:
                await session.execute(update(DatabaseIdentityRow).values(sweep_all=False))
            return moved

    def _may_move(self, found: Inventory, *, all_of_it: bool) -> bool:
        """Says it too, where it is too much."""
        count = found.unowned_objects
        stopped = None
        if count > max(FEW, SHARE_MAX * found.objects) and not all_of_it:
            stopped = (
                f"A sweep of the object store would move {count} of {found.objects} objects to "
                "the trash, because no row of the database owns them."
            )
            _log.error("garbage collection of the object store has stopped", reason=stopped)
        self._state.store.told = replace(
            self._state.store.told or StoreTold(),
            stopped=stopped,
            objects=found.objects,
            unowned=count,
        )
        return stopped is None

    def _tell(self, stuck: Stuck) -> None:
        for path, reason in stuck.items():
            if path not in self._stuck:
                _log.error("not removed from the object store", what=path, reason=reason)
        self._stuck = stuck
        self._state.store.tell(stuck=len(stuck))

    async def _move(self, prefix: str, name: str, paths: list[str], stuck: Stuck) -> int:
        if prefix != CONTENTS:
            return await self._trash.put(paths, stuck)
        async with self._state.db.admin_session() as session:
            # The same lock as a version takes that becomes active with this content.
            await lock(session, f"content:{digest_of(name)}")
            if await repository.kept_digests(session, [digest_of(name)]):
                return 0
            return await self._trash.put(paths, stuck)

    def _sweep_unfinished(self, before: datetime, stuck: Stuck) -> int:
        """A store in a folder writes `name#1` first and renames it: a crash leaves that, and the
        store does not list it."""
        if not isinstance(self._state.objects, LocalStore) or self._state.objects.prefix is None:
            return 0
        store = Path(self._state.objects.prefix)
        parts = [path for prefix in PREFIXES for path in (store / prefix).rglob("*#*")]
        old = _older_files((path for path in parts if _UNFINISHED.fullmatch(path.name)), before)
        for path in old:
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                stuck.note(str(path.relative_to(store)), error)
        return len(old)


def _older_files(paths: Iterable[Path], before: datetime) -> list[Path]:
    found = []
    for path in paths:
        with contextlib.suppress(FileNotFoundError):  # its writer was quicker
            if path.is_file() and path.stat().st_mtime < before.timestamp():
                found.append(path)
    return found
