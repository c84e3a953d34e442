"""What one running platform process holds, handed to routes by dependency. No globals."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass, field
from typing import Annotated, TypeVar

from fastapi import Depends, Request
from obstore.store import ObjectStore
from redis.asyncio import Redis
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_engine.client import EngineClient
from tenora_engine.sealing import Seal
from tenora_platform.apart.client import Apart
from tenora_platform.audit.service import AuditLog
from tenora_platform.auth import Authenticator, CurrentAdmin, CurrentTenant
from tenora_platform.bell import Bell
from tenora_platform.budgets.service import Budgets
from tenora_platform.db import Database
from tenora_platform.errors import UnavailableError
from tenora_platform.evaluations.scorer import Scorer
from tenora_platform.history.answers import AnswerCounts
from tenora_platform.inference.flights import Flights
from tenora_platform.inference.tokenising import LongTexts
from tenora_platform.intake.checker import Checker
from tenora_platform.ledger.service import Ledger
from tenora_platform.limits.service import Limits
from tenora_platform.live.hub import Hub
from tenora_platform.live.since import Since
from tenora_platform.operations.metrics import Metrics
from tenora_platform.operations.probes import Probes
from tenora_platform.people.attempts import SignInAttempts
from tenora_platform.people.oidc import Provider
from tenora_platform.processes.presence import Presence
from tenora_platform.receipts.keeper import ContentsKeeper
from tenora_platform.receipts.signing import SigningKeys
from tenora_platform.receipts.stored_responses import ResponseStore
from tenora_platform.reconciliation.told import Proof
from tenora_platform.registry.pace import Pace
from tenora_platform.registry.ranks import AdapterRanks
from tenora_platform.registry.resolver import Resolver
from tenora_platform.registry.store_identity import StoreIdentity
from tenora_platform.rejections.keeper import RejectedCalls
from tenora_platform.request_places import RequestPlaces
from tenora_platform.rollouts.outcomes import Outcomes
from tenora_platform.rollouts.shadow_tasks import ShadowTasks
from tenora_platform.secret import ServerSecret
from tenora_platform.settings import Settings
from tenora_platform.templates.service import ChatTemplates
from tenora_platform.tenants.ranks import Ranks
from tenora_platform.turns import Turns
from tenora_platform.usage.copies import UsageCopies
from tenora_platform.usage.leftovers import Unbilled

ENGINE_ANSWER_S = 0.8
"""So long a page waits for what it asks the engine, which may hang or be in a long step."""

T = TypeVar("T")


@dataclass(slots=True)
class EngineLife:
    """How far the engine has come. `error` is its own words when it could not start."""

    started: bool = False
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AppState:
    """The parts, complete when made. `app.state.tenora` holds the only one."""

    settings: Settings
    secret: ServerSecret
    db: Database
    redis: Redis
    seal: Seal  # of what is believed of it
    objects: ObjectStore
    store: StoreIdentity  # whether `objects` are this database's
    probes: Probes
    engine: EngineClient
    engine_life: EngineLife
    auth: Authenticator
    attempts: SignInAttempts
    provider: Provider | None  # of people's sign-in; None: by keys alone
    resolver: Resolver
    outcomes: Outcomes
    shadows: ShadowTasks
    limits: Limits
    budgets: Budgets
    audit: AuditLog
    ledger: Ledger
    signing_keys: SigningKeys
    opening: Turns  # of what is sealed: kept contents and stored responses
    contents: ContentsKeeper
    responses: ResponseStore
    metrics: Metrics
    unbilled: Unbilled
    proof: Proof
    ranks: Ranks
    adapter_ranks: AdapterRanks
    long_texts: LongTexts
    flights: Flights
    copies: UsageCopies
    presence: Presence
    live: Hub
    answers: AnswerCounts
    rejected: RejectedCalls
    since: Since
    checker: Checker
    preflights: Checker  # of headers alone: it waits for no upload's check
    apart: Apart
    templates: ChatTemplates
    scorer: Scorer
    places: RequestPlaces
    large_bodies: Turns  # that are read
    large_answers: Turns  # that are made and written
    creating: Turns  # of evaluations, whose items are many rows
    upload_pace: Pace
    upload_waits: Bell  # wakes the intake: a version may be checked now
    sick_versions: set[str] = field(default_factory=set)  # see `probing.sick`
    damage_told: dict[str, float] = field(default_factory=dict)  # see `registry.damage`
    outages: dict[str, str] = field(default_factory=dict)  # work beside requests that failed: why


def state_of(request: Request) -> AppState:
    state = request.app.state.tenora
    assert isinstance(state, AppState)
    return state


async def get_state(request: Request) -> AppState:
    """`state_of` as a dependency. It must be async: FastAPI runs any other in a thread, which takes
    longer than most of what a request does."""
    return state_of(request)


State = Annotated[AppState, Depends(get_state)]


async def get_tenant_session(state: State, tenant: CurrentTenant) -> AsyncIterator[AsyncSession]:
    async with state.db.tenant_session(tenant.tenant_id) as session:
        yield session


async def get_admin_session(state: State, admin: CurrentAdmin) -> AsyncIterator[AsyncSession]:
    async with state.db.admin_session() as session:
        yield session


# One commit per request, before its answer is sent (scope="function"): a failed commit is a 500,
# not a success that did not happen. Streams open their own sessions instead.
TenantSession = Annotated[AsyncSession, Depends(get_tenant_session, scope="function")]
AdminSession = Annotated[AsyncSession, Depends(get_admin_session, scope="function")]


async def get_ready_engine(state: State) -> EngineClient:
    """The engine, once it serves. Raises UnavailableError (503) before, and after it died."""
    if not state.engine.ready:
        raise UnavailableError(not_ready_reason(state), code="engine_not_ready")
    return state.engine


async def answered(question: Awaitable[T]) -> T:
    """What the engine says to a question of a page's. Raises UnavailableError (503) where it says
    nothing in time, and EngineError."""
    try:
        async with asyncio.timeout(ENGINE_ANSWER_S):
            return await question
    except TimeoutError:
        raise UnavailableError(
            f"The engine did not answer within {ENGINE_ANSWER_S:g} s: it hangs, or is busy.",
            code="engine_not_answering",
        ) from None


def not_ready_reason(state: AppState, *, detailed: bool = False) -> str:
    """Why the engine does not serve, in words for a person; `detailed`: with its own, which may
    name hosts and paths and are the operator's."""
    said, why = _not_ready_words(state)
    return f"{said}: {why.rstrip('.')}." if detailed and why is not None else f"{said}."


def _not_ready_words(state: AppState) -> tuple[str, str | None]:
    if state.engine.ready and state.engine.refuses is not None:
        return "The engine accepts no new requests", state.engine.refuses
    if state.engine_life.error is not None:
        return "The engine could not start", state.engine_life.error
    for each in state.presence.others or []:
        if each.role == "engine" and "engine" in each.outages:
            return "The engine is being restarted", each.outages["engine"]
    if state.engine_life.started:
        return "The engine has stopped answering and is being restarted", None
    return "The engine is still loading its model", None


ReadyEngine = Annotated[EngineClient, Depends(get_ready_engine)]
