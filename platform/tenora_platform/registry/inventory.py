"""What lies in the object store and what the database's rows say to it. It changes nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import obstore
from obstore.store import ObjectStore
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.registry import repository

CONTENTS = "adapters"
_PAGE = 1000
_Owners = Callable[[AsyncSession, Sequence[str]], Awaitable[set[str]]]


async def _kept_contents(session: AsyncSession, names: Sequence[str]) -> set[str]:
    kept = await repository.kept_digests(session, [digest_of(name) for name in names])
    return {digest.removeprefix("sha256:") for digest in kept}


_OWNERS: dict[str, _Owners] = {
    "staging": repository.staged_versions,
    "uploads": repository.kept_uploads,
    CONTENTS: _kept_contents,
}
PREFIXES = tuple(_OWNERS)
"""Below these all objects are the database's, by the name that follows."""


@dataclass(slots=True)
class Inventory:
    """`objects` counts all that lie there; `unowned` are the paths of those without an owner, by
    the prefix and the name that they lie under. `missing` are the digests that versions serve and
    of which a file, or all, is not there."""

    objects: int = 0
    unowned: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    missing: set[str] = field(default_factory=set)

    @property
    def unowned_objects(self) -> int:
        return sum(map(len, self.unowned.values()))


def digest_of(name: str) -> str:
    """Of a content, by the name of its folder."""
    return f"sha256:{name}"


async def take_inventory(
    session: AsyncSession,
    objects: ObjectStore,
    *,
    before: datetime | None = None,
    prefixes: Sequence[str] = PREFIXES,
) -> Inventory:
    """Of everything below the prefixes; unowned is only what was written `before`."""
    found = Inventory()
    # Asked for first: what becomes active meanwhile may lie in a page that was read before.
    wanted = await repository.served_files(session) if CONTENTS in prefixes else {}
    for prefix in prefixes:
        async for page in _pages(objects, prefix):
            found.objects += sum(map(len, page.values()))
            owned = await _OWNERS[prefix](session, list(page))
            for path in (path for paths in page.values() for path, _ in paths):
                wanted.pop(path, None)
            for name in page.keys() - owned:
                old = [path for path, at in page[name] if before is None or at < before]
                if old:
                    found.unowned.setdefault((prefix, name), []).extend(old)
    if wanted:  # what was revoked meanwhile may be gone
        found.missing = set(wanted.values()) & await repository.served_digests(session)
    return found


async def owned_paths(session: AsyncSession, paths: Sequence[str]) -> set[str]:
    """Which of these paths, wherever the objects lie now, a row owns."""
    owned = set()
    for prefix, owners in _OWNERS.items():
        below: dict[str, list[str]] = defaultdict(list)
        for path in paths:
            if path.startswith(f"{prefix}/"):
                below[path.split("/")[1]].append(path)
        for name in await owners(session, list(below)):
            owned.update(below[name])
    return owned


async def _pages(
    objects: ObjectStore, prefix: str
) -> AsyncIterator[dict[str, list[tuple[str, datetime]]]]:
    """By the name below `prefix`: paths, and when each was written."""
    async for page in obstore.list(objects, prefix, chunk_size=_PAGE):
        found: dict[str, list[tuple[str, datetime]]] = defaultdict(list)
        for meta in page:
            name = meta["path"].removeprefix(f"{prefix}/").partition("/")[0]
            found[name].append((meta["path"], meta["last_modified"]))
        yield found
