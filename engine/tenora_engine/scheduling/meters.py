"""The meters of the engine: the usage record of a finished sequence, and counters that only rise.
What is billed is decided here and nowhere else."""

from __future__ import annotations

from dataclasses import dataclass

from tenora_engine.events import FinishReason, UsageRecord
from tenora_engine.sequence import Sequence


@dataclass
class Counters:
    """See `EngineStats.counters`."""

    steps: int = 0
    step_failures: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    preemptions: int = 0
    relegations: int = 0  # of sequences that waited; at submission they are not counted
    requests_refused: int = 0  # for their deadline
    requests_finished: int = 0
    requests_aborted: int = 0


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
        tier=request.tenant.tier,
        finish_reason=reason,
    )
