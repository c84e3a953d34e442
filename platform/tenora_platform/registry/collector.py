"""Collector: removes objects of the store that no row owns. A crash between a commit and the
deletion that follows it, or between an upload and its commit, leaves such. Decides by rows alone.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import obstore
import structlog
from obstore.store import LocalStore
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.locks import lock, try_lock
from tenora_platform.registry import repository
from tenora_platform.registry.spool import Spool
from tenora_platform.registry.storage import AdapterStorage
from tenora_platform.state import AppState

GRACE = timedelta(hours=1)
"""How long an object may wait for the commit of its row; an upload takes minutes."""
EVERY_S = 3600.0
_PAGE = 1000

_log = structlog.get_logger(__name__)


class Collector:
    """One of these runs in each process; an advisory lock in the database lets one sweep at a
    time. Everything under the three prefixes of the store belongs to this database."""

    def __init__(self, state: AppState, *, grace: timedelta = GRACE) -> None:
        self._state = state
        self._storage = AdapterStorage(state.objects)
        self._spool = Spool(state.settings.spool_folder)
        self._grace = grace

    async def run(self) -> None:
        """Works for ever, at once and then every hour; cancel it to stop."""
        while True:
            await asyncio.to_thread(self._spool.sweep)
            removed = await self.sweep()
            if removed:
                _log.warning("objects without an owner removed", count=removed)
            await asyncio.sleep(EVERY_S)

    async def sweep(self) -> int:
        """Remove what nobody owns and is older than the grace time; how many objects that was. 0
        while another process sweeps."""
        async with self._state.db.admin_session() as session:
            if not await try_lock(session, "object-store:collector"):
                return 0
            before = datetime.now(UTC) - self._grace
            removed = await self._sweep_uploads(session, before)
            removed += await self._sweep_contents(session, before)
            return removed + await asyncio.to_thread(self._sweep_unfinished, before)

    async def _sweep_uploads(self, session: AsyncSession, before: datetime) -> int:
        """What waits for a check: it is its version's, or its resumable upload's."""
        removed = 0
        for prefix, owners in (
            ("staging", repository.staged_versions),
            ("uploads", repository.kept_uploads),
        ):
            async for found in self._older(prefix, before):
                owned = await owners(session, list(found))
                for owner in found.keys() - owned:
                    await self._storage.discard(found[owner])
                    removed += len(found[owner])
        return removed

    async def _sweep_contents(self, session: AsyncSession, before: datetime) -> int:
        """Checked content: it is the versions' that have it, until the last has been released."""
        removed = 0
        async for found in self._older("adapters", before):
            digests = {f"sha256:{name}": paths for name, paths in found.items()}
            for digest in digests.keys() - await repository.kept_digests(session, list(digests)):
                if await self._withdraw(digest):
                    removed += len(digests[digest])
        return removed

    async def _withdraw(self, digest: str) -> bool:
        async with self._state.db.admin_session() as session:
            # The same lock as a version takes that becomes active with this content.
            await lock(session, f"content:{digest}")
            if await repository.kept_digests(session, [digest]):
                return False
            await self._storage.withdraw(digest)
        return True

    async def _older(self, prefix: str, before: datetime) -> AsyncIterator[dict[str, list[str]]]:
        """Pages of what lies under `prefix`: the name that follows it -> paths of old objects."""
        async for page in obstore.list(self._state.objects, prefix, chunk_size=_PAGE):
            found: dict[str, list[str]] = defaultdict(list)
            for meta in page:
                _, _, rest = meta["path"].partition(f"{prefix}/")
                if meta["last_modified"] < before:
                    found[rest.partition("/")[0]].append(meta["path"])
            if found:
                yield found

    def _sweep_unfinished(self, before: datetime) -> int:
        """A store in a folder writes `name#1` first and renames it: a crash leaves that, and the
        store does not list it."""
        if not isinstance(self._state.objects, LocalStore) or self._state.objects.prefix is None:
            return 0
        old = _older_files(Path(self._state.objects.prefix).rglob("*#*"), before)
        for path in old:
            path.unlink(missing_ok=True)
        return len(old)


def _older_files(paths: Iterable[Path], before: datetime) -> list[Path]:
    found = []
    for path in paths:
        with contextlib.suppress(FileNotFoundError):  # its writer was quicker
            if path.is_file() and path.stat().st_mtime < before.timestamp():
                found.append(path)
    return found
