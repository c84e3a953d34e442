"""No body takes long to refuse: how many of each thing it may hold is asked before what they are,
and JSON has a bound of values and of depth."""

from __future__ import annotations

import json
import threading
from typing import Any
from unittest.mock import AsyncMock

import pytest
from pydantic import ValidationError

from api_harness import ADMIN_KEY, Api, TestTenant
from tenora_platform import json_bodies
from tenora_platform.bodies import VALUES_MAX
from tenora_platform.errors import BadRequestError
from tenora_platform.evaluations import schemas
from tenora_platform.evaluations.schemas import EvaluationCreate, items_of
from tenora_platform.evaluations.service import Evaluations
from tenora_platform.inference import bounds
from tenora_platform.inference.admission import VALUES_MAX as INFERENCE_VALUES_MAX
from tenora_platform.inference.anthropic.schemas import MessagesRequest
from tenora_platform.inference.embedding_routes import EmbeddingRequest
from tenora_platform.inference.given import Given, number_fields
from tenora_platform.inference.responses.schemas import ResponseRequest
from tenora_platform.inference.schemas import ChatCompletionRequest, CompletionRequest
from tenora_platform.json_bodies import DEPTH_MAX, KEYS_MAX, LARGE_BYTES, NAMED_BYTES, read_json
from tenora_platform.schemas import FIELDS_MAX, Body

CHAT = "/v1/chat/completions"
MESSAGE = {"role": "user", "content": "x"}
MANY = 100_000


@pytest.fixture(scope="module")
async def tenant(api: Api) -> TestTenant:
    return await api.new_tenant("bounded", plan="premium")


def numbered(count: int) -> dict[str, str]:
    return {str(number): "1" for number in range(count)}


BOUNDED: list[tuple[str, dict[str, Any], str | None]] = [
    ("messages", {"messages": [MESSAGE] * (bounds.MESSAGES_MAX + 1)}, "messages"),
    (
        "parts",
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}] * 4097}]},
        "messages",
    ),
    (
        "parts of many",
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}] * 5}] * 1000},
        "messages",
    ),
    ("stop strings", {"stop": ["a"] * 33}, "stop"),
    ("stop length", {"stop": "a" * 257}, "stop"),
    ("stop of numbers", {"stop": [1] * MANY}, "stop"),
    ("logit_bias", {"logit_bias": {str(token): 1 for token in range(1025)}}, "logit_bias"),
    ("bad_words", {"bad_words": ["a"] * 65}, "bad_words"),
    ("stop_token_ids", {"stop_token_ids": [1] * 65}, "stop_token_ids"),
    ("allowed_token_ids", {"allowed_token_ids": [1] * 4097}, "allowed_token_ids"),
    ("metadata", {"metadata": numbered(17)}, "metadata"),
    ("metadata's name", {"metadata": {"n" * 65: "x"}}, None),
    ("metadata's text", {"metadata": {"n": "x" * 513}}, "metadata.n"),
    ("model", {"model": "m" * 257}, "model"),
    ("template arguments", {"chat_template_kwargs": numbered(65)}, "chat_template_kwargs"),
    ("fields", numbered(FIELDS_MAX), None),
    ("fields of a message", {"messages": [{**MESSAGE, **numbered(256)}]}, "messages[0]"),
    ("prompts", {"prompt": ["a"] * 129}, "prompt"),
    ("prompts of numbers", {"prompt": [[1]] * 50_000}, "prompt"),
    ("prompts times n", {"prompt": ["a"] * 65, "n": 2}, "prompt"),
]


@pytest.mark.parametrize(
    ("more", "param"), [case[1:] for case in BOUNDED], ids=[case[0] for case in BOUNDED]
)
async def test_each_bound_has_a_name(
    api: Api, tenant: TestTenant, more: dict[str, Any], param: str | None
) -> None:
    of_text = "prompt" in more
    path = "/v1/completions" if of_text else CHAT
    body = {"model": "fake-base", **({} if of_text else {"messages": [MESSAGE]}), **more}
    answer = await api.call(tenant.key, "POST", path, json=body)
    assert answer.status_code == 400, answer.text[:300]
    error = answer.json()["error"]
    assert error["code"] == "invalid_value"
    if param is not None:
        assert error["param"] == param


WRONG: list[dict[str, Any]] = [
    {"stop": [1] * MANY},
    {"prompt": [None] * MANY},
    {"prompt": [1] * MANY + ["x"]},
    {"prompt": [["x"]] * MANY},
    {"messages": [{"role": 1, "content": "x"}] * MANY},
    {"messages": [{"role": "user", "content": [{"typ": "text"}] * MANY}]},
    {"messages": [{"role": 1, "content": "x"}] * 4096},
    {"bad_words": [1] * MANY},
    {"logit_bias": dict.fromkeys(map(str, range(MANY)), "x")},
    {"metadata": dict.fromkeys(map(str, range(MANY)), 1)},
]


@pytest.mark.parametrize(
    "more", WRONG, ids=[f"{next(iter(each))}-{i}" for i, each in enumerate(WRONG)]
)
def test_what_is_wrong_a_million_times_is_found_once(more: dict[str, Any]) -> None:
    """Each error that is found is made an object; a hundred thousand of them were, and took up to
    0.7 s (18 s in a body as large as may be)."""
    schema = CompletionRequest if "prompt" in more else ChatCompletionRequest
    with pytest.raises(ValidationError) as caught:
        schema.model_validate({"model": "m", "messages": [MESSAGE], **more})
    assert caught.value.error_count() < 20


def test_values_are_bounded() -> None:
    assert read_json(b"[" + b"1," * 98 + b"1]", 99) == [1] * 99
    with pytest.raises(BadRequestError) as caught:
        read_json(b"[" + b"1," * 99 + b"1]", 99)
    assert caught.value.code == "json_too_large"


def with_keys(count: int, between: str = ":") -> bytes:
    return ("{" + ",".join(f'"k{number}"{between}1' for number in range(count)) + "}").encode()


@pytest.mark.parametrize("between", [":", " :", "\t\n \r :", '\\\\":'])
def test_keys_are_counted_before_any_is_made(monkeypatch: pytest.MonkeyPatch, between: str) -> None:
    """A quarter of a million, each like no other, took 0.5 s to parse."""
    if between.startswith("\\"):  # a name that ends with a backslash
        body = with_keys(KEYS_MAX + 1, between).replace(b'"\\', b"\\")
    else:
        body = with_keys(KEYS_MAX + 1, between)
    assert len(json.loads(body)) == KEYS_MAX + 1
    monkeypatch.setattr("tenora_platform.json_bodies.from_json", None)
    with pytest.raises(BadRequestError, match="keys") as caught:
        read_json(body, 10**6)
    assert caught.value.code == "json_too_large"


@pytest.mark.parametrize(
    "text", ["12:30 " * KEYS_MAX, json.dumps(dict.fromkeys(map(str, range(KEYS_MAX + 1)), 1))]
)
def test_colons_in_texts_are_no_keys(text: str) -> None:
    body = {"a": text, "b": {"c": 1}}
    assert read_json(json.dumps(body).encode(), 10**6) == body


EVALUATION = {"adapter": "a", "versions": ["base"], "scoring": "exact"}


def test_keys_of_json_lines_are_counted() -> None:
    line = json.dumps({"prompt": "x", **numbered(FIELDS_MAX - 1)})
    with pytest.raises(BadRequestError, match="keys in all lines"):
        [
            *items_of(
                EvaluationCreate.model_validate({**EVALUATION, "items": "\n".join([line] * 200)})
            )
        ]


async def test_a_large_body_is_read_and_its_items_are_made_beside_the_loop(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight megabytes of items took the loop 60 ms; brackets in lines of JSON 180."""
    threads: dict[str, int] = {}
    read, few = json_bodies.read_json, schemas._few_messages

    def noted_read(body: bytes, values_max: int) -> Any:
        threads["read"] = threading.get_ident()
        return read(body, values_max)

    def noted_few(items: Any) -> Any:
        threads["made"] = threading.get_ident()
        return few(items)

    monkeypatch.setattr(json_bodies, "read_json", noted_read)
    monkeypatch.setattr(schemas, "_few_messages", noted_few)
    monkeypatch.setattr(Evaluations, "_subjects", AsyncMock(return_value=[]))
    tenant = await api.new_tenant("large items", plan="premium")
    for items in ([{"prompt": "x" * 3000, "wrong": 1}] * 100, '{"prompt": 1}\n' * 30_000):
        body = json.dumps({**EVALUATION, "items": items}).encode()
        assert len(body) > LARGE_BYTES
        threads.clear()
        answer = await api.call(tenant.key, "POST", "/v1/evaluations", content=body)
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["param"].startswith("items"), answer.text
        assert threading.get_ident() not in threads.values()
        assert "read" in threads


def subclasses(kind: type[Body]) -> list[type[Body]]:
    return [each for one in kind.__subclasses__() for each in (one, *subclasses(one))]


def test_unknown_fields_of_any_body_are_one_problem() -> None:
    """Each was made an error of its own."""
    unknown = {f"unknown{number}": 1 for number in range(FIELDS_MAX + 1)}
    found = subclasses(Body)
    assert len(found) > 10
    for each in found:
        with pytest.raises(ValidationError) as caught:
            each.model_validate(unknown)
        assert caught.value.error_count() == 1, each


def test_items_that_are_all_wrong_are_one_problem() -> None:
    wrong = {"prompt": "x", **numbered(FIELDS_MAX - 1)}
    body = EvaluationCreate.model_validate({**EVALUATION, "items": [wrong] * 100})
    with pytest.raises(BadRequestError) as caught:
        [*items_of(body)]
    context = caught.value.__context__
    assert isinstance(context, ValidationError)
    assert context.error_count() <= FIELDS_MAX


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1, float("inf")])
def test_an_odd_number_in_a_large_body(monkeypatch: pytest.MonkeyPatch, number: float) -> None:
    """It is looked for once, and not again to say where: that took 0.4 s."""
    values = [1] * NAMED_BYTES
    body = json.dumps({"x": [{"y": [*values, number]}]}).replace("Infinity", "1e999").encode()
    monkeypatch.setattr("tenora_platform.json_bodies.odd_in", None)
    with pytest.raises(BadRequestError, match="64 bits"):
        read_json(body, 10**6)
    plain = json.dumps({"x": values, "y": "9" * 30}).encode()
    assert read_json(plain, 10**6)["y"] == "9" * 30


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
@pytest.mark.parametrize("depth", [DEPTH_MAX + 10, MANY])
def test_depth_is_bounded(opening: bytes, depth: int) -> None:
    closing = b"]" if opening == b"[" else b"}"
    body = opening * depth + b"1" + closing * depth
    with pytest.raises(BadRequestError) as caught:
        read_json(body, 10**6)
    many_keys = body.count(b":") > KEYS_MAX
    assert caught.value.code == ("json_too_large" if many_keys else "json_too_deep")
    assert read_json(opening * 100 + b"1" + closing * 100, 10**6)


async def test_bounds_are_those_of_the_route(api: Api, tenant: TestTenant) -> None:
    async def code(key: str, path: str, values: int) -> str:
        body = json.dumps({"x": [1] * values}).encode()
        headers = {"content-type": "application/json"}
        answer = await api.call(key, "POST", path, content=body, headers=headers)
        assert answer.status_code == 400
        return str(answer.json()["error"]["code"])

    assert await code(ADMIN_KEY, "/admin/v1/tenants", VALUES_MAX + 1) == "json_too_large"
    assert await code(ADMIN_KEY, "/admin/v1/tenants", VALUES_MAX - 10) != "json_too_large"
    assert await code(tenant.key, CHAT, INFERENCE_VALUES_MAX + 1) == "json_too_large"
    assert await code(tenant.key, CHAT, VALUES_MAX + 1) != "json_too_large"


@pytest.mark.parametrize("size", [10, NAMED_BYTES + 1])
@pytest.mark.parametrize("text", ["{", '{"a": 01}', '"\\ud800"', '{"a": "\x01"}', "nul"])
def test_what_is_no_json(size: int, text: str) -> None:
    body = (text + " " * size).encode()
    with pytest.raises(BadRequestError) as caught:
        read_json(body, 100)
    assert caught.value.code in ("invalid_json", "invalid_value")


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-1e400", "9" * 4000])
async def test_odd_numbers_are_their_fields_matter(
    api: Api, tenant: TestTenant, number: str
) -> None:
    body = json.dumps({"model": "fake-base", "messages": [MESSAGE], "temperature": "?"})
    answer = await api.call(
        tenant.key,
        "POST",
        CHAT,
        content=body.replace('"?"', number),
        headers={"content-type": "application/json"},
    )
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "temperature"


BODIES: list[type[Given]] = [
    ChatCompletionRequest,
    CompletionRequest,
    EmbeddingRequest,
    MessagesRequest,
    ResponseRequest,
]
NUMBERS = [(model, name) for model in BODIES for name in sorted(number_fields(model))]


@pytest.mark.parametrize(("model", "name"), NUMBERS)
@pytest.mark.parametrize("value", [True, False])
def test_a_truth_value_is_no_number(model: type[Given], name: str, value: bool) -> None:
    """`max_tokens: true` would be one token."""
    assert {"temperature", "max_tokens"} <= number_fields(ChatCompletionRequest)
    with pytest.raises(ValidationError) as caught:
        model.model_validate({name: value})
    assert (name,) in {error["loc"] for error in caught.value.errors()}
