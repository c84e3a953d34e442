"""Bills: what a client's request is charged, all of it at once, when the last of its sequences has
ended and it is known where their texts ended. One that cannot be answered is not charged at all,
whatever of it had ended before."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import msgspec

from tenora_engine.events import FinishEvent, SettledEvent, UsageRecord
from tenora_engine.request import GenerationRequest
from tenora_engine.scheduling.meters import is_unanswered

CONFIRM_S = 300.0
"""So long a sequence that has ended waits to be told where its text ended. Who has its events says
so at once; but an API process may stand still for its lease, 30 s, and reads on when it goes on,
and it reads no faster than its own client, who may take 1000 bytes a second: beyond what sockets
hold, a thousand chunks of a stream are five minutes."""

UNSURE_MAX = 1024
"""Sequences of one tenant that wait for that; then its oldest is billed as it ended."""

_Body = tuple[str, ...]  # tenant and body, or a request's id


@dataclass(eq=False, slots=True)
class Bill:
    """Of one request, or of all that are parts of one body. `records` are of the sequences that
    have ended and of which it is known where; `unsure` are the events of the others that have."""

    tenant: str  # its key
    missing: int  # parts that have not come
    flights: int = 0  # parts that have not ended
    is_free: bool = False
    parts: list[str] = field(default_factory=list)  # that have come: their request ids
    records: list[UsageRecord] = field(default_factory=list)
    unsure: dict[tuple[str, int], FinishEvent] = field(default_factory=dict)

    @property
    def is_due(self) -> bool:
        return not (self.missing or self.flights or self.unsure)

    def add(self, event: FinishEvent) -> None:
        """A sequence has ended as the event says."""
        self.is_free |= is_unanswered(event)
        self.records.append(event.usage)

    def settle(self) -> list[UsageRecord]:
        """The records as they are billed, once."""
        records, self.records = self.records, []
        return [record.freed() for record in records] if self.is_free else records


class Bills:
    """Of all requests in flight. Those of bodies with several parts stay until all of these have
    ended, or one of them is aborted, after which no more are waited for; those of requests that
    `ends_by_text` until each sequence that ended by itself is confirmed, by its client or because
    that has taken too long."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._by_body: dict[_Body, Bill] = {}
        self._of_part: dict[str, _Body] = {}  # request id -> its body
        self._unsure: OrderedDict[tuple[str, int], float] = (
            OrderedDict()
        )  # until when, oldest first
        self._unsure_of: dict[str, OrderedDict[tuple[str, int], None]] = {}  # by tenant

    def __contains__(self, request_id: str) -> bool:
        """Whether something of it, or of its body, is still to be settled."""
        return request_id in self._of_part

    def tenant_of(self, request_id: str) -> str | None:
        """The key of the tenant whose bill is still to be settled; from any thread."""
        of = self._of_part.get(request_id)
        bill = None if of is None else self._by_body.get(of)
        return None if bill is None else bill.tenant

    @property
    def next_s(self) -> float:
        """After which something has waited too long."""
        return next(iter(self._unsure.values())) if self._unsure else math.inf

    def open(self, request: GenerationRequest) -> Bill:
        """The request's, which is in flight from now on."""
        of = _body(request)
        if of is None:
            return Bill(request.tenant.key, 0, 1)
        parts = request.parts if request.part_of else 0
        bill = self._by_body.setdefault(of, Bill(request.tenant.key, parts))
        self._of_part[request.request_id] = of
        bill.parts.append(request.request_id)
        bill.missing = max(bill.missing - 1, 0)
        bill.flights += 1
        return bill

    def add(
        self,
        request: GenerationRequest,
        bill: Bill,
        event: FinishEvent,
        left: int,
        *,
        is_sure: bool,
    ) -> FinishEvent:
        """Another of its sequences ends; `left` have not. `is_sure`: where its text ended, too. The
        event, as it is to be told."""
        if request.sampling.n == 1 and _body(request) is None:
            return event  # whose own record is all
        if request.ends_by_text and not is_sure:
            self._wait(bill, event)
        else:
            bill.add(event)
        if not left:
            bill.flights -= 1
        return msgspec.structs.replace(event, settled=[] if left else self._settle(request, bill))

    def refuse(self, request: GenerationRequest, bill: Bill) -> list[UsageRecord]:
        """It leaves without a sequence that has run; what others of its body come to, if they wait
        for it alone."""
        bill.flights -= 1
        return self._settle(request, bill)

    def confirm(
        self, request_id: str, index: int | None, output_tokens: int | None
    ) -> list[UsageRecord]:
        """The text of a sequence that has ended, or of all of the request's, ended after so many
        tokens, or where the sequence did; what it comes to, if it waited for that alone."""
        of = self._of_part.get(request_id)
        if of is None:
            return []
        bill = self._by_body[of]
        for key in [key for key in bill.unsure if key[0] == request_id and index in (None, key[1])]:
            self._confirm(bill, key, output_tokens)
        return self._close(of, bill)

    def abort(self, request_id: str, *, is_free: bool) -> list[UsageRecord]:
        """Nothing more is to come of the body that it is a part of, nor a word on what has ended of
        the request; what that comes to, unless some of it is still in flight."""
        of = self._of_part.get(request_id)
        if of is None:
            return []
        bill = self._by_body[of]
        bill.missing = 0
        bill.is_free |= is_free
        return self.confirm(request_id, None, None)

    def settle_late(self) -> Iterator[list[UsageRecord]]:
        """Bill as it ended what has waited too long, or beside too many of its tenant."""
        while self._unsure and self.next_s < self._clock():
            yield self.confirm(*next(iter(self._unsure)), None)

    def close(self) -> Iterator[list[UsageRecord]]:
        """Bill what is left when the engine ends, body by body."""
        for of, bill in list(self._by_body.items()):
            bill.missing = bill.flights = 0
            for key in list(bill.unsure):
                self._confirm(bill, key, None)
            yield self._close(of, bill)

    def _wait(self, bill: Bill, event: FinishEvent) -> None:
        key = event.request_id, event.index
        bill.unsure[key] = event
        self._unsure[key] = self._clock() + CONFIRM_S
        of_tenant = self._unsure_of.setdefault(event.usage.tenant, OrderedDict())
        of_tenant[key] = None
        if len(of_tenant) > UNSURE_MAX:
            oldest, _ = of_tenant.popitem(last=False)
            self._unsure[oldest] = -math.inf  # in the next step
            self._unsure.move_to_end(oldest, last=False)

    def _confirm(self, bill: Bill, key: tuple[str, int], output_tokens: int | None) -> None:
        event = bill.unsure.pop(key)
        del self._unsure[key]
        of_tenant = self._unsure_of.get(event.usage.tenant)
        if of_tenant is not None:
            of_tenant.pop(key, None)
            if not of_tenant:
                del self._unsure_of[event.usage.tenant]
        if output_tokens is not None:
            usage = event.usage.ended_by_text(output_tokens)
            event = msgspec.structs.replace(event, reason="stop", usage=usage)
        bill.add(event)

    def _settle(self, request: GenerationRequest, bill: Bill) -> list[UsageRecord]:
        of = _body(request)
        return bill.settle() if of is None else self._close(of, bill)

    def _close(self, of: _Body, bill: Bill) -> list[UsageRecord]:
        if not bill.is_due:
            return []
        del self._by_body[of]
        for part in bill.parts:
            self._of_part.pop(part, None)
        return bill.settle()


def settled(usage: list[UsageRecord]) -> list[SettledEvent]:
    """Return the event of records that no event of a sequence can tell of."""
    return [SettledEvent(usage[0].request_id, usage)] if usage else []


def _body(request: GenerationRequest) -> _Body | None:
    """Return where its bill is kept; None where only what is in flight needs it."""
    if request.part_of is not None:
        return request.tenant.key, request.part_of
    return (request.request_id,) if request.ends_by_text else None
