"""Numbers, dates and names are bounded where they enter: what is taken can be used by everything
that reads it later."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from api_harness import ADMIN_KEY, Api, TestTenant
from platform_fixtures import MakeApi

FAR = [
    "9999-12-31T23:59:59-23:59",
    "0001-01-01T00:00:00%2B14:00",
    "2200-01-01",
    "1e300",
    "infinity",
]


@pytest.fixture(scope="module")
async def tenant(api: Api) -> TestTenant:
    return await api.new_tenant()


@pytest.mark.parametrize("date", FAR)
@pytest.mark.parametrize("name", ["start", "end"])
@pytest.mark.parametrize("path", ["/v1/usage", "/v1/costs", "/admin/v1/usage", "/admin/v1/costs"])
async def test_dates_of_usage(
    api: Api, tenant: TestTenant, path: str, name: str, date: str
) -> None:
    key = ADMIN_KEY if path.startswith("/admin") else tenant.key
    answer = await api.call(key, "GET", f"{path}?{name}={date}")
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == name


@pytest.mark.parametrize("page", ["00010101T000000Z", "99991231T235959Z", "20260101", "%00"])
async def test_pages_of_usage(api: Api, tenant: TestTenant, page: str) -> None:
    answer = await api.call(tenant.key, "GET", f"/v1/usage?page={page}")
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == "page"


@pytest.mark.parametrize("bucket", ["1h", "1d", "1mo"])
async def test_the_first_and_the_last_of_all_times(
    api: Api, tenant: TestTenant, bucket: str
) -> None:
    for start, end in (
        ("2000-01-01T00:00:00Z", "2000-02-01T00:00:00Z"),
        ("2199-12-31T00:00:00Z", "2199-12-31T23:59:59.999999Z"),
        ("2000-01-01", "2199-12-31"),
    ):
        query = f"start={start}&end={end}&bucket={bucket}&limit=744"
        for path in ("/v1/usage", "/v1/costs"):
            answer = await api.call(tenant.key, "GET", f"{path}?{query}")
            assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("date", ["9999-12-31T23:59:59-23:59", "2200-01-01T00:00:00Z"])
async def test_a_key_that_expires_after_all_times(api: Api, tenant: TestTenant, date: str) -> None:
    """Stored, no request of its tenant could be authenticated any more."""
    for path in ("/v1/api_keys", f"/admin/v1/tenants/{tenant.id}/api_keys"):
        key = ADMIN_KEY if path.startswith("/admin") else tenant.key
        answer = await api.call(key, "POST", path, json={"expires_at": date})
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["param"] == "expires_at"


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"weight": 1e-308}, "weight"),
        ({"weight": 0.0099}, "weight"),
        ({"weight": 100.1}, "weight"),
        ({"weight": math.inf}, "weight"),
        ({"weight": math.nan}, "weight"),
        ({"memory_share": 1e-9}, "memory_share"),
        ({"memory_share": math.nan}, "memory_share"),
        ({"ttft_ms": 1e-308}, "ttft_ms"),
        ({"ttft_ms": math.inf}, "ttft_ms"),
        ({"tpot_ms": 1e300}, "tpot_ms"),
        ({"tpot_ms": 0}, "tpot_ms"),
        ({"limits": {"requests_per_min": 2**31}}, "limits.requests_per_min"),
        ({"limits": {"tokens_per_min": 2**64}}, "limits.tokens_per_min"),
        ({"limits": {"adapter_bytes": 10**400}}, "limits.adapter_bytes"),
        ({"limits": {"budget": "1e30"}}, "limits.budget"),
        ({"limits": {"budget": "NaN"}}, "limits.budget"),
        ({"limits": {"budget": math.inf}}, "limits.budget"),
        ({"tiers": ["default", "flex", "default"]}, "tiers"),
    ],
)
async def test_plans_are_bounded(api: Api, changes: dict[str, Any], param: str) -> None:
    """One plan reaches the engine with every request of its tenants, and again at each start."""
    answer = await api.admin(
        "PUT",
        "/admin/v1/plans/odd",
        content=json.dumps(changes),
        headers={"content-type": "application/json"},
    )
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


@pytest.mark.parametrize(
    "plan",
    [
        {"weight": 0.01, "memory_share": 0.001, "ttft_ms": 1, "tpot_ms": 0.01},
        {"weight": 100, "memory_share": 1, "ttft_ms": 86_400_000, "tpot_ms": 86_400_000},
        {"tiers": ["flex", "default"]},
    ],
)
async def test_the_bounds_of_a_plan_are_in_it(api: Api, plan: dict[str, Any]) -> None:
    answer = await api.admin("PUT", "/admin/v1/plans/edge", json=plan)
    assert answer.status_code == 200, answer.text
    assert answer.json().items() >= plan.items()


ODD_PATHS = ["/a%00b", "/%00", "/assets/%00.js", "/" + "a" * 5000, "/" + "a/" * 3000, "/%ff%fe"]


@pytest.mark.parametrize("path", ODD_PATHS, ids=lambda path: path[:16])
async def test_paths_that_name_nothing(make_api: MakeApi, tmp_path: Path, path: str) -> None:
    folder = tmp_path / "dist"
    folder.mkdir()
    (folder / "index.html").write_text("<h1>portal</h1>")
    async with make_api(portal_dir=folder) as api:
        answer = await api.http.get(path)
        assert answer.status_code in (200, 404), answer.text
        if "%00" in path:
            assert answer.status_code == 404
            assert answer.json()["error"]["code"] == "not_found"


async def test_a_nul_anywhere(api: Api, tenant: TestTenant) -> None:
    """PostgreSQL's texts hold none, so nothing is called by a name that has one."""
    for path in (
        "/v1/adapters/a%00b",
        "/v1/adapters?after=%00",
        "/v1/adapters/a/versions/1%00",
        "/v1/api_keys?after=a%00",
        "/v1/uploads/%00",
        "/v1/models/%00",
        "/v1/usage?group_by=%00",
    ):
        answer = await api.call(tenant.key, "GET", path)
        assert answer.status_code in (400, 404), f"{path}: {answer.text}"
    for path in (
        "/admin/v1/tenants/%00",
        "/admin/v1/tenants?after=%00",
        "/admin/v1/tenants/%00/api_keys",
        "/admin/v1/usage?tenant=%00",
        "/admin/v1/costs?tenant=%00",
        "/admin/v1/audit_logs?tenant_id=%00",
        "/admin/v1/audit_logs?action=%00",
        "/admin/v1/audit_logs?after=%00",
    ):
        answer = await api.admin("GET", path)
        assert answer.status_code in (400, 404), f"{path}: {answer.text}"
    assert (await api.admin("DELETE", "/admin/v1/prices/%00")).status_code == 404
