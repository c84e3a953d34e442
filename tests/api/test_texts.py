"""A lone surrogate in any text, and a number that nothing else can take, anywhere in any body, is
refused with the name of its field."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter_files import adapter_config
from api_harness import Api
from described import document
from people import signed_in
from tenora_platform.errors import BadRequestError
from tenora_platform.intake.header import IntakeError, strict_json
from tenora_platform.json_bodies import read_json
from tenora_platform.texts import Odd, odd_in, odd_numbers_in

BAD = "half \ud800 a character"


def json_routes() -> list[tuple[str, str, list[str]]]:
    """Method, path and the body's fields of every route that takes JSON."""
    described, found = document(), []
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            content = operation.get("requestBody", {}).get("content", {})
            if "application/json" in content:
                schema = content["application/json"]["schema"]
                if "$ref" in schema:
                    schema = described["components"]["schemas"][schema["$ref"].split("/")[-1]]
                found.append((method.upper(), path, list(schema.get("properties", {}))))
    return found


async def test_every_field_of_every_route(api: Api) -> None:
    tenant = await api.new_tenant("texts", plan="premium")
    person = await signed_in(api, (tenant.id, "owner"))
    call: Callable[..., Awaitable[httpx.Response]]
    routes = json_routes()
    assert len(routes) > 8
    for method, path, fields in routes:
        url = path.replace("{", "").replace("}", "")
        for name in [*fields, "unknown"]:
            for value, where in (
                (BAD, name),
                (["fine", BAD], f"{name}[1]"),
                ({"a": [{"b": BAD}]}, f"{name}.a[0].b"),
                ({"\udfff": 1}, f"{name}.\\udfff"),
                ({"a": [10**4000]}, f"{name}.a[0]"),
            ):
                call = partial(api.call, tenant.key)
                if path.startswith("/admin"):
                    call = api.admin
                elif path.startswith(("/auth", "/v1/people", "/v1/invitations")):
                    call = person.call
                more = {
                    "content": json.dumps({name: value}),
                    "headers": {"content-type": "application/json"},
                }
                answer = await call(method, url, **more)
                assert answer.status_code == 400, (method, path, name, answer.text)
                assert answer.json()["error"]["param"] == where


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-16-le", "utf-32"])
async def test_however_it_is_written(api: Api, encoding: str) -> None:
    tenant = await api.new_tenant("written", plan="premium")

    async def ask(content: bytes) -> Any:
        headers = {"content-type": "application/json"}
        return await api.call(
            tenant.key, "POST", "/v1/chat/completions", content=content, headers=headers
        )

    def body(text: str) -> dict[str, Any]:
        return {"model": "fake-base", "messages": [{"role": "user", "content": text}]}

    for escaped in (True, False):
        text = json.dumps(body(BAD), ensure_ascii=escaped)
        answer = await ask(text.encode(encoding, "surrogatepass"))
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "messages[0].content"
    whole = await ask(json.dumps(body("a whole one: \U0001f600")).encode(encoding))
    assert whole.status_code == 200


async def test_what_needs_no_body(api: Api) -> None:
    """Paths, queries and headers: bytes that are no UTF-8 name nothing that exists."""
    tenant = await api.new_tenant("paths", plan="premium")
    for path in ("/v1/models/%ED%A0%80", "/v1/adapters/%ED%A0%80", "/v1/adapters/a/versions/%ED"):
        assert (await api.call(tenant.key, "GET", path)).status_code in (400, 404)
    for path in ("/v1/usage?group_by=%ED%A0%80", "/v1/adapters?after=%ED%A0%80"):
        assert (await api.call(tenant.key, "GET", path)).status_code < 500
    bad = {b"x-request-id": b"\xed\xa0\x80", b"authorization": b"Bearer \xed\xa0\x80"}
    assert (await api.http.get("/v1/models", headers=bad)).status_code == 401


async def test_an_adapters_config_and_name(api: Api) -> None:
    tenant = await api.new_tenant("configs", plan="premium")
    config = json.dumps(adapter_config(base_model_name_or_path=BAD)).encode()
    with pytest.raises(IntakeError, match="lone surrogate"):
        strict_json(config, "adapter_config")
    answer = await api.call(
        tenant.key,
        "POST",
        "/v1/adapters",
        data={"name": BAD.encode("utf-8", "surrogatepass")},
        files={"adapter_config": config, "weights": b"none"},
    )
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == "name"


@pytest.mark.parametrize(
    "number",
    [
        "1e400",
        "-1E+999",
        "NaN",
        "-Infinity",
        f"-{2**63 + 1}",
        "9" * 20,
        "9" * 4000,
        f"{'9' * 400}.5",
    ],
)
def test_a_number_of_any_form(number: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        read_json(f'{{"a": {{"b": {number}}}}}'.encode(), 100)
    assert (caught.value.param, caught.value.code) == ("a.b", "invalid_value")


@given(st.integers() | st.floats())
def test_no_odd_number_is_overlooked(number: float) -> None:
    if odd_in(number) is not None:
        assert odd_numbers_in(json.dumps(number).encode())


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(values)
def test_whole_texts_pass_and_others_do_not(value: Any) -> None:
    assert odd_in(value) is None
    odd = odd_in([1, {"a": value, "b": ["x", BAD]}])
    assert isinstance(odd, Odd)
    assert odd.place == "[1].b[1]"
