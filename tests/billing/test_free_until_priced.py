"""A fresh installation charges nothing, and nothing waits for a price, until somebody sets one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from api_harness import Api, TestTenant, running_api
from books import reconcile
from platform_fixtures import Servers, with_database
from tenora_platform.bootstrap import database_urls, prepare_database
from tenora_platform.installation import DEFAULT
from tenora_platform.settings import Settings
from tenora_platform.usage.sink import UsageSink

BASE = {"uncached_prefill": "1", "cached_prefill": "1", "output": "2"}


@pytest.fixture
async def fresh(settings: Settings, servers: Servers, tmp_path: Path) -> AsyncIterator[Api]:
    name = f"fresh_{next(servers.numbers)}"
    servers.execute("CREATE DATABASE {}", name)
    url = with_database(servers.postgres_url, name)
    prepare_database(database_urls(url, servers.secret, DEFAULT))
    changes: dict[str, Any] = {"database_url": url, "data_dir": tmp_path / "data"}
    async with running_api(settings.model_copy(update=changes), tmp_path) as api:
        yield api


async def spent(api: Api, tenant: TestTenant) -> Decimal:
    await UsageSink(api.engine, api.state.db).store_what_waits()
    costs = (await api.call(tenant.key, "GET", "/v1/costs")).json()
    results = [each for bucket in costs["data"] for each in bucket["results"]]
    assert sum(each["unrated_events"] for each in results) == 0
    return sum((Decimal(each["amount"]) for each in results), Decimal(0))


async def ask(api: Api, tenant: TestTenant) -> None:
    body = {"model": "fake-base", "messages": [{"role": "user", "content": "x"}]}
    answer = await api.call(tenant.key, "POST", "/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text


async def test_nothing_is_charged_until_somebody_sets_a_price(fresh: Api) -> None:
    tenant = await fresh.new_tenant("first")
    await ask(fresh, tenant)
    assert await spent(fresh, tenant) == 0
    made = await fresh.admin("POST", "/admin/v1/prices", json={"per_million": BASE})
    assert made.status_code == 201, made.text
    assert await spent(fresh, tenant) == 0, "what was used before stays free"
    await ask(fresh, tenant)
    assert await spent(fresh, tenant) > 0
    run = await reconcile(fresh)
    assert run["differences"] == {}, run["named"]
