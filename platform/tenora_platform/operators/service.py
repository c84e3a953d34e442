"""What can be done to admin keys, each change audited in its own transaction. Who may do it is the
routes' matter."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.audit.service import AuditLog
from tenora_platform.errors import BadRequestError, ConflictError, NotFoundError
from tenora_platform.ids import new_id
from tenora_platform.kept_keys import end_previous, new_secret, require_future, rotate, told
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
        self._admin = admin
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
        """A key that expires makes none that lasts longer: an absent expiry is its own. Raises
        BadRequestError for one in the past, and for a later one."""
        require_future(body.expires_at)
        own_end = await self._own_end()
        if body.expires_at is not None:
            _require_within(body.expires_at, own_end)
        new, kept = new_secret("tna", self._secret)
        row = AdminKeyRow(
            id=new_id("adminkey"),
            name=body.name,
            role=body.role,
            expires_at=body.expires_at or own_end,
            created_by=self._actor,
            **kept,
        )
        self._session.add(row)
        await self._session.flush()
        await self._session.refresh(row)
        await self._note("admin_key.create", row, before=None)
        return _shown_once(row, new.text)

    async def rotate(
        self, key_id: str, overlap_s: int, *, revoke_keys: bool = True
    ) -> tuple[NewAdminKey, list[str]]:
        """Without an overlap the secret so far is one that somebody else may have: the keys that
        the key made end, unless not `revoke_keys`. Returns with the key whose work ended, as
        `revoke`. Raises NotFoundError; ConflictError where there is nothing to rotate;
        BadRequestError for a key that lasts longer than the asking one, which would have it."""
        await repository.lock_owners(self._session)
        row = await self._row(key_id)
        if row.id != self._admin.key_id:
            _require_within(row.expires_at, await self._own_end())
        before = told(row)
        new, kept = new_secret("tna", self._secret)
        rotate(row, kept, timedelta(seconds=overlap_s), self._actor)
        await self._note("admin_key.rotate", row, before)
        await self._withdraw([row])
        if overlap_s or not revoke_keys:
            return _shown_once(row, new.text), []
        makers = [f"admin_key:{row.id}"]
        made = await repository.made_by(self._session, makers)
        await self._end([each for each in made if each.id != row.id])
        return _shown_once(row, new.text), [*makers, *_makers(made)]

    async def revoke(self, key_id: str) -> list[str]:
        """Ends the key with the keys and the open invitations that it made; once more is no error.
        Returns who cannot act any more, as the audit log names them. Raises NotFoundError, and
        ConflictError for a configured key and for the last owner's."""
        await repository.lock_owners(self._session)
        row = await self._row(key_id)
        if row.revoked_at is not None:
            return []
        made = await repository.made_by(self._session, [f"admin_key:{row.id}"])
        ended = [row, *(each for each in made if each.id != row.id)]
        await self._end(ended)
        return _makers(ended)

    async def revoke_made_by(self, maker: str) -> list[str]:
        """Ends the keys that this actor created, or has by a rotation, as `revoke` does each; of
        keys that somebody else has rotated since, the secret before. Returns as `revoke`."""
        await repository.lock_owners(self._session)
        ended = await repository.made_by(self._session, [maker])
        await self._end(ended)
        for row in await repository.half_known_to(self._session, maker):
            before = told(row)
            end_previous(row)
            await self._note("admin_key.update", row, before)
        return _makers(ended)

    async def _own_end(self) -> datetime | None:
        """Until when the asking key is good; None: for ever, as a person and a configured key."""
        if self._admin.is_person or self._admin.key_prefix is None:
            return None
        row = await self._session.get_one(AdminKeyRow, self._admin.key_id)
        return row.expires_at

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


def _makers(rows: list[AdminKeyRow]) -> list[str]:
    return [f"admin_key:{row.id}" for row in rows]


def _require_within(expires_at: datetime | None, own_end: datetime | None) -> None:
    if own_end is not None and (expires_at is None or expires_at > own_end):
        raise BadRequestError(
            "expires_at exceeds that of the admin key that sent this request.",
            param="expires_at",
            code="beyond_own_key",
        )


def _shown_once(row: AdminKeyRow, secret: str) -> NewAdminKey:
    return NewAdminKey(**AdminKey.model_validate(row).model_dump(), key=secret)
