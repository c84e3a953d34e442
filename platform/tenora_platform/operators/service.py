"""What can be done to admin keys, each change audited in its own transaction. Who may do it is the
routes' matter."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.audit.service import AuditLog
from tenora_platform.errors import ConflictError, NotFoundError
from tenora_platform.ids import new_id
from tenora_platform.kept_keys import new_secret, require_future, rotate, told
from tenora_platform.operators import repository
from tenora_platform.operators.keys import AdminKeys
from tenora_platform.operators.roles import AdminContext
from tenora_platform.operators.schemas import AdminKey, AdminKeyCreate, AdminKeyPage, NewAdminKey
from tenora_platform.operators.tables import AdminKeyRow
from tenora_platform.people.authority import withdraw
from tenora_platform.secret import ServerSecret


class AdminKeyService:
    """Works inside one session; commits nothing itself."""

    def __init__(
        self,
        session: AsyncSession,
        *,
        keys: AdminKeys,
        audit: AuditLog,
        secret: ServerSecret,
        admin: AdminContext,
    ) -> None:
        self._session = session
        self._keys = keys
        self._audit = audit
        self._secret = secret
        self._actor = admin.actor

    async def page(self, after: str | None, limit: int) -> AdminKeyPage:
        """Newest first; the configured keys close the list, on its last page."""
        configured = self._configured()
        rows: list[AdminKeyRow] = []
        if after not in {key.id for key in configured}:
            rows = await repository.list_keys(self._session, after=after, limit=limit)
        else:
            configured = configured[[key.id for key in configured].index(str(after)) + 1 :]
        return AdminKeyPage.of([*map(AdminKey.model_validate, rows), *configured], limit)

    async def get(self, key_id: str) -> AdminKey:
        """Raises NotFoundError."""
        configured = next((key for key in self._configured() if key.id == key_id), None)
        return configured or AdminKey.model_validate(await self._row(key_id))

    async def create(self, body: AdminKeyCreate) -> NewAdminKey:
        """Raises BadRequestError for an expiry in the past."""
        require_future(body.expires_at)
        new, kept = new_secret("tna", self._secret)
        row = AdminKeyRow(
            id=new_id("adminkey"),
            name=body.name,
            role=body.role,
            expires_at=body.expires_at,
            created_by=self._actor,
            **kept,
        )
        self._session.add(row)
        await self._session.flush()
        await self._session.refresh(row)
        await self._note("admin_key.create", row, before=None)
        return _shown_once(row, new.text)

    async def rotate(self, key_id: str, overlap_s: int) -> NewAdminKey:
        """Raises NotFoundError, and ConflictError where there is nothing to rotate."""
        await repository.lock_owners(self._session)
        row = await self._row(key_id)
        before = told(row)
        new, kept = new_secret("tna", self._secret)
        rotate(row, kept, timedelta(seconds=overlap_s))
        await self._note("admin_key.rotate", row, before)
        await self._withdraw([row])
        return _shown_once(row, new.text)

    async def revoke(self, key_id: str) -> None:
        """Ends the key with the keys and the open invitations that it made; once more is no error.
        Raises NotFoundError, and ConflictError for a configured key and for the last owner's."""
        await repository.lock_owners(self._session)
        row = await self._row(key_id)
        if row.revoked_at is not None:
            return
        ended = [row, *await repository.made_by(self._session, [f"admin_key:{row.id}"])]
        await self._end(ended)

    async def revoke_made_by(self, maker: str) -> None:
        """Ends the keys that this actor created, as `revoke` does each."""
        await repository.lock_owners(self._session)
        await self._end(await repository.made_by(self._session, [maker]))

    async def _end(self, ended: list[AdminKeyRow]) -> None:
        if any(row.role == "owner" for row in ended) and not await self._has_other_owner(ended):
            raise ConflictError(
                "This is the last owner's key that does not expire. Create another owner's "
                "key first.",
                code="last_owner",
            )
        for row in ended:
            before = told(row)
            row.revoked_at = datetime.now(UTC)
            await self._note("admin_key.revoke", row, before)
        await self._withdraw(ended)

    async def _withdraw(self, ended: list[AdminKeyRow]) -> None:
        """The open invitations that the keys may not make any more."""
        await self._session.flush()
        makers = [f"admin_key:{row.id}" for row in ended]
        await withdraw(
            self._session, self._audit, self._keys, makers, tenant_id=None, actor=self._actor
        )

    async def _has_other_owner(self, without: list[AdminKeyRow]) -> bool:
        others = await repository.has_other_owner(self._session, {row.id for row in without})
        return others or bool(self._keys.configured_ids)

    def _configured(self) -> list[AdminKey]:
        return [
            AdminKey(id=key_id, name="configured", role="owner", source="configured")
            for key_id in sorted(self._keys.configured_ids, reverse=True)
        ]

    async def _row(self, key_id: str) -> AdminKeyRow:
        if key_id in self._keys.configured_ids:
            raise ConflictError(
                "This admin key comes from the server's configuration (TENORA_ADMIN_KEY, or the "
                "file in its data directory). Change it there and restart the server.",
                code="configured_admin_key",
            )
        row = await repository.get_key(self._session, key_id)
        if row is None:
            raise NotFoundError(f"There is no admin key {key_id!r}.")
        return row

    async def _note(self, action: str, row: AdminKeyRow, before: dict[str, object] | None) -> None:
        await self._audit.append(
            self._session,
            actor=self._actor,
            action=action,
            target=row.id,
            before=before,
            after=told(row),
        )


def _shown_once(row: AdminKeyRow, secret: str) -> NewAdminKey:
    return NewAdminKey(**AdminKey.model_validate(row).model_dump(), key=secret)
