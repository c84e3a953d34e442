"""Telemetry: how the engine serves, by class and tenant, for whoever runs it. It decides nothing,
not even what is billed (`scheduling.meters`), and does not know how its numbers are shown."""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable

import msgspec

from tenora_engine.ulid import new_id

OTHER = "other"
"""Stands for all tenants without a label of their own."""

BOUNDS_S = (
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0,
)  # fmt: skip


class Histogram(msgspec.Struct, array_like=True):
    """Times in seconds. `counts[i]` of them were at most `BOUNDS_S[i]` and above the bound before;
    the last of `counts` were above all bounds."""

    counts: list[int] = msgspec.field(default_factory=lambda: [0] * (len(BOUNDS_S) + 1))
    sum_s: float = 0.0

    def observe(self, seconds: float) -> None:
        """What is negative, as the wall clock may have it, counts as 0."""
        seconds = max(seconds, 0.0)
        self.counts[bisect_left(BOUNDS_S, seconds)] += 1
        self.sum_s += seconds

    def add(self, other: Histogram) -> None:
        self.counts = [own + more for own, more in zip(self.counts, other.counts, strict=True)]
        self.sum_s += other.sum_s

    def copy(self) -> Histogram:
        return Histogram(self.counts.copy(), self.sum_s)


class ServiceMeter(msgspec.Struct, array_like=True):
    """What the sequences of one tenant in one class have had; each of a request's n sequences
    counts. Numbers only rise. The class is the one that was asked for, so what is relegated still
    counts as late where it was promised to be in time.
    """

    service_class: str = ""
    tenant: str = OTHER
    ttft: Histogram = msgspec.field(default_factory=Histogram)
    tpot: Histogram = msgspec.field(default_factory=Histogram)  # a sequence's mean
    queue: Histogram = msgspec.field(default_factory=Histogram)  # from arrival to the first start
    ttft_promised: int = 0  # sequences whose plan has a target, once it is known whether it was met
    ttft_met: int = 0
    tpot_promised: int = 0
    tpot_met: int = 0
    finished: dict[str, int] = {}  # by reason
    refused: dict[str, int] = {}  # requests, by reason: "deadline", "queue_full"
    preemptions: int = 0
    relegations: int = 0  # of sequences that waited; at submission they are not counted
    prompt_tokens: int = 0
    cached_tokens: int = 0  # of the prompts, found in the prefix cache
    output_tokens: int = 0  # generated; those of a block not yet full are missing
    service: float = 0.0  # charged, in tokens prefilled by the base model (scheduling.meters)
    adapter_starts: dict[str, int] = {}  # by where the adapter was when the request came
    adapter_load_s: float = 0.0  # of the loads that these waited for
    kv_evictions: int = 0  # pages that its sequences were the last to use
    adapter_evictions: int = 0
    drafts_accepted: dict[str, int] = {}  # tokens of the output that a draft had, by its source
    drafts_rejected: dict[str, int] = {}  # tokens that were verified and came to nothing

    def first_token(self, ttft_s: float, target_s: float | None) -> None:
        self.ttft.observe(ttft_s)
        if target_s is not None:
            self.ttft_promised += 1
            self.ttft_met += ttft_s <= target_s

    def no_first_token(self) -> None:
        """A sequence with a target has ended too late, or by an error, without a token."""
        self.ttft_promised += 1

    def last_token(self, tpot_s: float, target_s: float) -> None:
        """A sequence of several tokens has ended. A `target_s` of infinity is none."""
        self.tpot.observe(tpot_s)
        if target_s != math.inf:
            self.tpot_promised += 1
            self.tpot_met += tpot_s <= target_s

    def finish(self, reason: str) -> None:
        self.finished[reason] = self.finished.get(reason, 0) + 1

    def refuse(self, reason: str) -> None:
        self.refused[reason] = self.refused.get(reason, 0) + 1

    def verify_drafts(self, source: str, accepted: int, rejected: int) -> None:
        """`source`: see `scheduling.drafts`."""
        self.drafts_accepted[source] = self.drafts_accepted.get(source, 0) + accepted
        self.drafts_rejected[source] = self.drafts_rejected.get(source, 0) + rejected

    def start_adapter(self, residency: str, load_s: float) -> None:
        """A sequence starts, whose adapter was there when its request came."""
        self.adapter_starts[residency] = self.adapter_starts.get(residency, 0) + 1
        self.adapter_load_s += load_s

    def add(self, other: ServiceMeter) -> None:
        for name in self.__struct_fields__:
            own, more = getattr(self, name), getattr(other, name)
            if isinstance(own, Histogram):
                own.add(more)
            elif isinstance(own, dict):
                setattr(self, name, {key: own.get(key, 0) + more.get(key, 0) for key in own | more})
            elif not isinstance(own, str):
                setattr(self, name, own + more)

    def copy(self) -> ServiceMeter:
        return msgspec.structs.replace(
            self,
            ttft=self.ttft.copy(),
            tpot=self.tpot.copy(),
            queue=self.queue.copy(),
            finished=self.finished.copy(),
            refused=self.refused.copy(),
            adapter_starts=self.adapter_starts.copy(),
            drafts_accepted=self.drafts_accepted.copy(),
            drafts_rejected=self.drafts_rejected.copy(),
        )


class QueueStats(msgspec.Struct, frozen=True, array_like=True):
    """What one tenant has in the queue of one class, relegated sequences where they wait now."""

    service_class: str
    tenant: str
    waiting: int  # sequences
    oldest_wait_s: float  # since they entered this queue


class WaitPart(msgspec.Struct, frozen=True, array_like=True):
    """Of what one sequence has waited; `scheduling.waits` says what the causes are. `other` is
    whose doing it was, "" where it was no other tenant's. Several may be of one kind."""

    cause: str  # "queue", "pages", "load", "own", "start" or "preempted"
    other: str
    ms: float


class WaitTotal(msgspec.Struct, frozen=True, array_like=True):
    """What the sequences of a tenant in a class have waited because of one thing, those that wait
    still included. Numbers only rise."""

    service_class: str
    tenant: str
    cause: str  # as of WaitPart
    other: str
    seconds: float
    sequences: int  # that waited a millisecond of it; after preemption, times that one did


class GapMinute(msgspec.Struct, frozen=True, array_like=True):
    """Of a minute in which two tenants waited in a class, the moment at which the gap between their
    service over weight was nearest to its bound."""

    begins_s: int  # unix time
    service_class: str
    gap: float
    bound: float


class TelemetryStats(msgspec.Struct, frozen=True):
    """A snapshot. Tenants are at most those with a label, and OTHER. All that rises has begun at 0
    with the engine, whose start `started` names."""

    meters: list[ServiceMeter] = []
    queues: list[QueueStats] = []
    service_gaps: dict[str, float] = {}
    """By class: the largest difference between two tenants that wait in it, of the service they
    have been charged over their weights (`scheduling.class_queue` has the bound)."""
    adapter_loads: dict[str, Histogram] = {}  # by the tier that they came from; the work alone
    adapter_load_waits: dict[str, Histogram] = {}  # for their turn and the steps' sake, beside that
    since_s: float = 0.0  # unix time: since when it is counted
    service_bounds: dict[str, float] = {}
    """By class: below which the gap is proven to stay while those tenants have something that can
    start."""
    waits: list[WaitTotal] = []
    gap_minutes: list[GapMinute] = []  # of lately
    started: str = ""  # an id

    def without_tenants(self) -> TelemetryStats:
        """All tenants as OTHER."""
        meters: dict[str, ServiceMeter] = {}
        for meter in self.meters:
            name = meter.service_class
            meters.setdefault(name, ServiceMeter(name)).add(meter)
        return msgspec.structs.replace(
            self,
            meters=list(meters.values()),
            queues=_merged(self.queues, lambda _: OTHER),
            waits=[],
        )


class Telemetry:
    """The meters of one engine. The first `max_tenants` tenants that come have a label of their
    own for as long as the engine lives, so that no series ever falls; all others share OTHER."""

    def __init__(self, max_tenants: int) -> None:
        self.max_tenants = max_tenants
        self._labels: set[str] = set()
        self._meters: dict[tuple[str, str], ServiceMeter] = {}
        self._adapter_loads: dict[str, Histogram] = {}
        self._adapter_load_waits: dict[str, Histogram] = {}
        self._since_s = time.time()
        self._started = new_id("start")

    def meter(self, service_class: str, tenant_key: str) -> ServiceMeter:
        """For the tenant's sequences in the class. A tenant not seen before gets a label if one is
        left."""
        if len(self._labels) < self.max_tenants and tenant_key != OTHER:
            self._labels.add(tenant_key)
        key = service_class, self.label(tenant_key)
        meter = self._meters.get(key)
        if meter is None:
            meter = self._meters[key] = ServiceMeter(*key)
        return meter

    def loaded(self, tier: str, seconds: float, waited_s: float) -> None:
        """An adapter has come from a tier: the time of the work, and that of waiting beside it."""
        self._adapter_loads.setdefault(tier, Histogram()).observe(seconds)
        self._adapter_load_waits.setdefault(tier, Histogram()).observe(waited_s)

    def totals(self) -> dict[str, float]:
        """Over all classes and tenants, some of `EngineStats.counters`."""
        meters = self._meters.values()
        return {
            "prompt_tokens": sum(meter.prompt_tokens for meter in meters),
            "cached_tokens": sum(meter.cached_tokens for meter in meters),
            "preemptions": sum(meter.preemptions for meter in meters),
            "relegations": sum(meter.relegations for meter in meters),
            "requests_refused": sum(meter.refused.get("deadline", 0) for meter in meters),
        }

    def snapshot(
        self,
        queues: Iterable[QueueStats],
        service_gaps: dict[str, float],
        service_bounds: dict[str, float] | None = None,
        waits: list[WaitTotal] | None = None,
        gap_minutes: list[GapMinute] | None = None,
    ) -> TelemetryStats:
        """`queues` by tenant key. Nothing in the result changes any more."""
        return TelemetryStats(
            meters=[meter.copy() for meter in self._meters.values()],
            queues=_merged(queues, self.label),
            service_gaps=service_gaps,
            adapter_loads={tier: loads.copy() for tier, loads in self._adapter_loads.items()},
            adapter_load_waits={t: waits.copy() for t, waits in self._adapter_load_waits.items()},
            since_s=self._since_s,
            service_bounds=service_bounds or {},
            waits=waits or [],
            gap_minutes=gap_minutes or [],
            started=self._started,
        )

    def label(self, tenant_key: str) -> str:
        """Of a tenant that has come before."""
        return tenant_key if tenant_key in self._labels else OTHER


def _merged(queues: Iterable[QueueStats], label: Callable[[str], str]) -> list[QueueStats]:
    """Queues of one class whose tenants have one label become one."""
    merged: dict[tuple[str, str], QueueStats] = {}
    for queue in queues:
        key = queue.service_class, label(queue.tenant)
        known = merged.get(key, QueueStats(*key, waiting=0, oldest_wait_s=0.0))
        merged[key] = QueueStats(
            *key,
            waiting=known.waiting + queue.waiting,
            oldest_wait_s=max(known.oldest_wait_s, queue.oldest_wait_s),
        )
    return list(merged.values())
