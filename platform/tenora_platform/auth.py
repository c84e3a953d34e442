"""Who is asking: a bearer key becomes a TenantContext or an AdminContext. It knows keys, tenants
and plans as rows; what a caller may do with them is for each route to say (`require_scope`,
`require_role`)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any, Literal, TypeVar, get_args

import msgspec
import structlog
from fastapi import Depends, Request
from redis.asyncio import Redis
from redis.exceptions import RedisError
from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_engine.request import LateAction, Tenant
from tenora_platform.db import Database, enter_tenant
from tenora_platform.edge import BeforeBody
from tenora_platform.errors import ForbiddenError, UnauthorizedError
from tenora_platform.kept_keys import has_passed, note_use, of_prefix, verified
from tenora_platform.keys import hash_key, key_prefix
from tenora_platform.operators.keys import AdminKeys
from tenora_platform.operators.roles import AdminContext, Role
from tenora_platform.outages import first_line
from tenora_platform.receipts.tables import TenantSettingsRow
from tenora_platform.secret import ServerSecret
from tenora_platform.single_flight import SingleFlight
from tenora_platform.tenants.tables import ApiKeyRow, PlanRow, TenantRow

Scope = Literal["inference", "adapters", "usage", "keys"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
Tier = Literal["priority", "default", "flex"]
BudgetAction = Literal["refuse", "degrade"]

AnswerT = TypeVar("AnswerT")

_EPOCH = "tenora:auth:epoch"
_log = structlog.get_logger(__name__)


class Caps(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan, or one key within it, allows. None means not limited."""

    requests_per_min: int | None = None
    tokens_per_min: int | None = None
    parallel_requests: int | None = None
    budget: Decimal | None = None  # per month, in the currency of the price list
    budget_day: Decimal | None = None
    budget_soft: float | None = None  # 0 to 1: the part of a budget from which on it tells
    budget_action: BudgetAction = "refuse"  # degrade: what comes then is served as flex


class PlanTerms(Caps, frozen=True, kw_only=True):
    """A tenant's plan as requests need it."""

    name: str
    sla_class: str
    tiers: tuple[str, ...]
    ttft_ms: float | None
    tpot_ms: float | None
    late: LateAction = "best_effort"
    weight: float
    memory_share: float | None
    adapters: int | None
    adapter_bytes: int | None


class TenantContext(msgspec.Struct, frozen=True, kw_only=True):
    """The tenant a request belongs to, by which key, under which plan."""

    tenant_id: str
    name: str
    plan: PlanTerms
    key_id: str
    key_prefix: str = ""  # of the secret it came with, of a key that has two
    scopes: tuple[str, ...]
    key_caps: Caps = Caps()  # of this key alone, within the plan's
    key_models: tuple[str, ...] | None = None  # None: all of the tenant's
    prepaid: bool = False  # spends its credit only
    keeps_contents: bool = False  # prompts and answers, as it has chosen itself
    namespace: str  # of cached KV: HMAC of the tenant, or of its trust group

    def to_engine(self, tier: str | None = None) -> Tenant:
        """The tenant as the engine knows it. The plan promises its times for its own class: who
        asks for another one waits as that class waits."""
        own = tier is None or tier == self.plan.sla_class
        return Tenant(
            key=self.tenant_id,
            namespace=self.namespace,
            weight=self.plan.weight,
            tier=tier or self.plan.sla_class,
            ttft_ms=self.plan.ttft_ms if own else None,
            tpot_ms=self.plan.tpot_ms if own else None,
            late=self.plan.late,
            min_memory_share=self.plan.memory_share or 0.0,
            max_memory_share=self.plan.memory_share or 1.0,
        )


class _Known(msgspec.Struct, frozen=True):
    """A verified key as Redis keeps it. Good while `epoch` is still the current one."""

    epoch: str
    expires_at: datetime | None
    context: TenantContext


def tenant_namespace(secret: ServerSecret, tenant_id: str, trust_group: str | None) -> str:
    """The namespace under which a tenant's KV is cached; only a trust group shares one."""
    owner = f"group:{trust_group}" if trust_group else f"tenant:{tenant_id}"
    return secret.mac("kv-namespace", owner)[:32]


class Authenticator:
    """Turns keys into contexts. A verified key is remembered in Redis for a few seconds; every
    change that could make it wrong calls `invalidate` after its commit."""

    def __init__(
        self,
        *,
        db: Database,
        redis: Redis,
        secret: ServerSecret,
        admins: AdminKeys,
        cache_s: int,
    ) -> None:
        self.admins = admins
        self._db = db
        self._redis = redis
        self._secret = secret
        self._cache_s = cache_s
        self._flights: SingleFlight[TenantContext] = SingleFlight()

    async def tenant(self, token: str) -> TenantContext:
        """Raises UnauthorizedError for a key that is unknown, revoked or expired and
        ForbiddenError for one of a suspended tenant."""
        prefix = key_prefix(token)
        if prefix is None:
            raise UnauthorizedError("Incorrect API key provided.")
        digest = hash_key(token, self._secret)
        epoch, known = await self._recall(digest)
        if known is not None and not has_passed(known.expires_at):
            return known.context
        if epoch is None:
            return await self._verify(prefix, digest, epoch)
        # Requests come in bursts: one looks the key up for all that read the same epoch, none of
        # which can have come after a change that the look-up does not see.
        return await self._flights.run((digest, epoch), lambda: self._verify(prefix, digest, epoch))

    async def _verify(self, prefix: str, digest: str, epoch: str | None) -> TenantContext:
        async with self._db.key_session(prefix) as session:
            context, expires_at = await self._look_up(session, prefix, digest)
        await self._remember(digest, epoch, expires_at, context)
        return context

    async def invalidate(self) -> None:
        """Forget every remembered key, everywhere, now. One counter for all: such changes are
        rare, and one counter cannot be missed by a look-up that is under way."""
        try:
            await self._redis.incr(_EPOCH)
        except RedisError as error:
            _log.warning("auth cache not invalidated", reason=str(error), stale_s=self._cache_s)

    async def commit_change(self, session: AsyncSession) -> None:
        """Commit now, then forget: a look-up between the two would remember the old row again."""
        await session.commit()
        await self.invalidate()

    async def _look_up(
        self, session: AsyncSession, prefix: str, digest: str
    ) -> tuple[TenantContext, datetime | None]:
        keys = await session.scalars(select(ApiKeyRow).where(of_prefix(ApiKeyRow, prefix)))
        key, good_until = verified(keys, digest)
        await enter_tenant(session, key.tenant_id)
        found = await session.execute(
            select(TenantRow, PlanRow, TenantSettingsRow.keep_contents_days)
            .join(PlanRow, PlanRow.name == TenantRow.plan)
            .outerjoin(TenantSettingsRow, TenantSettingsRow.tenant_id == TenantRow.id)
        )
        tenant, plan, keep_days = found.one()
        if tenant.status != "active":
            raise ForbiddenError(
                "This tenant is suspended; the operator of this server can say why.",
                code="tenant_suspended",
            )
        await note_use(session, key)
        context = TenantContext(
            tenant_id=tenant.id,
            name=tenant.name,
            plan=plan_terms(plan),
            key_id=key.id,
            key_prefix=prefix,
            scopes=tuple(key.scopes),
            key_caps=Caps(**key.limits),
            key_models=None if key.models is None else tuple(key.models),
            prepaid=tenant.prepaid,
            keeps_contents=keep_days is not None,
            namespace=tenant_namespace(self._secret, tenant.id, tenant.trust_group),
        )
        return context, good_until

    async def _recall(self, digest: str) -> tuple[str | None, _Known | None]:
        """The current epoch (None: Redis does not answer) and the remembered key, if still good."""
        if self._cache_s == 0:
            return None, None
        try:
            raw_epoch, raw = await self._redis.mget([_EPOCH, _cache_key(digest)])
        except RedisError as error:
            _log.warning("auth cache not reachable", reason=str(error))
            return None, None
        epoch = _bytes(raw_epoch).decode() if raw_epoch else "0"
        if raw is None:
            return epoch, None
        known = msgspec.msgpack.decode(_bytes(raw), type=_Known)
        return epoch, known if known.epoch == epoch else None

    async def _remember(
        self, digest: str, epoch: str | None, expires_at: datetime | None, context: TenantContext
    ) -> None:
        if epoch is None:
            return
        # The epoch was read before the rows were: a change in between has raised it since.
        raw = msgspec.msgpack.encode(_Known(epoch, expires_at, context))
        try:
            await self._redis.set(_cache_key(digest), raw, ex=self._cache_s)
        except RedisError as error:
            _log.warning("auth cache not written", reason=str(error))


def plan_terms(plan: PlanRow) -> PlanTerms:
    return PlanTerms(
        name=plan.name,
        sla_class=plan.sla_class,
        tiers=tuple(plan.tiers),
        ttft_ms=plan.ttft_ms,
        tpot_ms=plan.tpot_ms,
        late=plan.late,
        weight=plan.weight,
        memory_share=plan.memory_share,
        adapters=plan.adapters,
        adapter_bytes=plan.adapter_bytes,
        **plan.limits,
    )


def bearer_token(request: Request) -> str:
    """The token of `Authorization: Bearer ...`. Raises UnauthorizedError without one."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise UnauthorizedError(
            "You did not provide an API key. Send it as 'Authorization: Bearer <key>'.",
            code="missing_api_key",
        )
    return token.strip()


def _authenticator(request: Request) -> Authenticator:
    auth = request.app.state.tenora.auth
    assert isinstance(auth, Authenticator)
    return auth


@BeforeBody
async def current_tenant(request: Request) -> TenantContext:
    """FastAPI dependency of every tenant route."""
    token = bearer_token(request)
    auth = _authenticator(request)
    if await auth.admins.find(token) is not None:
        raise ForbiddenError(
            "This is the admin key; /v1 routes need a tenant's API key. "
            "Make one with POST /admin/v1/tenants/{id}/api_keys.",
            code="admin_key_not_allowed",
        )
    return await auth.tenant(token)


@BeforeBody
async def current_admin(request: Request) -> AdminContext:
    """FastAPI dependency of every admin route. A tenant's key gets 403, an unknown one 401."""
    token = bearer_token(request)
    auth = _authenticator(request)
    admin = await auth.admins.find(token)
    if admin is not None:
        return admin
    await auth.tenant(token)  # raises 401 unless the key is a tenant's
    raise ForbiddenError(
        "This is a tenant's API key; /admin routes need the admin key.",
        code="admin_key_required",
    )


@BeforeBody
async def current_caller(request: Request) -> TenantContext | AdminContext:
    """FastAPI dependency of what any valid key may ask."""
    token = bearer_token(request)
    auth = _authenticator(request)
    return await auth.admins.find(token) or await auth.tenant(token)


CurrentTenant = Annotated[TenantContext, Depends(current_tenant)]
CurrentAdmin = Annotated[AdminContext, Depends(current_admin)]


def require_scope(scope: Scope) -> BeforeBody[TenantContext]:
    """A dependency that gives the TenantContext if the key has `scope`, else 403:
    `tenant: Annotated[TenantContext, Depends(require_scope("inference"))]`."""

    @BeforeBody
    async def scoped_tenant(request: Request) -> TenantContext:
        tenant = await current_tenant(request)
        if scope not in tenant.scopes:
            raise ForbiddenError(
                f"This API key lacks the scope '{scope}'.", code="insufficient_scope"
            )
        return tenant

    return scoped_tenant


def require_role(*roles: Role) -> BeforeBody[AdminContext]:
    """A dependency that every admin route declares, `dependencies=[Depends(require_role(...))]`:
    the AdminContext if the key has one of `roles` or is an owner's, else 403."""

    @BeforeBody
    async def of_role(request: Request) -> AdminContext:
        return _within(await current_admin(request), roles)

    return _declaring(of_role, roles)


def role_if_any(*roles: Role) -> BeforeBody[AdminContext | None]:
    """As `require_role`, of routes that say more to some: None without a key, and while the
    database cannot say whose it is."""

    @BeforeBody
    async def of_role_if_any(request: Request) -> AdminContext | None:
        if "authorization" not in request.headers:
            return None
        try:
            return _within(await current_admin(request), roles)
        except (SQLAlchemyError, RedisError) as error:
            _log.warning("key not looked up", reason=first_line(error))
            return None

    return _declaring(of_role_if_any, roles)


def declared_roles(dependency: object) -> frozenset[Role] | None:
    """The roles that a dependency lets through, if it is a `require_role` or a `role_if_any`."""
    return getattr(dependency, "roles", None)


def _declaring(dependency: BeforeBody[AnswerT], roles: Sequence[Role]) -> BeforeBody[AnswerT]:
    named: Any = dependency
    named.roles = frozenset(("owner", *roles))
    return dependency


def _within(admin: AdminContext, roles: Sequence[Role]) -> AdminContext:
    if admin.role != "owner" and admin.role not in roles:
        may = ", ".join(("owner", *roles))
        raise ForbiddenError(
            f"This admin key has the role {admin.role!r}; this is for: {may}.",
            code="insufficient_role",
        )
    return admin


def _bytes(value: bytes | str) -> bytes:
    """Redis gives bytes, as we connect; its types allow for both."""
    return value if isinstance(value, bytes) else value.encode()


def _cache_key(digest: str) -> str:
    return f"tenora:auth:key:{digest}"
