"""Who is asking: a bearer key, or the cookie of a session, becomes a TenantContext or an
AdminContext. What a caller may do is for each route to say (`require_scope`, `require_role`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Annotated, Any, TypeVar

import structlog
from fastapi import Depends, Request
from redis.exceptions import RedisError
from sqlalchemy.exc import SQLAlchemyError

from tenora_platform.askers import asker_of_admin, asker_of_tenant
from tenora_platform.asking import Asker
from tenora_platform.authenticator import Authenticator, tenant_namespace
from tenora_platform.contexts import (
    SCOPES,
    BudgetAction,
    Caps,
    PlanTerms,
    Scope,
    TenantContext,
    Tier,
    plan_terms,
)
from tenora_platform.edge import BeforeBody, asked_again, identity
from tenora_platform.errors import ForbiddenError, UnauthorizedError
from tenora_platform.operators.roles import AdminContext, Role
from tenora_platform.outages import first_line
from tenora_platform.people.attempts import SignInAttempts
from tenora_platform.people.cookies import (
    KEY_HEADER,
    SAFE_METHODS,
    TENANT_HEADER,
    is_use,
    kept_token,
    names_a_key,
    session_token,
)
from tenora_platform.people.rights import MemberRole, Right, role_may

# What others own and is had from here as well.
__all__ = [
    "SCOPES",
    "Authenticator",
    "BudgetAction",
    "Caps",
    "PlanTerms",
    "Scope",
    "TenantContext",
    "Tier",
    "plan_terms",
    "tenant_namespace",
]

AnswerT = TypeVar("AnswerT")

_log = structlog.get_logger(__name__)


def bearer_token(request: Request) -> str:
    """The token of `Authorization: Bearer ...`, or of `x-api-key` as Anthropic's clients send it.
    Raises UnauthorizedError without one."""
    by_name = request.headers.get(KEY_HEADER, "")
    if "authorization" not in request.headers and by_name.strip():
        return by_name.strip()
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise UnauthorizedError(
            "No API key was sent. Send it as 'Authorization: Bearer <key>' or as 'x-api-key: "
            "<key>'.",
            code="missing_api_key",
        )
    return token.strip()


async def _by_key(
    request: Request, whose: Callable[[Authenticator, str], Awaitable[AnswerT]]
) -> AnswerT:
    """Who asks, by the request's key. Raises UnauthorizedError for a wrong one, and after many of
    one address RateLimitedError: only of such a request anything is counted."""
    token = bearer_token(request)
    async with _counted(request):
        return await whose(_authenticator(request), token)


def _counted(request: Request) -> AbstractAsyncContextManager[None]:
    attempts: SignInAttempts = request.app.state.tenora.attempts
    return attempts.counted(request.client.host if request.client else None)


def _authenticator(request: Request) -> Authenticator:
    auth = request.app.state.tenora.auth
    assert isinstance(auth, Authenticator)
    return auth


@identity(asker_of_tenant)
async def current_tenant(request: Request) -> TenantContext:
    """FastAPI dependency of every tenant route."""
    return await tenant_of_caller(request, request.headers.get(TENANT_HEADER))


@identity(asker_of_tenant)
async def listening_tenant(request: Request) -> TenantContext:
    """As `current_tenant`, of streams: a browser's EventSource sends no headers of ours, so the
    address may say which tenant is meant."""
    named = request.headers.get(TENANT_HEADER) or request.query_params.get("tenant")
    return await tenant_of_caller(request, named)


async def tenant_of_caller(request: Request, wanted: str | None) -> TenantContext:
    """Of who asks now; `wanted` is which of a person's tenants."""
    auth = _authenticator(request)
    session = session_token(request, auth.sessions)
    if session is not None:
        async with _counted(request):
            return await auth.tenant_of_session(session, wanted, is_use=is_use(request))
    return await _by_key(request, _tenant_of_key)


async def _tenant_of_key(auth: Authenticator, token: str) -> TenantContext:
    if await auth.admins.find(token) is not None:
        raise ForbiddenError(
            "This is an admin key, but /v1 routes need a tenant's API key. Create one with POST "
            "/admin/v1/tenants/{id}/api_keys.",
            code="admin_key_not_allowed",
        )
    return await auth.tenant(token)


@identity(asker_of_admin)
async def current_admin(request: Request) -> AdminContext:
    """FastAPI dependency of every admin route. A tenant's key gets 403, an unknown one 401."""
    auth = _authenticator(request)
    session = session_token(request, auth.sessions)
    if session is not None:
        async with _counted(request):
            return await auth.admin_of_session(session, is_use=is_use(request))
    return await _by_key(request, _admin_of_key)


async def _admin_of_key(auth: Authenticator, token: str) -> AdminContext:
    admin = await auth.admins.find(token)
    if admin is not None:
        return admin
    await auth.tenant(token)  # raises 401 unless the key is a tenant's
    raise ForbiddenError(
        "This is a tenant's API key, but /admin routes need an admin key.",
        code="admin_key_required",
    )


def _asker_of_caller(caller: TenantContext | AdminContext) -> Asker:
    if isinstance(caller, TenantContext):
        return asker_of_tenant(caller)
    return asker_of_admin(caller)


@identity(_asker_of_caller)
async def current_caller(request: Request) -> TenantContext | AdminContext:
    """FastAPI dependency of what any valid key or session may ask. A person who names no tenant
    asks as one of the operator's people, if they are one."""
    auth = _authenticator(request)
    session = session_token(request, auth.sessions)
    if session is None:
        return await _by_key(request, _caller_of_key)
    wanted = request.headers.get(TENANT_HEADER)
    async with _counted(request):
        signed = await auth.sessions.find(session, is_use=is_use(request))
        operators = any(member.tenant_id is None for member in signed.members)
        if signed.admin_key_id is not None or (operators and wanted is None):
            return await auth.admin_of_session(session, is_use=is_use(request))
        return await auth.tenant_of_session(session, wanted, is_use=is_use(request))


async def _caller_of_key(auth: Authenticator, token: str) -> TenantContext | AdminContext:
    return await auth.admins.find(token) or await auth.tenant(token)


CurrentTenant = Annotated[TenantContext, Depends(current_tenant)]
CurrentAdmin = Annotated[AdminContext, Depends(current_admin)]


def require_scope(scope: Scope, *, right: Right | None = None) -> BeforeBody[TenantContext]:
    """A dependency that gives the TenantContext if the key has `scope`, or the person's role the
    `right` (the same, if not said), else 403:
    `tenant: Annotated[TenantContext, Depends(require_scope("inference"))]`."""

    @asked_again
    async def scoped_tenant(request: Request) -> TenantContext:
        tenant = await current_tenant(request)
        if tenant.role is not None:
            return _with_right(tenant, tenant.role, right or scope, request)
        if scope not in tenant.scopes:
            raise ForbiddenError(
                f"This API key does not have the scope '{scope}', which this request needs. "
                "Use a key that has it.",
                code="insufficient_scope",
            )
        return tenant

    return scoped_tenant


def require_person(right: Right) -> BeforeBody[TenantContext]:
    """As `require_scope`, of what no key may do."""

    @asked_again
    async def person_of_tenant(request: Request) -> TenantContext:
        tenant = await current_tenant(request)
        if tenant.role is None:
            raise ForbiddenError(
                "This needs a signed-in person; API keys cannot do it.", code="person_required"
            )
        return _with_right(tenant, tenant.role, right, request)

    return person_of_tenant


def _with_right(
    tenant: TenantContext, role: MemberRole, right: Right, request: Request
) -> TenantContext:
    if not role_may(role, right, reads=request.method in SAFE_METHODS):
        raise ForbiddenError(
            f"Your role {role!r} at {tenant.name!r} does not allow this. An owner of the "
            "tenant can change your role.",
            code="insufficient_role",
        )
    return tenant


def require_role(*roles: Role) -> BeforeBody[AdminContext]:
    """A dependency that every admin route declares, `dependencies=[Depends(require_role(...))]`:
    the AdminContext if the key has one of `roles` or is an owner's, else 403."""

    @asked_again
    async def of_role(request: Request) -> AdminContext:
        return _within(await current_admin(request), roles)

    return _declaring(of_role, roles)


def role_if_any(*roles: Role) -> BeforeBody[AdminContext | None]:
    """As `require_role`, of routes that say more to some: None without a key, and while the
    database cannot say whose it is."""

    @BeforeBody
    async def of_role_if_any(request: Request) -> AdminContext | None:
        by_session = not names_a_key(request)
        if by_session and kept_token(request) is None:
            return None
        try:
            return _within(await current_admin(request), roles)
        except (UnauthorizedError, ForbiddenError):
            if by_session:
                return None  # the cookie came along by itself
            raise
        except (SQLAlchemyError, RedisError) as error:
            _log.warning("key could not be looked up", reason=first_line(error))
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
            f"{'Your' if admin.is_person else 'This admin key has the'} role {admin.role!r} "
            f"does not allow this; allowed roles: {may}.",
            code="insufficient_role",
        )
    return admin
