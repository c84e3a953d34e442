"""Keys that may use some models only: what they are refused, what they are shown, and that neither
says whether a model exists."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter_files import adapter_form
from api_harness import Api, TestTenant
from tenora_platform.registry.worker import IntakeWorker
from tenora_platform.tenants.key_terms import covers

BASE = "fake-base"
CHAT = [{"role": "user", "content": "x"}]


@pytest.fixture(scope="module")
async def tenant(api: Api) -> TestTenant:
    """With `support` in two versions and an alias, and `json` in one."""
    made = await api.new_tenant("models", plan="premium")
    for rank, name in ((1, "support"), (2, "support"), (3, "json")):
        files = adapter_form(api.engine.model, name, rank=rank)
        assert (await api.call(made.key, "POST", "/v1/adapters", files=files)).status_code == 202
    for _ in range(3):
        await IntakeWorker(api.state).run_once()
    path = "/v1/adapters/support/aliases/stable"
    body = {"targets": [{"version": 1, "weight": 100}]}
    assert (await api.call(made.key, "PUT", path, json=body)).status_code == 200
    return made


async def key_for(api: Api, tenant: TestTenant, models: list[str]) -> str:
    path = f"/admin/v1/tenants/{tenant.id}/api_keys"
    made = await api.admin("POST", path, json={"models": models})
    assert made.json()["models"] == models
    return str(made.json()["key"])


@pytest.mark.parametrize(
    ("models", "may", "may_not"),
    [
        ([BASE], [BASE], ["support", "support@1", "json", "never-was"]),
        (["support"], ["support", "support@1", "support@stable"], [BASE, "json", "supporter"]),
        (["support@1"], ["support@1"], ["support", "support@2", "support@stable", "support@01"]),
        (["support@stable"], ["support@stable"], ["support", "support@1"]),
        (["json", BASE], ["json", "json@1", BASE], ["support"]),
    ],
)
async def test_only_its_models(
    api: Api, tenant: TestTenant, models: list[str], may: list[str], may_not: list[str]
) -> None:
    key = await key_for(api, tenant, models)
    for model, status in [*((each, 200) for each in may), *((each, 403) for each in may_not)]:
        chat = {"model": model, "messages": CHAT}
        text = {"model": model, "prompt": "x"}
        for answer in (
            await api.call(key, "POST", "/v1/chat/completions", json=chat),
            await api.call(key, "POST", "/v1/completions", json=text),
            await api.call(key, "GET", f"/v1/models/{model}"),
        ):
            assert answer.status_code == status, (model, answer.text)
            if status == 403:
                assert answer.json()["error"]["code"] == "model_not_allowed"
                assert answer.json()["error"]["param"] == "model"


async def test_the_refusal_does_not_say_whether_there_is_such_a_model(
    api: Api, tenant: TestTenant
) -> None:
    key = await key_for(api, tenant, [BASE])
    told = []
    for model in ("json", "nono"):
        body = {"model": model, "messages": CHAT}
        answer = await api.call(key, "POST", "/v1/chat/completions", json=body)
        told.append(answer.text.replace(model, "*"))
    assert told[0] == told[1]


async def test_a_covered_model_that_is_not_there_is_404(api: Api, tenant: TestTenant) -> None:
    key = await key_for(api, tenant, ["later"])
    body = {"model": "later@2", "messages": CHAT}
    answer = await api.call(key, "POST", "/v1/chat/completions", json=body)
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "model_not_found"


@pytest.mark.parametrize(
    ("models", "listed"),
    [
        ([BASE, "later"], [BASE]),
        (["support"], ["support"]),
        (
            ["json", "support@1", "support@stable", "support@9"],
            ["json", "support@1", "support@stable"],
        ),
    ],
)
async def test_models_lists_only_those(
    api: Api, tenant: TestTenant, models: list[str], listed: list[str]
) -> None:
    key = await key_for(api, tenant, models)
    answer = await api.call(key, "GET", "/v1/models")
    assert [card["id"] for card in answer.json()["data"]] == listed
    everything = await api.call(tenant.key, "GET", "/v1/models")
    assert [card["id"] for card in everything.json()["data"]] == [BASE, "json", "support"]


@pytest.mark.parametrize(
    ("models", "query", "listed"),
    [
        (None, "q=SUP", ["support"]),
        (None, "q=%25", []),
        (None, "limit=2", [BASE, "json"]),
        (None, "q=s&limit=1", [BASE]),
        (["support", "json@1"], "q=o&limit=5", ["support", "json@1"]),
        (["support", "json@1"], "q=json", ["json@1"]),
    ],
)
async def test_models_are_searched(
    api: Api,
    tenant: TestTenant,
    models: list[str] | None,
    query: str,
    listed: list[str],
) -> None:
    key = tenant.key if models is None else await key_for(api, tenant, models)
    answer = await api.call(key, "GET", f"/v1/models?{query}")
    assert [card["id"] for card in answer.json()["data"]] == listed


NAMES = st.sampled_from(["a", "a@1", "a@b", "b", "b@1", "ab", "a@1@1"])


@given(st.lists(NAMES), NAMES)
def test_covers(models: list[str], model: str) -> None:
    """Against the rule in other words."""
    name = model.split("@")[0]
    assert covers(models, model) == any(each in (model, name) for each in models)
    assert covers(None, model)
