"""Writes the audit log in the transaction of what it records, each entry hashed onto the one before
it, and walks the chains to find what was changed. It does not know what the actions mean."""

from __future__ import annotations

import hmac
import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from hashlib import sha256

import structlog
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.asking import ask
from tenora_platform.audit.heads import End, Heads
from tenora_platform.audit.tables import AuditRow
from tenora_platform.audit.verification import BEGINNING, ChainVerifier, Sessions
from tenora_platform.ids import new_id
from tenora_platform.locks import lock
from tenora_platform.secret import ServerSecret

OPERATOR = "operator"

Details = Mapping[str, object]
"""JSON, and times and decimals, which become its strings."""


class AuditLog:
    """One chain for each tenant and one for the operator, so that tenants never wait for each
    other. Hashes are HMACs under the server secret: whoever can write to the database still cannot
    forge an entry."""

    def __init__(self, secret: ServerSecret) -> None:
        self._key = secret.key("audit-chain")
        self._heads = Heads(secret)

    async def append(
        self,
        session: AsyncSession,
        *,
        actor: str,
        action: str,
        target: str,
        tenant_id: str | None = None,
        before: Details | None = None,
        after: Details | None = None,
        details: Details | None = None,
    ) -> AuditRow:
        """Record `action` (such as `api_key.revoke`) on `target` (an id), with what the target was
        `before` (None: nothing) and is `after` it, and from which address a request asked for
        it. `tenant_id` is whose chain it belongs to; None
        is the operator's and needs an admin session."""
        chain = tenant_id or OPERATOR
        await ask(session)
        await lock(session, f"audit:{chain}")
        head, last = await self._heads.last(session, chain)
        context = structlog.contextvars.get_contextvars()
        where = {"address": address} if (address := context.get("address")) else {}
        row = AuditRow(
            id=new_id("audit"),
            tenant_id=tenant_id,
            chain=chain,
            seq=last.seq + 1,
            at=datetime.now(UTC),
            actor=actor,
            action=action,
            target=target,
            details=_canonical({"before": before, "after": after, **where, **(details or {})}),
            request_id=context.get("request_id"),
            prev_hash=last.hash,
        )
        row.hash = self.hash_of(row)
        session.add(row)
        self._heads.move(session, head, chain, End(row.seq, row.hash))
        await session.flush()
        return row

    def hash_of(self, row: AuditRow) -> str:
        """Hex HMAC-SHA-256 over everything in the entry, the hash before it included."""
        content = [
            row.id,
            row.tenant_id,
            row.chain,
            row.seq,
            row.at.astimezone(UTC).isoformat(timespec="microseconds"),
            row.actor,
            row.action,
            row.target,
            row.details,
            row.request_id,
            row.prev_hash,
        ]
        message = json.dumps(content, separators=(",", ":")).encode()
        return hmac.new(self._key, message, sha256).hexdigest()

    @property
    def verifier(self) -> ChainVerifier:
        """Of its chains."""
        return ChainVerifier(self._heads, self.hash_of)

    async def verify(self, sessions: Sessions) -> list[str]:
        """What is wrong, the first thing of each chain: entries that do not fit, entries that are
        missing at an end, chains that are missing. Nothing if all is as it was written."""
        part = await self.verifier.part(sessions, BEGINNING, math.inf)
        async with sessions() as session:
            return [*part.problems, *await self.verifier.missing(session)]


def _canonical(details: Details) -> str:
    return json.dumps(details, sort_keys=True, separators=(",", ":"), default=_plain)


def _plain(value: object) -> str:
    """What JSON has no form for. Raises TypeError for what has no business in the log."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if isinstance(value, Decimal):
        return format(value, "f")
    raise TypeError(f"{type(value).__name__} in an audit entry")
