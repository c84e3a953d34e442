"""Receipts over HTTP: what was asked, what ran, every line of the price to the last digit, signed;
and nobody else's."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import nacl.signing
import pytest

from api_harness import Api, TestTenant
from platform_fixtures import Connection
from priced_adapters import DIGEST, an_adapter
from shell import run
from tenora_platform.ids import new_id
from tenora_platform.usage.sink import UsageSink
from usage_records import usage_record

KEYS = "/.well-known/tenora-keys.json"


async def book(
    api: Api,
    tenant: TestTenant,
    *,
    context: dict[str, str] | None = None,
    request_id: str = "",
    at: datetime | None = None,
    **more: Any,
) -> str:
    """A sequence of a request of the tenant's has ended; the request's id."""
    request_id = request_id or new_id("chatcmpl")
    end_s = (at or datetime.now(UTC)).timestamp()
    base = {
        "tenant_id": tenant.id,
        "api_key_id": tenant.key_id,
        "model": "fake-base",
        "plan": "standard",
    }
    values = {"arrival_s": end_s - 2, "first_token_s": end_s - 1.5, "finished_s": end_s, **more}
    name = f"{request_id}:{more.get('index', 0)}"
    record = usage_record(name, tenant.id, context=base | (context or {}), **values)
    await UsageSink(api.engine, api.state.db).store([record])
    return request_id


async def get(api: Api, tenant: TestTenant, request_id: str) -> Any:
    answer = await api.call(tenant.key, "GET", f"/v1/requests/{request_id}")
    assert answer.status_code == 200, answer.text
    return answer.json()


async def plain_cost(api: Api, tenant: TestTenant, tokens: dict[str, int]) -> Decimal:
    """By what GET /v1/prices says, in four lines of arithmetic."""
    (price,) = (await api.call(tenant.key, "GET", "/v1/prices")).json()["data"][:1]
    exact = Decimal(0)
    for meter, count in tokens.items():
        exact += Decimal(price["per_million"][meter]) * count / 1_000_000
    return exact


async def test_it_says_what_was_asked_what_ran_and_what_it_costs(api: Api) -> None:
    tenant = await api.new_tenant()
    context = await an_adapter(api, tenant, "support") | {
        "asked_model": "support@prod",
        "alias": "prod",
        "asked_tier": "priority",
        "max_tokens": "64",
        "x_request_id": "trace-1",
    }
    facts: dict[str, Any] = {
        "adapter_digest": DIGEST,
        "prompt_tokens": 1234,
        "cached_tokens": 1000,
        "output_tokens": 57,
        "queue_ms": 125.5,
        "adapter_load_ms": 80.25,
        "residency": "store",
        "tier": "flex",
        "preemptions": 2,
        "cold_load": True,
    }
    request_id = await book(api, tenant, context=context, **facts)
    found = await get(api, tenant, request_id)
    assert found["id"] == request_id
    assert found["x_request_id"] == "trace-1"
    assert found["tenant_id"] == tenant.id
    assert found["api_key_id"] == tenant.key_id
    assert found["issuer"] == "tenora"
    assert found["status"] == "completed"
    assert found["asked"] == {
        "model": "support@prod",
        "alias": "prod",
        "class": "priority",
        "max_tokens": 64,
    }
    assert found["ran"]["model"] == "fake-base"
    assert found["ran"]["adapter"] == {
        "name": "support",
        "version": 3,
        "version_id": context["adapter_version_id"],
        "digest": DIGEST,
    }
    assert (found["ran"]["residency"], found["ran"]["sequences"]) == ("store", 1)
    tokens = {"uncached_prefill": 234, "cached_prefill": 1000, "output": 57}
    assert found["tokens"] == tokens
    (sequence,) = found["sequences"]
    assert sequence["class"] == "flex", "relegated: what served is what is said"
    assert (sequence["preemptions"], sequence["cold_loads"]) == (2, 1)
    assert sequence["times_ms"] == {
        "queue": 125.5,
        "adapter_load": 80.25,
        "prefill": 374.5,
        "decode": 1500,
        "total": 2000,
    }
    (price,) = found["prices"]
    assert sequence["price_version"] == price["id"]
    for line in sequence["meters"]:
        (part,) = line["parts"]
        assert Decimal(part["amount"]) == Decimal(part["per_million"]) * line["quantity"] / 10**6
    amounts = [Decimal(line["amount"]) for line in found["meters"]]
    assert sum(amounts) == Decimal(found["amount"]) == Decimal(sequence["amount"])
    assert Decimal(found["amount"]) == await plain_cost(api, tenant, tokens)
    assert found["currency"] == "USD"
    assert found["waits_for_price"] is False


async def test_it_is_signed_and_verifies_offline(api: Api, tmp_path: Path) -> None:
    """By libsodium too, and by the command line with a file of keys; changed, it does not."""
    tenant = await api.new_tenant()
    request_id = await book(api, tenant)
    answer = await api.call(tenant.key, "GET", f"/v1/requests/{request_id}")
    assert answer.headers["content-type"] == "application/json"
    keys = (await api.http.get(KEYS)).json()
    document = answer.json()
    value = document["signature"].pop("value")
    (public,) = [key["x"] for key in keys["keys"] if key["kid"] == document["signature"]["kid"]]
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    nacl.signing.VerifyKey(base64.urlsafe_b64decode(public + "=")).verify(
        text, base64.urlsafe_b64decode(value + "==")
    )
    file, known = tmp_path / "receipt.json", tmp_path / "keys.json"
    file.write_bytes(answer.content)
    known.write_text(json.dumps(keys))
    code, said = run("receipt", "verify", str(file), "--keys", str(known))
    assert (code, request_id in said) == (0, True), said
    amount = document["amount"]
    file.write_bytes(answer.content.replace(amount.encode(), b"0.000000000001"))
    code, said = run("receipt", "verify", str(file), "--keys", str(known))
    assert code == 1
    assert "'amount', 'sequences' were changed" in said or "'amount'" in said


async def test_all_sequences_of_a_request_are_one_receipt(api: Api) -> None:
    tenant = await api.new_tenant()
    request_id = new_id("cmpl")
    for index in range(3):
        prompt = {"prompt_tokens": 100 if index == 0 else 0, "cached_tokens": 0}
        reason = "abort" if index == 2 else "length"
        more: dict[str, Any] = prompt | {"output_tokens": 7 + index, "finish_reason": reason}
        await book(api, tenant, request_id=request_id, index=index, **more)
    found = await get(api, tenant, request_id)
    assert found["status"] == "aborted"
    assert [each["sequence"] for each in found["sequences"]] == [0, 1, 2]
    assert found["ran"]["sequences"] == 3
    tokens = {"uncached_prefill": 100, "cached_prefill": 0, "output": 24}
    assert found["tokens"] == tokens
    assert Decimal(found["amount"]) == await plain_cost(api, tenant, tokens)
    parts = sum(Decimal(each["amount"]) for each in found["sequences"])
    assert parts == Decimal(found["amount"])
    page = (await api.call(tenant.key, "GET", "/v1/requests")).json()
    (item,) = page["data"]
    assert (item["id"], item["sequences"], item["amount"]) == (request_id, 3, found["amount"])


async def test_a_request_is_incomplete_until_all_its_sequences_are_booked(api: Api) -> None:
    """Each event says how many there are, by its seal too: so does the receipt of a request of
    which one still runs, or of which a row is gone."""
    tenant = await api.new_tenant()
    request_id = new_id("cmpl")
    context = {"sequences": "3"}
    amounts = []
    for index in range(3):
        found = await book(api, tenant, request_id=request_id, index=index, context=context)
        assert found == request_id
        receipt = await get(api, tenant, request_id)
        (item,) = (await api.call(tenant.key, "GET", "/v1/requests")).json()["data"]
        state = "completed" if index == 2 else "incomplete"
        assert (receipt["status"], item["status"]) == (state, state)
        ran = receipt["ran"]
        assert (ran["sequences"], ran["sequences_booked"]) == (3, index + 1)
        amounts.append(Decimal(receipt["amount"]))
    assert amounts == sorted(amounts)
    one = await get(api, tenant, await book(api, tenant, context={"sequences": "1"}))
    assert (one["status"], one["ran"]["sequences"]) == ("completed", 1)


@pytest.mark.parametrize(("n", "prompts"), [(2, ["x", "y"]), (3, "x"), (1, "x")])
async def test_a_request_says_how_many_sequences_it_has(
    api: Api, n: int, prompts: str | list[str]
) -> None:
    tenant = await api.new_tenant()
    body = {"model": "fake-base", "prompt": prompts, "n": n, "temperature": 1, "max_tokens": 2}
    answer = await api.call(tenant.key, "POST", "/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    number = n * (len(prompts) if isinstance(prompts, list) else 1)
    own = [each for each in api.engine.outbox if each.context["tenant_id"] == tenant.id]
    assert {each.context["sequences"] for each in own} == {str(number)}
    await UsageSink(api.engine, api.state.db).store(own)
    receipt = await get(api, tenant, answer.json()["id"])
    assert (receipt["status"], receipt["ran"]["sequences"]) == ("completed", number)


async def test_a_quantity_in_two_tiers_is_shown_in_two_parts(api: Api) -> None:
    tenant = await api.new_tenant()
    steps = [{"price": "4"}, {"from": 10, "price": "3"}]
    per_million = {"uncached_prefill": "1", "cached_prefill": "0", "output": steps}
    body = {"tenant": tenant.id, "per_million": per_million}
    assert (await api.admin("POST", "/admin/v1/prices", json=body)).status_code == 201
    no_prompt: dict[str, Any] = {"prompt_tokens": 0, "cached_tokens": 0}
    at = datetime.now(UTC) + timedelta(seconds=5)
    await book(api, tenant, at=at, output_tokens=4, **no_prompt)
    second = await book(api, tenant, at=at, output_tokens=20, **no_prompt)
    found = await get(api, tenant, second)
    (line,) = found["sequences"][0]["meters"]
    assert [(part["quantity"], Decimal(part["per_million"])) for part in line["parts"]] == [
        (6, Decimal(4)),
        (14, Decimal(3)),
    ]
    assert Decimal(found["amount"]) == Decimal(6 * 4 + 14 * 3) / 10**6
    assert found["prices"][0]["scope"]["tenant_id"] == tenant.id


async def test_what_waits_for_a_price_says_so(api: Api) -> None:
    tenant = await api.new_tenant()
    model = {"model": f"unpriced-{tenant.id}"}
    long_ago = datetime(2001, 1, 1, tzinfo=UTC)
    request_id = await book(api, tenant, at=long_ago, context=model)
    found = await get(api, tenant, request_id)
    assert found["waits_for_price"] is True
    assert found["currency"] is None
    assert Decimal(found["amount"]) == 0
    assert found["prices"] == found["meters"] == []
    (sequence,) = found["sequences"]
    assert sequence["amount"] is sequence["meters"] is sequence["price_version"] is None
    assert "no price" in sequence["waits_because"]
    item = (await api.call(tenant.key, "GET", "/v1/requests")).json()["data"][0]
    assert item["waits_for_price"] is True


async def test_it_is_found_by_either_id(api: Api) -> None:
    tenant = await api.new_tenant()
    body = {"model": "fake-base", "messages": [{"role": "user", "content": "x"}]}
    answer = await api.call(tenant.key, "POST", "/v1/chat/completions", json=body)
    made = answer.headers["x-request-id"]
    await UsageSink(api.engine, api.state.db).store(api.engine.outbox)
    by_answer = await get(api, tenant, answer.json()["id"])
    by_header = await get(api, tenant, made)
    assert by_header["id"] == by_answer["id"] == answer.json()["id"]
    assert by_header["x_request_id"] == made
    assert by_header["asked"]["model"] == "fake-base"

    ids = [await book(api, tenant, context={"x_request_id": "mine"}) for _ in range(2)]
    assert (await get(api, tenant, "mine"))["id"] == max(ids), "the newest of that name"
    for nothing in ("nothing", "req_" + "0" * 26, made.replace("req", "cmpl"), "%00"):
        missing = await api.call(tenant.key, "GET", f"/v1/requests/{nothing}")
        assert missing.status_code in (400, 404), nothing


async def test_it_is_nobody_elses(api: Api) -> None:
    tenant, stranger = await api.new_tenant(), await api.new_tenant()
    request_id = await book(api, tenant, context={"x_request_id": "shared-name"})
    for name in (request_id, "shared-name"):
        answer = await api.call(stranger.key, "GET", f"/v1/requests/{name}")
        assert answer.status_code == 404
        assert answer.json()["error"]["code"] == "not_found"
    theirs = await book(api, stranger, context={"x_request_id": "shared-name"})
    assert (await get(api, stranger, "shared-name"))["id"] == theirs
    assert (await get(api, tenant, "shared-name"))["id"] == request_id
    after = await api.call(stranger.key, "GET", f"/v1/requests?after={request_id}")
    assert after.status_code == 400
    listed = (await api.call(stranger.key, "GET", "/v1/requests")).json()["data"]
    assert [item["id"] for item in listed] == [theirs]
    key = await api.call(
        tenant.key, "POST", "/v1/api_keys", json={"name": "x", "scopes": ["inference"]}
    )
    for path in ("/v1/requests", f"/v1/requests/{request_id}"):
        refused = await api.call(key.json()["key"], "GET", path)
        assert refused.json()["error"]["code"] == "insufficient_scope"


async def test_the_operator_sees_any(api: Api) -> None:
    tenant, other = await api.new_tenant(), await api.new_tenant()
    request_id = await book(api, tenant)
    await book(api, other)
    found = (await api.admin("GET", f"/admin/v1/requests/{request_id}")).json()
    assert found["tenant_id"] == tenant.id
    assert found["signature"]["value"]
    page = (await api.admin("GET", f"/admin/v1/requests?tenant={tenant.id}")).json()
    assert [item["id"] for item in page["data"]] == [request_id]
    assert (await api.admin("GET", "/admin/v1/requests/nothing")).status_code == 404
    page = (await api.admin("GET", "/admin/v1/requests?limit=2")).json()
    assert {item["tenant_id"] for item in page["data"]} == {tenant.id, other.id}


@pytest.mark.parametrize(
    ("table", "change"),
    [
        ("usage_events", "output_tokens = 6"),
        ("usage_events", "amount = amount + 0.000001"),
        ("usage_events", "finish_reason = 'length'"),
        ("usage_series", "asked_model = 'another'"),
    ],
)
async def test_what_was_changed_by_hand_is_not_signed(
    api: Api, owner: Connection, table: str, change: str
) -> None:
    tenant = await api.new_tenant()
    request_id = await book(api, tenant)
    owner.execute("set session_replication_role = replica")  # no trigger sees it
    of = "tenant_id = %s"
    if table == "usage_events":
        of = "tenant_no = (select no from tenants where id = %s)"
    owner.execute(f"alter table {table} no force row level security")
    changed = owner.execute(f"update {table} set {change} where {of}", [tenant.id])
    owner.execute(f"alter table {table} force row level security")
    assert changed.rowcount == 1
    answer = await api.call(tenant.key, "GET", f"/v1/requests/{request_id}")
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "books_disagree"
