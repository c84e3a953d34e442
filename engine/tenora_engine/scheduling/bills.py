"""Bills: what a client's request is charged, all of it at once, when the last of its sequences has
ended. One that cannot be answered is not charged at all, whatever of it had ended before."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from tenora_engine.events import FinishEvent, UsageRecord
from tenora_engine.request import GenerationRequest


@dataclass(eq=False, slots=True)
class Bill:
    """Of one request, or of all that are parts of one body. `records` are of the sequences that
    have ended."""

    missing: int  # parts that have not come
    flights: int = 0  # parts that have not ended
    is_free: bool = False
    parts: list[str] = field(default_factory=list)  # that have come: their request ids
    records: list[UsageRecord] = field(default_factory=list)

    @property
    def is_due(self) -> bool:
        return not (self.missing or self.flights)

    def settle(self) -> list[UsageRecord]:
        """The records as they are billed, once."""
        records, self.records = self.records, []
        return [freed(record) for record in records] if self.is_free else records


class Bills:
    """Of all requests in flight; those of bodies with several parts until all of these have ended,
    or one of them is aborted, after which no more are waited for."""

    def __init__(self) -> None:
        self._by_body: dict[tuple[str, str], Bill] = {}  # tenant, body
        self._of_part: dict[str, tuple[str, str]] = {}  # request id -> its body

    def open(self, request: GenerationRequest) -> Bill:
        """The request's, which is in flight from now on."""
        if request.part_of is None:
            return Bill(0, 1)
        of = request.tenant.key, request.part_of
        bill = self._by_body.setdefault(of, Bill(request.parts))
        self._of_part[request.request_id] = of
        bill.parts.append(request.request_id)
        bill.missing = max(bill.missing - 1, 0)
        bill.flights += 1
        return bill

    def add(
        self, request: GenerationRequest, bill: Bill, event: FinishEvent, left: int
    ) -> FinishEvent:
        """Another of its sequences ends; `left` have not. The event, as it is to be told."""
        bill.is_free |= event.reason == "error" and event.fault != "engine"
        if request.part_of is None and request.sampling.n == 1:
            return event  # whose own record is all
        bill.records.append(event.usage)
        if not left:
            bill.flights -= 1
        return msgspec.structs.replace(event, settled=[] if left else self._settle(request, bill))

    def refuse(self, request: GenerationRequest, bill: Bill) -> list[UsageRecord]:
        """It leaves without a sequence that has run; what others of its body come to, if they wait
        for it alone."""
        bill.flights -= 1
        return self._settle(request, bill)

    def abort(self, request_id: str, *, is_free: bool) -> list[UsageRecord]:
        """Nothing more is to come of the body that it is a part of; what that comes to, unless some
        of it is still in flight."""
        of = self._of_part.get(request_id)
        if of is None:
            return []
        bill = self._by_body[of]
        bill.missing = 0
        bill.is_free |= is_free
        return self._close(of, bill)

    def close(self) -> Iterator[list[UsageRecord]]:
        """What is left when the engine ends, by body."""
        for of, bill in list(self._by_body.items()):
            bill.missing = bill.flights = 0
            yield self._close(of, bill)

    def _settle(self, request: GenerationRequest, bill: Bill) -> list[UsageRecord]:
        if request.part_of is None:
            return bill.settle()
        return self._close((request.tenant.key, request.part_of), bill)

    def _close(self, of: tuple[str, str], bill: Bill) -> list[UsageRecord]:
        if not bill.is_due:
            return []
        del self._by_body[of]
        for part in bill.parts:
            self._of_part.pop(part, None)
        return bill.settle()


def freed(record: UsageRecord) -> UsageRecord:
    """The same of a sequence that is not charged."""
    return msgspec.structs.replace(
        record, prompt_tokens=0, cached_tokens=0, output_tokens=0, cold_load=False
    )
