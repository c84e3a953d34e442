"""Turns keys and sessions into contexts, and remembers what it verified for a few seconds. It knows
keys, tenants and plans as rows, and no request."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any

import msgspec
import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_engine.sealing import Seal
from tenora_platform.budgets.tables import AccountBudgetRow
from tenora_platform.contexts import SCOPES, Caps, TenantContext, plan_terms
from tenora_platform.db import Database, enter_tenant
from tenora_platform.epochs import epoch_of, new_epoch
from tenora_platform.errors import ForbiddenError, UnauthorizedError
from tenora_platform.kept_keys import good_until, has_passed, note_use, of_prefix, verified
from tenora_platform.keys import hash_key, key_prefix
from tenora_platform.operators.keys import AdminKeys
from tenora_platform.operators.roles import AdminContext
from tenora_platform.people.choice import chosen_tenant, operator_role
from tenora_platform.people.rights import MemberRole, role_may
from tenora_platform.people.sessions import Sessions, SignedIn
from tenora_platform.receipts.tables import TenantSettingsRow
from tenora_platform.secret import ServerSecret
from tenora_platform.single_flight import SingleFlight
from tenora_platform.tenants.key_families import parents_of
from tenora_platform.tenants.tables import ApiKeyRow, PlanRow, TenantRow

_EPOCH = "tenora:auth:epoch"  # with a tenant's id behind it, the tenant's own
_LOOK_UP_S = 60
"""Longer than any look-up in the database lasts."""
_SEALED = "identity"
_HINTS_MAX = 20_000
"""Keys and sessions of which a process knows whose they are."""
_log = structlog.get_logger(__name__)


class _Epochs(msgspec.Struct, frozen=True):
    """Up to when what is remembered is good: everybody's, and the tenant's own."""

    every: bytes
    own: bytes


class _Known(msgspec.Struct, frozen=True):
    """A verified key or session as Redis keeps it, sealed. Good while the epochs are still the
    current ones."""

    epochs: _Epochs
    expires_at: datetime | None
    context: TenantContext


def tenant_namespace(secret: ServerSecret, tenant_id: str, trust_group: str | None) -> str:
    """The namespace under which a tenant's KV is cached; only a trust group shares one."""
    owner = f"group:{trust_group}" if trust_group else f"tenant:{tenant_id}"
    return secret.mac("kv-namespace", owner)[:32]


class Authenticator:
    """Turns keys into contexts. A verified key is remembered in Redis for a few seconds; every
    change that could make it wrong calls `invalidate` after its commit, for the tenants that it is
    about."""

    def __init__(
        self,
        *,
        db: Database,
        redis: Redis,
        secret: ServerSecret,
        seal: Seal,
        admins: AdminKeys,
        sessions: Sessions,
        cache_s: int,
    ) -> None:
        self.admins = admins
        self.sessions = sessions
        self._db = db
        self._redis = redis
        self._secret = secret
        self._seal = seal
        self._cache_s = cache_s
        self._flights: SingleFlight[TenantContext] = SingleFlight()
        self._owners: SingleFlight[str] = SingleFlight()
        self._hints: OrderedDict[str, str] = OrderedDict()  # whose epoch to ask for, by digest

    async def tenant(self, token: str) -> TenantContext:
        """Raises UnauthorizedError for a key that is unknown, revoked or expired and
        ForbiddenError for one of a suspended tenant."""
        prefix = key_prefix(token)
        if prefix is None:
            raise UnauthorizedError("Invalid API key.")
        digest = hash_key(token, self._secret)

        async def whose() -> str:
            return await self._owners.run(digest, lambda: self._owner(prefix, digest))

        return await self._remembered(digest, whose, lambda: self._of_key(prefix, digest))

    async def tenant_of_session(
        self, token: str, wanted: str | None, *, is_use: bool = True
    ) -> TenantContext:
        """The tenant of a key's session; of a person's the one that is `wanted`, or the only one.
        Raises UnauthorizedError for a session that is over, or its key; ForbiddenError where there
        is none; BadRequestError where there are several."""
        # Use is noted where the database is asked: what is remembered without use is not used.
        which = f"{hash_key(wanted or '', self._secret)}:{int(is_use)}"
        digest = f"{self.sessions.hash_of(token)}:{which}"
        over = _over_key(self.sessions.hash_of(token))

        async def whose() -> str:
            return chosen_tenant(await self.sessions.find(token, is_use=is_use), wanted)[0]

        return await self._remembered(
            digest, whose, lambda: self._of_session(token, wanted, is_use), over
        )

    async def admin_of_session(self, token: str, *, is_use: bool = True) -> AdminContext:
        """Asks the database each time, as AdminKeys does. Raises UnauthorizedError for a session
        that is over, or its key, and ForbiddenError for one that is not the operator's."""
        signed = await self.sessions.find(token, is_use=is_use)
        if signed.admin_key_id is None:
            return AdminContext(
                key_id=str(signed.person_id), role=operator_role(signed), is_person=True
            )
        async with self._db.admin_session() as session:
            return await self.admins.of_id(session, signed.admin_key_id, signed.key_prefix)

    async def require_key(self, signed: SignedIn) -> None:
        """Raises UnauthorizedError for a session whose key, or that secret of it, has ended."""
        async with self._db.admin_session() as session:
            if signed.admin_key_id is not None:
                await self.admins.still(session, signed.admin_key_id, signed.key_prefix)
            elif signed.api_key_id is not None:
                key = await session.get_one(ApiKeyRow, signed.api_key_id)
                good_until(key, signed.key_prefix)
                await parents_of(session, key)

    async def _remembered(
        self,
        digest: str,
        whose: Callable[[], Awaitable[str]],
        look_up: Callable[[], Awaitable[tuple[TenantContext, datetime | None]]],
        over: str | None = None,
    ) -> TenantContext:
        """What `look_up` says, or said a few seconds ago if nothing was changed since: neither the
        epochs nor, of a session, the key that is set when it ends. `whose` is asked for the tenant
        where this process has not seen the key yet."""
        try:
            tenant_id, epochs, known = await self._recall(digest, whose, over)
        except RedisError as error:
            _log.warning("key cache not reachable", reason=str(error))
            return (await look_up())[0]
        if epochs is None:
            return (await look_up())[0]
        if known is not None and known.epochs == epochs and not has_passed(known.expires_at):
            return known.context

        async def verify() -> TenantContext:
            context, expires_at = await look_up()
            if context.tenant_id == tenant_id:
                # The epochs were read before the rows were: a change in between has raised one.
                await self._remember(digest, _Known(epochs, expires_at, context))
            else:  # a session, which is for another tenant by now
                self._hints.pop(digest, None)
            return context

        # Requests come in bursts: one looks the key up for all that read the same epochs, none of
        # which can have come after a change that the look-up does not see.
        return await self._flights.run((digest, epochs), verify)

    async def _owner(self, prefix: str, digest: str) -> str:
        """The key's tenant, which stays the same. Raises UnauthorizedError."""
        async with self._db.key_session(prefix) as session:
            keys = await session.scalars(select(ApiKeyRow).where(of_prefix(ApiKeyRow, prefix)))
            return verified(keys, digest)[0].tenant_id

    async def _of_key(self, prefix: str, digest: str) -> tuple[TenantContext, datetime | None]:
        async with self._db.key_session(prefix) as session:
            return await self._look_up(session, prefix, digest)

    async def _of_session(
        self, token: str, wanted: str | None, is_use: bool
    ) -> tuple[TenantContext, datetime | None]:
        signed = await self.sessions.find(token, is_use=is_use)
        tenant_id, role = chosen_tenant(signed, wanted)
        async with self._db.tenant_session(tenant_id) as session:
            until: datetime | None = signed.good_until
            if role is not None:
                return await self._of_person(session, str(signed.person_id), role), until
            key = (
                await session.scalars(select(ApiKeyRow).where(ApiKeyRow.id == signed.api_key_id))
            ).one()
            prefix = str(signed.key_prefix)
            until = min(filter(None, (until, good_until(key, prefix))))
            return await self._of_row(session, key, prefix), until

    async def invalidate(self, *tenant_ids: str) -> None:
        """Forget the remembered keys and sessions of these tenants, everywhere, now; with none
        named, everybody's. An epoch cannot be missed by a look-up that is under way."""
        try:
            async with self._redis.pipeline(transaction=False) as pipe:
                for each in tenant_ids:  # it outlives what was remembered before, and look-ups
                    pipe.set(_epoch_key(each), new_epoch(), ex=self._cache_s + _LOOK_UP_S)
                if not tenant_ids:
                    pipe.set(_EPOCH, new_epoch())
                await pipe.execute()
        except RedisError as error:
            _log.warning(
                "cached keys could not be invalidated", reason=str(error), stale_s=self._cache_s
            )

    async def commit_change(self, session: AsyncSession, *tenant_ids: str) -> None:
        """Commit now, then forget as `invalidate`: a look-up between the two would remember the old
        row again."""
        await session.commit()
        await self.invalidate(*tenant_ids)

    async def commit_ended(self, session: AsyncSession, hashes: Sequence[str]) -> None:
        """Commit, then forget sessions that have ended, and nobody else's. Their marks outlive a
        look-up that read the row before."""
        await session.commit()
        if not hashes:
            return
        try:
            async with self._redis.pipeline(transaction=False) as pipe:
                for each in hashes:
                    pipe.set(_over_key(each), 1, ex=self._cache_s + _LOOK_UP_S)
                await pipe.execute()
        except RedisError as error:
            _log.warning(
                "sessions could not be forgotten", reason=str(error), stale_s=self._cache_s
            )

    async def _look_up(
        self, session: AsyncSession, prefix: str, digest: str
    ) -> tuple[TenantContext, datetime | None]:
        keys = await session.scalars(select(ApiKeyRow).where(of_prefix(ApiKeyRow, prefix)))
        key, until = verified(keys, digest)
        await enter_tenant(session, key.tenant_id)
        return await self._of_row(session, key, prefix), until

    async def _of_row(self, session: AsyncSession, key: ApiKeyRow, prefix: str) -> TenantContext:
        base = await self._base(session)
        await note_use(session, key)
        return TenantContext(
            **base,
            key_id=key.id,
            key_prefix=prefix,
            scopes=tuple(key.scopes),
            key_caps=Caps(**key.limits),
            parents=await parents_of(session, key),
            key_models=None if key.models is None else tuple(key.models),
        )

    async def _of_person(
        self, session: AsyncSession, person_id: str, role: MemberRole
    ) -> TenantContext:
        scopes = tuple(scope for scope in SCOPES if role_may(role, scope, reads=False))
        return TenantContext(
            **await self._base(session), key_id=person_id, scopes=scopes, role=role
        )

    async def _base(self, session: AsyncSession) -> dict[str, Any]:
        """What a context says of the session's tenant, whoever asks. Raises ForbiddenError for a
        suspended one."""
        found = await session.execute(
            select(TenantRow, PlanRow, TenantSettingsRow, AccountBudgetRow)
            .join(PlanRow, PlanRow.name == TenantRow.plan)
            .outerjoin(TenantSettingsRow, TenantSettingsRow.tenant_id == TenantRow.id)
            .outerjoin(AccountBudgetRow, AccountBudgetRow.tenant_id == TenantRow.id)
        )
        tenant, plan, chosen, budget = found.one()
        if tenant.status != "active":
            error = ForbiddenError(
                "This tenant is suspended. Ask the operator of this server.",
                code="tenant_suspended",
            )
            error.tenant_id = tenant.id
            raise error
        return {
            "tenant_id": tenant.id,
            "name": tenant.name,
            "plan": plan_terms(plan),
            "prepaid": tenant.prepaid,
            "account_cap": budget.amount if budget is not None and budget.hard else None,
            "account_currency": None if budget is None else budget.currency,
            "keeps_contents": chosen is not None and chosen.keep_contents_days is not None,
            "stores_responses": plan.stored_responses
            and chosen is not None
            and chosen.stored_response_days is not None,
            "keeps_answers": chosen is not None and chosen.draft_from_answers,
            "namespace": tenant_namespace(self._secret, tenant.id, tenant.trust_group),
        }

    async def _recall(
        self, digest: str, whose: Callable[[], Awaitable[str]], over: str | None
    ) -> tuple[str, _Epochs | None, _Known | None]:
        """Whose it is, the current epochs (None: nothing is remembered) and what is remembered.
        Raises RedisError, and what `whose` raises."""
        if self._cache_s == 0:
            return "", None, None
        tenant_id = self._hints.get(digest)
        keys = [_EPOCH, _epoch_key(tenant_id or ""), _cache_key(digest)]
        every, own, raw, *is_over = await self._redis.mget([*keys, *filter(None, [over])])
        known = self._opened(digest, raw) if is_over in ([], [None]) else None
        if tenant_id is None or (known is not None and known.context.tenant_id != tenant_id):
            tenant_id = await whose() if known is None else known.context.tenant_id
            (own,) = await self._redis.mget([_epoch_key(tenant_id)])
            self._hints[digest] = tenant_id
            if len(self._hints) > _HINTS_MAX:
                self._hints.popitem(last=False)
        return tenant_id, _Epochs(epoch_of(every), epoch_of(own)), known

    def _opened(self, digest: str, raw: bytes | str | None) -> _Known | None:
        """None too for what is not ours, which the next look-up replaces."""
        content = self._seal.open(_SEALED, digest, raw)
        try:
            return None if content is None else msgspec.msgpack.decode(content, type=_Known)
        except msgspec.MsgspecError:  # of another version
            return None

    async def _remember(self, digest: str, known: _Known) -> None:
        raw = self._seal.close(_SEALED, digest, msgspec.msgpack.encode(known), self._cache_s)
        try:
            await self._redis.set(_cache_key(digest), raw, ex=self._cache_s)
        except RedisError as error:
            _log.warning("key cache could not be written", reason=str(error))


def _epoch_key(tenant_id: str) -> str:
    return f"{_EPOCH}:{tenant_id}"


def _over_key(session_hash: str) -> str:
    return f"tenora:auth:over:{session_hash}"


def _cache_key(digest: str) -> str:
    return f"tenora:auth:key:{digest}"
