"""Who is asking: a bearer key becomes a TenantContext or an AdminContext. It knows keys, tenants
and plans as rows; what a caller may do with them is for each route to say (`require_scope`)."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Coroutine, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal, get_args

import msgspec
import structlog
from fastapi import Depends, Request
from redis.asyncio import Redis
from redis.exceptions import RedisError
from sqlalchemy import or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_engine.request import LateAction, Tenant
from tenora_platform.db import Database, enter_tenant
from tenora_platform.errors import ForbiddenError, UnauthorizedError
from tenora_platform.keys import hash_key, key_prefix
from tenora_platform.secret import ServerSecret
from tenora_platform.single_flight import SingleFlight
from tenora_platform.tenants.tables import ApiKeyRow, PlanRow, TenantRow

Scope = Literal["inference", "adapters", "usage", "keys"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
Tier = Literal["priority", "default", "flex"]
BudgetAction = Literal["refuse", "degrade"]

_EPOCH = "tenora:auth:epoch"
_LAST_USED_EVERY = timedelta(seconds=60)
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
    scopes: tuple[str, ...]
    key_caps: Caps = Caps()  # of this key alone, within the plan's
    key_models: tuple[str, ...] | None = None  # None: all of the tenant's
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


class AdminContext(msgspec.Struct, frozen=True, kw_only=True):
    """The operator. `actor` names the key in the audit log without giving it away."""

    actor: str


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
        admin_key_hashes: Sequence[str],
        cache_s: int,
    ) -> None:
        self._db = db
        self._redis = redis
        self._secret = secret
        self._admin_key_hashes = tuple(admin_key_hashes)
        self._cache_s = cache_s
        self._flights: SingleFlight[TenantContext] = SingleFlight()

    def admin(self, token: str) -> AdminContext | None:
        """The operator, if this is the admin key."""
        digest = hash_key(token, self._secret)
        if not any(hmac.compare_digest(digest, known) for known in self._admin_key_hashes):
            return None
        return AdminContext(actor=f"admin_key:{digest[:12]}")

    async def tenant(self, token: str) -> TenantContext:
        """Raises UnauthorizedError for a key that is unknown, revoked or expired and
        ForbiddenError for one of a suspended tenant."""
        prefix = key_prefix(token)
        if prefix is None:
            raise UnauthorizedError("Incorrect API key provided.")
        digest = hash_key(token, self._secret)
        epoch, known = await self._recall(digest)
        if known is not None and not _expired(known.expires_at):
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

    async def _look_up(
        self, session: AsyncSession, prefix: str, digest: str
    ) -> tuple[TenantContext, datetime | None]:
        keys = await session.scalars(select(ApiKeyRow).where(ApiKeyRow.prefix == prefix))
        key = next((row for row in keys if hmac.compare_digest(row.hash, digest)), None)
        if key is None:
            raise UnauthorizedError("Incorrect API key provided.")
        if key.revoked_at is not None:
            raise UnauthorizedError("This API key has been revoked.", code="key_revoked")
        if _expired(key.expires_at):
            raise UnauthorizedError("This API key has expired.", code="key_expired")
        await enter_tenant(session, key.tenant_id)
        found = await session.execute(
            select(TenantRow, PlanRow).join(PlanRow, PlanRow.name == TenantRow.plan)
        )
        tenant, plan = found.one()
        if tenant.status != "active":
            raise ForbiddenError(
                "This tenant is suspended; the operator of this server can say why.",
                code="tenant_suspended",
            )
        now = datetime.now(UTC)
        await session.execute(
            update(ApiKeyRow)
            .where(
                ApiKeyRow.id == key.id,
                or_(
                    ApiKeyRow.last_used_at.is_(None),
                    ApiKeyRow.last_used_at < now - _LAST_USED_EVERY,
                ),
            )
            .values(last_used_at=now)
        )
        context = TenantContext(
            tenant_id=tenant.id,
            name=tenant.name,
            plan=plan_terms(plan),
            key_id=key.id,
            scopes=tuple(key.scopes),
            key_caps=Caps(**key.limits),
            key_models=None if key.models is None else tuple(key.models),
            namespace=tenant_namespace(self._secret, tenant.id, tenant.trust_group),
        )
        return context, key.expires_at

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


async def current_tenant(request: Request) -> TenantContext:
    """FastAPI dependency of every tenant route. Where there is a body, `bodies.KeyFirst` has asked
    already."""
    known = request.scope.get("state", {}).get("caller")
    if isinstance(known, TenantContext):
        return known
    token = bearer_token(request)
    auth = _authenticator(request)
    if auth.admin(token) is not None:
        raise ForbiddenError(
            "This is the admin key; /v1 routes need a tenant's API key. "
            "Make one with POST /admin/v1/tenants/{id}/api_keys.",
            code="admin_key_not_allowed",
        )
    return await auth.tenant(token)


async def current_admin(request: Request) -> AdminContext:
    """FastAPI dependency of every admin route. A tenant's key gets 403, an unknown one 401."""
    known = request.scope.get("state", {}).get("caller")
    if isinstance(known, AdminContext):
        return known
    token = bearer_token(request)
    auth = _authenticator(request)
    admin = auth.admin(token)
    if admin is not None:
        return admin
    await auth.tenant(token)  # raises 401 unless the key is a tenant's
    raise ForbiddenError(
        "This is a tenant's API key; /admin routes need the admin key.",
        code="admin_key_required",
    )


async def admin_if_any(request: Request) -> AdminContext | None:
    """FastAPI dependency of routes that say more to the operator: None without a key; any other
    than the admin key is refused."""
    return await current_admin(request) if "authorization" in request.headers else None


CurrentTenant = Annotated[TenantContext, Depends(current_tenant)]
CurrentAdmin = Annotated[AdminContext, Depends(current_admin)]
AdminIfAny = Annotated[AdminContext | None, Depends(admin_if_any)]


def require_scope(scope: Scope) -> Callable[..., Coroutine[Any, Any, TenantContext]]:
    """A dependency that gives the TenantContext if the key has `scope`, else 403:
    `tenant: Annotated[TenantContext, Depends(require_scope("inference"))]`."""

    async def scoped_tenant(tenant: CurrentTenant) -> TenantContext:
        if scope not in tenant.scopes:
            raise ForbiddenError(
                f"This API key lacks the scope '{scope}'.", code="insufficient_scope"
            )
        return tenant

    return scoped_tenant


def _expired(expires_at: datetime | None) -> bool:
    return expires_at is not None and expires_at <= datetime.now(UTC)


def _bytes(value: bytes | str) -> bytes:
    """Redis gives bytes, as we connect; its types allow for both."""
    return value if isinstance(value, bytes) else value.encode()


def _cache_key(digest: str) -> str:
    return f"tenora:auth:key:{digest}"
