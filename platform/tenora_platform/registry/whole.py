"""Reads every object that a row of the database owns and compares it with its digest. What is wrong
is named with what it is of; nothing is changed."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from dataclasses import dataclass
from typing import Literal

from obstore.exceptions import BaseError
from obstore.store import ObjectStore
from sqlalchemy import select
from sqlalchemy.orm import InstrumentedAttribute

from tenora_engine.adapters.identity import adapter_digest, config_key, draft_key, weights_key
from tenora_platform.db import Database
from tenora_platform.registry.repository import (
    OPEN,
    PENDING,
    SERVABLE,
    ordered_parts,
    served_digests,
)
from tenora_platform.registry.storage import (
    AdapterStorage,
    nothing_deleted,
    part_key,
    staged_draft_layer,
    staged_weights,
)
from tenora_platform.registry.tables import AdapterRow, AdapterVersionRow, UploadPartRow, UploadRow
from tenora_platform.usage.tables import UsageArchiveRow

Verdict = Literal["damaged", "missing", "unreadable"]


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with an object. `owner`: what of, such as a tenant's version; `digest`: of the
    content, if it is one that versions serve."""

    verdict: Verdict
    path: str
    owner: str
    digest: str | None = None
    reason: str = ""

    def __str__(self) -> str:
        reason = f": {self.reason}" if self.reason else ""
        return f"{self.verdict} {self.path} ({self.owner}){reason}"


@dataclass(slots=True)
class Looked:
    """How many objects were read, what is wrong, and the served contents that are whole."""

    objects: int
    bytes: int
    faults: list[Fault]
    whole: list[str]


class StoreReader:
    """Object by object, in little memory."""

    def __init__(self, db: Database, objects: ObjectStore) -> None:
        self._db = db
        self._storage = AdapterStorage(objects, deleting=nothing_deleted)
        self._looked = Looked(0, 0, [], [])

    async def read_all(self) -> Looked:
        """Contents of adapters, uploads that wait, archives of usage."""
        for read in (self._adapters, self._layers, self._staged, self._parts, self._archives):
            await read()
        async with self._db.admin_session() as session:
            served = await served_digests(session)
        faults = self._looked.faults
        # What was revoked meanwhile may be gone.
        self._looked.faults = [each for each in faults if each.digest in {None, *served}]
        return self._looked

    async def _served(self, column: InstrumentedAttribute[str | None]) -> dict[str, str]:
        """The contents in this column that versions serve, each with whose they are."""
        version = AdapterVersionRow
        query = (
            select(column, version.tenant_id, AdapterRow.name, version.number)
            .join(AdapterRow, AdapterRow.id == version.adapter_id)
            .where(version.state.in_(SERVABLE), column.is_not(None))
            .order_by(version.id)
        )
        found: dict[str, list[str]] = defaultdict(list)
        async with self._db.admin_session() as session:
            for digest, tenant_id, name, number in await session.execute(query):
                found[str(digest)].append(f"{tenant_id} {name}@{number}")
        return {digest: ", ".join(owners) for digest, owners in found.items()}

    async def _adapters(self) -> None:
        for digest, owner in (await self._served(AdapterVersionRow.digest)).items():
            config = await self._read(config_key(digest), owner, digest, keep=True)
            weights = await self._read(weights_key(digest), owner, digest)
            if config is None or weights is None:
                continue
            if adapter_digest(config[1], weights[0]) == digest:
                self._looked.whole.append(digest)
            else:
                folder = weights_key(digest).rpartition("/")[0]
                self._looked.faults.append(Fault("damaged", folder, owner, digest))

    async def _layers(self) -> None:
        for digest, owner in (await self._served(AdapterVersionRow.draft_layer_digest)).items():
            if await self._compare(
                draft_key(digest), digest.removeprefix("sha256:"), owner, digest
            ):
                self._looked.whole.append(digest)

    async def _staged(self) -> None:
        """Uploads that wait for their check: damaged, they are rejected."""
        version = AdapterVersionRow
        query = (
            select(version, AdapterRow.name)
            .join(AdapterRow, AdapterRow.id == version.adapter_id)
            .where(version.state.in_(PENDING), version.staging_key.is_not(None))
        )
        async with self._db.admin_session() as session:
            rows = [(row, name) for row, name in await session.execute(query)]
            orders = {
                row.id: await ordered_parts(session, row.upload_id)
                for row, _ in rows
                if row.upload_id is not None
            }
        for row, name in rows:
            owner = f"upload of {row.tenant_id} {name}@{row.number}"
            key = str(row.staging_key)
            await self._read(f"{key}/adapter_config.json", owner)
            if row.upload_id is None:
                await self._compare(staged_weights(key), row.weights_sha256, owner)
            for part in orders.get(row.id, ()):
                await self._read(part_key(str(row.upload_id), part), owner)
            if row.draft_layer_digest is not None:
                sha256 = row.draft_layer_digest.removeprefix("sha256:")
                await self._compare(staged_draft_layer(key), sha256, owner)

    async def _parts(self) -> None:
        part = UploadPartRow
        query = (
            select(part.upload_id, part.id, part.sha256, part.tenant_id)
            .join(UploadRow, UploadRow.id == part.upload_id)
            .where(UploadRow.status.in_(OPEN))
        )
        async with self._db.admin_session() as session:
            rows = [tuple(row) for row in await session.execute(query)]
        for upload_id, part_id, sha256, tenant_id in rows:
            owner = f"upload {upload_id} of {tenant_id}"
            await self._compare(part_key(upload_id, part_id), sha256, owner)

    async def _archives(self) -> None:
        row = UsageArchiveRow
        async with self._db.admin_session() as session:
            rows = [tuple(each) for each in await session.execute(select(row.path, row.sha256))]
        for path, sha256 in rows:
            await self._compare(path, sha256, "archive of usage")

    async def _compare(self, path: str, sha256: str, owner: str, digest: str | None = None) -> bool:
        read = await self._read(path, owner, digest)
        if read is not None and read[0] != sha256:
            self._looked.faults.append(Fault("damaged", path, owner, digest))
        return read is not None and read[0] == sha256

    async def _read(
        self, path: str, owner: str, digest: str | None = None, *, keep: bool = False
    ) -> tuple[str, bytes] | None:
        """Its SHA-256 and, if it is to `keep`, its bytes; None where it cannot be read."""
        hashed, kept = hashlib.sha256(), bytearray()
        try:
            async for chunk in self._storage.read([path]):
                hashed.update(chunk)
                self._looked.bytes += len(chunk)
                if keep:
                    kept += chunk
        except FileNotFoundError:
            self._looked.faults.append(Fault("missing", path, owner, digest))
            return None
        except (BaseError, OSError) as error:
            fault = Fault("unreadable", path, owner, digest, str(error))
            self._looked.faults.append(fault)
            return None
        self._looked.objects += 1
        return hashed.hexdigest(), bytes(kept)
