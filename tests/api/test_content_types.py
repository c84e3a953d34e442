"""A body's JSON is read as clients send it that say nothing of its type, curl first of all; another
type is named."""

from __future__ import annotations

import json

import pytest

from api_harness import ADMIN_KEY, Api, TestTenant

CHAT = {"model": "fake-base", "messages": [{"role": "user", "content": "Hi"}]}
CURLS = "application/x-www-form-urlencoded"


@pytest.fixture(scope="module")
async def tenant(api: Api) -> TestTenant:
    return await api.new_tenant("types", plan="premium")


@pytest.mark.parametrize(
    "kind",
    [
        None,
        "",
        CURLS,
        f"{CURLS}; charset=utf-8",
        "text/plain;charset=UTF-8",
        "application/octet-stream",
        "APPLICATION/JSON; charset=utf-8",
        "application/vnd.api+json",
    ],
)
async def test_json_is_read_whatever_a_client_leaves_unsaid(
    api: Api, tenant: TestTenant, kind: str | None
) -> None:
    headers = {} if kind is None else {"content-type": kind}
    content = json.dumps(CHAT).encode()
    asked = await api.call(
        tenant.key, "POST", "/v1/chat/completions", content=content, headers=headers
    )
    assert asked.status_code == 200, asked.text
    plan = json.dumps({"limits": {}}).encode()
    managed = await api.call(
        ADMIN_KEY, "PUT", "/admin/v1/plans/types", content=plan, headers=headers
    )
    assert managed.status_code == 200, managed.text


@pytest.mark.parametrize(
    "kind",
    [
        "multipart/form-data; boundary=b",
        "text/html",
        "application/xml",
        "text/x+json",
        "image/svg+json",
    ],
)
async def test_another_type_is_named(api: Api, tenant: TestTenant, kind: str) -> None:
    headers = {"content-type": kind}
    answer = await api.call(
        tenant.key, "POST", "/v1/chat/completions", content=b"{}", headers=headers
    )
    assert answer.status_code == 415
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == ("unsupported_media_type", "content-type")
    assert "content-type: application/json" in error["message"]


async def test_a_form_is_no_json(api: Api, tenant: TestTenant) -> None:
    answer = await api.call(tenant.key, "POST", "/v1/chat/completions", data={"model": "fake-base"})
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "invalid_json"


async def test_a_request_without_a_body_needs_no_type(api: Api, tenant: TestTenant) -> None:
    headers = {"content-type": "text/html"}
    answer = await api.call(tenant.key, "POST", "/v1/chat/completions", headers=headers)
    assert answer.status_code == 400


async def test_signing_in_still_needs_the_type_that_no_foreign_form_can_send(api: Api) -> None:
    content = json.dumps({"key": ADMIN_KEY}).encode()
    answer = await api.http.post(
        "/auth/session", content=content, headers={"content-type": "text/plain"}
    )
    assert answer.status_code == 403
    assert answer.json()["error"]["code"] == "foreign_origin"
