"""The canary: asks every so often what it has asked before, on every way that an adapter takes, and
checks the answer, what it can see of its neighbour, and its bill. One round at a time."""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from importlib.metadata import version

import httpx
import structlog
from sqlalchemy import delete
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import SQLAlchemyError

from tenora_engine.errors import EngineError
from tenora_platform.canary import bill
from tenora_platform.canary.asking import PATHS, Answer, Path, ask, auth_of, lead_to
from tenora_platform.canary.tables import CanaryAnswerRow, CanaryRoundRow
from tenora_platform.canary.tenants import CanaryError, CanaryTenant, ready_tenant
from tenora_platform.db import plain_reason
from tenora_platform.events import repository as events
from tenora_platform.ids import new_id
from tenora_platform.locks import try_lock
from tenora_platform.state import AppState

KEPT = timedelta(days=7)
BILLED_WITHIN_S = 20.0
_TIMEOUT_S = 60.0
_TRIES = 3  # until the adapter is found where it was led
_LOCK = "tenora:canary"
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at; `problem` says what is wrong."""

    name: str
    problem: str | None
    seconds: float


class Canary:
    """One runs in each worker; a lock keeps their rounds apart."""

    def __init__(self, state: AppState) -> None:
        self._state = state
        self._every_s = state.settings.canary_every_s
        self._tenants: tuple[CanaryTenant, CanaryTenant] | None = None

    async def run(self) -> None:
        """Works for ever; cancel it to stop."""
        while True:
            await asyncio.sleep(self._every_s or 3600.0)
            if not self._every_s or not self._state.engine.ready:
                continue
            try:
                await self.run_once()
            except (SQLAlchemyError, OSError) as error:
                _log.warning(
                    "the round of synthetic checks could not run", reason=plain_reason(error)
                )

    async def run_once(self) -> list[Check]:
        """A round, unless another worker is at one; its checks are kept and told."""
        async with self._state.db.admin_session() as guard:
            if not await try_lock(guard, _LOCK):
                return []
            checks = await self._round()
            await self._keep(checks)
            return checks

    async def _round(self) -> list[Check]:
        base_url = self._state.settings.canary_base_url
        async with httpx.AsyncClient(base_url=base_url, timeout=_TIMEOUT_S) as http:
            began_s = time.monotonic()
            try:
                mine, other = await self._ready(http)
            except (CanaryError, EngineError, httpx.HTTPError, TimeoutError) as error:
                self._tenants = None
                return [_failed("setup", error, began_s)]
            checks: list[Check] = []
            answers: list[Answer] = []
            elsewhere: list[str] = []
            for path in self._paths():
                check, found = await self._take(http, mine, path)
                checks.append(check)
                answers += found
                if found and not _is_on(path, found[-1]):
                    elsewhere.append(
                        f"expected on {path}, but the answer said {found[-1].residency}"
                    )
            checks.append(Check("residency", "; ".join(elsewhere) or None, 0.0))
            checks.append(await self._isolated(http, mine, other))
            checks.append(await self._billed(mine, answers))
            if any(check.problem and "401" in check.problem for check in checks):
                self._tenants = None  # the key was revoked: the next round has another
            return checks

    def _paths(self) -> list[Path]:
        """Without the host's memory, if it has none for adapters."""
        on_host = self._state.settings.host_adapter_memory != 0
        return [path for path in PATHS if path != "host" or on_host]

    async def _ready(self, http: httpx.AsyncClient) -> tuple[CanaryTenant, CanaryTenant]:
        if self._tenants is None or self._tenants[0].key_until < datetime.now(UTC):
            mine = await ready_tenant(self._state, http, "canary")
            other = await ready_tenant(self._state, http, "neighbour")
            await ask(http, other, other.names[0])  # a request that the canary must not see
            self._tenants = mine, other
        return self._tenants

    async def _take(
        self, http: httpx.AsyncClient, mine: CanaryTenant, path: Path
    ) -> tuple[Check, list[Answer]]:
        """With every answer, for each has a bill. Others' loads and evictions go on meanwhile: what
        was elsewhere when it was asked is led there again, and the last answer counts."""
        began_s = time.monotonic()
        answers: list[Answer] = []
        try:
            model = self._state.engine.model.id if path == "base" else mine.names[0]
            for _ in range(_TRIES):
                await lead_to(self._state.engine, mine, path)
                answers.append(await ask(http, mine, model))
                if _is_on(path, answers[-1]):
                    break
            took_s = _since(began_s)
            problem = await self._differs("base" if path == "base" else "adapter", answers[-1])
        except (CanaryError, EngineError, httpx.HTTPError, TimeoutError) as error:
            return _failed(path, error, began_s), answers
        return Check(path, problem, took_s), answers

    async def _differs(self, asked: str, answer: Answer) -> str | None:
        """Whether it is another answer than the first of this base model as it is served."""
        settings, model = self._state.settings, self._state.engine.model
        served = (model.id, model.dtype, settings.weight_dtype, settings.kv_dtype)
        served_as = "/".join((*served, settings.adapter_dtype, version("tenora")))
        async with self._state.db.admin_session() as session:
            row = insert(CanaryAnswerRow).values(
                served_as=served_as, asked=asked, answer=answer.text
            )
            await session.execute(row.on_conflict_do_nothing())
            first = await session.get_one(CanaryAnswerRow, (served_as, asked))
        if first.answer == answer.text:
            return None
        return f"the answer is {answer.text!r}, but the first one was {first.answer!r}"

    async def _isolated(
        self, http: httpx.AsyncClient, mine: CanaryTenant, other: CanaryTenant
    ) -> Check:
        """Whatever is the neighbour's is 404 for the canary."""
        began_s, seen = time.monotonic(), []
        try:
            theirs = await ask(http, other, other.names[0])
            body = {"model": other.names[1], "messages": [{"role": "user", "content": "?"}]}
            for method, path, json in (
                ("POST", "/v1/chat/completions", body),
                ("GET", f"/v1/adapters/{other.names[1]}", None),
                ("GET", f"/v1/api_keys/{other.key_id}", None),
                ("GET", f"/v1/requests/{theirs.x_request_id}", None),
            ):
                found = await http.request(method, path, headers=auth_of(mine), json=json)
                if found.status_code != 404:
                    seen.append(f"{method} {path} answered {found.status_code} instead of 404")
        except (CanaryError, httpx.HTTPError) as error:
            return _failed("isolation", error, began_s)
        problem = "the neighbour's: " + ", ".join(seen) if seen else None
        return Check("isolation", problem, _since(began_s))

    async def _billed(self, mine: CanaryTenant, answers: list[Answer]) -> Check:
        """Each answer is one event, of the tokens that it said and of what they cost."""
        began_s, problems = time.monotonic(), []
        for answer in answers:
            async with self._state.db.admin_session() as session:
                found = await bill.billed(session, answer)
            while not found.is_whole and time.monotonic() - began_s < BILLED_WITHIN_S:
                await asyncio.sleep(0.2)
                async with self._state.db.admin_session() as session:
                    found = await bill.billed(session, answer)
            async with self._state.db.admin_session() as session:
                problem = await bill.problem_of(session, mine.id, answer, found)
            if problem is not None:
                problems.append(problem)
        return Check("bill", "; ".join(problems) or None, _since(began_s))

    async def _keep(self, checks: list[Check]) -> None:
        wrong = [check for check in checks if check.problem]
        log = _log.error if wrong else _log.debug
        log("canary", wrong={check.name: check.problem for check in wrong})
        round_id, now = new_id("canary"), datetime.now(UTC)
        async with self._state.db.admin_session() as session:
            row = CanaryRoundRow(
                id=round_id, ok=not wrong, at=now, checks=[asdict(check) for check in checks]
            )
            session.add(row)
            await session.execute(delete(CanaryRoundRow).where(CanaryRoundRow.at < now - KEPT))
            if wrong and self._tenants is not None:
                await events.add(
                    session,
                    tenant_id=self._tenants[0].id,
                    type="canary.failed",
                    once=round_id,
                    data={check.name: check.problem for check in wrong},
                )


def _is_on(path: Path, answer: Answer) -> bool:
    return path == "base" or answer.residency == path


def _since(began_s: float) -> float:
    return round(time.monotonic() - began_s, 3)


def _failed(name: str, error: Exception, began_s: float) -> Check:
    why = str(error) or type(error).__name__
    return Check(name, why, _since(began_s))
