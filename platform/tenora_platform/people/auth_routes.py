"""HTTP routes of signing in and out: by the provider, or by a key that is exchanged for a session.
What a session may do is not said here."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal
from urllib.parse import quote

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import RedirectResponse
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.edge import BeforeBody, EdgeRoute, asked_again
from tenora_platform.errors import (
    ApiError,
    BadRequestError,
    ForbiddenError,
    NotFoundError,
    UnauthorizedError,
)
from tenora_platform.people import repository, service
from tenora_platform.people.cookies import (
    drop_session,
    is_secure,
    is_use,
    kept_token,
    of_another_origin,
    session_token,
    set_session,
)
from tenora_platform.people.oidc import FLOW_S, Provider
from tenora_platform.people.schemas import (
    InvitationToken,
    Invited,
    Joined,
    KeySignIn,
    SessionItem,
    SessionList,
    SessionView,
    SignedOut,
    SignInMethods,
)
from tenora_platform.people.sessions import Begun, Origin, SignedIn
from tenora_platform.people.views import session_view
from tenora_platform.schemas import Deleted
from tenora_platform.state import AppState, State, state_of

router = APIRouter(prefix="/auth", tags=["auth"], route_class=EdgeRoute)
FLOW_COOKIE = "tenora_sign_in"


@dataclass(frozen=True, slots=True)
class Current:
    """The session that a request is by."""

    token: str
    signed: SignedIn


@asked_again
async def current_session(request: Request) -> Current:
    """Raises UnauthorizedError without one or with one whose key has ended, and ForbiddenError as
    `session_token` does."""
    current = await session_to_end(request)
    await state_of(request).auth.require_key(current.signed)
    return current


@BeforeBody
async def session_to_end(request: Request) -> Current:
    """The same, of which it does not matter whether its key has ended."""
    state = state_of(request)
    sessions = state.auth.sessions
    token = session_token(request, sessions)
    if token is None:
        raise UnauthorizedError("You are not signed in.", code="not_signed_in")
    async with state.attempts.counted(request.client.host if request.client else None):
        return Current(token, await sessions.find(token, is_use=is_use(request)))


@BeforeBody
async def from_our_pages(request: Request) -> None:
    """Nobody is signed in, as anybody, by a page of another origin. Raises ForbiddenError."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if of_another_origin(request) or kind != "application/json":
        raise ForbiddenError(
            "Sign in from a page of this server, with content-type: application/json.",
            code="foreign_origin",
        )


def provider_of(state: AppState) -> Provider:
    """Raises NotFoundError where people do not sign in by one."""
    provider = state.provider
    if provider is None:
        raise NotFoundError(
            "This server has no sign-in provider; sign in with a key.",
            code="sign_in_not_set_up",
        )
    return provider


def told_to_a_person(request: Request, error: ApiError) -> Response:
    """Back to the portal, which has words for it; to a program the error itself."""
    if "text/html" not in request.headers.get("accept", ""):
        raise error
    prefix = state_of(request).settings.path_prefix
    return RedirectResponse(f"{prefix}/?sign_in={quote(error.code or 'failed')}", 303)


CurrentSession = Annotated[Current, Depends(current_session)]
SessionToEnd = Annotated[Current, Depends(session_to_end)]


@router.get("/methods")
async def get_methods(state: State) -> SignInMethods:
    """List the ways to sign in besides a key."""
    return SignInMethods(oidc=state.settings.oidc_name if state.provider else None)


@router.get("/login", response_class=RedirectResponse, status_code=302)
async def login(
    request: Request,
    state: State,
    next: Annotated[
        str, Query(description="The path to return to after sign-in", max_length=500)
    ] = "/",
) -> Response:
    """To the provider's sign-in. `next` is a page of ours, such as /usage."""
    try:
        if not is_local(next):
            raise BadRequestError(
                "next must be a path on this server, such as /usage.", param="next"
            )
        url, kept = await provider_of(state).begin(next)
    except ApiError as error:
        return told_to_a_person(request, error)
    response = RedirectResponse(url, 302)
    response.set_cookie(
        _flow_cookie(request),
        kept,
        max_age=FLOW_S,
        httponly=True,
        samesite="lax",  # it must come along when the provider sends the browser back
        secure=is_secure(request),
    )
    return response


@router.get("/callback", response_class=RedirectResponse, status_code=303)
async def callback(request: Request, state: State) -> Response:
    """Where the provider sends the browser back to."""
    try:
        response = await _come_back(request, provider_of(state), state)
    except ApiError as error:
        response = told_to_a_person(request, error)
    response.delete_cookie(
        _flow_cookie(request), httponly=True, samesite="lax", secure=is_secure(request)
    )
    return response


async def _come_back(request: Request, provider: Provider, state: AppState) -> Response:
    identity, next_path = await provider.finish(
        request.query_params, request.cookies.get(_flow_cookie(request))
    )
    async with state.db.admin_session() as session:
        person = await repository.put_person(session, identity)
        await service.make_owner(session, state.audit, person, state.settings.oidc_owner_email)
        members = await repository.memberships_of(session, person.id)
        chains = {each.tenant_id for each in members}
        await state.attempts.begin_session(person.id)
        begun = await _begin(request, state, session, chains, person_id=person.id)
        await state.auth.commit_ended(session, begun.ended)
    prefix = state.settings.path_prefix
    below = next_path if next_path.startswith(f"{prefix}/") else prefix + next_path
    response = RedirectResponse(below, 303)
    set_session(request, response, begun.token)
    return response


@router.post("/session", dependencies=[Depends(from_our_pages)])
async def sign_in_by_key(
    body: KeySignIn, request: Request, response: Response, state: State
) -> SessionView:
    """Exchange a tenant's API key or an admin key for a session, so that the browser need not keep
    the key."""
    chains, whose = await _whose(body.key, state, _address(request))
    async with state.db.admin_session() as session:
        begun = await _begin(request, state, session, chains, **whose)
        await state.auth.commit_ended(session, begun.ended)
    set_session(request, response, begun.token)
    return await session_view(state, await state.auth.sessions.find(begun.token), begun.token)


@router.get("/session")
async def get_session(current: CurrentSession, state: State) -> SessionView:
    """Get who is signed in, with which role, and the CSRF token to send with the cookie."""
    return await session_view(state, current.signed, current.token)


@router.post("/logout")
async def logout(
    current: SessionToEnd, state: State, request: Request, response: Response
) -> SignedOut:
    """Sign out: end this session at once and everywhere."""
    async with state.db.admin_session() as session:
        ended = await state.auth.sessions.end(session, current.signed, current.signed.id)
        await _note_end(state, session, current.signed, current.signed.id)
        await state.auth.commit_ended(session, ended)
    drop_session(request, response)
    return SignedOut(provider_url=await _provider_url(state, current.signed))


@router.get("/sessions")
async def list_sessions(current: CurrentSession, state: State) -> SessionList:
    """List the other sessions of the same person or key, newest first."""
    async with state.db.admin_session() as session:
        rows = await state.auth.sessions.list_own(session, current.signed)
    columns = ("id", "address", "user_agent", "created_at", "last_used_at", "expires_at")
    return SessionList(
        data=[
            SessionItem(
                **{name: getattr(row, name) for name in columns},
                current=row.id == current.signed.id,
            )
            for row in rows
        ]
    )


@router.delete("/sessions/{session_id}")
async def end_session(session_id: str, current: CurrentSession, state: State) -> Deleted:
    """End one of these sessions, at once and everywhere."""
    async with state.db.admin_session() as session:
        ended = await state.auth.sessions.end(session, current.signed, session_id)
        if not ended:
            raise NotFoundError(f"You have no session {session_id!r}.")
        await _note_end(state, session, current.signed, session_id)
        await state.auth.commit_ended(session, ended)
    return Deleted(id=session_id, object="session")


@router.post("/invitations/look")
async def look_at_invitation(body: InvitationToken, request: Request, state: State) -> Invited:
    """Where the link's token leads, for whoever has the link: before they sign in."""
    async with state.attempts.attempt(_address(request)), state.db.admin_session() as session:
        return await service.invited(session, state.secret, body.token)


@router.post("/invitations/accept")
async def accept_invitation(
    body: InvitationToken, request: Request, current: CurrentSession, state: State
) -> Joined:
    """Accept an invitation, by the token in its link."""
    if current.signed.person_id is None:
        raise ForbiddenError(
            "Only a person can accept an invitation: sign in with the provider, not with a key.",
            code="person_required",
        )
    attempt = state.attempts.attempt(_address(request))
    async with attempt, state.db.admin_session() as session:
        joined = await service.accept(
            session, state.audit, state.auth.admins, state.secret, current.signed, body.token
        )
        # A request that names no tenant means another one, or none, from here on.
        tenants = filter(None, {joined.tenant_id, *current.signed.chains})
        await state.auth.commit_change(session, *tenants)
    return joined


def is_local(path: str) -> bool:
    """Whether it leads to a page of ours and nowhere else: browsers read `//host` and `/\\host` as
    another server, and drop tabs and line ends."""
    return (
        path.startswith("/")
        and not path.startswith(("//", "/\\"))
        and all(" " < letter < "\x7f" for letter in path)
    )


def _flow_cookie(request: Request) -> str:
    return f"__Host-{FLOW_COOKIE}" if is_secure(request) else FLOW_COOKIE


def _address(request: Request) -> str | None:
    return request.client.host if request.client else None


async def _whose(
    key: str, state: AppState, address: str | None
) -> tuple[set[str | None], dict[str, str | None]]:
    """In which audit logs a key's session is noted, and the columns of its row that name the key.
    A key counts with those it was made by. Raises ApiError."""
    async with state.attempts.attempt(address):
        admin = await state.auth.admins.find(key)
        if admin is not None:
            await state.attempts.begin_session(admin.key_id)
            return {None}, {"admin_key_id": admin.key_id, "key_prefix": admin.key_prefix}
        tenant = await state.auth.tenant(key)
        await state.attempts.begin_session(tenant.lineage[-1])
        return {tenant.tenant_id}, {"api_key_id": tenant.key_id, "key_prefix": tenant.key_prefix}


async def _begin(
    request: Request,
    state: AppState,
    session: AsyncSession,
    chains: set[str | None],
    *,
    person_id: str | None = None,
    api_key_id: str | None = None,
    admin_key_id: str | None = None,
    key_prefix: str | None = None,
) -> Begun:
    """A new session, in place of the one that the browser brought, if it did. It is noted in these
    audit logs (`_note`)."""
    before = kept_token(request)
    origin = Origin(address=_address(request), user_agent=request.headers.get("user-agent"))
    begun = await state.auth.sessions.begin(
        session,
        origin,
        person_id=person_id,
        api_key_id=api_key_id,
        admin_key_id=admin_key_id,
        key_prefix=key_prefix,
    )
    replaced = await state.auth.sessions.end_token(session, before) if before else []
    kind: Literal["person", "api_key", "admin_key"] = (
        "person" if person_id else "api_key" if api_key_id else "admin_key"
    )
    actor = f"{kind}:{person_id or api_key_id or admin_key_id}"
    await _note(state, session, actor, "session.begin", begun.session_id, chains)
    return replace(begun, ended=[*begun.ended, *replaced])


async def _note(
    state: AppState,
    session: AsyncSession,
    actor: str,
    action: str,
    target: str,
    chains: set[str | None],
) -> None:
    """In the logs of these tenants, None being the operator's, always in one order since each is
    locked; in the operator's for who belongs nowhere."""
    for tenant_id in sorted(chains or {None}, key=lambda each: each or ""):
        await state.audit.append(
            session, actor=actor, action=action, target=target, tenant_id=tenant_id
        )


async def _note_end(
    state: AppState, session: AsyncSession, signed: SignedIn, session_id: str
) -> None:
    await _note(state, session, signed.actor, "session.end", session_id, signed.chains)


async def _provider_url(state: AppState, signed: SignedIn) -> str | None:
    if state.provider is None or signed.person_id is None:
        return None
    try:
        return await state.provider.sign_out_url(f"{state.settings.base_url}/")
    except ApiError:
        return None  # here they are signed out all the same
