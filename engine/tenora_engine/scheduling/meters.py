"""The meters of the engine: the usage record of a finished sequence, what telemetry is told of one,
and counters that only rise. What is billed is decided here and nowhere else."""

from __future__ import annotations

from dataclasses import dataclass

from tenora_engine.events import FinishReason, UsageRecord
from tenora_engine.sequence import Sequence


@dataclass
class Counters:
    """Those of `EngineStats.counters` that telemetry does not keep by class and tenant."""

    steps: int = 0
    express_steps: int = 0
    places_given_up: int = 0  # by running sequences, to those of other tenants
    step_failures: int = 0
    output_tokens: int = 0
    requests_finished: int = 0
    requests_aborted: int = 0


def meter_start(sequence: Sequence, now_s: float) -> None:
    """It runs for the first time, with `cached_tokens` and `adapter_load_ms` known."""
    meter = sequence.meter
    meter.queue.observe(now_s - sequence.arrival_s)
    if sequence.residency is not None:
        meter.start_adapter(sequence.residency, sequence.adapter_load_ms / 1000)
    if sequence.index == 0:
        meter.prompt_tokens += sequence.num_prompt
        meter.cached_tokens += sequence.cached_tokens


def meter_first_token(sequence: Sequence, now_s: float) -> None:
    target_ms = sequence.request.tenant.ttft_ms
    target_s = None if target_ms is None else target_ms / 1000
    sequence.meter.first_token(now_s - sequence.arrival_s, target_s)


def meter_end(sequence: Sequence, reason: FinishReason, now_s: float) -> None:
    """Whoever leaves before the first token was due leaves the target neither met nor missed."""
    meter, target_ms = sequence.meter, sequence.request.tenant.ttft_ms
    meter.finish(reason)
    if sequence.first_token_s is not None:
        if sequence.num_output > 1:
            decode_s = now_s - sequence.first_token_s
            meter.last_token(decode_s / (sequence.num_output - 1), sequence.tpot_s)
    elif target_ms is not None:
        is_late = now_s - sequence.arrival_s > target_ms / 1000
        if is_late or reason != "abort":
            meter.no_first_token()


def usage_record(
    sequence: Sequence,
    reason: FinishReason,
    *,
    prompt_ran: bool,
    output_tokens: int,
    now_s: float,
) -> UsageRecord:
    """The one record of a sequence, made when it ends. `prompt_ran`: whether the prompt is metered
    here, that is on sequence 0 of a request of which anything ran."""
    request = sequence.request
    started_s = sequence.admitted_s if sequence.admitted_s is not None else now_s
    return UsageRecord(
        event_id=f"{request.request_id}:{sequence.index}",
        request_id=request.request_id,
        index=sequence.index,
        tenant=request.tenant.key,
        adapter_digest=None if request.adapter is None else request.adapter.digest,
        context=request.context,
        prompt_tokens=sequence.num_prompt if prompt_ran else 0,
        cached_tokens=sequence.cached_tokens if prompt_ran else 0,
        output_tokens=output_tokens,
        arrival_s=sequence.arrival_s,
        first_token_s=sequence.first_token_s,
        finished_s=now_s,
        queue_ms=max(started_s - sequence.arrival_s, 0.0) * 1000,
        adapter_load_ms=sequence.adapter_load_ms,
        residency=sequence.residency,
        tier=sequence.tier,
        finish_reason=reason,
        preemptions=sequence.preemptions,
        cold_load=sequence.cold_load,
        waits=sequence.wait_parts or [],
    )
