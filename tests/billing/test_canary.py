"""What the canary finds: a wrong answer, an adapter that is not where it was led, somebody else's
things that are served, a wrong bill. Each by its name, in the round, the metric and an event."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import msgspec
import pytest

from api_harness import Api
from served_api import served
from tenora_engine.events import SequenceEvent, UsageRecord
from tenora_engine.request import GenerationRequest
from tenora_platform.canary import rounds
from tenora_platform.canary.rounds import Canary
from tenora_platform.canary.tenants import CanaryTenant
from tenora_platform.reconciliation.service import Reconciler

CHECKS = {"base", "store", "device", "host", "residency", "isolation", "bill"}


@pytest.fixture
async def canary(api: Api, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Canary]:
    """Of an engine whose adapters move, over HTTP."""
    where = api.engine.where
    submit = api.engine.submit

    async def forget(namespace: str, digest: str, *, device_only: bool = False) -> None:
        where[digest] = "host" if device_only else "store"

    async def submit_and_load(request: GenerationRequest) -> AsyncIterator[SequenceEvent]:
        async for event in submit(request):
            yield event
        if request.adapter is not None:
            where[request.adapter.digest] = "device"

    monkeypatch.setattr(api.engine, "forget_adapter", forget)
    monkeypatch.setattr(api.engine, "submit", submit_and_load)
    async with served(api) as url:
        settings = api.state.settings.model_copy(update={"canary_url": url})
        yield Canary(dataclasses.replace(api.state, settings=settings))


async def wrong_in(api: Api, canary: Canary) -> set[str]:
    """Of a round: the checks that failed, which the reconciliation, the metric and, if there are
    any, an event name as well."""
    checks = await canary.run_once()
    assert {check.name for check in checks} == CHECKS
    wrong = {check.name for check in checks if check.problem}
    shown = (await api.admin("GET", "/admin/v1/reconciliation")).json()["canary"]
    assert {each["name"] for each in shown["checks"] if each["problem"]} == wrong
    assert shown["ok"] is (not wrong)
    reconciler = Reconciler(api.state)
    await reconciler._tell()
    metrics = (await api.admin("GET", "/metrics")).text
    for name in CHECKS:
        assert f'tenora_canary_ok{{check="{name}"}} {float(name not in wrong)}' in metrics
    assert canary._tenants is not None
    path = f"/admin/v1/tenants/{canary._tenants[0].id}/events?type=canary.failed"
    told = (await api.admin("GET", path)).json()["data"]
    if wrong:
        assert set(told[0]["data"]) == wrong
    return wrong


Breaks = Callable[[Api, pytest.MonkeyPatch, Canary], None]


def other_answers(api: Api, patch: pytest.MonkeyPatch, canary: Canary) -> None:
    """As if it ran with another adapter, or none."""
    answer = api.engine.answer

    def with_another(request: GenerationRequest, index: int) -> str:
        return "Other weights." if request.adapter else answer(request, index)

    patch.setattr(api.engine, "answer", with_another)


def evictions(api: Api, patch: pytest.MonkeyPatch, canary: Canary) -> None:
    """The engine says "store", wherever the adapter is."""

    async def always(engine: Any, tenant: CanaryTenant, path: str) -> None:
        api.engine.where.clear()

    patch.setattr(rounds, "lead_to", always)


def open_doors(api: Api, patch: pytest.MonkeyPatch, canary: Canary) -> None:
    """The neighbour's key opens for the canary."""
    assert canary._tenants is not None
    key = canary._tenants[1].key
    patch.setattr(rounds, "auth_of", lambda tenant: {"authorization": f"Bearer {key}"})


def wrong_meters(api: Api, patch: pytest.MonkeyPatch, canary: Canary) -> None:
    """A token more is billed than was answered."""
    found = api.engine.unacknowledged_usage

    async def one_more() -> Sequence[UsageRecord]:
        records = await found()
        if api.engine.unacknowledged_usage is not one_more:  # it waited until this test was over
            return records
        return [msgspec.structs.replace(r, output_tokens=r.output_tokens + 1) for r in records]

    patch.setattr(api.engine, "unacknowledged_usage", one_more)


@pytest.mark.parametrize(
    ("breaks", "wrong"),
    [
        (other_answers, {"store", "device", "host"}),
        (evictions, {"residency"}),
        (open_doors, {"isolation"}),
        (wrong_meters, {"bill"}),
    ],
)
async def test_a_round_names_what_is_wrong(
    api: Api, canary: Canary, breaks: Breaks, wrong: set[str]
) -> None:
    assert await wrong_in(api, canary) == set()
    page = (await api.admin("GET", "/admin/v1/tenants?q=Tenora")).json()
    assert all(each["internal"] for each in page["data"])
    with pytest.MonkeyPatch.context() as patch:
        breaks(api, patch, canary)
        assert await wrong_in(api, canary) == wrong
    assert await wrong_in(api, canary) == set()
