"""What other people's clients send without asking anybody: more tokens than there is room for, long
lists of texts, greedy by `top_p`, schemas of json_object, fields of their own in a history."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest

from adapter_files import adapter_form
from api_harness import Api, TestTenant
from fake_engine import FakeEngine
from served_api import HELLO, openai_client, reset
from tenora_engine.errors import InvalidRequestError
from tenora_engine.request import GenerationRequest

BASE = "fake-base"


@pytest.fixture(scope="module")
async def tenant(api: Api) -> TestTenant:
    return await api.new_tenant("habits", plan="premium")


@pytest.fixture(scope="module")
async def client(api: Api, tenant: TestTenant) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai_client(api, tenant) as made:
        yield made


@pytest.fixture(autouse=True)
def fresh_engine(api: Api) -> None:
    reset(api.engine)


async def post(api: Api, key: str, path: str, **body: Any) -> httpx.Response:
    return await api.call(key, "POST", f"/v1/{path}", json={"model": BASE, **body})


async def test_models_say_how_long_a_context_is_and_whose_they_are(
    api: Api, tenant: TestTenant
) -> None:
    files = adapter_form(api.engine.model, "support")
    assert (await api.call(tenant.key, "POST", "/v1/adapters", files=files)).status_code == 202
    async with asyncio.timeout(30):
        while True:
            listed = (await api.call(tenant.key, "GET", "/v1/models")).json()["data"]
            if len(listed) == 2:
                break
            await asyncio.sleep(0.02)
    base, adapter = listed
    assert (base["owned_by"], base["parent"]) == ("tenora", None)
    assert all(each["root"] == each["id"] for each in (base, adapter))
    assert (adapter["owned_by"], adapter["parent"]) == (tenant.id, BASE)
    for card in listed:
        assert card["max_model_len"] == card["context_length"] == api.engine.model.context_tokens
        one = await api.call(tenant.key, "GET", f"/v1/models/{card['id']}")
        assert one.json() == card


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
async def test_more_tokens_than_fit_are_capped_and_said(
    api: Api, tenant: TestTenant, name: str
) -> None:
    context = api.engine.model.context_tokens
    asked = await post(api, tenant.key, "chat/completions", messages=HELLO, **{name: 10**6})
    assert asked.status_code == 200, asked.text
    [request] = api.engine.requests
    room = context - len(request.prompt_token_ids)
    assert request.sampling.max_tokens == room
    assert asked.headers["x-tenora-max-tokens"] == str(room)
    fitting = await post(api, tenant.key, "chat/completions", messages=HELLO, **{name: room})
    assert fitting.status_code == 200
    assert "x-tenora-max-tokens" not in fitting.headers


async def test_a_prompt_that_does_not_fit_is_refused_however_little_is_asked(
    api: Api, tenant: TestTenant
) -> None:
    context = api.engine.model.context_tokens
    for length, status in ((context - 1, 200), (context, 400)):
        answer = await post(
            api, tenant.key, "completions", prompt="x" * length, max_tokens=50, stream=True
        )
        assert answer.status_code == status, length
    assert answer.json()["error"]["code"] == "context_length_exceeded"
    assert answer.json()["error"]["param"] == "prompt"
    several = await post(
        api, tenant.key, "completions", prompt=["x" * 500, "x" * 505, "x"], max_tokens=20
    )
    assert several.headers["x-tenora-max-tokens"] == "7"
    assert [each.sampling.max_tokens for each in api.engine.requests[-3:]] == [12, 7, 20]


async def test_what_is_capped_needs_no_more_than_the_plan_allows_in_a_minute(api: Api) -> None:
    """As where the client names no maximum: a client that always sends 32000 is served."""
    await api.put_plan("small", {"tokens_per_min": 200})
    tenant = await api.new_tenant("small", plan="small")
    answer = await post(api, tenant.key, "completions", prompt="x" * 10, max_tokens=32_000)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-tenora-max-tokens"] == "190"
    assert api.engine.requests[-1].sampling.max_tokens == 190


async def test_truncation_leaves_room_for_what_is_asked_for(
    api: Api, client: openai.AsyncOpenAI
) -> None:
    context = api.engine.model.context_tokens
    for most, kept in ((30, context - 30), (10**6, context - 1)):
        await client.completions.create(
            model=BASE,
            prompt="x" * 600,
            max_tokens=most,
            extra_body={"truncate_prompt_tokens": -1},
        )
        assert len(api.engine.requests[-1].prompt_token_ids) == kept


async def test_top_p_of_0_is_greedy(api: Api, client: openai.AsyncOpenAI) -> None:
    await client.chat.completions.create(model=BASE, messages=HELLO, top_p=0, temperature=1.5)
    await client.completions.create(model=BASE, prompt="x", top_p=0)
    await client.responses.create(model=BASE, input="x", top_p=0)
    for request in api.engine.requests:
        assert (request.sampling.temperature, request.sampling.top_p) == (0, 1)
    assert len(api.engine.requests) == 3
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(model=BASE, messages=HELLO, top_p=-0.1)
    assert caught.value.param == "top_p"


class Busy:
    """Counts how many of an engine's requests run together."""

    def __init__(self, engine: FakeEngine) -> None:
        self.now = self.most = 0
        self._submit = engine.submit

    async def submit(self, request: GenerationRequest) -> AsyncIterator[Any]:
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await asyncio.sleep(0)
            async for event in self._submit(request):
                yield event
        finally:
            self.now -= 1


@pytest.fixture
def busy(api: Api, monkeypatch: pytest.MonkeyPatch) -> Busy:
    made = Busy(api.engine)
    monkeypatch.setattr(api.engine, "submit", made.submit)
    return made


async def test_embeddings_of_as_many_texts_as_openai_takes(
    api: Api, client: openai.AsyncOpenAI, busy: Busy
) -> None:
    """LangChain sends a thousand in one request. They run a few at a time, so that one request is
    not a crowd of two thousand."""
    texts = ["x" * (1 + number % 7) for number in range(2048)]
    answer = await client.embeddings.create(model=BASE, input=texts)
    assert [each.index for each in answer.data] == list(range(2048))
    lengths = [round(3 * each.embedding[1] / each.embedding[0]) for each in answer.data]
    assert lengths == [len(text) for text in texts]
    assert answer.usage.prompt_tokens == sum(map(len, texts))
    assert busy.most == 16
    with pytest.raises(openai.BadRequestError) as caught:
        await client.embeddings.create(model=BASE, input=["x"] * 2049)
    assert caught.value.param == "input"


async def test_many_texts_leave_room_in_a_small_plan(api: Api, busy: Busy) -> None:
    await api.put_plan("four", {"parallel_requests": 4})
    tenant = await api.new_tenant("four", plan="four")
    answer = await post(api, tenant.key, "embeddings", input=["x"] * 100)
    assert answer.status_code == 200, answer.text
    assert busy.most == 2
    await api.put_plan("one", {"parallel_requests": 1})
    tenant = await api.new_tenant("one", plan="one")
    assert (await post(api, tenant.key, "embeddings", input=["x"] * 3)).status_code == 200


async def test_one_text_that_fails_ends_all_of_them_at_once(
    api: Api, tenant: TestTenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that had not begun never do, though more than a queue's worth of them wait."""
    submit, asked = api.engine.submit, []

    async def refuse_one(request: GenerationRequest) -> AsyncIterator[Any]:
        asked.append(request)
        if len(request.prompt_token_ids) == 2:
            raise InvalidRequestError("not this one", "input")
        async for event in submit(request):
            yield event

    monkeypatch.setattr(api.engine, "submit", refuse_one)
    async with asyncio.timeout(10):
        answer = await post(api, tenant.key, "embeddings", input=["xx", *["x"] * 2000])
    assert answer.status_code == 400
    assert "not this one" in answer.text
    assert len(asked) < 1000


async def test_a_history_may_hold_what_clients_keep_in_it(
    api: Api, client: openai.AsyncOpenAI
) -> None:
    call = {
        "id": "c1",
        "type": "function",
        "function": {"name": "f", "arguments": "{}", "parsed_arguments": {}, "signature": "s"},
    }
    messages: Any = [
        {
            "role": "user",
            "content": "Hi",
            "id": "m1",
            "timestamp": 1763000000,
            "metadata": {"a": 1},
        },
        {
            "role": "assistant",
            "content": [{"type": "text", "text": "Ho", "id": "p1", "annotations": [1]}],
            "reasoning": "x" * 100_000,  # no template sees it, so it takes no room
            "reasoning_details": [{"type": "reasoning.text"}],
            "tool_calls": [call],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "4", "is_error": False},
    ]
    answer = await client.chat.completions.create(model=BASE, messages=messages)
    prompt = api.engine.text.decode(api.engine.requests[-1].prompt_token_ids, skip_special=False)
    assert "Hi" in prompt
    assert "xxx" not in prompt
    assert answer.usage is not None
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(
            model=BASE,
            messages=[*HELLO, {"role": "assistant", "content": "", "audio": {"id": "a"}}],
        )
    assert caught.value.param == "messages[1].audio"


async def test_a_json_object_may_have_a_schema(api: Api, tenant: TestTenant) -> None:
    async def asked(given: dict[str, Any], path: str = "chat/completions") -> httpx.Response:
        more: dict[str, Any] = {"prompt": "x"} if path == "completions" else {"messages": HELLO}
        return await post(api, tenant.key, path, **more, response_format=given)

    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    for path in ("chat/completions", "completions"):
        answer = await asked({"type": "json_object", "schema": schema}, path)
        assert answer.status_code == 200, answer.text
        grammar = api.engine.requests[-1].sampling.grammar
        assert grammar is not None
        assert grammar.kind == "json_schema"
        assert '"integer"' in grammar.text
    nothing: tuple[dict[str, Any] | None, ...] = ({}, None)
    for empty in nothing:
        assert (await asked({"type": "json_object", "schema": empty})).status_code == 200
        grammar = api.engine.requests[-1].sampling.grammar
        assert grammar is not None
        assert grammar.text == '{"type":"object"}'
    for kind in ("text", "json_schema"):
        named = {"json_schema": {"name": "a", "schema": schema}} if kind == "json_schema" else {}
        wrong = await asked({"type": kind, "schema": schema, **named})
        assert wrong.status_code == 400
        assert wrong.json()["error"]["param"] == "response_format"


@pytest.mark.parametrize(
    ("path", "more"),
    [
        ("chat/completions", {"messages": HELLO}),
        ("completions", {"prompt": "x"}),
        ("responses", {"input": "x"}),
        ("embeddings", {"input": "x"}),
    ],
)
async def test_metadata_is_openais(
    api: Api, tenant: TestTenant, path: str, more: dict[str, Any]
) -> None:
    full = {f"{number:064}": "v" * 512 for number in range(16)}
    assert (await post(api, tenant.key, path, **more, metadata=full)).status_code == 200
    for wrong in ({"a": 1}, {"n" * 65: "x"}, {"n": "x" * 513}, {str(n): "x" for n in range(17)}):
        answer = await post(api, tenant.key, path, **more, metadata=wrong)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"].startswith("metadata")


async def test_a_model_is_deleted_by_openais_route(api: Api) -> None:
    tenant = await api.new_tenant("deleting", plan="premium")
    for seed in (1, 2):
        files = adapter_form(api.engine.model, "bot", seed=seed)
        assert (await api.call(tenant.key, "POST", "/v1/adapters", files=files)).status_code == 202

    async def delete(model: str) -> httpx.Response:
        return await api.call(tenant.key, "DELETE", f"/v1/models/{model}")

    gone = await delete("bot@1")
    assert gone.json() == {"id": "bot@1", "object": "model", "deleted": True}
    assert (await delete("bot@1")).status_code == 404
    for model in ("bot@prod", "bot@1.5", "bot@-1"):
        refused = await delete(model)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "model"), model
    assert (await delete("bot")).json()["deleted"] is True
    assert (await api.call(tenant.key, "GET", "/v1/adapters/bot")).status_code == 404
    for model in ("bot", BASE, "never"):
        assert (await delete(model)).status_code == 404, model
    reader = await api.new_tenant("reading", plan="premium", scopes=["inference"])
    assert (await api.call(reader.key, "DELETE", "/v1/models/bot")).status_code == 403
