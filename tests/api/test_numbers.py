"""Numbers in JSON bodies: each is bounded where it enters, and one that is none (Infinity, NaN) or
beyond all counting is refused by the name of its field, whatever else the request asks for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from api_harness import Api, TestTenant
from described import document

IDS_OF_THE_VOCABULARY = {"prompt", "stop_token_ids", "allowed_token_ids"}
"""Lists whose every number is compared with the model's vocabulary, which no schema knows."""


@pytest.fixture(scope="module")
async def tenant(api: Api) -> TestTenant:
    return await api.new_tenant()


def unbounded(schema: Any, schemas: dict[str, Any], path: str = "") -> Iterator[str]:
    """Paths of the integers of a request's schema that lack a smallest or a largest value."""
    if isinstance(schema, list):
        for each in schema:
            yield from unbounded(each, schemas, path)
    if not isinstance(schema, dict):
        return
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[-1]
        yield from unbounded(schemas[name], schemas, f"{path}/{name}")
    if schema.get("type") == "integer" and path.rsplit("/", 1)[-1] not in IDS_OF_THE_VOCABULARY:
        bounds = [bound for bound in schema if bound.lower().endswith(("minimum", "maximum"))]
        if len(bounds) < 2:
            yield path
    for name, field in schema.get("properties", {}).items():
        yield from unbounded(field, schemas, f"{path}/{name}")
    for key in ("anyOf", "allOf", "items", "additionalProperties"):
        yield from unbounded(schema.get(key), schemas, path)


def test_every_integer_of_a_body_is_bounded() -> None:
    described = document()
    schemas = described["components"]["schemas"]
    bodies = [
        (f"{method} {path}", operation["requestBody"])
        for path, methods in described["paths"].items()
        for method, operation in methods.items()
        if "requestBody" in operation
    ]
    assert len(bodies) > 8
    found = [
        f"{name}{where}"
        for name, body in bodies
        for content in body["content"].values()
        for where in unbounded(content["schema"], schemas)
    ]
    assert found == []


@pytest.mark.parametrize("number", ["Infinity", "-Infinity", "NaN", "1e400", str(2**64), "1" * 400])
@pytest.mark.parametrize(
    "field",
    [
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "max_tokens",
        "n",
        "seed",
        "best_of",
        "length_penalty",
    ],
)
async def test_impossible_numbers_of_an_inference(
    api: Api, tenant: TestTenant, field: str, number: str
) -> None:
    body = f'{{"model": "fake-base", "prompt": "a", "{field}": {number}}}'
    answer = await api.call(
        tenant.key,
        "POST",
        "/v1/completions",
        content=body,
        headers={"content-type": "application/json"},
    )
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == field
    assert answer.json()["error"]["code"] == "invalid_value"


@pytest.mark.parametrize("ids", [[2**64], [-1], [1, 2**400], [[2**64]]])
async def test_token_ids_that_no_vocabulary_has(
    api: Api, tenant: TestTenant, ids: list[Any]
) -> None:
    for body in ({"prompt": ids}, {"prompt": "a", "stop_token_ids": ids}):
        answer = await api.call(
            tenant.key, "POST", "/v1/completions", json={"model": "fake-base", **body}
        )
        assert answer.status_code == 400, answer.text
    assert (await api.http.get("/readyz")).status_code == 200


@pytest.mark.parametrize("number", ["Infinity", "NaN", "1e400"])
@pytest.mark.parametrize("field", ["weight", "ttft_ms", "tpot_ms", "memory_share"])
async def test_impossible_numbers_of_a_plan(api: Api, field: str, number: str) -> None:
    answer = await api.admin(
        "PUT",
        "/admin/v1/plans/odd",
        content=f'{{"{field}": {number}}}',
        headers={"content-type": "application/json"},
    )
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == field


async def test_impossible_biases(api: Api, tenant: TestTenant) -> None:
    answer = await api.call(
        tenant.key,
        "POST",
        "/v1/completions",
        content='{"model": "fake-base", "prompt": "a", "logit_bias": {"5": NaN}}',
        headers={"content-type": "application/json"},
    )
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"].startswith("logit_bias")
