"""Proves what was restored: the books layer by layer, every chain, receipts by the restored keys,
and that every object in the store has its digest. It mends nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from obstore.store import ObjectStore
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.audit.service import AuditLog
from tenora_platform.db import Database, DatabaseUrls, libpq_url
from tenora_platform.errors import ApiError
from tenora_platform.ledger.chain import Chain
from tenora_platform.ledger.verify import problems
from tenora_platform.object_store import open_object_store
from tenora_platform.receipts import repository
from tenora_platform.receipts.document import ReceiptError, verify
from tenora_platform.receipts.keys import key_id
from tenora_platform.receipts.service import Receipts
from tenora_platform.receipts.signing import SigningKeys, list_keys
from tenora_platform.reconciliation.child import ReconciliationFailedError, run_task
from tenora_platform.reconciliation.task import Task
from tenora_platform.registry.whole import Fault, StoreReader
from tenora_platform.settings import Settings
from tenora_platform.usage.tables import UsageEventRow

RECEIPTS = 1000
"""Of so many requests, the newest, a receipt is signed and verified. The reconciliation checks seal
and price of every event."""
_AT_ONCE = 100
_NAMED = 20


@dataclass
class Proof:
    """`problems` names what does not hold, empty where all does."""

    events: int = 0
    invoices: int = 0
    receipts: int = 0
    problems: list[str] = field(default_factory=list)


def prove(settings: Settings, urls: DatabaseUrls, before: Collection[Fault]) -> Proof:
    """`before`: what was wrong in the store when the backup was made."""
    return asyncio.run(_prove(settings, urls, before))


async def _prove(settings: Settings, urls: DatabaseUrls, before: Collection[Fault]) -> Proof:
    found = Proof()
    db = Database(urls).patient()
    try:
        await _reconcile(settings, urls, found)
        for problem in await AuditLog(urls.secret).verify(db.admin_session):
            found.problems.append(f"audit log: {problem}")
        async with db.admin_session() as session:
            async for each in problems(session, Chain(urls.secret)):
                found.problems.append(f"ledger: {each}")
            await _verify_receipts(session, db, settings, urls, found)
        await _read_contents(db, open_object_store(settings.object_store_url), before, found)
    finally:
        await db.close()
    return found


async def _reconcile(settings: Settings, urls: DatabaseUrls, found: Proof) -> None:
    task = Task(
        database_url=libpq_url(urls.admin),
        secret=urls.secret.root,
        object_store=settings.object_store_url,
    )
    try:
        result = await run_task(task)
    except ReconciliationFailedError as error:
        found.problems.append(f"the books could not be compared: {error}")
        return
    found.events = result.looked.events + result.looked.archived_events
    found.invoices = result.looked.invoices
    for each in result.named[:_NAMED]:
        found.problems.append(
            f"books: {each.kind} of {each.subject}: expected {each.expected or 'nothing'}, found "
            f"{each.found or 'nothing'}"
        )
    if result.total > len(result.named[:_NAMED]):
        found.problems.append(f"books: {result.total} differences in all")


async def _verify_receipts(
    session: AsyncSession, db: Database, settings: Settings, urls: DatabaseUrls, found: Proof
) -> None:
    rows = await list_keys(session)
    if not rows:  # nobody has asked for a receipt yet
        return
    keys = {
        key_id(row.public_key): Ed25519PublicKey.from_public_bytes(row.public_key) for row in rows
    }
    receipts = Receipts(SigningKeys(db, urls.secret), urls.secret, settings.base_url)
    newest = select(UsageEventRow.request).distinct().order_by(UsageEventRow.request.desc())
    requests = list(await session.scalars(newest.limit(RECEIPTS)))
    for begin in range(0, len(requests), _AT_ONCE):
        for request in await repository.load(session, requests[begin : begin + _AT_ONCE]):
            try:
                verify(await receipts.receipt(session, request.id), keys)
            except (ApiError, ReceiptError) as error:
                found.problems.append(f"receipt of {request.id}: {error}")
            found.receipts += 1


async def _read_contents(
    db: Database, objects: ObjectStore, before: Collection[Fault], found: Proof
) -> None:
    known = {(each.verdict, each.path) for each in before}
    for each in (await StoreReader(db, objects).read_all()).faults:
        since = (
            "it was so when the backup was made"
            if (each.verdict, each.path) in known
            else "it was not so when the backup was made"
        )
        found.problems.append(f"object store: {each}, and {since}")
