"""Dead letters: whether each is as it was set aside, and what engines counted of those that are no
event yet. Who reads the rows is not known here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any
from uuid import UUID

import msgspec

from tenora_engine.events import UsageRecord
from tenora_platform.reconciliation.books import NOTHING, Counted, added
from tenora_platform.reconciliation.differences import Differences, Kind
from tenora_platform.usage.records import (
    letter_values,
    occupancy_letter_values,
    occupancy_record_of,
    record_of,
)


@dataclass(frozen=True, slots=True)
class Letter:
    """A row of usage_dead_letters; `is_open`: no event has made it good."""

    event_id: str
    request: UUID | None
    sequence: int | None
    record: Any
    raw: bytes | None
    is_open: bool

    @property
    def key(self) -> tuple[UUID | None, int | None]:
        return self.request, self.sequence

    def usage(self) -> UsageRecord | None:
        try:
            return None if self.raw is None else record_of(self.raw)
        except msgspec.MsgspecError:
            return None

    def values(self) -> dict[str, Any] | None:
        """What its bytes make of it; None of what is no record any more."""
        usage = self.usage()
        if usage is not None:
            return letter_values(usage, "")
        try:
            return occupancy_letter_values(occupancy_record_of(self.raw or b""), "")
        except msgspec.MsgspecError:
            return None


def compare_letters(letters: Iterable[Letter], found: Differences) -> int:
    """Whether what can be read of a letter is what its bytes say; how many are open."""
    count = 0
    for letter in letters:
        count += letter.is_open
        wrong = _problem(letter)
        if wrong is not None:
            subject = f"dead letter {letter.event_id}"
            found.add(Kind.LETTER_CHANGED, None, None, subject, "what its bytes say", wrong)
    return count


def _problem(letter: Letter) -> str | None:
    if letter.raw is None:  # of before they were kept, or of what has no bytes
        return None
    try:
        plain = msgspec.msgpack.decode(letter.raw)
        text = msgspec.json.encode(plain).replace(b"\\u0000", "\N{REPLACEMENT CHARACTER}".encode())
        told = msgspec.json.decode(text)
    except (msgspec.MsgspecError, ValueError):
        return "bytes that are no record"
    if told != letter.record:
        return "another record"
    values = letter.values()
    if values is None:
        return None
    there = (letter.event_id, letter.request, letter.sequence)
    if there != (values["event_id"], values["request"], values["sequence"]):
        return "another event's id"
    return None


def counted_letters(letters: Iterable[Letter]) -> dict[tuple[str, date], Counted]:
    """What engines have counted of the open ones, by tenant and UTC day."""
    sums: dict[tuple[str, date], Counted] = {}
    for letter in letters:
        usage = letter.usage() if letter.is_open else None
        if usage is None:
            continue
        try:
            day = datetime.fromtimestamp(usage.finished_s, UTC).date()
        except (ValueError, OverflowError, OSError):
            continue
        counts = (
            1,
            usage.prompt_tokens,
            usage.cached_tokens,
            usage.output_tokens,
            int(usage.cold_load),
        )
        place = usage.tenant, day
        sums[place] = added(sums.get(place, NOTHING), counts)
    return sums
