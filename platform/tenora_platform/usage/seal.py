"""Seals: 64 bits of a keyed MAC over a whole row of usage, without which nobody changes it unseen.
Migration 0017 seals older rows by this, so what a seal covers stays as it is."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from hashlib import blake2b
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from tenora_platform.secret import ServerSecret

if TYPE_CHECKING:
    from tenora_platform.usage.tables import UsageEventRow

EVENT_COLUMNS = (
    "request",
    "sequence",
    "tenant_no",
    "series_id",
    "event_time",
    "ingested_at",
    "prompt_tokens",
    "cached_tokens",
    "output_tokens",
    "max_tokens",
    "cold_loads",
    "finish_reason",
    "residency",
    "queue_ms",
    "adapter_load_ms",
    "first_token_ms",
    "duration_ms",
    "preemptions",
    "x_request_id",
    "sequences",
    "price_version_no",
    "amount",
    "positions",
)
"""Every column of usage_events but the seal, in the order in which `event` takes their values."""

OCCUPANCY_COLUMNS = (
    "id",
    "tenant_no",
    "series_id",
    "meter",
    "quantity",
    "begins",
    "ends",
    "ingested_at",
    "price_version_no",
    "amount",
    "positions",
)
"""The same of occupancy_events."""

_EVENT = struct.Struct("<16s3i2q4ih4fhi")
_OCCUPANCY = struct.Struct("<16s2i4qi")
_event_values = attrgetter(*EVENT_COLUMNS)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NONE = float("-inf")  # no time is


class Seals:
    """Computes seals, signed 64-bit numbers. Each takes the values as they are stored or read."""

    def __init__(self, secret: ServerSecret) -> None:
        self._event = blake2b(key=secret.key("usage-seal"), digest_size=8, person=b"event")
        self._occupancy = blake2b(key=secret.key("usage-seal"), digest_size=8, person=b"occupancy")
        self._series = blake2b(key=secret.key("usage-seal"), digest_size=16, person=b"series")

    def event(self, row: Sequence[Any]) -> int:
        """Of a row of usage_events: the values of EVENT_COLUMNS."""
        (request, sequence, tenant, series, ended, ingested, prompt, cached, output, most, loads,
         reason, residency, queue, load, first, duration, preemptions, told, sequences,
         version, amount, positions) = row  # fmt: skip
        fixed = _EVENT.pack(
            request.bytes,
            sequence,
            tenant,
            series,
            _micros(ended),
            _micros(ingested),
            prompt,
            cached,
            output,
            -1 if most is None else most,
            loads,
            queue,
            load,
            _NONE if first is None else first,
            duration,
            preemptions,
            -1 if version is None else version,
        )
        texts = _texts(reason, residency, told, _money(amount), _numbers(positions))
        if sequences is not None:  # what older rows do not say, their seals do not cover
            texts += f"\0n{sequences}".encode()
        mac = self._event.copy()
        mac.update(fixed + texts)
        return int.from_bytes(mac.digest(), "little", signed=True)

    def holds(self, row: UsageEventRow) -> bool:
        """Whether an event is as it was stored and rated."""
        return self.event(_event_values(row)) == row.seal

    def occupancy(self, row: Sequence[Any]) -> int:
        """Of a row of occupancy_events: the values of OCCUPANCY_COLUMNS."""
        id_, tenant, series, meter, quantity, begins, ends, ingested, version, amount, places = row
        fixed = _OCCUPANCY.pack(
            id_.bytes,
            tenant,
            series,
            quantity,
            _micros(begins),
            _micros(ends),
            _micros(ingested),
            -1 if version is None else version,
        )
        mac = self._occupancy.copy()
        mac.update(fixed + _texts(meter, _money(amount), _numbers(places)))
        return int.from_bytes(mac.digest(), "little", signed=True)

    def series(self, values: Sequence[str | None]) -> bytes:
        """The key of a row of usage_series, over all that an event does not say itself."""
        mac = self._series.copy()
        mac.update(_texts(*values))
        return mac.digest()


def _texts(*values: str | None) -> bytes:
    """No two lists of texts are alike in it: none of ours has a NUL in it."""
    return "\0".join("\1" if value is None else f"={value}" for value in values).encode()


def _micros(time: datetime) -> int:
    passed = time - _EPOCH
    return (passed.days * 86_400 + passed.seconds) * 1_000_000 + passed.microseconds


def _money(amount: Decimal | None) -> str | None:
    return None if amount is None else f"{amount:.12f}"


def _numbers(numbers: Sequence[int] | None) -> str | None:
    return None if numbers is None else ",".join(map(str, numbers))
