"""A draft layer in an adapter's upload: checked as strictly as weights, kept by its own digest,
named to the engine with each request, counted and deleted with its version."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from adapter_files import adapter_form, encode
from api_harness import Api, TestTenant, stored_objects
from draft_files import Tensors, draft_file, draft_tensors
from fake_engine import FakeEngine
from tenora_engine.adapters.draft_format import VOCABULARY, VOCABULARY_MAX
from tenora_engine.adapters.identity import draft_key, weights_key
from tenora_engine.config import ModelInfo
from tenora_platform.intake.draft_layer import check_draft_layer, draft_layer_bytes_max
from tenora_platform.registry.collector import Collector
from tenora_platform.registry.worker import IntakeWorker


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelInfo:
    return FakeEngine(tmp_path_factory.mktemp("model")).model


@pytest.fixture
async def tenant(api: Api) -> TestTenant:
    return await api.new_tenant("drafted", plan="premium")


def problems_of(content: bytes, model: ModelInfo, tmp_path: Path) -> list[tuple[str, str]]:
    path = tmp_path / "draft_layer.safetensors"
    path.write_bytes(content)
    with path.open("rb") as file:
        return [(each.field, each.code) for each in check_draft_layer(file, model)]


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_a_good_layer(model: ModelInfo, tmp_path: Path, dtype: str) -> None:
    assert problems_of(draft_file(draft_tensors(model, dtype=dtype)), model, tmp_path) == []


def _with(name: str, dtype: str, values: Any) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        data = values.tobytes() if dtype == "I64" else encode(values.astype("<f4"), dtype)
        tensors[name] = (dtype, values.shape, data)

    return change


def _without(name: str) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.pop(name) and None


@pytest.mark.parametrize(
    ("change", "field", "code"),
    [
        (_without("join"), "join", "tensor_missing"),
        (_without(VOCABULARY), VOCABULARY, "tensor_missing"),
        (_with("down", "F32", np.ones((3, 5))), "down", "shape_mismatch"),
        (_with("extra", "F32", np.ones(3)), "extra", "unknown_tensor"),
        (_with("final_norm", "F32", np.full(16, np.nan)), "final_norm", "not_finite"),
        (_with("final_norm", "F32", np.full(16, np.inf)), "final_norm", "not_finite"),
        (_with("final_norm", "F32", np.full(16, 1e5)), "final_norm", "value_out_of_range"),
        (_with("final_norm", "I64", np.ones(16, "<i8")), "final_norm", "unsupported_dtype"),
        (_with(VOCABULARY, "F32", np.ones(4)), VOCABULARY, "unsupported_dtype"),
        (_with(VOCABULARY, "I64", np.full(4, -1)), VOCABULARY, "token_out_of_range"),
        (_with(VOCABULARY, "I64", np.full(4, 10**6)), VOCABULARY, "token_out_of_range"),
        (
            _with(VOCABULARY, "I64", np.zeros(VOCABULARY_MAX + 1, "<i8")),
            VOCABULARY,
            "vocabulary_too_large",
        ),
    ],
)
def test_what_is_wrong_is_named(
    model: ModelInfo, tmp_path: Path, change: Callable[[Tensors], None], field: str, code: str
) -> None:
    assert model.hidden == 16
    tensors = draft_tensors(model)
    change(tensors)
    found = problems_of(draft_file(tensors), model, tmp_path)
    assert found == [(f"draft_layer.{field}", code)]


def test_other_files_are_named(model: ModelInfo, tmp_path: Path) -> None:
    tensors = draft_tensors(model)
    good = draft_file(tensors)
    cases = [
        (draft_file(tensors, format=None), "draft_layer", "no_draft_layer"),
        (draft_file(tensors, format="pt"), "draft_layer", "no_draft_layer"),
        (b"", "draft_layer", "truncated"),
        (b"\x80\x02" + b"\xff" * 100, "draft_layer", "pickle_refused"),
        (good[:-1], "draft_layer", "size_mismatch"),
        (good + b"more", "draft_layer", "size_mismatch"),
        (good[:40], "draft_layer.header", "truncated"),
    ]
    for content, field, code in cases:
        assert problems_of(content, model, tmp_path) == [(field, code)]
    large = draft_layer_bytes_max(model) + 1
    with (tmp_path / "large").open("w+b") as file:
        file.truncate(large)
        assert [each.code for each in check_draft_layer(file, model)] == ["file_too_large"]


async def asked(
    api: Api, tenant: TestTenant, layer: bytes, **changed: bytes | str
) -> httpx.Response:
    form = adapter_form(api.engine.model, "asked")
    weights = form["weights"][1]
    end = 8 + int.from_bytes(layer[:8], "little")
    parts = {
        "header": weights[: 8 + int.from_bytes(weights[:8], "little")],
        "weights_bytes": str(len(weights)),
        "draft_layer_header": layer[:end],
        "draft_layer_bytes": str(len(layer)),
        **changed,
    }
    files = {"name": (None, "asked"), "adapter_config": form["adapter_config"]}
    files |= {name: (None, value) for name, value in parts.items() if value}
    return await api.call(tenant.key, "POST", "/v1/adapters/preflight", files=files)


async def test_what_is_wrong_is_said_beforehand(api: Api, tenant: TestTenant) -> None:
    """By the header alone, and what it takes is counted."""
    layer = draft_file(draft_tensors(api.engine.model))
    good = (await asked(api, tenant, layer)).json()
    assert good["accepted"], good
    without = await asked(api, tenant, layer, draft_layer_header="", draft_layer_bytes="")
    assert good["bytes"] == without.json()["bytes"] + len(layer)
    tensors = draft_tensors(api.engine.model)
    tensors.pop("join")
    wrong = (await asked(api, tenant, draft_file(tensors))).json()
    assert not wrong["accepted"]
    found = wrong["validation"]["problems"]
    assert [(each["field"], each["code"]) for each in found] == [
        ("draft_layer.join", "tensor_missing")
    ]
    for changed, param in (
        ({"draft_layer_bytes": ""}, "draft_layer_bytes"),
        ({"draft_layer_header": ""}, "draft_layer_header"),
        ({"draft_layer_bytes": "-1"}, "draft_layer_bytes"),
        ({"draft_layer_header": b"x" * 20_000}, "draft_layer_header"),
    ):
        answer = await asked(api, tenant, layer, **changed)
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["param"] == param


async def push(
    api: Api, tenant: TestTenant, name: str, layer: bytes | None, seed: int = 0
) -> httpx.Response:
    form = adapter_form(api.engine.model, name, seed=seed)
    if layer is not None:
        form["draft_layer"] = ("draft_layer.safetensors", layer)
    return await api.call(tenant.key, "POST", "/v1/adapters", files=form)


async def checked(api: Api, tenant: TestTenant, made: httpx.Response) -> dict[str, Any]:
    assert made.status_code == 202, made.text
    path = f"/v1/adapters/{made.json()['name']}/versions/{made.json()['version']}"
    async with asyncio.timeout(20):
        while True:
            found: dict[str, Any] = (await api.call(tenant.key, "GET", path)).json()
            if found["state"] not in ("quarantined", "validating"):
                return found
            await asyncio.sleep(0.02)


async def asked_layer(api: Api, tenant: TestTenant, model: str) -> str | None:
    """That of the request which the engine was given."""
    body = {"model": model, "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
    answer = await api.call(tenant.key, "POST", "/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    adapter = api.engine.requests[-1].adapter
    assert adapter is not None
    return adapter.draft_layer


async def test_a_version_has_its_own_layer(api: Api, tenant: TestTenant) -> None:
    layer = draft_file(draft_tensors(api.engine.model))
    digest = f"sha256:{hashlib.sha256(layer).hexdigest()}"
    own = await checked(api, tenant, await push(api, tenant, "quick", layer))
    plain = await checked(api, tenant, await push(api, tenant, "quick", None))
    assert (own["state"], plain["state"]) == ("active", "active"), own
    assert own["digest"] == plain["digest"], "the same content, stored once"
    assert own["draft_layer"] == {"digest": digest, "bytes": len(layer)}
    assert plain["draft_layer"] is None
    assert own["bytes"] == plain["bytes"] + len(layer)
    assert draft_key(digest) in stored_objects(api)
    assert await asked_layer(api, tenant, "quick@1") == digest
    assert await asked_layer(api, tenant, "quick@2") is None
    listed = (await api.call(tenant.key, "GET", "/v1/adapters/quick")).json()["versions"]
    assert [each["draft_layer"] for each in listed] == [None, own["draft_layer"]]
    async with asyncio.timeout(10):
        while any(path.startswith("staging/") for path in stored_objects(api)):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_a_bad_layer_rejects_the_version(api: Api, tenant: TestTenant) -> None:
    tensors = draft_tensors(api.engine.model, seed=3)
    del tensors["query"]
    layer = draft_file(tensors)
    before = stored_objects(api)
    bad = await checked(api, tenant, await push(api, tenant, "bad", layer, seed=3))
    assert bad["state"] == "rejected"
    (problem,) = bad["validation"]["problems"]
    assert (problem["field"], problem["code"]) == ("draft_layer.query", "tensor_missing")
    body = {"model": "bad", "messages": [{"role": "user", "content": "x"}]}
    answer = await api.call(tenant.key, "POST", "/v1/chat/completions", json=body)
    assert answer.status_code == 404
    async with asyncio.timeout(10):
        while not stored_objects(api) <= before:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_it_counts_as_stored(api: Api) -> None:
    layer = draft_file(draft_tensors(api.engine.model))
    size = len(adapter_form(api.engine.model, "x")["weights"][1])
    await api.put_plan("narrow", {"adapter_bytes": 2 * size + len(layer) // 2})
    narrow = await api.new_tenant("narrow", plan="narrow")
    assert (await checked(api, narrow, await push(api, narrow, "a", None)))["state"] == "active"
    refused = await push(api, narrow, "a", layer)
    assert refused.status_code == 413, refused.text
    assert refused.json()["error"]["code"] == "adapter_storage_exceeded"
    assert (await checked(api, narrow, await push(api, narrow, "a", None)))["state"] == "active"


async def test_the_last_version_takes_it_with_it(api: Api, tenant: TestTenant) -> None:
    other = await api.new_tenant("same layer", plan="premium")
    layer = draft_file(draft_tensors(api.engine.model, seed=8))
    digest = f"sha256:{hashlib.sha256(layer).hexdigest()}"
    mine = await checked(api, tenant, await push(api, tenant, "mine", layer, seed=8))
    theirs = await checked(api, other, await push(api, other, "theirs", layer, seed=9))
    worker = IntakeWorker(api.state, release_after=timedelta(0))
    assert (await api.call(tenant.key, "DELETE", "/v1/adapters/mine")).status_code == 200
    await worker.run_once()
    assert weights_key(mine["digest"]) not in stored_objects(api)
    assert draft_key(digest) in stored_objects(api), "the other tenant's version refers to it"
    assert await Collector(api.state, grace=timedelta(0)).sweep() == 0
    assert (await api.call(other.key, "DELETE", "/v1/adapters/theirs")).status_code == 200
    await worker.run_once()
    assert weights_key(theirs["digest"]) not in stored_objects(api)
    assert draft_key(digest) not in stored_objects(api)


async def test_what_a_crash_leaves_is_collected(api: Api, tenant: TestTenant) -> None:
    """A layer that was published, and whose version was deleted meanwhile or rejected after it."""
    layer = draft_file(draft_tensors(api.engine.model, seed=11))
    bad = draft_tensors(api.engine.model, seed=12)
    del bad["down"]
    for content in (layer, draft_file(bad)):
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        made = await checked(api, tenant, await push(api, tenant, "left", content, seed=11))
        path = Path(str(api.state.objects.prefix)) / draft_key(digest)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        removed = await Collector(api.state, grace=timedelta(0)).sweep()
        assert removed == (made["state"] == "rejected")
        assert path.exists() == (made["state"] == "active")
