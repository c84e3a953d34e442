"""One inference request from its resolved model to its settled hold: reserve, run, count, settle.
It knows the tenant's plan and the engine; the shape of the answer is the API's (chat, completions).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tenora_engine.errors import EngineError
from tenora_engine.events import TokenLogprob
from tenora_engine.request import GenerationRequest
from tenora_platform.auth import TenantContext
from tenora_platform.budgets.hold import NO_HOLD, BudgetHold
from tenora_platform.errors import ApiError, UnavailableError, from_engine
from tenora_platform.inference.answers import Answer
from tenora_platform.inference.generation import Piece, Run, merged
from tenora_platform.inference.parameters import Generation
from tenora_platform.inference.schemas import (
    CompletionTokensDetails,
    PromptTokensDetails,
    SamplingFields,
    Usage,
)
from tenora_platform.limits.service import Admission, Hold
from tenora_platform.limits.uses import tokens_at_once
from tenora_platform.probing import sick
from tenora_platform.receipts.contents import Transcript
from tenora_platform.registry import damage
from tenora_platform.registry.resolver import ResolvedAdapter, ResolvedModel, ShadowTarget
from tenora_platform.state import AppState, not_ready_reason

OPEN_ENDED_TOKENS = 1024
"""Output tokens reserved per sequence when the client named no maximum; settled to the actual."""


def require_engine(state: AppState) -> None:
    """Raises UnavailableError until the engine has loaded, and while it is away or takes no new
    work."""
    is_ready = state.engine_life.started and state.engine.ready
    if not is_ready or state.engine.refuses is not None:
        raise UnavailableError(not_ready_reason(state), code="engine_unavailable")


def choose_tier(tenant: TenantContext, wanted: str | None) -> str:
    """The tier that will be used: the wanted one if the plan has it, else the plan's own (the
    response names it)."""
    if wanted in tenant.plan.tiers:
        return str(wanted)
    return tenant.plan.sla_class


def deprecation_headers(adapter: ResolvedAdapter) -> dict[str, str]:
    """Of an answer by a deprecated version: since when (RFC 9745), and in words."""
    if adapter.deprecated_s is None:
        return {}
    return {
        "deprecation": f"@{adapter.deprecated_s}",
        "x-tenora-warning": (
            f"{adapter.label} is deprecated and may be revoked; switch to another version of "
            f"{adapter.name}"
        ),
    }


@dataclass(frozen=True)
class Prompt:
    """One prompt of a request and how to continue it."""

    token_ids: list[int]
    generation: Generation
    prediction: Sequence[int] = ()  # what the answer is thought to be
    echo: str = ""  # what each choice begins with


PromptFor = Callable[[ResolvedAdapter], Awaitable[Prompt]]
"""The same chat as a version's own template asks it. Raises InvalidRequestError."""


@dataclass
class InferenceSession:
    """Made for one request that the limits have admitted; `pieces` is iterated once. `headers` are
    complete when the first piece (or the first error) has come."""

    state: AppState
    tenant: TenantContext
    resolved: ResolvedModel
    prompts: Sequence[Prompt]
    tier: str
    open_ended: bool
    kind: str  # the id's prefix: chatcmpl, cmpl
    x_request_id: str  # of the HTTP answer
    ulid: str  # of no other session
    admission: Admission | None = None  # where the limits have counted it
    transcript: Transcript | None = None  # if its contents are kept
    asked_tier: str | None = None  # by the client
    shadow: ShadowTarget | None = None  # on which it is run once more, when it has been answered
    answer: Answer | None = None  # if it is compared
    prompt_for: PromptFor | None = None  # of a chat, which another version may ask otherwise
    at_once: int | None = None  # of its prompts; None: all of them
    limited: bool = True  # by what plan and key allow in a minute, and at once
    headers: dict[str, str] = field(default_factory=dict)
    id: str = ""
    created: int = 0
    failure: ApiError | None = None  # after the answer had begun
    _runs: list[Run] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.id = f"{self.kind}_{self.ulid}"
        self.created = int(time.time())
        self.headers["x-tenora-tier"] = self.tier
        adapter = self.resolved.adapter
        if adapter is not None:
            self.headers["x-tenora-adapter"] = adapter.label
            self.headers["x-tenora-adapter-digest"] = adapter.digest
            self.headers.update(deprecation_headers(adapter))
        self._runs = [self._run(number, prompt) for number, prompt in enumerate(self.prompts)]
        most = [self._max_tokens(each) for each in self.prompts if each.generation.is_capped]
        if most:
            self.headers["x-tenora-max-tokens"] = str(min(most))

    def _run(self, number: int, prompt: Prompt) -> Run:
        adapter = self.resolved.adapter
        tenant, sampling = self.tenant, prompt.generation.sampling
        first_choice = number * sampling.n
        request = GenerationRequest(
            request_id=self.id if len(self.prompts) == 1 else f"{self.id}-{number}",
            tenant=tenant.to_engine(self.tier),
            prompt_token_ids=prompt.token_ids,
            prediction_token_ids=list(prompt.prediction),
            sampling=msgspec.structs.replace(sampling, max_tokens=self._max_tokens(prompt)),
            adapter=adapter.ref if adapter else None,
            part_of=self.id if len(self.prompts) > 1 else None,
            parts=len(self.prompts),
            context=self._context(prompt, first_choice),
            cache_salt=prompt.generation.cache_salt,
        )
        return Run(
            self.state.engine,
            request,
            prompt.generation,
            first_choice=first_choice,
            chunk_tokens=self.state.settings.stream_chunk_tokens,
        )

    def _context(self, prompt: Prompt, first_choice: int) -> dict[str, str]:
        """What the usage record says of it beside the engine's meters; "" where there is none."""
        adapter = self.resolved.adapter
        asked_tokens = prompt.generation.sampling.max_tokens
        return {
            "tenant_id": self.tenant.tenant_id,
            "api_key_id": self.tenant.key_id,
            "adapter_id": adapter.adapter_id if adapter else "",
            "adapter_version_id": adapter.version_id if adapter else "",
            "model": self.state.engine.model.id,
            "asked_model": self.resolved.model,
            "alias": self.resolved.alias or "",
            "plan": self.tenant.plan.name,
            "asked_tier": self.asked_tier or "",
            "max_tokens": "" if self.open_ended else str(asked_tokens),
            "request_id": self.id,
            "x_request_id": self.x_request_id,
            "first_sequence": str(first_choice),
            "sequences": str(len(self.prompts) * prompt.generation.sampling.n),
        }

    async def pieces(self) -> AsyncGenerator[Piece]:
        """Raises RateLimitedError and the engine's refusals before the first piece; an ApiError
        later when a sequence fails. However it ends, the hold is settled to what was used."""
        hold = await self._hold()
        budget: BudgetHold = NO_HOLD
        try:
            budget = await self.state.budgets.acquire(self.tenant, self._runs, self._history)
            self.headers.update(budget.headers)
            if budget.degraded:
                self._serve_as("flex")
            adapter = self.resolved.adapter
            if adapter is not None:
                self.headers["x-tenora-residency"] = await self.state.engine.residency(adapter.ref)
            async with (
                self.state.flights.flight(self.tenant, tuple(self._runs)),
                sick.told(self.state, self.resolved),
            ):
                with self.state.outcomes.watch(self.tenant.tenant_id, self.resolved) as watch:
                    # Within the watch: what another store lacks is not held against the version.
                    async with (
                        damage.told(self.state, self.resolved),
                        contextlib.aclosing(merged(self._runs, self.at_once)) as pieces,
                    ):
                        if self.answer is not None:
                            self.answer.begin()
                        async for piece in pieces:
                            watch.piece()
                            self._note(piece)
                            yield piece
            if self.answer is not None:
                self.answer.end()
        finally:
            kept = self.state.copies.keep([record for run in self._runs for record in run.usage])
            try:
                began = any(run.begun for run in self._runs)
                if began:
                    self._keep_contents()
                if hold is not None and began:
                    await hold.settle(sum(run.count_tokens() for run in self._runs))
                elif hold is not None:
                    await hold.release()
            finally:
                await budget.end(self._runs)
                if kept is not None:  # before the client is told what it has used
                    await asyncio.shield(kept)

    async def _hold(self) -> Hold | None:
        if not self.limited:
            return None
        hold = await self.state.limits.acquire(
            self.tenant,
            self._estimated_tokens(),
            self._num_sequences,
            requests=0,
            admission=self.admission,
        )
        self.headers.update(hold.headers)
        return hold

    def _note(self, piece: Piece) -> None:
        self._note_tier()
        for listener in (self.transcript, self.answer):
            if listener is not None:
                listener.add(piece)

    def _keep_contents(self) -> None:
        if self.transcript is not None:
            self.state.contents.keep(self.id, self.transcript)

    @property
    def _history(self) -> str:
        """By what a tenant's answers are known to be long: its adapter, of whatever version."""
        adapter = self.resolved.adapter
        return adapter.label.partition("@")[0] if adapter else self.state.engine.model.id

    def _serve_as(self, tier: str) -> None:
        self.tier = self.headers["x-tenora-tier"] = tier
        for run in self._runs:
            run.serve(self.tenant.to_engine(tier))

    async def leave(self, error: ApiError) -> None:
        """Nobody wants it any more: the engine ends it, and what it metered is charged."""
        for run in self._runs:
            await run.end(error)

    def fail(self, error: ApiError | EngineError) -> ApiError:
        """What ended an answer that had begun, as its client is told: with a status of 200 sent, it
        is counted as a failed request all the same."""
        self.failure = error if isinstance(error, ApiError) else from_engine(error)
        return self.failure

    @property
    def _num_sequences(self) -> int:
        """That run at the same time, at most."""
        sequences = sum(prompt.generation.sampling.n for prompt in self.prompts)
        return sequences if self.at_once is None else min(sequences, self.at_once)

    def _estimated_tokens(self) -> int:
        """Of all sequences; where the client named no maximum, a guess."""
        total = self._prompt_tokens
        for prompt in self.prompts:
            most = self._max_tokens(prompt)
            if self._is_open(prompt):
                most = min(most, OPEN_ENDED_TOKENS)
            total += most * prompt.generation.sampling.n
        return total

    @property
    def _prompt_tokens(self) -> int:
        return sum(len(prompt.token_ids) for prompt in self.prompts)

    def _is_open(self, prompt: Prompt) -> bool:
        """Whether its answer may be as long as it will."""
        return self.open_ended or prompt.generation.is_capped

    def _max_tokens(self, prompt: Prompt) -> int:
        """Of each of its sequences. Where the client named none, or more than there is room for, no
        more than plan and key allow in a minute, so that no request is larger than that."""
        most, limit = prompt.generation.sampling.max_tokens, tokens_at_once(self.tenant)
        if not self._is_open(prompt) or not limit:
            return most
        return min(most, max((limit - self._prompt_tokens) // self._num_sequences, 1))

    def _note_tier(self) -> None:
        """Answer and headers name the tier that serves the request: one of which a sequence was
        relegated was."""
        for run in self._runs:
            if run.tier != self.tier and run.tier != run.request.tenant.tier:
                self.tier = self.headers["x-tenora-tier"] = run.tier

    def prompt_logprobs(self, prompt: int) -> list[TokenLogprob]:
        """Of the prompt of that number, from its second token on; complete before its first
        piece."""
        return self._runs[prompt].prompt_logprobs

    def embedding(self, prompt: int) -> list[float]:
        """Of the prompt of that number, when `pieces` has ended."""
        return self._runs[prompt].embedding or []

    def usage_so_far(self, begun: bool = True) -> dict[str, int]:
        """For a chunk of a stream that asked for it, before there is text or with it; `usage` says
        more, once the stream ends."""
        output_tokens = sum(run.count_output() for run in self._runs) if begun else 0
        return {
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": output_tokens,
            "total_tokens": self._prompt_tokens + output_tokens,
        }

    def usage(self) -> Usage:
        """The engine's meters, summed over prompts and n. Call it when `pieces` has ended."""
        records = [record for run in self._runs for record in run.usage]
        prompt_tokens = sum(record.prompt_tokens for record in records)
        output_tokens = sum(record.output_tokens for record in records)
        return Usage(
            prompt_tokens=prompt_tokens,
            completion_tokens=output_tokens,
            total_tokens=prompt_tokens + output_tokens,
            prompt_tokens_details=PromptTokensDetails(
                cached_tokens=sum(record.cached_tokens for record in records)
            ),
            completion_tokens_details=CompletionTokensDetails(
                accepted_prediction_tokens=sum(each.accepted_draft_tokens for each in records),
                rejected_prediction_tokens=sum(each.rejected_draft_tokens for each in records),
            ),
        )

    def chunk(
        self, kind: str, body: SamplingFields, choices: list[dict[str, Any]]
    ) -> dict[str, Any]:
        """One event of a stream; `kind` is its `object`. Where usage was asked for, all chunks but
        the last carry it as null, or as it is so far."""
        chunk: dict[str, Any] = {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": body.model,
            "choices": choices,
            "service_tier": self.tier,
            "system_fingerprint": self.fingerprint,
        }
        options = body.stream_options
        if options is not None and options.include_usage:
            chunk["usage"] = self.usage_so_far() if options.continuous_usage_stats else None
        return chunk

    @property
    def fingerprint(self) -> str:
        return f"tenora-{self.state.engine.model.id}"
