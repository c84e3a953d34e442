"""A plan's promises on their way to the engine, its limits on sequences, and what is told of a
request that was relegated."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import get_args

import msgspec
import pytest

from api_harness import Api
from tenant_contexts import plan_terms, tenant_context
from tenora_engine.events import FinishEvent, SequenceEvent, TokenEvent
from tenora_engine.request import GenerationRequest
from tenora_engine.scheduling.class_queue import CLASS_WEIGHTS
from tenora_platform.auth import PlanTerms, Tier
from tenora_platform.inference.session import choose_tier

PLAN = plan_terms(
    sla_class="priority",
    tiers=("priority", "flex"),
    ttft_ms=500.0,
    tpot_ms=50.0,
    late="refuse",
    weight=2.0,
)
TENANT = tenant_context(PLAN)


def test_the_tiers_are_the_engines_classes() -> None:
    assert set(get_args(Tier)) == set(CLASS_WEIGHTS)


@pytest.mark.parametrize(
    ("wanted", "tier", "ttft_ms"),
    [(None, "priority", 500.0), ("auto", "priority", 500.0), ("flex", "flex", None)],
)
def test_the_plans_times_are_promised_in_its_own_class(
    wanted: str | None, tier: str, ttft_ms: float | None
) -> None:
    tenant = TENANT.to_engine(choose_tier(TENANT, wanted))
    assert (tenant.tier, tenant.ttft_ms, tenant.late) == (tier, ttft_ms, "refuse")
    assert (tenant.tpot_ms is None) == (ttft_ms is None)
    assert tenant.weight == 2.0


def test_terms_remembered_before_plans_said_what_is_late_can_still_be_read() -> None:
    fields = msgspec.to_builtins(PLAN)
    del fields["late"]
    assert msgspec.convert(fields, PlanTerms).late == "best_effort"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("late", [False, True])
async def test_a_relegated_request_names_the_tier_that_served_it(
    api: Api, monkeypatch: pytest.MonkeyPatch, stream: bool, late: bool
) -> None:
    """Wherever it is known in time: in the header, in the answer, in each chunk."""
    submit = api.engine.submit

    async def relegate(request: GenerationRequest) -> AsyncIterator[SequenceEvent]:
        is_first = True
        async for event in submit(request):
            if late and isinstance(event, TokenEvent) and is_first:
                yield msgspec.structs.replace(event, tier="flex")
                is_first = False
            elif late and isinstance(event, FinishEvent):
                usage = msgspec.structs.replace(event.usage, tier="flex")
                yield msgspec.structs.replace(event, usage=usage)
            else:
                yield event

    monkeypatch.setattr(api.engine, "submit", relegate)
    tenant = await api.new_tenant("late", plan="premium")
    body = {
        "model": "fake-base",
        "messages": [{"role": "user", "content": "hello"}],
        "stream": stream,
    }
    answer = await api.call(tenant.key, "POST", "/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    own = answer.headers["x-tenora-tier"] if not late else "priority"
    assert answer.headers["x-tenora-tier"] == ("flex" if late else own)
    if not stream:
        assert answer.json()["service_tier"] == ("flex" if late else own)
        return
    chunks = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")]
    assert {json.loads(chunk)["service_tier"] for chunk in chunks} == {"flex" if late else own}


async def test_n_and_lists_of_prompts_count_as_sequences(api: Api) -> None:
    await api.put_plan("four", {"parallel_requests": 4, "tokens_per_min": 300})
    tenant = await api.new_tenant("four", plan="four")

    async def ask(**fields: object) -> tuple[int, str | None, str | None]:
        body = {"model": "fake-base", "max_tokens": 2, **fields}
        answer = await api.call(tenant.key, "POST", "/v1/completions", json=body)
        error = answer.json().get("error", {})
        return answer.status_code, error.get("code"), answer.headers.get("x-should-retry")

    asked = len(api.engine.requests)
    for fields in ({"n": 5}, {"prompt": ["a"] * 5}, {"prompt": ["a", "b"], "n": 3}):
        assert await ask(**{"prompt": "a", **fields}) == (400, "request_exceeds_limit", "false")
    assert await ask(prompt="a" * 299) == (400, "request_exceeds_limit", "false")
    assert len(api.engine.requests) == asked, "nothing of it has reached the engine"
    assert (await ask(prompt=["a", "b"], n=2))[0] == 200
    shown = (await api.call(tenant.key, "GET", "/v1/limits")).json()
    assert shown["parallel_requests"] == {"limit": 4, "used": 0}


async def test_without_a_maximum_an_answer_ends_with_the_minutes_tokens(api: Api) -> None:
    await api.put_plan("short", {"tokens_per_min": 100})
    tenant = await api.new_tenant("short", plan="short")
    body = {"model": "fake-base", "messages": [{"role": "user", "content": "hello"}], "n": 2}
    answer = await api.call(tenant.key, "POST", "/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    request = api.engine.requests[-1]
    assert request.sampling.max_tokens == (100 - len(request.prompt_token_ids)) // 2
