"""What can be done with adapters: add a version, deprecate, delete (`listing` shows them). Each
change is one transaction with its audit entry, then the hot-adapter cache is told. It knows rows
and storage; what is inside an adapter is the intake's business."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime

from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.audit.service import Details
from tenora_platform.auth import TenantContext
from tenora_platform.errors import (
    BadRequestError,
    ConflictError,
    NotFoundError,
)
from tenora_platform.ids import new_id
from tenora_platform.locks import lock
from tenora_platform.registry import repository
from tenora_platform.registry.forgetting import forget_content
from tenora_platform.registry.incoming import ReceivedWeights
from tenora_platform.registry.quota import check_names, check_storage
from tenora_platform.registry.repository import PENDING, SERVABLE
from tenora_platform.registry.reservations import end_reservation
from tenora_platform.registry.schemas import ADAPTER_NAME, AdapterVersion, VersionChange
from tenora_platform.registry.storage import AdapterStorage
from tenora_platform.registry.tables import AdapterRow, AdapterVersionRow
from tenora_platform.registry.views import version_view
from tenora_platform.state import AppState

VERSIONS_MAX = 1000  # of one adapter, over its life


class Registry:
    """The registry as one tenant's caller sees it."""

    def __init__(self, state: AppState, tenant: TenantContext) -> None:
        self._state = state
        self._tenant = tenant
        self._storage = AdapterStorage(
            state.objects,
            reserve_bytes=state.settings.disk_reserve,
            deleting=state.store.deleting,
        )
        self._resolver = state.resolver

    async def add_version(
        self, name: str, config: bytes, weights: ReceivedWeights
    ) -> AdapterVersion:
        """Keep the upload durably, then give it the next number under `name`, quarantined until it
        has been checked. Raises BadRequestError, ConflictError, TooLargeError, QuotaExceededError,
        StorageFullError."""
        version_id = weights.version_id or new_id("adv")
        staging_key, layer = f"staging/{version_id}", weights.draft_layer
        try:
            await self.check_room(name, weights)
            self._storage.require_room(2 * weights.all_bytes)  # while it is checked, and afterwards
            await self._storage.stage_config(staging_key, config)
            async with self._session() as session:
                adapter = await self._adapter_for_version(session, name, weights)
                row = AdapterVersionRow(
                    id=version_id,
                    tenant_id=self._tenant.tenant_id,
                    adapter_id=adapter.id,
                    number=adapter.next_version,
                    state="quarantined",
                    bytes=weights.all_bytes,
                    staging_key=staging_key,
                    upload_id=weights.upload_id,
                    weights_sha256=weights.sha256,
                    chat_template=weights.chat_template,
                    draft_layer_digest=layer and layer.digest,
                    draft_layer_bytes=layer and layer.bytes,
                    created_by=self._tenant.key_id,
                )
                adapter.next_version += 1
                session.add(row)
                await session.flush()
                await self._audit(
                    session,
                    "adapter_version.create",
                    row.id,
                    f"{adapter.name}@{row.number}",
                    after={
                        "state": row.state,
                        "bytes": row.bytes,
                        "sha256": row.weights_sha256,
                        **({"source": weights.source} if weights.source else {}),
                        **({"draft_layer": layer.digest} if layer else {}),
                    },
                )
                await session.refresh(row)
                view = version_view(adapter.name, row)
        except BaseException:
            await self._storage.discard_staged(staging_key)
            raise
        self._state.upload_waits.ring()
        return view

    async def check_room(self, name: str, weights: ReceivedWeights) -> None:
        """Raises what `add_version` would for the name and the plan's limits."""
        self._check_name(name)
        async with self._session() as session:
            await self._check_quota(session, name, weights)

    async def _adapter_for_version(
        self, session: AsyncSession, name: str, weights: ReceivedWeights
    ) -> AdapterRow:
        """The adapter of that name, made if it is the first version, and the upload claimed, if it
        was one. Serialised per tenant, so that two uploads cannot both take the last place."""
        tenant_id = self._tenant.tenant_id
        await lock(session, f"registry:{tenant_id}")
        if weights.version_id is not None:
            await end_reservation(session, weights.version_id)
        await self._check_quota(session, name, weights)
        if weights.upload_id and not await repository.claim_upload(session, weights.upload_id):
            raise ConflictError(
                "This upload has already been used, or no longer exists.", param="upload_id"
            )
        adapter = await repository.adapter_by_name(session, tenant_id, name, for_update=True)
        if adapter is None:
            adapter = AdapterRow(id=new_id("adp"), tenant_id=tenant_id, name=name, next_version=1)
            session.add(adapter)
            await session.flush()
        if adapter.next_version > VERSIONS_MAX:
            raise ConflictError(
                f"{name} has reached the maximum of {VERSIONS_MAX} versions. Use another name.",
                param="name",
            )
        return adapter

    async def _check_quota(
        self, session: AsyncSession, name: str, weights: ReceivedWeights
    ) -> None:
        # A resumable upload counts already.
        more = weights.all_bytes if weights.upload_id is None else weights.layer_bytes
        await check_storage(
            session, self._tenant, more, param="weights", besides=weights.version_id
        )
        await check_names(session, self._tenant, name)

    def _check_name(self, name: str) -> None:
        if re.fullmatch(ADAPTER_NAME[1:-1], name) is None:
            raise BadRequestError(
                "name must have 1 to 63 letters, digits, '.', '_' or '-', and start with a "
                "letter or digit.",
                param="name",
                code="invalid_value",
            )
        if name == self._base_model():
            raise BadRequestError(
                f"{name} is the base model's id; choose another name.",
                param="name",
                code="invalid_value",
            )

    def _base_model(self) -> str | None:
        return self._state.engine.model.id if self._state.engine_life.started else None

    async def get_version(self, name: str, number: int) -> AdapterVersion:
        """Raises NotFoundError. A revoked version can still be looked at."""
        async with self._session() as session:
            adapter = await self._require(session, name)
            return version_view(name, await _require_version(session, adapter, number))

    async def delete(self, name: str) -> str:
        """Revoke every version and free the name. Returns the adapter's id."""
        async with self._session() as session:
            adapter = await self._require(session, name, for_update=True)
            versions = await repository.versions_of(session, [adapter.id])
            before = {
                "versions": {row.number: row.state for row in versions},
                "aliases": {
                    row.alias: row.targets
                    for row in await repository.aliases_of(session, [adapter.id])
                },
            }
            for row in versions:
                await self._revoke(session, row)
            await repository.drop_aliases(session, adapter.id)
            adapter.deleted_at = datetime.now(UTC)
            await self._audit(session, "adapter.delete", adapter.id, name, before=before)
        await self._after_revoking(versions)
        return adapter.id

    async def delete_version(self, name: str, number: int) -> str:
        """Revoke one version; aliases pass over it from now on. Returns the version's id."""
        async with self._session() as session:
            adapter = await self._require(session, name, for_update=True)
            row = await _require_version(session, adapter, number)
            if row.state == "revoked":
                raise NotFoundError(f"{name}@{number} has already been deleted.", param="version")
            await self._revoke_one(session, adapter, row, "adapter_version.delete", None)
        await self._after_revoking([row])
        return row.id

    async def set_state(self, name: str, number: int, change: VersionChange) -> AdapterVersion:
        """`deprecated` still serves, and says so; `revoked` is as `delete_version`. What is so
        already stays. Raises NotFoundError, ConflictError for a version that does not serve."""
        async with self._session() as session:
            adapter = await self._require(session, name, for_update=True)
            row = await _require_version(session, adapter, number)
            before, state = row.state, change.state
            if before == state:
                return version_view(name, row)
            if state == "revoked":
                action = "adapter_version.revoke"
                await self._revoke_one(session, adapter, row, action, change.reason)
            elif before not in SERVABLE:
                raise ConflictError(
                    f"{name}@{number} is {before}; only an active or deprecated version can "
                    f"be made {state}.",
                    param="state",
                    code="version_not_serving",
                )
            else:
                row.state = state
                row.deprecated_at = datetime.now(UTC) if state == "deprecated" else None
                action = f"adapter_version.{'deprecate' if state == 'deprecated' else 'reinstate'}"
                await self._note_state(session, adapter, row, action, before, change.reason)
            await session.refresh(row)
            view = version_view(name, row)
        if state == "revoked":
            await self._after_revoking([row])
        else:
            await self._resolver.invalidate(self._tenant.tenant_id)
        return view

    async def _revoke_one(
        self,
        session: AsyncSession,
        adapter: AdapterRow,
        row: AdapterVersionRow,
        action: str,
        reason: str | None,
    ) -> None:
        before = row.state
        await self._revoke(session, row)
        await session.refresh(row)
        await self._note_state(session, adapter, row, action, before, reason)

    async def _note_state(
        self,
        session: AsyncSession,
        adapter: AdapterRow,
        row: AdapterVersionRow,
        action: str,
        before: str,
        reason: str | None,
    ) -> None:
        why = {} if reason is None else {"reason": reason}
        label, after = f"{adapter.name}@{row.number}", {"state": row.state, **why}
        await self._audit(session, action, row.id, label, before={"state": before}, after=after)

    async def _revoke(self, session: AsyncSession, row: AdapterVersionRow) -> None:
        states = (*SERVABLE, *PENDING, "rejected")
        now = datetime.now(UTC)
        await repository.move_state(session, row.id, "revoked", when=states, revoked_at=now)

    async def _after_revoking(self, versions: Sequence[AdapterVersionRow]) -> None:
        """New requests get 404 from here on; running ones finish, then the engine gives back
        memory and cached KV. Other processes' engines follow (see forgetting), and the stored
        content goes when nothing refers to it (see worker)."""
        await self._resolver.invalidate(self._tenant.tenant_id)
        self._state.upload_waits.ring()
        if not self._state.engine.ready:
            return
        for digest in {row.digest for row in versions if row.digest is not None}:
            await forget_content(self._state, self._tenant.tenant_id, digest)

    async def _require(
        self, session: AsyncSession, name: str, *, for_update: bool = False
    ) -> AdapterRow:
        row = await repository.adapter_by_name(
            session, self._tenant.tenant_id, name, for_update=for_update
        )
        if row is None:
            raise NotFoundError(f"There is no adapter named {name[:80]!r}.", param="name")
        return row

    def _session(self) -> AbstractAsyncContextManager[AsyncSession]:
        return self._state.db.tenant_session(self._tenant.tenant_id)

    async def _audit(
        self,
        session: AsyncSession,
        action: str,
        target: str,
        name: str,
        *,
        before: Details | None = None,
        after: Details | None = None,
    ) -> None:
        await self._state.audit.append(
            session,
            actor=self._tenant.actor,
            action=action,
            target=target,
            tenant_id=self._tenant.tenant_id,
            before=before,
            after=after,
            details={"name": name},
        )


async def _require_version(
    session: AsyncSession, adapter: AdapterRow, number: int
) -> AdapterVersionRow:
    # Larger numbers cannot exist and would not fit the column.
    row = await repository.version_of(session, adapter.id, number) if number < 2**31 else None
    if row is None:
        raise NotFoundError(f"{adapter.name} has no version {number}.", param="version")
    return row
