"""What comes back from the engine: tokens while a sequence runs, one finish with its meters."""

from __future__ import annotations

from typing import Literal

import msgspec

from tenora_engine.telemetry import TelemetryStats, WaitPart

FinishReason = Literal["stop", "length", "abort", "error"]
Fault = Literal["engine", "request", "weights"]
"""Whose an error is: the engine's, or of what was asked for, which fails however often it is, or of
the weights that were to answer, whose logits are no numbers."""
Residency = Literal["device", "host", "shared", "store"]
MemoryTier = Literal["device", "host"]


class TokenLogprob(msgspec.Struct, frozen=True):
    """The chosen token's log probability and the likeliest alternatives, best first, under the
    model's own distribution (before temperature, penalties and cut-offs)."""

    token_id: int
    logprob: float
    top: list[tuple[int, float]]


class TokenEvent(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag="token"):
    """New tokens of one sequence, in order. The token which ends a sequence by "stop" is not among
    them: `FinishEvent.stop_token_id` names it."""

    request_id: str
    index: int  # which of the request's n sequences
    token_ids: list[int]
    logprobs: list[TokenLogprob] | None = None
    tier: str | None = None  # in the first, of a sequence that was relegated: what serves it
    prompt_logprobs: list[TokenLogprob] | None = None
    """Of some more of the prompt's tokens, from its second on; these events have no new tokens."""
    embedding: list[float] | None = None  # of the prompt; such an event has no new tokens


class UsageRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The meters of one finished sequence: the fact that is billed, made by the engine alone.

    The prompt is metered on sequence 0 only; `cached_tokens` is the part of it that was not
    computed. `output_tokens` counts what was generated, a stopping token included. Of all that
    waited for one load of an adapter from Redis or the object store, one has `cold_load`.

    New fields have defaults: records of older engines wait in outboxes.
    """

    event_id: str  # "<request_id>:<index>", unique for ever
    request_id: str
    index: int
    tenant: str
    adapter_digest: str | None  # what really ran
    context: dict[str, str]
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    arrival_s: float
    first_token_s: float | None
    finished_s: float
    queue_ms: float
    adapter_load_ms: float
    residency: Residency | None  # where the adapter was when the request came; None for the base
    tier: str  # that served it: another than asked for when it was relegated
    finish_reason: FinishReason
    preemptions: int = 0  # times that it gave up its place and was computed again
    cold_load: bool = False  # its adapter was brought into host memory for it
    waits: list[WaitPart] = []  # what it waited for, `queue_ms` and after preemption
    accepted_draft_tokens: int = 0  # of the output: what a draft had foretold
    rejected_draft_tokens: int = 0  # that were verified and not generated; never billed


class OccupancyRecord(msgspec.Struct, frozen=True, kw_only=True):
    """How much memory an adapter had for how long, for one tenant, until an hour (UTC) was over, or
    the engine stopped. Of kilobyte-seconds (1000 bytes); what was less than one is carried on."""

    event_id: str  # "occ_<ULID>", unique for ever
    tenant: str  # that used the adapter last, at each moment of it
    adapter_digest: str
    tier: MemoryTier
    kb_s: int
    begins_s: float  # unix time; the record belongs to this day
    ends_s: float


Metered = UsageRecord | OccupancyRecord
"""What goes through the outbox."""


class TenantDay(msgspec.Struct, frozen=True, array_like=True):
    """All that one engine has metered of a tenant in a UTC day, by the end of each sequence."""

    tenant: str
    day: str  # YYYY-MM-DD
    sequences: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    cold_loads: int


class EngineTotals(msgspec.Struct, frozen=True):
    """The sums of all records that were ever in one outbox, stored since or not."""

    engine: str  # "eng_<ULID>": which outbox
    whole_since: str  # of days before it something may be missing: an older engine had begun
    at_s: float
    days: list[TenantDay]


class FinishEvent(msgspec.Struct, frozen=True, tag="finish"):
    """The last event of one sequence. When `reason` is "error", `error` says why and `fault` whose
    it is; `param` names the field, where it is the request's.

    `usage` is what the sequence took. Where its request has no other, that is what is billed;
    else `settled` is, of all its sequences and those of the other parts of its body, in the event
    of the last to end. A fault of the request's or of the weights makes all of them free.
    """

    request_id: str
    index: int
    reason: FinishReason
    usage: UsageRecord
    error: str | None = None
    stop_token_id: int | None = None  # which stop token ended it, if one did
    fault: Fault = "engine"
    param: str | None = None
    settled: list[UsageRecord] | None = None  # empty: a later event has them

    @property
    def billed(self) -> list[UsageRecord]:
        """The records that are billed from now on."""
        return [self.usage] if self.settled is None else self.settled


class SettledEvent(msgspec.Struct, frozen=True, tag="settled"):
    """What is billed of a body of several parts, all of which have ended, the last of them without
    an event that could tell it. For the outbox, not for clients."""

    request_id: str  # of one of the parts
    usage: list[UsageRecord]

    @property
    def billed(self) -> list[UsageRecord]:
        """As `FinishEvent.billed`."""
        return self.usage


class RefusedEvent(msgspec.Struct, frozen=True, tag="refused"):
    """The only event of a request that waited until its first token could not be in time any more,
    where its plan refuses what is late. Nothing of it has run, and nothing is metered."""

    request_id: str
    message: str
    retry_after_ms: int


SequenceEvent = TokenEvent | FinishEvent
EndEvent = FinishEvent | SettledEvent
Event = SequenceEvent | RefusedEvent | SettledEvent


class AdapterResidency(msgspec.Struct, frozen=True):
    """One adapter that is on the device ("resident"), on its way there, or in the engine's host
    memory alone. Any other comes from Redis or the object store."""

    digest: str
    state: Literal["loading", "resident", "host"]
    rank: int
    pages: int  # on the device, or once it is there; 0 while loading
    references: int  # live sequences that hold it
    last_used_s: float
    pinned: bool = False  # by the operator: it stays on the device


class AdapterFootprint(msgspec.Struct, frozen=True):
    """What an adapter takes that is not there yet, by the ranks of its modules. `host_bytes` is of
    its packed form, which host memory and Redis keep."""

    pages: int  # of the arena
    page_bytes: int
    host_bytes: int


class PoolStats(msgspec.Struct, frozen=True):
    """The page arena now. `free + live_kv + cached_kv + adapter == total`, always.

    `page_map` holds one character a page, in page order: `.` free, `L` KV of a live sequence,
    `C` cached KV, `A` adapter.
    """

    total_pages: int
    page_bytes: int
    free_pages: int
    live_kv_pages: int
    cached_kv_pages: int
    adapter_pages: int
    tenants: dict[str, dict[str, int]]  # namespace -> {"live_kv": n, "cached_kv": n}
    page_map: str


class EngineStats(msgspec.Struct, frozen=True):
    """A snapshot for dashboards and metrics. Counters only ever rise, but for those that end in
    "_bytes" and say what a tier holds now."""

    running: int
    waiting: int
    waiting_by_tenant: dict[str, int]  # tenant key -> sequences
    pool: PoolStats
    adapters: list[AdapterResidency]
    counters: dict[str, float]
    """steps, prompt_tokens, cached_tokens, output_tokens, preemptions, adapter_loads,
    adapter_evictions, kv_evictions, requests_finished, requests_aborted, requests_refused (for
    their deadline), relegations"""
    last_step_ms: float
    resident_bytes: int  # of the engine process
    telemetry: TelemetryStats = TelemetryStats()  # by class and tenant
    compute_threads: int = 1  # of the CPU that a step takes all the time that it runs
