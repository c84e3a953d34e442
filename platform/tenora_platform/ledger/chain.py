"""What a transaction's hash covers: itself, its entries and the hash before it. Keyed, so that who
can write to the database still cannot forge one. It reads no rows of its own."""

from __future__ import annotations

import hmac
import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC
from decimal import Decimal
from hashlib import sha256

from tenora_platform.ledger.tables import LedgerTransactionRow
from tenora_platform.secret import ServerSecret

GENESIS = "0" * 64


@dataclass(frozen=True, slots=True)
class Line:
    """An entry with the account that it moves, as the chain sees it."""

    line: int
    account: str
    currency: str  # the account's
    amount: Decimal


class Chain:
    """One of each tenant's transactions, by `seq`."""

    def __init__(self, secret: ServerSecret) -> None:
        self._key = secret.key("ledger-chain")

    def hash_of(self, row: LedgerTransactionRow, lines: Iterable[Line]) -> str:
        """Hex HMAC-SHA-256. Amounts count with all twelve decimals."""
        content = [
            row.id,
            row.tenant_id,
            row.seq,
            row.kind,
            row.reference,
            row.currency,
            row.day.isoformat(),
            row.reverses,
            row.note,
            row.created_at.astimezone(UTC).isoformat(timespec="microseconds"),
            row.prev_hash,
            [[each.line, each.account, each.currency, f"{each.amount:.12f}"] for each in lines],
        ]
        message = json.dumps(content, separators=(",", ":")).encode()
        return hmac.new(self._key, message, sha256).hexdigest()
