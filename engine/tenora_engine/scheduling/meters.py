"""What sequences cost their tenants in the queue's order (`Charges`), and the engine's meters: the
usage record of a finished sequence, what telemetry is told of one, and counters that only rise.
What is billed is decided here and nowhere else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tenora_engine.client import AbortReason
from tenora_engine.config import ResolvedConfig
from tenora_engine.events import (
    Fault,
    FinishEvent,
    FinishReason,
    Residency,
    TokenLogprob,
    UsageRecord,
)
from tenora_engine.memory.costs import CostModel
from tenora_engine.request import AdapterRef
from tenora_engine.sequence import Flight, Sequence

DECODE_COST = 2.0
"""A decoded token costs as much as two prefilled ones, as in VTC (Sheng et al., OSDI 2024)."""


class Charges:
    """Prices by what a step and a load were seen to take, so that they hold on any machine."""

    def __init__(self, config: ResolvedConfig, costs: CostModel) -> None:
        model = config.model
        item = 2 if config.engine.dtype == "bfloat16" else 4
        features = sum(n_in + n_out for n_in, n_out in model.modules.values())
        self._rank_cost = features * model.num_layers * item / max(model.weight_bytes, 1)
        self._row_bytes = features * model.num_layers * item
        self._num_pages = config.num_pages
        self._block_tokens = config.engine.block_tokens
        self._page_bytes = config.page_bytes
        self._costs = costs
        self.kv_price = 0.0  # of a page held since the engine started

    def token(self, adapter: AdapterRef | None) -> float:
        """A prefilled token: 1, and the adapter's multiplications over the base model's."""
        return 1.0 if adapter is None else 1.0 + adapter.rank * self._rank_cost

    def adapter_bytes(self, adapter: AdapterRef) -> int:
        """At most, before it has been seen: every module at full rank."""
        return adapter.rank * self._row_bytes

    def load(self, num_bytes: int, tier: Residency) -> float:
        """What could have been prefilled while the bytes of an adapter were read from a tier, which
        is the same however long the load waited for others."""
        return self._costs.adapter_s(num_bytes, tier) / self._costs.token_s

    def fetch(self, num_pages: int) -> float:
        """What could have been prefilled while so many pages of KV came from the host."""
        return self._costs.fetch_s(num_pages * self._page_bytes) / self._costs.token_s

    def settle(self, sequence: Sequence) -> float:
        """What the sequence decoded and held since the last time; it is settled now."""
        service, length = sequence.service, len(sequence.token_ids)
        generated = length - service.settled_length
        decoded = DECODE_COST * service.token_cost * generated
        held = (self.kv_price - service.settled_kv) * len(sequence.block_table)
        service.settled_length, service.settled_kv = length, self.kv_price
        sequence.usage.meter.output_tokens += generated
        return decoded + held

    def makes_up_by(self, sequence: Sequence) -> int:
        """Tokens that one which was preempted is to generate before it gives up its place again: a
        block, and as much as it has to compute again."""
        return max(int(sequence.num_uncomputed / DECODE_COST), self._block_tokens)

    def observe_step(self, step_s: float) -> None:
        """All pages in use were held for `step_s` seconds. One costs its part of the arena of what
        could have been prefilled meanwhile."""
        self.kv_price += step_s / self._costs.token_s / self._num_pages


@dataclass
class Counters:
    """Those of `EngineStats.counters` that telemetry does not keep by class and tenant."""

    steps: int = 0
    places_given_up: int = 0  # by running sequences, to those of other tenants
    step_failures: int = 0
    output_tokens: int = 0
    requests_finished: int = 0
    requests_aborted: int = 0


def meter_start(sequence: Sequence, now_s: float) -> None:
    """It runs for the first time, with `cached_tokens` and `adapter_load_ms` known."""
    meter = sequence.usage.meter
    meter.queue.observe(now_s - sequence.arrival_s)
    if sequence.usage.residency is not None:
        meter.start_adapter(sequence.usage.residency, sequence.usage.adapter_load_ms / 1000)
    if sequence.index == 0:
        meter.prompt_tokens += sequence.num_prompt
        meter.cached_tokens += sequence.usage.cached_tokens


def meter_first_token(sequence: Sequence, now_s: float) -> None:
    target_ms = sequence.request.tenant.ttft_ms
    target_s = None if target_ms is None else target_ms / 1000
    sequence.usage.meter.first_token(now_s - sequence.arrival_s, target_s)


def meter_end(sequence: Sequence, ending: Ending, now_s: float) -> None:
    """Whoever leaves before the first token was due leaves the target neither met nor missed; so
    does what no engine could have answered, which counts among no errors."""
    meter, target_ms = sequence.usage.meter, sequence.request.tenant.ttft_ms
    is_invalid = ending.reason == "error" and ending.fault == "request"
    meter.finish("invalid" if is_invalid else ending.reason)
    if sequence.usage.first_token_s is not None:
        if sequence.num_generated > 1:
            decode_s = now_s - sequence.usage.first_token_s
            meter.last_token(decode_s / (sequence.num_generated - 1), sequence.service.tpot_s)
    elif target_ms is not None and not is_invalid:
        is_late = now_s - sequence.arrival_s > target_ms / 1000
        if is_late or ending.reason != "abort":
            meter.no_first_token()


def usage_record(
    sequence: Sequence,
    reason: FinishReason,
    *,
    prompt_ran: bool,
    output_tokens: int,
    now_s: float,
    to_unix_s: float,
) -> UsageRecord:
    """The one record of a sequence, made when it ends. `prompt_ran`: whether the prompt is metered
    here, that is on sequence 0 of a request of which anything ran. Its times are in unix time,
    `to_unix_s` after the engine's, at the same distances."""
    request, first_token_s = sequence.request, sequence.usage.first_token_s
    accepted = 0 if sequence.drafting is None else sequence.drafting.accepted
    started_s = sequence.usage.admitted_s if sequence.usage.admitted_s is not None else now_s
    return UsageRecord(
        event_id=f"{request.request_id}:{sequence.index}",
        request_id=request.request_id,
        index=sequence.index,
        tenant=request.tenant.key,
        adapter_digest=None if request.adapter is None else request.adapter.digest,
        context=request.context,
        prompt_tokens=sequence.num_prompt if prompt_ran else 0,
        cached_tokens=sequence.usage.cached_tokens if prompt_ran else 0,
        output_tokens=output_tokens,
        arrival_s=sequence.arrival_s + to_unix_s,
        first_token_s=None if first_token_s is None else first_token_s + to_unix_s,
        finished_s=now_s + to_unix_s,
        queue_ms=max(started_s - sequence.arrival_s, 0.0) * 1000,
        adapter_load_ms=sequence.usage.adapter_load_ms,
        residency=sequence.usage.residency,
        tier=sequence.service.tier,
        finish_reason=reason,
        preemptions=sequence.usage.preemptions,
        cold_load=sequence.usage.cold_load,
        waits=sequence.waits.parts or [],
        accepted_draft_tokens=min(accepted, output_tokens),
        rejected_draft_tokens=0 if sequence.drafting is None else sequence.drafting.rejected,
    )


FINISH_OF: dict[AbortReason, FinishReason] = {
    "client_gone": "abort",
    "stop": "stop",
    "invalid": "error",
    "cut_off": "abort",
}
FAULT_OF: dict[AbortReason, Fault] = {
    "client_gone": "engine",
    "stop": "engine",
    "invalid": "request",
    "cut_off": "platform",
}


class Ending(NamedTuple):
    """How a sequence ends; it is metered at `output_tokens` if given, never at more than were
    generated. `fault` and `param`: see `FinishEvent`. `is_told`: its client has ended it."""

    reason: FinishReason
    output_tokens: int | None = None
    error: str | None = None
    stop_token_id: int | None = None
    fault: Fault = "engine"
    param: str | None = None
    is_told: bool = False
    stop_logprob: TokenLogprob | None = None


def is_unanswered(ending: Ending | FinishEvent) -> bool:
    """Whether what ends so is charged to nobody."""
    return ending.reason == "error" or (ending.reason == "abort" and ending.fault == "platform")


def finish_event(
    flight: Flight, sequence: Sequence, ending: Ending, now_s: float, to_unix_s: float
) -> FinishEvent:
    """The last event of a sequence of `flight`. The prompt is metered on sequence 0, unless the
    request ends without having run at all. Of an error, and of what the platform cut off, nothing
    is: what could not be answered is not charged, and its bill (`bills`) says the same of the
    sequences that ended before. That alone says it where the text may have been complete before,
    and something was generated."""
    generated, asked = sequence.num_generated, ending.output_tokens
    metered = generated if asked is None else max(min(asked, generated), 0)
    ran = flight.ran or len(flight.sequences) > 1
    has_answer = flight.request.ends_by_text and generated
    is_free = is_unanswered(ending) and not has_answer
    usage = usage_record(
        sequence,
        ending.reason,
        prompt_ran=sequence.index == 0 and ran,
        output_tokens=metered,
        now_s=now_s,
        to_unix_s=to_unix_s,
    )
    return FinishEvent(
        request_id=sequence.request.request_id,
        index=sequence.index,
        reason=ending.reason,
        usage=usage.freed() if is_free else usage,
        error=ending.error,
        stop_token_id=ending.stop_token_id,
        fault=ending.fault,
        param=ending.param,
        stop_logprob=ending.stop_logprob,
    )
