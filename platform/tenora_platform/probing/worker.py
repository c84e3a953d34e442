"""Prober: asks every active version, one at a time and behind everybody else, and keeps what it
found. All it needs to know is in the database: after a crash the version is asked anew."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial

import structlog
from sqlalchemy import select, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_engine.errors import EngineError
from tenora_engine.events import EngineStats
from tenora_engine.printable import brief
from tenora_engine.request import AdapterRef, Tenant
from tenora_engine.text.chat_template import Renders
from tenora_platform.canary.tables import CanaryRow
from tenora_platform.events import repository as events
from tenora_platform.intake.report import Problem, ValidationReport
from tenora_platform.locks import try_lock
from tenora_platform.outages import first_line, is_own_fault
from tenora_platform.probing import repository, sick
from tenora_platform.probing.asking import ANSWER_TOKENS, KL_NOISE, Asker, ProbeError, SickError
from tenora_platform.probing.loads import loads_of
from tenora_platform.probing.pace import Pace
from tenora_platform.probing.prompts import BUILT_IN
from tenora_platform.probing.repository import Due
from tenora_platform.probing.schemas import Findings, Footprint, Sample
from tenora_platform.probing.tenant import probing_tenant
from tenora_platform.registry.tables import AdapterVersionRow
from tenora_platform.state import AppState

POLL_S = 5.0
ATTEMPTS_MAX = 5
RETRY_AFTER = timedelta(minutes=1)  # twice as long after each attempt
NO_EFFECT = "no_effect_measured"
_LOCK = "tenora:prober"
_log = structlog.get_logger(__name__)


class Prober:
    """One in each worker; a lock keeps it to one version at a time in all of them."""

    def __init__(self, state: AppState) -> None:
        self._state = state
        self._tenant: Tenant | None = None
        self._own: set[str] = set()  # tenants that ask for the platform: nobody who is served
        self._pace: Pace | None = None

    async def run(self) -> None:
        """Works for ever; cancel it to stop."""
        while True:
            ready = self._state.settings.probe_adapters and self._state.engine.ready
            if not ready or not await self.run_once():
                await asyncio.sleep(POLL_S)

    async def run_once(self) -> bool:
        """Ask the next version, if one waits; whether one did."""
        async with self._state.db.admin_session() as session:
            if await repository.next_due(session, datetime.now(UTC)) is None:
                return False
        async with self._state.db.admin_session() as guard:
            if not await try_lock(guard, _LOCK):
                return False
            async with self._state.db.admin_session() as session:
                due = await repository.next_due(session, datetime.now(UTC))
            if due is None:
                return False
            try:
                findings = await self._ask(due, partial(guard.execute, text("select 1")))
                await self._keep(due, findings)
            except (EngineError, ProbeError) as error:
                is_sick = isinstance(error, SickError)
                await self._failed(due, first_line(error), is_sick=is_sick)
            except Exception as error:
                if isinstance(error, SQLAlchemyError) and not is_own_fault(error):
                    raise  # it is not the version's fault
                # A version that breaks us must not stand before all others.
                _log.exception("version could not be probed", version=due[0].id)
                await self._failed(due, f"{type(error).__name__} in the server")
            return True

    async def _ask(self, due: Due, keep: Callable[[], Awaitable[object]]) -> Findings:
        """`keep`: the database's patience with the lock, while it rests."""
        version, _, own_prompts, _ = due
        assert version.digest is not None  # a constraint of the table: active is complete
        assert version.rank is not None
        engine, ref = self._state.engine, AdapterRef(version.digest, version.rank)
        await asyncio.to_thread(lambda: engine.text)  # a worker makes it on first use
        if self._tenant is None:
            self._tenant = await probing_tenant(self._state)
        self._own |= {self._tenant.key, *await self._canaries()}
        if self._pace is None:
            self._pace = Pace(engine, self._state.redis, self._state.seal, self._own)
        context = {"tenant_id": self._tenant.key, "model": engine.model.id}
        asker = Asker(engine, self._tenant, context, self._pace, keep)
        await self._pace.begin(version.id)
        samples, footprint = [], None
        template = await self._state.templates.of_version(
            version.tenant_id, version.id, engine.text
        )
        for prompt in own_prompts or BUILT_IN:
            ids = await self._state.templates.run(
                version.tenant_id, partial(self._prompt_ids, prompt, template)
            )
            samples.append(await asker.compare(prompt, ids, ref))
            stats = await engine.stats()
            footprint = footprint or _footprint(stats, ref)
        await self._pace.end(is_whole=True)
        return Findings(
            base_model=engine.model.id,
            source="tenant" if own_prompts else "built_in",
            samples=samples,
            kl_max=max(max(sample.kl, default=0.0) for sample in samples),
            differs=any(map(_differs, samples)),
            footprint=footprint,
            loads=loads_of(asker.usage, stats),
        )

    async def _canaries(self) -> Sequence[str]:
        async with self._state.db.admin_session() as session:
            return (await session.scalars(select(CanaryRow.tenant))).all()

    def _prompt_ids(self, prompt: str, template: Renders | None) -> list[int]:
        """As a user's message, through the version's own chat template if it has one; the end of
        what is too long for the context."""
        text, model = self._state.engine.text, self._state.engine.model
        control = self._state.settings.allow_control_tokens
        if template is not None or text.has_chat_template:
            said = [{"role": "user", "content": prompt}]
            most = text.characters_max(model.context_tokens)
            ids = text.encode_chat(
                said, control_tokens=control, template=template, characters_most=most
            )
        else:
            ids = text.encode(prompt, control_tokens=control)
        return ids[-max(model.context_tokens - ANSWER_TOKENS, 1) :]

    async def _failed(self, due: Due, error: str, *, is_sick: bool = False) -> None:
        version, name, _, attempts = due
        if self._pace is not None:
            await self._pace.end(is_whole=False)
        is_last = is_sick or attempts + 1 >= ATTEMPTS_MAX
        _log.warning("version could not be probed", adapter=name, version=version.id, reason=error)
        if is_last:
            self._state.metrics.jobs_parked.labels("probe").inc()
        async with self._state.db.admin_session() as session:
            await repository.put_probe(
                session,
                version,
                state="failed" if is_last else "waiting",
                attempts=attempts + 1,
                next_at=datetime.now(UTC) + RETRY_AFTER * 2**attempts,
                error=brief(error),
            )
            if is_sick:
                await sick.warn(session, version.id)

    async def _keep(self, due: Due, findings: Findings) -> None:
        version, name, _, _ = due
        now = datetime.now(UTC)
        async with self._state.db.admin_session() as session:
            await repository.put_probe(
                session,
                version,
                state="done",
                attempts=0,
                next_at=now,
                error=None,
                findings=findings.model_dump(mode="json"),
                probed_at=now,
            )
            await _warn(session, version, findings)
            if not findings.differs:
                what = {"adapter": name, "version": version.number, "id": version.id}
                await events.add(
                    session,
                    tenant_id=version.tenant_id,
                    type="adapter.no_effect_measured",
                    once=version.id,
                    data={**what, "kl_max": findings.kl_max, "prompts": len(findings.samples)},
                )
        _log.info("version probed", version=version.id, kl_max=findings.kl_max)


async def _warn(session: AsyncSession, version: AdapterVersionRow, findings: Findings) -> None:
    """The version's report has the warning as long as it holds."""
    row = await session.get_one(AdapterVersionRow, version.id, with_for_update={"key_share": True})
    report = ValidationReport.model_validate(row.report or {"problems": []})
    report.warnings = [each for each in report.warnings if each.code != NO_EFFECT]
    if not findings.differs:
        report.warnings.append(
            Problem(
                field="weights",
                code=NO_EFFECT,
                message=f"on {len(findings.samples)} prompts, this version gave exactly the same "
                "answers as the base model, and its next-token distributions differed by "
                f"at most {findings.kl_max:.1g} nats (below {KL_NOISE:g} is rounding). Is "
                "it the right checkpoint? Use PUT probe_prompts to test it with prompts "
                "of your own",
            )
        )
    row.report = report.model_dump(mode="json")


def _differs(sample: Sample) -> bool:
    return not sample.same or max(sample.kl, default=0.0) >= KL_NOISE


def _footprint(stats: EngineStats, ref: AdapterRef) -> Footprint | None:
    for each in stats.adapters:
        if each.digest == ref.digest and each.pages:
            return Footprint(pages=each.pages, page_bytes=stats.pool.page_bytes)
    return None
