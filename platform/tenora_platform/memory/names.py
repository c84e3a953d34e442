"""Whose a namespace is and what a digest is called: the engine knows neither. Read from the
database, and for who looks every few seconds believed for a while."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from heapq import nlargest
from typing import NamedTuple

from sqlalchemy import select

from tenora_engine.events import AdapterResidency
from tenora_engine.pages import ArenaPages
from tenora_platform.registry.repository import SERVABLE
from tenora_platform.registry.tables import AdapterRow, AdapterVersionRow
from tenora_platform.state import AppState
from tenora_platform.tenants.namespaces import names_of, owners_of

HOST_SHOWN_MAX = 200
"""Adapters in host memory that come with the arena; all of them are in the list of adapters."""
_BELIEVED_S = 30.0
_AGAIN_S = 2.0  # before what was not found is looked for again


class Version(NamedTuple):
    """An adapter version by its names."""

    id: str
    adapter_id: str
    tenant_id: str
    name: str
    number: int

    @property
    def label(self) -> str:
        return f"{self.name}@{self.number}"


class Names:
    """What is known of one moment's arena."""

    def __init__(
        self,
        tenants: Mapping[str, Sequence[tuple[str, str]]],
        versions: Mapping[str, Sequence[Version]],
        names: Mapping[str, str],
    ) -> None:
        self._tenants = tenants  # namespace -> (id, name) of each
        self._versions = versions  # by digest
        self._names = names  # of those tenants whose versions these are, by id

    def tenant(self, namespace: str) -> tuple[str | None, str | None]:
        """Id and name; of a trust group no id and all names."""
        rows = self._tenants.get(namespace, [])
        alone = rows[0][0] if len(rows) == 1 else None
        return alone, " + ".join(name for _, name in rows) or None

    def tenant_name(self, tenant_id: str) -> str | None:
        return self._names.get(tenant_id)

    def version(self, digest: str, namespace: str) -> Version | None:
        """Of several with equal content, one of the namespace's if there is any."""
        found = self._versions.get(digest, [])
        ids = {each for each, _ in self._tenants.get(namespace, [])}
        return next((each for each in found if each.tenant_id in ids), found[0] if found else None)

    def knows(self, namespaces: Collection[str], digests: Collection[str]) -> bool:
        return set(namespaces) <= set(self._tenants) and set(digests) <= set(self._versions)


class NameReader:
    """For one listener or process; `of` asks the database anew when it has to."""

    def __init__(self, state: AppState) -> None:
        self._state = state
        self._names: Names | None = None
        self._read_s = 0.0

    async def of(self, pages: ArenaPages) -> Names:
        namespaces, digests = _mentioned(pages)
        age_s = time.monotonic() - self._read_s
        names = self._names
        is_enough = names is not None and (age_s < _AGAIN_S or names.knows(namespaces, digests))
        if names is None or age_s > _BELIEVED_S or not is_enough:
            names = self._names = await read_names(self._state, namespaces, digests)
            self._read_s = time.monotonic()
        return names


async def read_names(
    state: AppState, namespaces: Collection[str], digests: Collection[str]
) -> Names:
    """Of the tenants of these namespaces, and of the versions with these contents and whose they
    are."""
    versions: dict[str, list[Version]] = defaultdict(list)
    query = (
        select(
            AdapterVersionRow.digest,
            AdapterVersionRow.id,
            AdapterVersionRow.adapter_id,
            AdapterVersionRow.tenant_id,
            AdapterRow.name,
            AdapterVersionRow.number,
        )
        .join(AdapterRow, AdapterRow.id == AdapterVersionRow.adapter_id)
        .where(AdapterVersionRow.digest.in_(list(digests)), AdapterVersionRow.state.in_(SERVABLE))
        .order_by(AdapterVersionRow.id)
    )
    async with state.db.admin_session() as session:
        owners = await owners_of(session, state.secret, namespaces)
        if digests:
            for digest, version, adapter, tenant, name, number in await session.execute(query):
                found = Version(version, adapter, tenant, name, number)
                versions[digest or ""].append(found)
        whose = {each.tenant_id for some in versions.values() for each in some}
        names = await names_of(session, whose)
    tenants = {each: [(row.id, row.name) for row in rows] for each, rows in owners.items()}
    return Names(tenants, dict(versions), names)


def _mentioned(pages: ArenaPages) -> tuple[set[str], set[str]]:
    """(namespaces, digests) of what is shown."""
    namespaces = {each.namespace for each in pages.owners}
    namespaces |= {each.namespace for each in pages.departures}
    namespaces |= {each.namespace or "" for each in pages.partitions} | {pages.departures_for}
    digests = {each.digest for each in pages.owners} | {each.digest for each in pages.departures}
    digests |= {each.digest for each in pages.adapters} | {each.digest for each in pages.pins}
    most = HOST_SHOWN_MAX + len(pages.adapters) + len(pages.pins)
    digests |= {each.digest for each in nlargest(most, pages.host, key=_last_used)}
    return namespaces - {""}, digests - {"", "BASE"}


def _last_used(adapter: AdapterResidency) -> float:
    return adapter.last_used_s
