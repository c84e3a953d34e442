"""How many rows of a kind there may be holds when many are made at once, by two API processes: each
kind of limit there is, one test."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from itertools import cycle
from typing import Any

import httpx
import pytest

from adapter_files import adapter_form
from api_harness import ADMIN_KEY, Api, TestTenant, running_api
from tenora_platform.evaluations import service as evaluations
from tenora_platform.evaluations.worker import EvaluationWorker
from tenora_platform.registry import service as registry
from tenora_platform.registry import uploads
from tenora_platform.registry.worker import IntakeWorker
from tenora_platform.rollouts import aliases
from tenora_platform.settings import Settings
from tenora_platform.webhooks import service as webhooks
from tenora_platform.webhooks.delivery import WebhookWorker

AT_ONCE, MOST = 40, 3

Create = Callable[[Api, TestTenant, int], Awaitable[httpx.Response]]


@pytest.fixture(scope="module")
def idle_workers() -> Iterator[None]:
    """Evaluations stay unfinished, and no webhook is sent."""
    patch = pytest.MonkeyPatch()

    async def idle(self: object) -> None:
        await asyncio.Event().wait()

    patch.setattr(EvaluationWorker, "run", idle)
    patch.setattr(WebhookWorker, "run", idle)
    yield
    patch.undo()


@pytest.fixture(scope="module")
def settings(settings: Settings, idle_workers: None) -> Settings:
    return settings


@pytest.fixture(scope="module")
async def another(api: Api, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Api]:
    """A second API process, as far as rows are concerned."""
    async with running_api(api.state.settings, tmp_path_factory.mktemp("another")) as made:
        yield made


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks, "ENDPOINTS_MAX", MOST)
    monkeypatch.setattr(uploads, "OPEN_UPLOADS_MAX", MOST)
    monkeypatch.setattr(evaluations, "OPEN_MAX", MOST)
    monkeypatch.setattr(aliases, "ALIASES_MAX", MOST)
    monkeypatch.setattr(registry, "VERSIONS_MAX", MOST)


async def _webhook(api: Api, tenant: TestTenant, no: int) -> httpx.Response:
    body = {"url": f"https://example.com/{no}"}
    return await api.call(tenant.key, "POST", "/v1/webhook_endpoints", json=body)


async def _operators_webhook(api: Api, _: TestTenant, no: int) -> httpx.Response:
    body = {"url": f"https://example.com/{no}"}
    return await api.call(ADMIN_KEY, "POST", "/admin/v1/webhook_endpoints", json=body)


async def _upload(api: Api, tenant: TestTenant, no: int) -> httpx.Response:
    return await api.call(tenant.key, "POST", "/v1/uploads", json={"bytes": 10 + no})


async def _evaluation(api: Api, tenant: TestTenant, no: int) -> httpx.Response:
    body = {
        "adapter": "mine",
        "versions": ["base"],
        "scoring": "exact",
        "max_tokens": 1,
        "items": [{"prompt": f"{no}", "expected": "x"}],
    }
    return await api.call(tenant.key, "POST", "/v1/evaluations", json=body)


async def _alias(api: Api, tenant: TestTenant, no: int) -> httpx.Response:
    path = f"/v1/adapters/mine/aliases/a{no}"
    body = {"targets": [{"version": 1, "weight": 100}]}
    return await api.call(tenant.key, "PUT", path, json=body)


async def _adapter(api: Api, tenant: TestTenant, no: int) -> httpx.Response:
    form = adapter_form(api.engine.model, f"more-{no}")
    return await api.call(tenant.key, "POST", "/v1/adapters", files=form)


async def _version(api: Api, tenant: TestTenant, _: int) -> httpx.Response:
    form = adapter_form(api.engine.model, "mine")
    return await api.call(tenant.key, "POST", "/v1/adapters", files=form)


KINDS: dict[str, tuple[Create, int, int]] = {
    "webhook endpoints": (_webhook, AT_ONCE, MOST),
    "the operator's webhook endpoints": (_operators_webhook, AT_ONCE, MOST),
    "open uploads": (_upload, AT_ONCE, MOST),
    "unfinished evaluations": (_evaluation, AT_ONCE, MOST),
    "aliases": (_alias, AT_ONCE, MOST),
    "adapters of a plan": (_adapter, AT_ONCE // 4, MOST - 1),  # one is there
    "versions": (_version, AT_ONCE // 4, MOST - 1),
}
"""How one is made, how many are at once, and how many may be."""


@pytest.mark.parametrize("kind", KINDS)
async def test_a_limit_holds_under_parallel_creates(api: Api, another: Api, kind: str) -> None:
    create, at_once, most = KINDS[kind]
    await api.put_plan("few", {"adapters": MOST})
    tenant = await api.new_tenant("many", "few")
    form = adapter_form(api.engine.model, "mine")
    assert (await api.call(tenant.key, "POST", "/v1/adapters", files=form)).status_code == 202
    state = ""
    while state != "active":
        await IntakeWorker(api.state).run_once()
        found = await api.call(tenant.key, "GET", "/v1/adapters/mine/versions/1")
        state = found.json()["state"]
    both = cycle((api, another))
    answers = await asyncio.gather(*(create(next(both), tenant, no) for no in range(at_once)))
    made = [each for each in answers if each.is_success]
    said: Any = Counter(each.text[:200] for each in answers if not each.is_success)
    assert len(made) == most, said
    assert {each.status_code for each in answers} <= {200, 201, 202, 403, 409, 429}, said
