"""Whose a namespace is and what a digest is called: the engine knows neither. Read from the
database, and for who looks every few seconds believed for a while."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection
from typing import NamedTuple

from sqlalchemy import select

from tenora_engine.pages import ArenaPages
from tenora_platform.auth import tenant_namespace
from tenora_platform.registry.repository import SERVABLE
from tenora_platform.registry.tables import AdapterRow, AdapterVersionRow
from tenora_platform.state import AppState
from tenora_platform.tenants.tables import TenantRow

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
        self, tenants: dict[str, list[tuple[str, str]]], versions: dict[str, list[Version]]
    ) -> None:
        self._tenants = tenants  # namespace -> (id, name) of each
        self._versions = versions  # by digest
        self._namespaces = {each: name for name, ids in tenants.items() for each, _ in ids}

    def tenant(self, namespace: str) -> tuple[str | None, str | None]:
        """Id and name; of a trust group no id and all names."""
        rows = self._tenants.get(namespace, [])
        alone = rows[0][0] if len(rows) == 1 else None
        return alone, " + ".join(name for _, name in rows) or None

    def namespace(self, tenant_id: str) -> str | None:
        return self._namespaces.get(tenant_id)

    def tenant_name(self, tenant_id: str) -> str | None:
        rows = self._tenants.get(self._namespaces.get(tenant_id, ""), [])
        return next((name for each, name in rows if each == tenant_id), None)

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
            names = self._names = await read_names(self._state, digests)
            self._read_s = time.monotonic()
        return names


async def read_names(state: AppState, digests: Collection[str]) -> Names:
    """Of all tenants, and of the versions with these contents."""
    tenants: dict[str, list[tuple[str, str]]] = defaultdict(list)
    versions: dict[str, list[Version]] = defaultdict(list)
    columns = select(TenantRow.id, TenantRow.name, TenantRow.trust_group).order_by(TenantRow.id)
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
        for tenant_id, name, group in await session.execute(columns):
            tenants[tenant_namespace(state.secret, tenant_id, group)].append((tenant_id, name))
        if digests:
            for digest, version, adapter, tenant, name, number in await session.execute(query):
                found = Version(version, adapter, tenant, name, number)
                versions[digest or ""].append(found)
    return Names(dict(tenants), dict(versions))


def _mentioned(pages: ArenaPages) -> tuple[set[str], set[str]]:
    namespaces = {each.namespace for each in pages.owners if each.namespace}
    digests = {each.digest for each in pages.owners if each.digest not in ("", "BASE")}
    digests |= {each.digest for each in pages.adapters}
    digests |= {each.digest for each in pages.host} | {each.digest for each in pages.pins}
    return namespaces, digests
