"""What can be done to a tenant's API keys, each change audited in its own transaction. Who may call
it is the routes' matter, as is forgetting remembered keys."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.asking import take
from tenora_platform.audit.service import AuditLog
from tenora_platform.auth import SCOPES
from tenora_platform.errors import BadRequestError, ConflictError, ForbiddenError, NotFoundError
from tenora_platform.events import repository as events
from tenora_platform.ids import new_id
from tenora_platform.kept_keys import (
    end_previous,
    new_secret,
    only_previous_is_known_to,
    require_future,
    rotate,
    told,
)
from tenora_platform.secret import ServerSecret
from tenora_platform.tenants import repository
from tenora_platform.tenants.key_families import children_of, lineage_from, made_by
from tenora_platform.tenants.key_listing import Wanted, list_keys
from tenora_platform.tenants.key_terms import KeyTerms, require_within
from tenora_platform.tenants.schemas import (
    ApiKey,
    ApiKeyChange,
    ApiKeyCreate,
    ApiKeyPage,
    KeyLimits,
    NewApiKey,
)
from tenora_platform.tenants.tables import ApiKeyRow
from tenora_platform.webhooks.repository import leading_where_said
from tenora_platform.webhooks.service import disable_made_by


@dataclass(frozen=True, slots=True)
class EndedKeys:
    """The ids of keys that ended, and how many webhook endpoints were disabled with them."""

    ids: list[str]
    webhook_endpoints: int = 0


class ApiKeyService:
    """One tenant's keys, for the operator (`asker_id` None) or for one of these keys, which gives
    no more than it has. Works inside one session; commits nothing itself."""

    def __init__(
        self,
        session: AsyncSession,
        *,
        tenant_id: str,
        audit: AuditLog,
        secret: ServerSecret,
        actor: str,
        asker_id: str | None = None,
    ) -> None:
        self._session = session
        self.tenant_id = tenant_id
        self._audit = audit
        self._secret = secret
        self._actor = actor
        self._asker_id = asker_id

    async def page(self, wanted: Wanted) -> ApiKeyPage:
        rows = await list_keys(self._session, self.tenant_id, wanted)
        return ApiKeyPage.of([ApiKey.model_validate(row) for row in rows], wanted.limit)

    async def get(self, key_id: str) -> ApiKey:
        """Raises NotFoundError."""
        return ApiKey.model_validate(await self._row(key_id))

    async def create(self, body: ApiKeyCreate) -> NewApiKey:
        """What the body leaves open is as the asking key has it. Raises BadRequestError for an
        expiry in the past and for anything beyond the asking key."""
        require_future(body.expires_at)
        lineage = await lineage_from(self._session, self.tenant_id, self._asker_id)
        own = await self._own_terms()
        scopes = body.scopes or (own.scopes if own else SCOPES)
        models = body.models or (own.models if own else None)
        given = body.limits.model_dump(exclude_unset=True, exclude_none=True) if body.limits else {}
        terms = KeyTerms(
            scopes=_once_each(scopes),
            models=None if models is None else _once_each(models),
            limits=KeyLimits().model_dump() | (dict(own.limits) if own else {}) | given,
            expires_at=body.expires_at or (own.expires_at if own else None),
        )
        require_within(terms, own)
        new, kept = new_secret("tn", self._secret)
        row = ApiKeyRow(
            **kept,
            id=new_id("key"),
            tenant_id=self.tenant_id,
            name=body.name,
            created_by=self._actor,
            lineage=lineage,
            **_columns(terms),
        )
        self._session.add(row)
        await self._session.flush()
        await self._session.refresh(row)
        await self._note("api_key.create", row, before=None)
        await events.add(
            self._session,
            tenant_id=self.tenant_id,
            type="key.created",
            once=row.id,
            data={"id": row.id, "name": row.name, "prefix": row.prefix, "scopes": row.scopes},
        )
        return _shown_once(row, new.text)

    async def change(self, key_id: str, body: ApiKeyChange) -> tuple[ApiKey, list[str]]:
        """What is absent stays, within `limits` too; the keys that come from it lose what it loses,
        and those that nothing is left to are revoked: their ids. Raises NotFoundError;
        ConflictError for a revoked key; BadRequestError for a null that may not be, for an expiry
        in the past, for anything given that is beyond the asking key, and for giving anything to a
        key that is."""
        await take(self._session, self.tenant_id)
        row = await self._row(key_id, lock=True)
        await self._lock_what_follows(row)
        if row.revoked_at is not None:
            raise ConflictError("This key has been revoked; create a new one.", code="key_ended")
        changes = body.model_dump(exclude_unset=True)
        for name in ("name", "scopes"):
            if name in changes and changes[name] is None:
                raise BadRequestError(f"{name} cannot be null.", param=name)
        require_future(changes.get("expires_at"))
        for name in ("scopes", "models"):
            if changes.get(name):
                changes[name] = _once_each(changes[name])
        fields = {name for name in changes if name != "limits"}
        limits = changes.pop("limits", {})
        if limits is None:
            limits = KeyLimits().model_dump()
        fields |= {f"limits.{name}" for name in limits}
        before, was = told(row), _terms(row)
        own = await self._own_terms()  # read first: it may be the same key
        for name, value in (changes | limits).items():
            setattr(row, name, value)
        gains = any(_terms(row).beyond(was))
        require_within(_terms(row), own, None if gains else fields)
        await self._note("api_key.update", row, before)
        if not any(was.beyond(_terms(row))):
            return ApiKey.model_validate(row), []
        family = [row, *await self._children(row)]
        ended = await self._narrow_children(row)
        # Of whoever may make none any more, as of who has ended.
        lost = [each.id for each in family if "keys" not in each.scopes or each.id in ended]
        await self._disable_webhooks(lost)
        return ApiKey.model_validate(row), ended

    async def rotate(
        self, key_id: str, overlap_s: int, *, revoke_keys: bool = True
    ) -> tuple[NewApiKey, list[str], list[str]]:
        """The key with a new secret, the prefixes of the secrets that ended now, and the ids of the
        keys that ended. Without an overlap the secret so far is one that somebody else may have:
        the keys that come from the key end, and its webhooks and theirs are disabled, unless not
        `revoke_keys`. Raises NotFoundError; ConflictError where there is nothing to rotate;
        ForbiddenError for a key that does not come from the asking one: it would have its secret,
        and keep it when it ends."""
        await take(self._session, self.tenant_id)
        row = await self._row(key_id, lock=True)
        await self._lock_what_follows(row)
        if self._asker_id not in (None, row.id, *row.lineage):
            raise ForbiddenError(
                "A key can rotate itself and the keys that come from it. Rotate this one with "
                "itself, as an owner of the tenant, or as the operator.",
                code="not_own_key",
            )
        require_within(_terms(row), await self._own_terms())
        before = told(row)
        new, kept = new_secret("tn", self._secret)
        so_far = {row.prefix, row.previous_prefix} - {None}
        rotate(row, kept, timedelta(seconds=overlap_s), self._actor)
        await self._note("api_key.rotate", row, before)
        ended = sorted(str(prefix) for prefix in so_far - {row.previous_prefix})
        if overlap_s or not revoke_keys:
            return _shown_once(row, new.text), ended, []
        children = await self._end_children(row)
        await self._disable_webhooks([row.id, *children])
        return _shown_once(row, new.text), ended, children

    async def revoke(self, key_id: str, *, disable_webhooks: bool = True) -> EndedKeys:
        """Ends the key and all that come from it, the first of the ids is its own; the webhooks
        that lead where any of them said are disabled, unless not `disable_webhooks`. Once more is
        no error. Raises NotFoundError."""
        await take(self._session, self.tenant_id)
        row = await self._row(key_id, lock=True)
        await self._lock_what_follows(row)
        ended = [row.id, *await self._end_children(row)]
        if row.revoked_at is None:
            await self._end(row)
        disabled = await self._disable_webhooks(ended) if disable_webhooks else 0
        return EndedKeys(ended, disabled)

    async def revoke_made_by(self, maker: str, *, within: Collection[str] = ()) -> list[str]:
        """Ends the keys that this actor created, or has by a rotation, and that have any scope
        outside of `within`: their ids, with those of the keys that come from them. Where somebody
        else has rotated such a key since, the secret before that one is what ends."""
        await take(self._session, self.tenant_id)
        ended: list[str] = []
        for row in await made_by(self._session, self.tenant_id, maker):
            if set(row.scopes) <= set(within):
                continue
            if only_previous_is_known_to(row, {maker}):
                before = told(row)
                end_previous(row)
                await self._note("api_key.update", row, before)
            else:
                ended += (await self.revoke(row.id)).ids
        return ended

    async def _lock_what_follows(self, row: ApiKeyRow) -> None:
        """The keys that come from it and their webhooks: rows are locked before anything is
        audited (decision 56)."""
        family = [row, *await self._children(row)]
        makers = [f"api_key:{each.id}" for each in family]
        await leading_where_said(self._session, self.tenant_id, makers)

    async def _children(self, row: ApiKeyRow) -> list[ApiKeyRow]:
        return await children_of(self._session, self.tenant_id, row.id)

    async def _end_children(self, row: ApiKeyRow) -> list[str]:
        children = await self._children(row)
        for child in children:
            await self._end(child, parent=row.id)
        return [child.id for child in children]

    async def _disable_webhooks(self, key_ids: Sequence[str]) -> int:
        """Whose events would still go where a key said that is no longer good for it."""
        makers = [f"api_key:{each}" for each in key_ids]
        return await disable_made_by(
            self._session, self._audit, makers, tenant_id=self.tenant_id, actor=self._actor
        )

    async def _end(self, row: ApiKeyRow, *, parent: str | None = None) -> None:
        before = told(row)
        row.revoked_at = datetime.now(UTC)
        await self._note("api_key.revoke", row, before, parent=parent)

    async def _narrow_children(self, row: ApiKeyRow) -> list[str]:
        ended = []
        for child in await self._children(row):
            left = _terms(child).within(_terms(row))
            if left is None:
                await self._end(child, parent=row.id)
                ended.append(child.id)
            elif left != _terms(child):
                before = told(child)
                for name, value in _columns(left).items():
                    setattr(child, name, value)
                await self._note("api_key.update", child, before, parent=row.id)
        return ended

    async def _row(self, key_id: str, *, lock: bool = False) -> ApiKeyRow:
        row = await repository.get_key(self._session, self.tenant_id, key_id, lock=lock)
        if row is None:
            raise NotFoundError(f"There is no API key {key_id!r}.")
        return row

    async def _own_terms(self) -> KeyTerms | None:
        """Of the asking key, as they are now; None: the operator's."""
        return None if self._asker_id is None else _terms(await self._row(self._asker_id))

    async def _note(
        self,
        action: str,
        row: ApiKeyRow,
        before: dict[str, object] | None,
        *,
        parent: str | None = None,
    ) -> None:
        """`parent`: the key whose change this follows from."""
        await self._audit.append(
            self._session,
            actor=self._actor,
            action=action,
            target=row.id,
            tenant_id=self.tenant_id,
            before=before,
            after=told(row),
            details=None if parent is None else {"parent": parent},
        )


def _once_each(names: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(names))


def _terms(row: ApiKeyRow) -> KeyTerms:
    return KeyTerms(
        scopes=list(row.scopes),
        models=None if row.models is None else list(row.models),
        limits=row.limits,
        expires_at=row.expires_at,
    )


def _columns(terms: KeyTerms) -> dict[str, Any]:
    return {
        "scopes": terms.scopes,
        "models": terms.models,
        "expires_at": terms.expires_at,
        **terms.limits,
    }


def _shown_once(row: ApiKeyRow, secret: str) -> NewApiKey:
    return NewApiKey(**ApiKey.model_validate(row).model_dump(), key=secret)
