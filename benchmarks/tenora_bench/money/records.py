"""A month of usage as an engine would have metered it: many tenants of unequal size, each with some
adapters, keys and classes. The same seed makes the same month. Knows no database."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from tenora_engine.events import UsageRecord

CLASSES = ("interactive", "interactive", "default", "default", "default", "flex")
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's, as of all our ids
_RESIDENCIES: tuple[Literal["device", "host", "store"], ...] = ("device", "device", "host", "store")
_LARGEST = 0.05  # of all events are one tenant's


@dataclass(frozen=True, slots=True)
class Adapter:
    id: str
    version_id: str
    digest: str


@dataclass(frozen=True, slots=True)
class Payer:
    """A tenant with what its requests name. The adapter None is the base model."""

    id: str
    keys: Sequence[str]
    adapters: Sequence[Adapter | None]


def month_before(now: datetime) -> tuple[datetime, datetime]:
    """(first moment, first moment of the next) of the last whole month, UTC."""
    end = now.astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    last = end.month == 1
    begin = end.replace(year=end.year - last, month=12 if last else end.month - 1)
    return begin, end


def month_of_records(
    payers: Sequence[Payer], count: int, begin: datetime, end: datetime, model: str, seed: int = 0
) -> Iterator[UsageRecord]:
    """`count` finished sequences in the order of their times; the first payer has a twentieth of
    them, the others share the rest evenly, by chance."""
    chance = random.Random(seed)
    span_s = (end - begin).total_seconds()
    for number in range(count):
        finished_s = begin.timestamp() + span_s * (number + 1) / (count + 1)
        mine = chance.random() < _LARGEST or len(payers) == 1
        payer = payers[0] if mine else payers[chance.randrange(1, len(payers))]
        yield _record(chance, payer, finished_s, model)


def _record(chance: random.Random, payer: Payer, finished_s: float, model: str) -> UsageRecord:
    ulid = _ulid(finished_s, chance.getrandbits(80))
    adapter = chance.choice(payer.adapters)
    prompt = chance.randrange(20, 4000)
    duration_s = chance.uniform(0.2, 8.0)
    tier = chance.choice(CLASSES)
    context = {
        "tenant_id": payer.id,
        "request_id": f"chatcmpl_{ulid}",
        "x_request_id": f"req_{ulid}",
        "api_key_id": chance.choice(payer.keys),
        "model": model,
        "plan": "standard",
        "asked_model": model if adapter is None else "support@prod",
        "asked_tier": tier,
        "max_tokens": "512",
    }
    if adapter is not None:
        context |= {
            "adapter_id": adapter.id,
            "adapter_version_id": adapter.version_id,
            "alias": "prod",
        }
    return UsageRecord(
        event_id=f"chatcmpl_{ulid}:0",
        request_id=f"chatcmpl_{ulid}",
        index=0,
        tenant=payer.id,
        adapter_digest=None if adapter is None else adapter.digest,
        context=context,
        prompt_tokens=prompt,
        cached_tokens=chance.randrange(prompt),
        output_tokens=chance.randrange(1, 512),
        arrival_s=finished_s - duration_s,
        first_token_s=finished_s - duration_s * 0.8,
        finished_s=finished_s,
        queue_ms=chance.uniform(0, 50),
        adapter_load_ms=0.0,
        residency=None if adapter is None else chance.choice(_RESIDENCIES),
        tier=tier,
        finish_reason=chance.choice(("stop", "length")),
    )


def _ulid(at_s: float, random_bits: int) -> str:
    value = (int(at_s * 1000) << 80) | random_bits
    return "".join(_ALPHABET[(value >> shift) & 31] for shift in range(125, -1, -5))
