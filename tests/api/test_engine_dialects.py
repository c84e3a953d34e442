"""Parameters of vLLM's and SGLang's servers, by their names and in their shapes, with the `openai`
client as their own suites use it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from api_harness import Api, TestTenant
from served_api import HELLO, openai_client, reset
from tenora_engine.text.detokenizer import IncrementalDetokenizer

BASE = "fake-base"
END = 1  # the model's own end


@pytest.fixture(scope="module")
async def tenant(api: Api) -> TestTenant:
    return await api.new_tenant("dialects", plan="premium")


@pytest.fixture(scope="module")
async def client(api: Api, tenant: TestTenant) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai_client(api, tenant) as made:
        yield made


@pytest.fixture(autouse=True)
def fresh_engine(api: Api) -> None:
    reset(api.engine)


async def chat(client: openai.AsyncOpenAI, **body: Any) -> Any:
    messages = body.pop("messages", HELLO)
    sent = {name: body.pop(name) for name in ("stream", "logprobs", "top_logprobs") if name in body}
    return await client.chat.completions.create(
        model=BASE, messages=messages, extra_body=body, **sent
    )


async def complete(client: openai.AsyncOpenAI, **body: Any) -> Any:
    sent = {name: body.pop(name) for name in ("stream", "logprobs", "echo") if name in body}
    prompt = body.pop("prompt", "x")
    return await client.completions.create(model=BASE, prompt=prompt, extra_body=body, **sent)


async def refused(answer: Any) -> str:
    with pytest.raises(openai.BadRequestError) as caught:
        await answer
    return str(caught.value.param)


def prompt_of(api: Api) -> str:
    return api.engine.text.decode(api.engine.requests[-1].prompt_token_ids, skip_special=False)


@pytest.mark.parametrize("stream", [False, True])
async def test_tokens_by_their_ids(api: Api, client: openai.AsyncOpenAI, stream: bool) -> None:
    ids = [f"token_id:{token}" for token in api.engine.text.encode("Hello from base.")]
    more = {"return_tokens_as_token_ids": True, "stream": stream}
    of_chat = await chat(client, logprobs=True, top_logprobs=1, **more)
    of_text = await complete(client, logprobs=1, max_tokens=40, **more)
    chats = [each async for each in of_chat] if stream else [of_chat]
    texts = [each async for each in of_text] if stream else [of_text]
    said = [
        token
        for each in chats
        for choice in each.choices
        if choice.logprobs
        for token in choice.logprobs.content
    ]
    assert [token.token for token in said] == ids
    assert [token.top_logprobs[0].token for token in said] == ids
    assert bytes(value for token in said for value in token.bytes) == b"Hello from base."
    lists = [choice.logprobs for each in texts for choice in each.choices if choice.logprobs]
    ids.append(f"token_id:{END}")
    assert [token for each in lists for token in each.tokens] == ids
    assert [name for each in lists for top in each.top_logprobs for name in top] == ids


async def test_an_echoed_prompts_tokens_by_their_ids(api: Api, client: openai.AsyncOpenAI) -> None:
    answer = await complete(
        client, prompt="ab", echo=True, logprobs=0, max_tokens=0, return_tokens_as_token_ids=True
    )
    ids = [f"token_id:{token}" for token in api.engine.text.encode("ab")]
    assert answer.choices[0].logprobs.tokens == ids


async def test_a_prompt_is_truncated_on_either_side(api: Api, client: openai.AsyncOpenAI) -> None:
    for more, kept in (
        ({}, "defg"),
        ({"truncation_side": "left"}, "defg"),
        ({"truncation_side": "right"}, "abcd"),
    ):
        await complete(client, prompt="abcdefg", truncate_prompt_tokens=4, **more)
        assert prompt_of(api) == kept
        await client.embeddings.create(
            model=BASE, input="abcdefg", extra_body={"truncate_prompt_tokens": 4, **more}
        )
        assert prompt_of(api) == kept
    await chat(client, truncate_prompt_tokens=5, truncation_side="right")
    assert prompt_of(api) == "<|im_start|>user"
    await complete(client, prompt="abc", truncation_side="right")
    assert prompt_of(api) == "abc"
    assert await refused(complete(client, truncation_side="middle")) == "truncation_side"


async def test_template_arguments_reach_the_template(api: Api, client: openai.AsyncOpenAI) -> None:
    await chat(client, chat_template_kwargs={"add_generation_prompt": True, "enable_thinking": 0})
    assert prompt_of(api).endswith("assistant\n")
    assert await refused(chat(client, chat_template_kwargs="x")) == "chat_template_kwargs"


async def test_a_request_has_the_id_of_its_body(api: Api, tenant: TestTenant) -> None:
    async def called(path: str, headers: dict[str, str] | None = None, **body: Any) -> str:
        answer = await api.call(
            tenant.key, "POST", f"/v1/{path}", json={"model": BASE, **body}, headers=headers or {}
        )
        assert answer.status_code == 200, answer.text
        return answer.headers["x-request-id"]

    for path, asked in (
        ("chat/completions", {"messages": HELLO}),
        ("chat/completions", {"messages": HELLO, "stream": True}),
        ("completions", {"prompt": "x"}),
        ("embeddings", {"input": "x"}),
    ):
        assert await called(path, request_id="my-own.1", **asked) == "my-own.1"
        assert api.engine.requests[-1].context["x_request_id"] == "my-own.1"
        assert (await called(path, **asked)).startswith("req_")
    header = {"x-request-id": "by-header"}
    assert await called("completions", header, prompt="x", request_id="by-body") == "by-header"
    answer = await api.call(
        tenant.key,
        "POST",
        "/v1/completions",
        json={"model": BASE, "prompt": "x", "request_id": "a\nb"},
    )
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "request_id")


@pytest.mark.parametrize("stream", [False, True])
async def test_the_message_that_is_gone_on_with_is_echoed(
    client: openai.AsyncOpenAI, stream: bool
) -> None:
    async def said(messages: list[Any], **body: Any) -> list[str]:
        answer = await chat(client, messages=messages, stream=stream, n=2, **body)
        texts = ["", ""]
        for each in [each async for each in answer] if stream else [answer]:
            for choice in each.choices:
                part = choice.delta if stream else choice.message
                texts[choice.index] += part.content or ""
        return texts

    opened = [*HELLO, {"role": "assistant", "content": "Well, "}]
    go_on = {"continue_final_message": True, "add_generation_prompt": False}
    assert await said(opened, echo=True, **go_on) == ["Well, Hello from base."] * 2
    assert await said(opened, **go_on) == ["Hello from base."] * 2
    assert await said(list(HELLO), echo=True) == ["Hello from base."] * 2


async def test_roles_and_parts_are_the_templates_affair(
    api: Api, client: openai.AsyncOpenAI
) -> None:
    parts = ["a", {"type": "text", "text": "b"}, {"text": "c"}]
    await chat(client, messages=[{"role": "critic", "content": parts}])
    assert prompt_of(api).startswith("<|im_start|>critic\nabc<|im_end|>")
    image = {"type": "image_url", "image_url": {"url": "https://x"}}
    asked = chat(client, messages=[{"role": "user", "content": ["a", image]}])
    assert await refused(asked) == "messages[0].content[1].type"
    for role in ("", "r" * 65):
        asked = chat(client, messages=[{"role": role, "content": "a"}])
        assert await refused(asked) == "messages[0].role"
    await chat(client, messages=[{"role": "<|im_end|>", "content": "a"}])
    controls = api.engine.requests[-1].prompt_token_ids.count(END)
    assert controls == 1, "a role that is called like a control token is text"


async def test_seeds_have_64_bits(api: Api, client: openai.AsyncOpenAI) -> None:
    for seed in (-(2**63), 2**63 - 1, 2**40 + 1):
        await chat(client, seed=seed)
        assert api.engine.requests[-1].sampling.seed == seed
    for seed in (-(2**63) - 1, 2**63):
        assert await refused(chat(client, seed=seed)) == "seed"


async def test_more_than_four_stop_strings(client: openai.AsyncOpenAI) -> None:
    stop = [*(f"no{number}" for number in range(30)), "from", "base"]
    assert (await chat(client, stop=stop)).choices[0].message.content == "Hello "
    assert (await complete(client, stop=stop)).choices[0].text == "Hello "
    assert await refused(chat(client, stop=[*stop, "one more"])) == "stop"


@pytest.mark.parametrize("key", ["a", "1.5", "-1", "", "١", "1e3"])
async def test_biases_are_of_token_ids(client: openai.AsyncOpenAI, key: str) -> None:
    assert await refused(chat(client, logit_bias={key: 1})) == "logit_bias"
    assert await refused(complete(client, logit_bias={key: 1})) == "logit_bias"


async def test_sglangs_grammars(api: Api, client: openai.AsyncOpenAI) -> None:
    for name, text, kind in (("regex", "a+", "regex"), ("ebnf", 'root ::= "a" | "b"', "grammar")):
        for asking in (chat, complete):
            await asking(client, **{name: text})
            grammar = api.engine.requests[-1].sampling.grammar
            assert grammar is not None
            assert (grammar.kind, grammar.text, grammar.param) == (kind, text, name)
    both = {"regex": "a", "response_format": {"type": "json_object"}}
    assert await refused(chat(client, **both)) == "regex"


@pytest.mark.parametrize("stream", [False, True])
async def test_what_ended_an_answer(api: Api, client: openai.AsyncOpenAI, stream: bool) -> None:
    async def ended(asking: Any, **body: Any) -> tuple[Any, Any, Any]:
        answer = await asking(client, stream=stream, **body)
        if stream:
            [last] = [
                choice
                async for each in answer
                for choice in each.choices
                if choice.finish_reason is not None
            ]
        else:
            [last] = answer.choices
        return last.finish_reason, last.model_extra["matched_stop"], last.model_extra["stop_reason"]

    for asking in (chat, complete):
        assert await ended(asking, max_tokens=40) == ("stop", END, None)
        assert await ended(asking, max_tokens=40, stop=["x", "fr"]) == ("stop", "fr", "fr")
        assert await ended(asking, max_tokens=3) == ("length", None, None)
        shown = {"stop": ["fr"], "include_stop_str_in_output": True}
        assert await ended(asking, max_tokens=40, **shown) == ("stop", "fr", "fr")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("reasoning_effort", "high"),
        ("verbosity", "low"),
        ("prompt_cache_key", "k"),
        ("prompt_cache_retention", "24h"),
        ("safety_identifier", "s"),
    ],
)
async def test_what_has_no_effect_is_accepted(
    api: Api, client: openai.AsyncOpenAI, name: str, value: str
) -> None:
    for asking in (chat, complete):
        await asking(client)
        plain = api.engine.requests[-1]
        await asking(client, **{name: value})
        asked = api.engine.requests[-1]
        assert asked.sampling == plain.sampling
        assert asked.prompt_token_ids == plain.prompt_token_ids
        assert await refused(asking(client, **{name: 1})) == name


async def test_logprobs_of_tokens_by_name(api: Api, client: openai.AsyncOpenAI) -> None:
    named = [5, 9]
    answer = await chat(client, logprobs=True, logprob_token_ids=named)
    assert api.engine.requests[-1].sampling.logprob_token_ids == (5, 9)
    for token in answer.choices[0].logprobs.content:  # the token itself is told with them
        assert token.top_logprobs[0].token == token.token
        assert [each.logprob for each in token.top_logprobs[1:]] == [-2.0, -2.0]
    likeliest = await chat(client, logprobs=True, top_logprobs=5, logprob_token_ids=named)
    assert likeliest.choices[0].logprobs == answer.choices[0].logprobs
    assert api.engine.requests[-1].sampling.logprobs == 0
    answer = await complete(
        client, logprobs=0, logprob_token_ids=named, return_tokens_as_token_ids=True
    )
    assert answer.choices[0].logprobs.top_logprobs[0]["token_id:5"] == -2.0
    for body in (
        {},
        {"logprobs": True, "logprob_token_ids": [10**6]},
        {"logprobs": True, "logprob_token_ids": []},
        {"logprobs": True, "logprob_token_ids": list(range(129))},
    ):
        assert await refused(chat(client, **{"logprob_token_ids": named, **body})) == (
            "logprob_token_ids"
        )


async def test_wrong_tokens_are_named(api: Api, client: openai.AsyncOpenAI) -> None:
    vocab = api.engine.model.vocab
    for asking in (chat, complete):
        bad = dict.fromkeys(["bad1", "7", "bad2", *(f"bad{n}" for n in range(3, 15))], 1)
        with pytest.raises(openai.BadRequestError, match=r"not 'bad1', 'bad2', .* and 4 more"):
            await asking(client, logit_bias=bad)
        for wrong in (
            {"logit_bias": {str(vocab + 1): 1}},
            {"stop_token_ids": [3, vocab + 1]},
            {"allowed_token_ids": [vocab + 1]},
        ):
            named = f"{vocab + 1}, out of vocabulary: .* {vocab} "
            with pytest.raises(openai.BadRequestError, match=named):
                await asking(client, **wrong)


async def test_the_last_token_says_that_there_was_room_for_no_more(
    client: openai.AsyncOpenAI,
) -> None:
    """So that a stream has no more chunks with an end or a text than tokens, as vLLM's."""
    chats = [each async for each in await chat(client, stream=True, max_tokens=5)]
    texts = [each async for each in await complete(client, stream=True, max_tokens=5)]
    *before, last = [choice for each in chats for choice in each.choices]
    assert (last.delta.content, last.finish_reason) == ("o", "length")
    assert [choice.delta.content for choice in before] == ["", "H", "e", "l", "l"]
    *begun, end = [choice for each in texts for choice in each.choices]
    assert (end.text, end.finish_reason) == ("o", "length")
    assert [choice.text for choice in begun] == ["H", "e", "l", "l"]


async def test_a_salt_reaches_the_prefix_cache(api: Api, client: openai.AsyncOpenAI) -> None:
    for asking in (chat, complete):
        await asking(client, cache_salt="s")
        assert api.engine.requests[-1].cache_salt == "s"
        for salt in ("", "s" * 257, 5):
            assert await refused(asking(client, cache_salt=salt)) == "cache_salt"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_pattern_ends_an_answer(api: Api, client: openai.AsyncOpenAI, stream: bool) -> None:
    for asking in (chat, complete):
        answer = await asking(client, stream=stream, max_tokens=40, stop_regex=["zz+", "f[r-t]"])
        if stream:
            choices = [choice async for each in answer for choice in each.choices]
            texts = [
                choice.text if asking is complete else choice.delta.content for choice in choices
            ]
            last, text = choices[-1], "".join(each or "" for each in texts)
        else:
            [last] = answer.choices
            text = last.text if asking is complete else last.message.content
        assert text.endswith("fr")
        assert (last.finish_reason, last.model_extra["matched_stop"]) == ("stop", "f[r-t]")
        assert api.engine.requests[-1].ends_by_text
        for pattern in ("(a", "a*", r"(a)\1", "x" * 999, ["a"] * 5, 5):
            assert (await refused(asking(client, stop_regex=pattern))).startswith("stop_regex")


async def test_a_request_brings_its_template(
    api: Api, client: openai.AsyncOpenAI, tenant: TestTenant
) -> None:
    own = "{{ tone }}{% for each in messages %}<{{ each.role }}>{{ each.content }}{% endfor %}"
    kwargs = {"tone": "calm"}
    await chat(client, chat_template=own, chat_template_kwargs=kwargs)
    expected = "calm" + "".join(f"<{each['role']}>{each['content']}" for each in HELLO)
    assert prompt_of(api) == expected
    body = {"model": BASE, "messages": HELLO, "chat_template": own, "chat_template_kwargs": kwargs}
    answer = await api.call(tenant.key, "POST", "/v1/tokenize", json=body)
    assert answer.json()["tokens"] == api.engine.requests[-1].prompt_token_ids


async def test_what_a_template_writes_is_bounded(client: openai.AsyncOpenAI) -> None:
    """Before anybody makes tokens of it."""
    long = "{% for a in range(999) %}{{ 'x' * 9999 }}{% endfor %}"
    with pytest.raises(openai.BadRequestError, match=r"writes more than \d+ characters") as caught:
        await chat(client, chat_template=long)
    assert caught.value.param == "chat_template"


@pytest.mark.parametrize(
    "template",
    [
        "",
        "a\0b",
        "x" * (64 * 1024 + 1),
        "{{",
        "{{ raise_exception('no') }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{{ 'a' * 10 ** 9 }}",
    ],
    ids=["empty", "NUL", "long", "broken", "raises", "escapes", "loops", "memory"],
)
async def test_a_template_harms_nobody(client: openai.AsyncOpenAI, template: str) -> None:
    assert await refused(chat(client, chat_template=template)) == "chat_template"


@given(
    st.text("ab", max_size=30),
    st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=8),
)
def test_what_may_begin_a_stop_string_is_held_back_and_no_more(text: str, stop: list[str]) -> None:
    made = IncrementalDetokenizer(lambda token: bytes([token]), stop)
    shown = ""
    for count, token in enumerate(text.encode(), start=1):
        delta = made.push([token])
        shown += delta.text
        if delta.stopped is not None:
            break
        behind = (text[count - length : count] for length in range(count, 0, -1))
        held = next((end for end in behind if any(each.startswith(end) for each in stop)), "")
        assert shown + held == text[:count]


async def test_the_prompts_own_logprobs(api: Api, client: openai.AsyncOpenAI) -> None:
    encode = api.engine.text.encode

    def place(letter: str, rank: int | None) -> dict[str, Any]:
        said = {"logprob": -1.0, "rank": rank, "decoded_token": letter}
        return {str(encode(letter)[0]): said}

    for count, rank in ((0, None), (2, 1)):
        answer = await complete(client, prompt=["ab", "c"], prompt_logprobs=count)
        found = [choice.model_extra["prompt_logprobs"] for choice in answer.choices]
        assert found == [[None, place("b", rank)], [None]]
        assert api.engine.requests[-1].sampling.prompt_logprobs == count
        answer = await chat(client, prompt_logprobs=count)
        found = answer.model_extra["prompt_logprobs"]
        assert len(found) == len(api.engine.requests[-1].prompt_token_ids)
        assert [list(each) for each in found[1:]] == [
            [str(token)] for token in api.engine.requests[-1].prompt_token_ids[1:]
        ]
    both = await complete(client, prompt="ab", echo=True, logprobs=0, prompt_logprobs=3)
    assert both.choices[0].logprobs.top_logprobs[1] == {"b": -1.0}
    assert both.choices[0].model_extra["prompt_logprobs"] == [None, place("b", 1)]
    plain = await chat(client, prompt_logprobs=False)
    assert plain.model_extra["prompt_logprobs"] is None  # vLLM's clients read it unasked
    assert (await complete(client)).choices[0].model_extra["prompt_logprobs"] is None
    for asking in (chat, complete):
        for wrong in ({"prompt_logprobs": 21}, {"prompt_logprobs": -1}):
            assert await refused(asking(client, **wrong)) == "prompt_logprobs"
        streamed = asking(client, prompt_logprobs=1, stream=True)
        assert await refused(streamed) == "prompt_logprobs"


@pytest.mark.parametrize("include_stop", [False, True])
@pytest.mark.parametrize("stream", [False, True])
async def test_the_token_that_ended_an_answer_is_scored(
    api: Api, client: openai.AsyncOpenAI, stream: bool, include_stop: bool
) -> None:
    """In a chat where its id is told; always in a completion, as in other engines: who scores a
    text with `echo` and one token more leaves out the last, whatever it is."""
    encoded = api.engine.text.encode("Hello from base.")
    body: dict[str, Any] = {"return_tokens_as_token_ids": True, "stream": stream}
    body["include_stop_str_in_output"] = include_stop
    for ids in (False, True):
        ended = [*encoded, END]
        shown = ended if ids or include_stop else encoded
        body["return_token_ids"] = ids
        choices = await _choices(await chat(client, logprobs=True, **body))
        made = [each.logprobs.content for each in choices if each.logprobs is not None]
        assert [token.token for each in made for token in each] == _named(shown)
        choices = await _choices(await complete(client, logprobs=0, max_tokens=40, **body))
        lists = [each.logprobs for each in choices if each.logprobs is not None]
        assert [token for each in lists for token in each.tokens] == _named(ended)
        offsets = [place for each in lists for place in each.text_offset]
        assert offsets == list(range(len(ended)))


def _named(token_ids: list[int]) -> list[str]:
    return [f"token_id:{each}" for each in token_ids]


async def _choices(answer: Any) -> list[Any]:
    """All, of a stream or not."""
    if not isinstance(answer, openai.AsyncStream):
        return list(answer.choices)
    return [choice async for chunk in answer for choice in chunk.choices]


async def test_a_chunk_without_tokens_has_no_logprobs(client: openai.AsyncOpenAI) -> None:
    """Of a text that a stop string ended, which was held back."""
    body = {"stop": ["e."], "max_tokens": 40, "stream": True}
    chunks = await _choices(await complete(client, logprobs=1, **body))
    assert "".join(each.text for each in chunks) == "Hello from bas"
    assert all(each.logprobs is None or each.logprobs.tokens for each in chunks)


@pytest.mark.parametrize("value", [None, [], [[0.5]]])
async def test_embeddings_alone_are_no_prompt(client: openai.AsyncOpenAI, value: Any) -> None:
    with pytest.raises(openai.BadRequestError, match="Either prompt or prompt_embeds must be"):
        await client.completions.create(
            model=BASE,
            prompt=None,
            extra_body={"prompt_embeds": value},
        )


async def test_what_is_longer_than_the_context_is_called_so(
    api: Api, client: openai.AsyncOpenAI
) -> None:
    """In SGLang's words beside OpenAI's."""
    context = api.engine.model.context_tokens
    for length in (context + 1, 100 * context):
        messages = [{"role": "user", "content": "x" * length}]
        with pytest.raises(openai.BadRequestError) as caught:
            await chat(client, messages=messages)
        for words in ("is longer than the model's context length", "maximum context length"):
            assert words in caught.value.message
        assert caught.value.code == "context_length_exceeded"


async def test_sglangs_clients_find_the_model(api: Api, tenant: TestTenant) -> None:
    for path in ("/get_model_info", "/get_server_info"):
        found = (await api.call(tenant.key, "GET", path)).json()
        assert found["model_path"] == BASE
        assert found["context_length"] == api.engine.model.context_tokens
        assert (await api.http.get(path)).status_code == 401
