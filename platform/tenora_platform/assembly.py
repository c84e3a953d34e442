"""Makes an AppState out of settings: the clients of database, Redis, object store and engine, and
what is built on them. Connects to nothing yet; knows no route."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import structlog
from msgspec.structs import replace

from tenora_engine.client import EngineClient
from tenora_engine.errors import EngineError
from tenora_platform.admin_key import admin_key_hashes
from tenora_platform.apart.client import Apart
from tenora_platform.audit.service import AuditLog
from tenora_platform.auth import Authenticator
from tenora_platform.bell import Bell
from tenora_platform.bootstrap import database_urls
from tenora_platform.budgets.service import Budgets
from tenora_platform.db import Database, tenants_connections
from tenora_platform.evaluations.scorer import Scorer
from tenora_platform.history.answers import AnswerCounts
from tenora_platform.inference.flights import Flights
from tenora_platform.inference.tokenising import LongTexts
from tenora_platform.installation import Installation
from tenora_platform.intake.checker import Checker
from tenora_platform.ledger.service import Ledger
from tenora_platform.limits.service import Limits
from tenora_platform.live.changes import Changes
from tenora_platform.live.hub import Hub
from tenora_platform.live.noticing import noticed
from tenora_platform.live.since import Since
from tenora_platform.object_store import open_object_store, ping
from tenora_platform.operations.metrics import Metrics
from tenora_platform.operations.probes import Probe, Probes
from tenora_platform.operators.keys import AdminKeys
from tenora_platform.people.attempts import SignInAttempts
from tenora_platform.people.oidc import provider_of
from tenora_platform.people.sessions import Sessions
from tenora_platform.processes.presence import Presence, Process, Role, this_process
from tenora_platform.receipts.keeper import ContentsKeeper
from tenora_platform.receipts.signing import SigningKeys
from tenora_platform.receipts.stored_responses import ResponseStore
from tenora_platform.reconciliation.told import Proof
from tenora_platform.redis_client import open_redis, redis_seal
from tenora_platform.registry.pace import Pace
from tenora_platform.registry.ranks import AdapterRanks
from tenora_platform.registry.resolver import Resolver
from tenora_platform.registry.store_identity import StoreIdentity
from tenora_platform.rejections.keeper import RejectedCalls
from tenora_platform.request_places import RequestPlaces, places_of
from tenora_platform.rollouts.outcomes import Outcomes
from tenora_platform.rollouts.shadow_tasks import ShadowTasks
from tenora_platform.settings import Settings
from tenora_platform.state import AppState, EngineLife
from tenora_platform.templates.service import ChatTemplates
from tenora_platform.tenants.ranks import Ranks
from tenora_platform.turns import Turns
from tenora_platform.usage.copies import UsageCopies
from tenora_platform.usage.leftovers import Unbilled

_log = structlog.get_logger(__name__)

_PROBED_S = 1.0
_STORE_PROBED_S = 30.0  # an object written each time, and paid for
OPENED_AT_ONCE = 2
"""Kept contents and stored responses that one process decrypts at once."""
OPENING_WAITING_MAX = 32
"""Reads of them of one tenant, at one process."""


def build_state(
    settings: Settings, engine: EngineClient, metrics: Metrics, role: Role = "all", name: str = ""
) -> AppState:
    """Everything that routes reach, connected lazily; `role` and `name` are the process' own.
    Raises ValueError without server URLs."""
    if settings.database_url is None or settings.redis_url is None:
        raise ValueError(
            "create_app needs database_url and redis_url: start the servers before you "
            "create the app"
        )
    secret = settings.server_secret()
    installation = Installation(settings.installation)
    redis = open_redis(settings.redis_url, metrics.redis_rejected.labels("counter").inc)
    seal = redis_seal(secret, lambda kind: metrics.redis_rejected.labels(kind).inc())
    changes = Changes(redis, seal)
    db = Database(
        database_urls(settings.database_url, secret, installation),
        connections=settings.database_connections,
        statement_timeout_s=settings.statement_timeout_s,
        told=noticed(changes.tell),
    )
    unbilled, proof, outages, apart = Unbilled(), Proof(), dict[str, str](), Apart()
    objects = open_object_store(settings.object_store_url)
    store = StoreIdentity(db.patient(), objects)
    process = this_process(role, name)

    def said() -> list[Process]:
        more = {"unbilled": unbilled.counted, "proof": proof.told, "store": store.told}
        return [replace(process, outages=dict(outages), **more)]

    presence = Presence(redis, seal, said)
    metrics.show_processes(presence, lambda: unbilled.counted or presence.unbilled)
    metrics.show_proof(lambda: proof.told or presence.proof)
    metrics.show_store(lambda: store.told or presence.store)

    opening = Turns(
        OPENED_AT_ONCE,
        tenant_waiting_max=OPENING_WAITING_MAX,
        what="contents and responses waiting to be read",
        too_many="too_many_reads",
    )

    def api_processes() -> int:
        return presence.api_processes or settings.workers

    limits = Limits(
        redis,
        lease_s=settings.lease_s,
        metrics=metrics,
        fallback_s=settings.limits_fallback_s,
        processes=api_processes,
    )
    return AppState(
        settings=settings,
        secret=secret,
        db=db,
        redis=redis,
        seal=seal,
        objects=objects,
        store=store,
        probes=Probes(
            database=Probe("database", db.ping, every_s=_PROBED_S),
            redis=Probe("redis", limits.probe, every_s=_PROBED_S),
            objects=Probe("object store", partial(ping, objects), every_s=_STORE_PROBED_S),
        ),
        engine=engine,
        engine_life=EngineLife(),
        auth=Authenticator(
            db=db,
            redis=redis,
            secret=secret,
            seal=seal,
            admins=AdminKeys(db, secret, admin_key_hashes(settings, secret)),
            sessions=Sessions(
                db, secret, idle_s=settings.session_idle_s, max_s=settings.session_max_s
            ),
            cache_s=settings.auth_cache_s,
        ),
        attempts=SignInAttempts(redis, metrics),
        resolver=Resolver(db, redis, secret, seal),
        provider=provider_of(settings, secret),
        outcomes=Outcomes(redis),
        shadows=ShadowTasks(metrics),
        limits=limits,
        budgets=Budgets(
            db, redis, lease_s=settings.lease_s, metrics=metrics, processes=api_processes
        ),
        audit=AuditLog(secret),
        ledger=Ledger(secret),
        signing_keys=SigningKeys(db, secret),
        opening=opening,
        contents=ContentsKeeper(db, secret, metrics),
        responses=ResponseStore(
            db,
            secret,
            metrics,
            opening,
            most=settings.max_stored_responses,
            most_bytes=settings.max_stored_responses_size,
        ),
        metrics=metrics,
        unbilled=unbilled,
        proof=proof,
        ranks=Ranks(db),
        adapter_ranks=AdapterRanks(db),
        outages=outages,
        presence=presence,
        live=Hub(changes, metrics),
        answers=AnswerCounts(redis),
        rejected=RejectedCalls(db, metrics),
        since=Since(redis),
        long_texts=LongTexts(),
        flights=Flights(redis, seal),
        copies=UsageCopies(redis, seal, metrics),
        checker=Checker(),
        preflights=Checker(),
        upload_pace=Pace(settings.upload_share),
        apart=apart,
        templates=ChatTemplates(db, apart),
        scorer=Scorer(apart),
        places=RequestPlaces(places_of(tenants_connections(settings.database_connections))),
        large_bodies=Turns(2),
        large_answers=Turns(1),
        creating=Turns(1, own_threads=False),
        upload_waits=Bell(redis, "tenora:uploads"),
    )


@asynccontextmanager
async def running_engine(state: AppState, *, with_text: bool = True) -> AsyncIterator[None]:
    """The client of the engine is started for as long as the block runs, which does not wait for
    it; `state.engine_life` says how far it has come."""

    async def start() -> None:
        try:
            await state.engine.start()
            if with_text and not state.settings.allow_control_tokens:
                state.engine.text.prepare_plain()
        except (EngineError, OSError) as error:
            state.engine_life.error = str(error)
            _log.error("no engine", reason=str(error))
        else:
            state.engine_life.started = True
            state.upload_waits.ring()
            _log.info("engine ready", model=state.engine.model.id)

    starting = asyncio.create_task(start())
    try:
        yield
    finally:
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await state.engine.stop()
