"""Generated over every route of the OpenAPI document: tenant B gets 404 for A's things, the same
404 as for what never was; nothing of A's shows anywhere; and no key, no answer."""

from __future__ import annotations

import json
import re
from functools import partial
from typing import Any

import pytest
from sqlalchemy import text

from adapter_files import adapter_form
from api_harness import Api, TestTenant
from described import document
from people import Person, signed_in
from tenora_platform.ids import new_id
from tenora_platform.registry.worker import IntakeWorker

NAME = "secret-adapter"
PUBLIC = {
    ("GET", "/health"),
    ("GET", "/healthz"),
    ("GET", "/readyz"),
    ("GET", "/metrics"),
    ("GET", "/version"),
    ("GET", "/.well-known/tenora-keys.json"),
    ("GET", "/auth/methods"),
    ("GET", "/auth/login"),
    ("GET", "/auth/callback"),
    ("POST", "/auth/session"),
    ("POST", "/auth/invitations/look"),
}
CHAT = [{"role": "user", "content": "x"}]
_ROUTES = sorted(
    (method.upper(), path)
    for path, methods in document()["paths"].items()
    for method in methods
    if method in ("get", "post", "put", "patch", "delete")
)
TENANT_ROUTES = [route for route in _ROUTES if route[1].startswith("/v1/")]
ADMIN_ROUTES = [route for route in _ROUTES if route[1].startswith("/admin/")]


@pytest.fixture(scope="module")
async def owner(api: Api) -> TestTenant:
    """Tenant A, with one of everything."""
    made = await api.new_tenant("owner", plan="premium")
    files = adapter_form(api.engine.model, NAME)
    assert (await api.call(made.key, "POST", "/v1/adapters", files=files)).status_code == 202
    while (await api.call(made.key, "GET", f"/v1/adapters/{NAME}")).json()["state"] != "active":
        await IntakeWorker(api.state).run_once()
    return made


@pytest.fixture(scope="module")
async def upload_id(api: Api, owner: TestTenant) -> str:
    answer = await api.call(owner.key, "POST", "/v1/uploads", json={"bytes": 3})
    return str(answer.json()["id"])


@pytest.fixture(scope="module")
async def request_id(api: Api, owner: TestTenant) -> str:
    """Of a request whose contents are kept."""
    await api.call(owner.key, "PATCH", "/v1/settings", json={"keep_contents_days": 1})
    body = {"model": NAME, "messages": CHAT}
    answer = await api.call(owner.key, "POST", "/v1/chat/completions", json=body)
    await api.state.contents.finish()
    return str(answer.json()["id"])


@pytest.fixture(scope="module")
async def response_id(api: Api, owner: TestTenant) -> str:
    """Of a stored response."""
    await api.put_plan("storing", {}, stored_responses=True)
    path = f"/admin/v1/tenants/{owner.id}"
    assert (await api.admin("PATCH", path, json={"plan": "storing"})).status_code == 200
    await api.call(owner.key, "PATCH", "/v1/settings", json={"stored_response_days": 1})
    answer = await api.call(owner.key, "POST", "/v1/responses", json={"model": NAME, "input": "x"})
    assert answer.json()["store"] is True
    return str(answer.json()["id"])


@pytest.fixture(scope="module")
async def money(api: Api, owner: TestTenant) -> dict[str, str]:
    """A final invoice with a line of usage, and a webhook's endpoint with a delivery."""
    url = {"url": "https://example.com/hooks"}
    made = await api.call(owner.key, "POST", "/v1/webhook_endpoints", json=url)
    ids = {"invoice_id": new_id("invoice"), "endpoint_id": made.json()["id"]}
    ids |= {"delivery_id": new_id("delivery"), "event": new_id("evt")}
    invoice = "insert into invoices (id, tenant_id, kind, status, period, currency, seller, buyer, "
    invoice += "terms, created_at) values (:invoice_id, :tenant, 'invoice', 'draft', '2026-11-01', "
    invoice += "'USD', '{}', '{}', '{}', now())"
    async with api.state.db.admin_session() as session:
        for statement in (
            invoice,
            "insert into invoice_lines (invoice_id, no, tenant_id, kind, amount, exact, month, "
            "meter, class, price_version_no, quantity) values (:invoice_id, 1, :tenant, 'usage', "
            "1, 1, '2026-11-01', 'output', 'default', 1, 10)",
            "update invoices set status = 'final', number = 'INV-777777' where id = :invoice_id",
            "insert into events (id, tenant_id, type, once, data) values (:event, :tenant, "
            "'invoice.final', 'x', '{}')",
            "insert into webhook_deliveries (id, tenant_id, endpoint_id, event_id, next_at) "
            "values (:delivery_id, :tenant, :endpoint_id, :event, now() + interval '1 hour')",
        ):
            await session.execute(text(statement), {**ids, "tenant": owner.id})
    asked = {"adapter": NAME, "versions": [1], "scoring": "exact"}
    asked["items"] = [{"prompt": "x", "expected": "y"}]
    evaluation = await api.call(owner.key, "POST", "/v1/evaluations", json=asked)
    ids["evaluation_id"] = evaluation.json()["id"]
    return {name: value for name, value in ids.items() if name != "event"}


@pytest.fixture(scope="module")
async def stranger(api: Api) -> TestTenant:
    return await api.new_tenant("stranger", plan="premium")


@pytest.fixture(scope="module")
async def people(api: Api, owner: TestTenant, stranger: TestTenant) -> dict[str, str]:
    """An owner and an invitation of A's; `stranger` is who asks, an owner of B's."""
    mine = await signed_in(api, (owner.id, "owner"))
    made = await mine.call("POST", "/v1/invitations", json={"role": "viewer"})
    return {"person_id": mine.id, "invitation_id": made.json()["id"]}


@pytest.fixture(scope="module")
async def person(api: Api, stranger: TestTenant) -> Person:
    return await signed_in(api, (stranger.id, "owner"))


NAMING_A_MODEL = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/embeddings",
    "/v1/tokenize",
    "/v1/detokenize",
)


def body_for(method: str, path: str, model: str) -> dict[str, Any]:
    """A good request, so that the only thing wrong is whose things it asks for."""
    bodies: dict[tuple[str, str], dict[str, Any]] = {
        ("POST", "/v1/chat/completions"): {"json": {"model": model, "messages": CHAT}},
        ("POST", "/v1/completions"): {"json": {"model": model, "prompt": "x"}},
        ("POST", "/v1/responses"): {"json": {"model": model, "input": "x"}},
        ("POST", "/v1/messages"): {"json": {"model": model, "messages": CHAT, "max_tokens": 1}},
        ("POST", "/v1/messages/count_tokens"): {"json": {"model": model, "messages": CHAT}},
        ("POST", "/v1/embeddings"): {"json": {"model": model, "input": "x"}},
        ("POST", "/v1/tokenize"): {"json": {"model": model, "prompt": "x"}},
        ("POST", "/v1/detokenize"): {"json": {"model": model, "tokens": [1]}},
        ("PUT", "/v1/adapters/{name}/aliases/{alias}"): {
            "json": {"targets": [{"version": 1, "weight": 100}]}
        },
        ("PATCH", "/v1/adapters/{name}/versions/{version}"): {"json": {"state": "revoked"}},
        ("POST", "/v1/adapters/{name}/aliases/{alias}/rollout"): {
            "json": {"version": 1, "stages": [{"percent": 100}]}
        },
        ("PUT", "/v1/adapters/{name}/probe_prompts"): {"json": {"prompts": ["x"]}},
        ("PATCH", "/v1/api_keys/{key_id}"): {"json": {"name": "mine now"}},
        ("PATCH", "/v1/people/{person_id}"): {"json": {"role": "viewer"}},
        ("PATCH", "/v1/webhook_endpoints/{endpoint_id}"): {"json": {"enabled": False}},
        ("POST", "/v1/uploads/{upload_id}/parts"): {"files": {"data": b"abc"}},
        ("POST", "/v1/uploads/{upload_id}/complete"): {"json": {"part_ids": ["part_x"]}},
    }
    return bodies.get((method, path), {})


def fill(path: str, values: dict[str, str]) -> str:
    """The path with its parameters; a parameter that this test does not know fails it, so that no
    new route goes untested."""
    for name in re.findall(r"{(\w+)}", path):
        assert name in values, f"say in this test what {{{name}}} of {path} is"
        path = path.replace(f"{{{name}}}", values[name])
    return path


@pytest.mark.parametrize(("method", "path"), TENANT_ROUTES)
async def test_what_is_anothers_does_not_exist(
    api: Api,
    owner: TestTenant,
    stranger: TestTenant,
    upload_id: str,
    request_id: str,
    response_id: str,
    money: dict[str, str],
    people: dict[str, str],
    person: Person,
    method: str,
    path: str,
) -> None:
    theirs = {
        **money,
        **people,
        "no": "1",
        "name": NAME,
        "version": "1",
        "alias": "prod",
        "upload_id": upload_id,
        "key_id": owner.key_id,
        "request_id": request_id,
        "response_id": response_id,
        "model": NAME,
    }
    nobodys = theirs | {
        **{name: value[:-26] + "0" * 26 for name, value in (money | people).items()},
        "name": "never-was-there",
        "upload_id": "upload_" + "0" * 26,
        "key_id": "key_" + "0" * 26,
        "request_id": "chatcmpl_" + "0" * 26,
        "response_id": "resp_" + "0" * 26,
        "model": "never-was-there",
    }
    of_people = path.startswith(("/v1/people", "/v1/invitations"))
    call = person.call if of_people else partial(api.call, stranger.key)
    refers = "{" in path or path in NAMING_A_MODEL
    if not refers:
        answer = await call(method, path)
        hidden = [NAME, owner.id, owner.key_id, upload_id, request_id, response_id]
        if path == "/v1/rejected_calls":  # the stranger's own, which quote what it asked for
            hidden = [owner.id]
        for secret in (*hidden, *money.values(), *people.values()):
            assert secret not in answer.text
        return
    answers = []
    for values in (theirs, nobodys):
        request = body_for(method, path, values["model"])
        answer = await call(method, fill(path, values), **request)
        assert answer.status_code == 404, answer.text
        found = answer.text
        for name, value in values.items():
            if name not in ("version", "alias", "no"):
                found = found.replace(value, "*")
        answers.append(json.loads(found))
        answers[-1].pop("request_id", None)  # of Anthropic's errors
    assert answers[0] == answers[1]


async def test_what_was_tried_changed_nothing(
    api: Api,
    owner: TestTenant,
    upload_id: str,
    request_id: str,
    response_id: str,
    money: dict[str, str],
) -> None:
    assert (await api.call(owner.key, "GET", f"/v1/responses/{response_id}")).status_code == 200
    kept = await api.call(owner.key, "GET", f"/v1/requests/{request_id}/contents")
    assert kept.json()["request"]["messages"] == CHAT
    path = f"/v1/webhook_endpoints/{money['endpoint_id']}"
    assert (await api.call(owner.key, "GET", path)).json()["enabled"]
    deliveries = (await api.call(owner.key, "GET", f"{path}/deliveries")).json()["data"]
    (delivery,) = [each for each in deliveries if each["id"] == money["delivery_id"]]
    assert (delivery["state"], delivery["attempts"]) == ("waiting", 0)
    adapter = (await api.call(owner.key, "GET", f"/v1/adapters/{NAME}")).json()
    assert adapter["state"] == "active"
    assert adapter["aliases"] == []
    upload = (await api.call(owner.key, "GET", f"/v1/uploads/{upload_id}")).json()
    assert upload["status"] == "pending"
    assert upload["parts"] == []
    key = (await api.call(owner.key, "GET", f"/v1/api_keys/{owner.key_id}")).json()
    assert key["name"] == "test"
    assert key["previous"] is None
    body = {"model": NAME, "messages": CHAT}
    answer = await api.call(owner.key, "POST", "/v1/chat/completions", json=body)
    assert answer.status_code == 200


@pytest.mark.parametrize("name", ["weights", "upload_id"])
async def test_anothers_upload_cannot_be_used(
    api: Api, stranger: TestTenant, upload_id: str, name: str
) -> None:
    files = adapter_form(api.engine.model, "mine")
    if name == "upload_id":
        del files["weights"]
        files["upload_id"] = (None, upload_id)
    answer = await api.call(stranger.key, "POST", "/v1/adapters", files=files)
    assert answer.status_code == (404 if name == "upload_id" else 202)


@pytest.mark.parametrize(("method", "path"), ADMIN_ROUTES)
async def test_admin_routes_refuse_tenants(
    api: Api, stranger: TestTenant, method: str, path: str
) -> None:
    filled = re.sub(r"{\w+}", "x", path)
    assert (await api.call(stranger.key, method, filled)).status_code == 403
    assert (await api.call("tnk_wrong", method, filled)).status_code == 401


@pytest.mark.parametrize(("method", "path"), [r for r in _ROUTES if r not in PUBLIC])
async def test_no_key_no_answer(api: Api, method: str, path: str) -> None:
    answer = await api.http.request(method, re.sub(r"{\w+}", "1", path))
    assert answer.status_code == 401
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
