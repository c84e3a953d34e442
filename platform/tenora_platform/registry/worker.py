"""IntakeWorker: checks uploads in the background and gives back the content of revoked versions.
All it needs to know is in the database and the store, so a crash costs a check begun anew, no more.
The check itself runs in a process apart (`intake.checker`)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta

import structlog
from obstore.exceptions import BaseError
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_engine.adapters.identity import adapter_digest
from tenora_platform.events import repository as events
from tenora_platform.intake.check import CheckedAdapter
from tenora_platform.intake.checker import CheckLostError, lost_too_often
from tenora_platform.intake.draft_layer import of_the_layer
from tenora_platform.intake.report import Problem, ValidationReport
from tenora_platform.locks import lock, try_lock
from tenora_platform.outages import is_own_fault, log_failure
from tenora_platform.registry import damage, repository, reservations
from tenora_platform.registry.set_aside import SetAside
from tenora_platform.registry.spool import Spool
from tenora_platform.registry.storage import (
    AdapterStorage,
    part_key,
    staged_draft_layer,
    staged_weights,
)
from tenora_platform.registry.tables import AdapterRow, AdapterVersionRow
from tenora_platform.state import AppState

POLL_S = 10.0  # for what no process told of: one that crashed, and content whose time has come
RETRY_S = 5.0  # after a failure of the database or the store
RELEASE_AFTER = timedelta(minutes=10)
"""How long the content of a revoked version stays: running requests may still have to load it."""
BATCH = 16
ATTEMPTS_MAX = 5
"""Checks of one version that may be lost with the process or the machine, or in which the store may
fail while it works otherwise, before it is refused."""
TOLD_MAX = 20
"""Problems of a rejected version that its event names; its report has all."""

_log = structlog.get_logger(__name__)


class IntakeWorker:
    """One of these runs in each process; an advisory lock in the database keeps two of them from
    the same version."""

    def __init__(self, state: AppState, *, release_after: timedelta = RELEASE_AFTER) -> None:
        self._state = state
        self._storage = AdapterStorage(
            state.objects,
            reserve_bytes=state.settings.disk_reserve,
            deleting=state.store.deleting,
        )
        self._spool = Spool(state.settings.spool_folder)
        self._resolver = state.resolver
        self._undeleted = SetAside()
        self._not_before: dict[str, float] = {}  # versions whose checks failed here
        self._release_after = release_after

    async def run(self) -> None:
        """Works for ever; cancel it to stop."""
        clean_s = 0.0  # when what only its time makes due is looked for again
        while True:
            self._state.upload_waits.clear()
            due = time.monotonic() >= clean_s
            try:
                worked = await self.run_once(give_back=due)
            except Exception as error:
                # One version that cannot be checked must not end the checks of all others.
                log_failure(_log, "intake paused", error, retry_s=RETRY_S)
                await asyncio.sleep(RETRY_S)
                continue
            if due and not worked:
                clean_s = time.monotonic() + POLL_S
            if not worked:
                await self._state.upload_waits.wait(POLL_S)

    async def run_once(self, *, give_back: bool = True) -> bool:
        """Check and, where it is to, release what waits now; says whether there was anything.
        Nothing is checked before the engine has loaded: only then the base model's shapes are
        known."""
        cleanings = [self._release_revoked, self._expire_uploads] if give_back else []
        released, unclean = await _each(cleanings)
        checked, failures = False, list[Exception]()
        if self._state.engine_life.started:
            checked, failures = await self._take_turns()
        _, unclean_after = await _each([self._discard_checked])
        self._state.store.tell(undeleted=len(self._undeleted))
        if failures := [*failures, *unclean, *unclean_after]:
            raise failures[0]
        return released or checked

    async def _take_turns(self) -> tuple[bool, list[Exception]]:
        """Check what waits, asking before each check whose turn it is: a tenant that uploads
        hundreds delays another by one. A failure lets the versions behind have their turn first.
        Whether anything was checked, and what failed."""
        now_s, failures = time.monotonic(), list[Exception]()
        self._not_before = {each: at for each, at in self._not_before.items() if at > now_s}
        tried = {*self._not_before}
        checked = False
        for _ in range(BATCH):
            async with self._state.db.admin_session() as session:
                pending = await repository.pending_versions(session, 2 * BATCH)
            row = next((each for each in pending if each.id not in tried), None)
            if row is None:
                break
            tried.add(row.id)
            try:
                checked = await self._check_one(row) or checked
            except Exception as error:
                failures.append(error)
        return checked, failures

    async def _check_one(self, row: AdapterVersionRow) -> bool:
        async with self._claimed(row.id) as claimed:
            if not claimed:
                return False
            async with self._state.db.admin_session() as session:
                attempts = await repository.begin_check(session, row.id, datetime.now(UTC))
            if attempts is None:
                return False  # deleted meanwhile
            if attempts > ATTEMPTS_MAX:
                await self._reject(row, lost_too_often(ATTEMPTS_MAX).report)
                return True
            try:
                await self._examine(row)
            except CheckLostError as error:
                _log.warning(
                    "upload check lost", version=row.id, attempt=attempts, reason=str(error)
                )
            except BaseException as error:
                if isinstance(error, Exception) and await self._is_to_blame(error):
                    await self._failed(row, attempts, error)
                    return True
                async with self._state.db.admin_session() as session:
                    await repository.uncount_check(session, row.id)
                raise
        return True

    async def _is_to_blame(self, error: Exception) -> bool:
        """Whether it is about this very version: what it says cannot be stored, say, or the store
        fails with it alone. One that is full or away takes no record either."""
        if is_own_fault(error):
            return True
        if not isinstance(error, BaseError | OSError):
            return False
        try:
            return await self._state.store.agrees()
        except Exception:
            return False

    async def _failed(self, row: AdapterVersionRow, attempts: int, error: Exception) -> None:
        """It is tried again after a while, for which nobody else waits, and in the end refused."""
        log_failure(_log, "upload check failed", error, version=row.id, attempt=attempts)
        if attempts < ATTEMPTS_MAX:
            self._not_before[row.id] = time.monotonic() + RETRY_S * attempts
            return
        self._state.metrics.jobs_parked.labels("intake").inc()
        _log.error("upload given up", version=row.id, tenant=row.tenant_id, attempts=attempts)
        await self._reject(row, _check_failed() if is_own_fault(error) else _store_failed())

    @asynccontextmanager
    async def _claimed(self, version_id: str) -> AsyncIterator[bool]:
        """Whether this worker may have the version. The lock goes with the connection, so that a
        crashed worker's versions are free at once."""
        async with self._state.db.admin_session() as session:
            yield await try_lock(session, f"intake:{version_id}")

    async def _examine(self, row: AdapterVersionRow) -> None:
        assert row.staging_key is not None  # pending versions have one
        with self._spool.file() as weights:
            try:
                config = await self._storage.staged_config(row.staging_key)
                sha256 = await self._storage.fetch(await self._weights_keys(row), weights)
            except FileNotFoundError:
                if not await self._state.store.agrees():
                    raise  # it is not there, for it is in another store
                await self._reject(row, _lost())
                return
            if sha256 != row.weights_sha256:
                await self._reject(row, _damaged())
                return
            checked = await self._state.checker.check(
                config, weights, self._state.engine.model, self._state.settings.max_rank
            )
            if not checked.report.accepted or checked.config is None:
                await self._reject(row, checked.report)
                return
            problem = await self._state.templates.check(row.id, self._state.engine.text)
            if problem is not None:
                await self._reject(row, ValidationReport(problems=[problem]))
                return
            if row.draft_layer_digest is not None:
                problems = await self._take_layer(row.staging_key, row.draft_layer_digest)
                if problems:
                    await self._reject(row, ValidationReport(problems=problems))
                    return
            # Of what lies here, not of what the check says: an adapter that took its check over
            # could name the content of somebody else.
            digest = adapter_digest(checked.config, sha256)
            # The object is durable before any row refers to it.
            await self._storage.publish(digest, checked.config, weights)
            await self._activate(row, checked, digest)

    async def _take_layer(self, staging_key: str, digest: str) -> list[Problem]:
        """Check a draft layer, and publish it; what is wrong with it. Its version, which waits
        still, owns the object."""
        with self._spool.file() as layer:
            try:
                sha256 = await self._storage.fetch([staged_draft_layer(staging_key)], layer)
            except FileNotFoundError:
                if not await self._state.store.agrees():
                    raise
                return [of_the_layer(each) for each in _lost().problems]
            if f"sha256:{sha256}" != digest:
                return [of_the_layer(each) for each in _damaged().problems]
            model = self._state.engine.model
            problems = (await self._state.checker.check_draft_layer(layer, model)).problems
            if not problems:
                await self._storage.publish_draft_layer(digest, layer)
            return problems

    async def _weights_keys(self, row: AdapterVersionRow) -> list[str]:
        """Where the version's weights wait, in the file's order."""
        assert row.staging_key is not None  # asked for
        if row.upload_id is None:
            return [staged_weights(row.staging_key)]
        async with self._state.db.admin_session() as session:
            parts = await repository.ordered_parts(session, row.upload_id)
        return [part_key(row.upload_id, part) for part in parts]

    async def _activate(self, row: AdapterVersionRow, checked: CheckedAdapter, digest: str) -> None:
        contents = _contents(digest, row)
        async with self._state.db.admin_session() as session:
            # The same locks as in `_release`: content cannot be withdrawn between look and commit.
            for each in contents:
                await lock(session, f"content:{each}")
            if not await self._storage.published(digest, row.draft_layer_digest):
                raise OSError(f"the content {digest} was deleted while it was being activated")
            moved = await repository.move_state(
                session,
                row.id,
                "active",
                when=("validating",),
                digest=digest,
                rank=checked.rank,
                target_modules=list(checked.target_modules),
                report=checked.report.model_dump(mode="json"),
                activated_at=datetime.now(UTC),
            )
            await damage.unmark(session, damage.of_contents([digest]))
            if moved:
                await self._state.audit.append(
                    session,
                    actor="intake",
                    action="adapter_version.activate",
                    target=row.id,
                    tenant_id=row.tenant_id,
                    before={"state": "validating"},
                    after={"state": "active", "digest": digest, "rank": checked.rank},
                )
                await self._tell(session, row, "adapter.active", {"digest": digest})
            else:  # deleted while it was being checked
                await self._withdraw_unkept(session, contents)
        if moved:
            await self._resolver.invalidate(row.tenant_id)
        _log.info("adapter checked", version=row.id, state="active", digest=digest)

    async def _reject(self, row: AdapterVersionRow, report: ValidationReport) -> None:
        async with self._state.db.admin_session() as session:
            moved = await repository.move_state(
                session,
                row.id,
                "rejected",
                when=("validating",),
                report=report.model_dump(mode="json"),
            )
            if moved:
                await self._state.audit.append(
                    session,
                    actor="intake",
                    action="adapter_version.reject",
                    target=row.id,
                    tenant_id=row.tenant_id,
                    before={"state": "validating"},
                    after={
                        "state": "rejected",
                        "codes": sorted({problem.code for problem in report.problems}),
                    },
                )
                found = [problem.model_dump(mode="json") for problem in report.problems]
                await self._tell(session, row, "adapter.rejected", {"problems": found[:TOLD_MAX]})
        codes = [problem.code for problem in report.problems]
        _log.info("adapter checked", version=row.id, state="rejected", codes=codes)

    async def _tell(
        self, session: AsyncSession, row: AdapterVersionRow, type: str, more: dict[str, object]
    ) -> None:
        name = await session.scalar(select(AdapterRow.name).where(AdapterRow.id == row.adapter_id))
        what = {"adapter": name, "version": row.number, "id": row.id}
        await events.add(session, tenant_id=row.tenant_id, type=type, once=row.id, data=what | more)

    async def _discard_checked(self) -> bool:
        """Give back the uploads that no check needs any more. Their rows say so until it is done,
        so that a crash between the two leaves nothing behind."""
        async with self._state.db.admin_session() as session:
            waiting = self._undeleted.waiting()
            checked = await repository.checked_uploads(session, BATCH, but_for=waiting)
        if checked and not await self._state.store.agrees():
            return False
        for row in checked:
            with self._undeleted.trying(row.id):
                await self._discard_upload(row)
        return bool(checked)

    async def _discard_upload(self, row: AdapterVersionRow) -> None:
        assert row.staging_key is not None  # asked for
        await self._storage.discard({*await self._weights_keys(row)})
        await self._storage.discard_staged(row.staging_key)
        async with self._state.db.admin_session() as session:
            await repository.forget_upload(session, row.id)

    async def _release_revoked(self) -> bool:
        before = datetime.now(UTC) - self._release_after
        async with self._state.db.admin_session() as session:
            waiting = self._undeleted.waiting()
            revoked = await repository.unreleased_versions(session, before, BATCH, but_for=waiting)
        if revoked and not await self._state.store.agrees():
            return False
        for row in revoked:
            with self._undeleted.trying(row.id):
                await self._release(row)
        return bool(revoked)

    async def _expire_uploads(self) -> bool:
        """Give back what nobody completed or used in time, and what stopped coming."""
        async with self._state.db.admin_session() as session:
            expired = await repository.expire_uploads(session, datetime.now(UTC), BATCH)
            lapsed = await reservations.lapsed(session, BATCH)
        if (expired or lapsed) and not await self._state.store.agrees():
            return True  # a sweep finds what has no owner
        for upload_id, part_ids in expired.items():
            with _left_to_a_sweep(upload_id):
                await self._storage.discard([part_key(upload_id, part) for part in part_ids])
        for version_id in lapsed:
            with _left_to_a_sweep(version_id):
                await self._storage.discard_staged(f"staging/{version_id}")
        return bool(expired or lapsed)

    async def _release(self, row: AdapterVersionRow) -> None:
        """Delete the content unless a version of any tenant has it, or has not released it yet."""
        async with self._state.db.admin_session() as session:
            now, contents = datetime.now(UTC), _contents(row.digest, row)
            for each in contents:
                await lock(session, f"content:{each}")
            await repository.move_state(
                session, row.id, "revoked", when=("revoked",), released_at=now
            )
            # One revoked a moment ago may still be asked for by requests that run.
            await self._withdraw_unkept(session, contents)

    async def _withdraw_unkept(self, session: AsyncSession, contents: list[str]) -> None:
        if not await self._state.store.agrees():
            return  # a sweep finds what has no owner
        kept = await repository.kept_digests(session, contents) if contents else set()
        for digest in contents:
            if digest not in kept:
                await self._storage.withdraw(digest)


async def _each(
    works: Sequence[Callable[[], Awaitable[bool]]],
) -> tuple[bool, list[Exception]]:
    """Do them all, whichever fails: whether one did anything, and what failed."""
    did, failures = False, list[Exception]()
    for work in works:
        try:
            did = await work() or did
        except Exception as error:
            failures.append(error)
    return did, failures


@contextmanager
def _left_to_a_sweep(what: str) -> Iterator[None]:
    """No row owns it any more: a failure keeps nobody from anything."""
    try:
        yield
    except Exception as error:
        log_failure(_log, "objects of an upload are left to the next sweep", error, upload=what)


def _contents(digest: str | None, row: AdapterVersionRow) -> list[str]:
    """The digests under which a version's content lies, in the order in which they are locked."""
    return sorted({each for each in (digest, row.draft_layer_digest) if each is not None})


def _lost() -> ValidationReport:
    return ValidationReport(
        problems=[
            Problem(
                field="weights",
                code="upload_lost",
                message="the uploaded file is no longer in the object store; upload it again",
            )
        ]
    )


def _store_failed() -> ValidationReport:
    return ValidationReport(
        problems=[
            Problem(
                field="weights",
                code="store_failed",
                message=(
                    f"the object store failed with this upload {ATTEMPTS_MAX} times; upload it "
                    "again, and if that fails too, tell the operator the version's id"
                ),
            )
        ]
    )


def _check_failed() -> ValidationReport:
    return ValidationReport(
        problems=[
            Problem(
                field="weights",
                code="check_failed",
                message=(
                    f"the server failed {ATTEMPTS_MAX} times while it checked this upload; tell "
                    "the operator the version's id"
                ),
            )
        ]
    )


def _damaged() -> ValidationReport:
    return ValidationReport(
        problems=[
            Problem(
                field="weights",
                code="checksum_mismatch",
                message="the stored file does not match its checksum; upload it again",
            )
        ]
    )
