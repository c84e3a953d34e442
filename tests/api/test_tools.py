"""Tools on chat completions, with the official `openai` client: what the model is shown, and its
calls in the answer, whole and streamed."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from msgspec.structs import replace
from tokenizers import Tokenizer

from api_harness import Api, TestTenant
from fake_engine import write_byte_tokenizer
from served_api import HELLO, reset, served
from tenora_engine.text.processor import TextProcessor
from tenora_engine.text.tool_formats import FORMATS, format_of

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather now.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
ADD: dict[str, Any] = {"type": "function", "function": {"name": "add"}}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln"}}\n</tool_call>'
SECOND = '<tool_call>\n{"name": "add", "arguments": {}}\n</tool_call>'


@pytest.fixture(scope="module")
async def base_url(api: Api) -> AsyncIterator[str]:
    async with served(api) as url:
        yield url


@pytest.fixture(scope="module")
async def tenant(api: Api) -> TestTenant:
    return await api.new_tenant("tools", plan="premium")


@pytest.fixture(scope="module")
async def client(base_url: str, tenant: TestTenant) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(api_key=tenant.key, base_url=base_url, max_retries=0) as made:
        yield made


@pytest.fixture(autouse=True)
def fresh_engine(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """With room for tools in a prompt, a token a byte."""
    reset(api.engine)
    monkeypatch.setattr(api.engine, "model", replace(api.engine.model, context_tokens=4096))


async def ask(client: openai.AsyncOpenAI, **body: Any) -> Any:
    asked: dict[str, Any] = {"model": "fake-base", "messages": HELLO, "tools": [WEATHER, ADD]}
    return await client.chat.completions.create(**{**asked, **body})


async def streamed(client: openai.AsyncOpenAI, **body: Any) -> Any:
    """What the client's own accumulation makes of a stream."""
    asked: dict[str, Any] = {"model": "fake-base", "messages": HELLO, "tools": [WEATHER, ADD]}
    async with client.chat.completions.stream(**{**asked, **body}) as stream:
        return await stream.get_final_completion()


def prompt_of(api: Api) -> str:
    token_ids = api.engine.requests[-1].prompt_token_ids
    return api.engine.text.decode(token_ids, skip_special=False)


@pytest.mark.parametrize("make", [ask, streamed])
@pytest.mark.parametrize(
    ("text", "content", "names", "reason"),
    [
        (CALL, None, ["get_weather"], "tool_calls"),
        (f"Let me see.\n{CALL}", "Let me see.", ["get_weather"], "tool_calls"),
        (f"{CALL}\n{SECOND}", None, ["get_weather", "add"], "tool_calls"),
        ("Hello from base.", "Hello from base.", [], "stop"),
        (CALL.replace("get_weather", "nobody"), CALL.replace("get_weather", "nobody"), [], "stop"),
        ("", "", [], "stop"),
    ],
)
async def test_calls(
    api: Api,
    client: openai.AsyncOpenAI,
    make: Any,
    text: str,
    content: str | None,
    names: list[str],
    reason: str,
) -> None:
    api.engine.answer = lambda request, index: text
    answer = await make(client)
    (choice,) = answer.choices
    assert (choice.message.content, choice.finish_reason) == (content, reason)
    calls = choice.message.tool_calls or []
    assert [call.function.name for call in calls] == names
    assert len({call.id for call in calls}) == len(calls)
    for call in calls:
        assert call.type == "function"
        wanted = {"city": "Köln"} if call.function.name == "get_weather" else {}
        assert json.loads(call.function.arguments) == wanted


async def test_the_deltas_are_openais(api: Api, client: openai.AsyncOpenAI) -> None:
    api.engine.answer = lambda request, index: f"Well. {CALL} {SECOND}"
    deltas = [
        chunk.choices[0].delta.model_dump(exclude_unset=True)
        async for chunk in await ask(client, stream=True)
    ]
    assert deltas[0] == {"role": "assistant", "content": None}
    content = [delta["content"] for delta in deltas[1:] if "content" in delta]
    assert "".join(content) == "Well."
    calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
    firsts = [call for call in calls if "id" in call]
    assert len({call.pop("id") for call in firsts}) == 2
    assert firsts == [
        {"index": index, "type": "function", "function": {"name": name, "arguments": ""}}
        for index, name in enumerate(["get_weather", "add"])
    ]
    for first, arguments in zip(firsts, ['{"city": "Köln"}', "{}"], strict=True):
        of_it = [call for call in calls if call["index"] == first["index"]]
        assert of_it[0] is first
        assert all(call.keys() == {"index", "function"} for call in of_it[1:])
        pieces = [call["function"]["arguments"] for call in of_it[1:]]
        assert pieces == list(arguments)  # a token a letter
    assert deltas[-1] == {}


async def test_what_is_metered_is_what_was_made(api: Api, client: openai.AsyncOpenAI) -> None:
    """Every token has its logprob and is counted, whether it is content, a call or a mark."""
    api.engine.answer = lambda request, index: f"Well. {CALL}"
    more = {"logprobs": True, "extra_body": {"return_token_ids": True}}
    whole = await ask(client, **more)
    made = api.engine.text.encode(f"Well. {CALL}")
    assert whole.usage.completion_tokens == len(made) + 1
    assert whole.choices[0].token_ids == [*made, 1]
    assert len(whole.choices[0].logprobs.content) == len(made) + 1  # and its end
    chunks = [chunk async for chunk in await ask(client, stream=True, **more)]
    ids = [token for c in chunks for token in getattr(c.choices[0], "token_ids", None) or []]
    assert ids == [*made, 1]
    logprobs = [t for c in chunks if c.choices[0].logprobs for t in c.choices[0].logprobs.content]
    assert len(logprobs) == len(made) + 1


async def test_choices_are_read_one_by_one(api: Api, client: openai.AsyncOpenAI) -> None:
    api.engine.answer = lambda request, index: CALL if index else "No."
    for make in (ask, streamed):
        choices = (await make(client, n=2)).choices
        assert [choice.finish_reason for choice in choices] == ["stop", "tool_calls"]
        assert choices[0].message.content == "No."


async def test_one_call_where_they_are_not_parallel(api: Api, client: openai.AsyncOpenAI) -> None:
    api.engine.answer = lambda request, index: f"{CALL}\n{SECOND}"
    for make in (ask, streamed):
        message = (await make(client, parallel_tool_calls=False)).choices[0].message
        assert [call.function.name for call in message.tool_calls] == ["get_weather"]


WITHIN = CALL.index(': "Köln')  # tokens
NAMED: dict[str, Any] = {"type": "function", "function": {"name": "get_weather"}}


@pytest.mark.parametrize(
    ("choice", "tokens", "content", "arguments"),
    [
        ("auto", 30, CALL[:30], None),  # of a call that has not named its tool
        ("auto", WITHIN, None, '{"city"'),
        ("required", WITHIN, None, '{"city"'),
        (NAMED, WITHIN, None, '{"city"'),
        ("required", 30, None, None),
        (NAMED, 30, None, None),
        (NAMED, 5, None, None),
    ],
)
async def test_what_is_cut_off(
    api: Api,
    client: openai.AsyncOpenAI,
    choice: Any,
    tokens: int,
    content: str | None,
    arguments: str | None,
) -> None:
    """A call without the end of its arguments; content where none has begun or is forced."""
    api.engine.answer = lambda request, index: CALL
    body = {"tool_choice": choice, "max_tokens": tokens}
    whole = await ask(client, **body)
    with pytest.raises(openai.LengthFinishReasonError) as cut:
        await streamed(client, **body)
    answers: list[Any] = [whole, cut.value.completion]
    for answer in answers:
        (made,) = answer.choices
        assert made.finish_reason == "length"
        assert (made.message.content or None) == content
        calls = [call.function for call in made.message.tool_calls or []]
        expected = [] if arguments is None else [("get_weather", arguments)]
        assert [(call.name, call.arguments) for call in calls] == expected


async def test_none_hides_the_tools(api: Api, client: openai.AsyncOpenAI) -> None:
    api.engine.answer = lambda request, index: CALL
    answer = await ask(client, tool_choice="none")
    assert answer.choices[0].message.content == CALL
    assert answer.choices[0].finish_reason == "stop"
    assert prompt_of(api) == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


async def test_a_template_without_tools_has_them_in_words(
    api: Api, client: openai.AsyncOpenAI
) -> None:
    call = {
        "id": "c1",
        "type": "function",
        "function": {"name": "get_weather", "arguments": '{"city": "Köln"}'},
    }
    history: list[Any] = [
        {"role": "system", "content": "Be brief."},
        *HELLO,
        {"role": "assistant", "content": "Let me see.", "tool_calls": [call, call]},
        {"role": "tool", "tool_call_id": "c1", "content": "Rain."},
        {"role": "tool", "tool_call_id": "c2", "content": "<|im_end|>"},
    ]
    await ask(client, messages=history, tools=[WEATHER])
    turns = prompt_of(api).split("<|im_start|>")[1:]
    assert turns[0].startswith("system\nBe brief.\n\n# Tools\n")
    (shown,) = [line for line in turns[0].split("\n") if line.startswith('{"type"')]
    assert json.loads(shown) == WEATHER
    assert turns[2:] == [
        f"assistant\nLet me see.\n{CALL}\n{CALL}<|im_end|>\n",
        "user\n<tool_response>\nRain.\n</tool_response>\n"
        "<tool_response>\n<|im_end|>\n</tool_response><|im_end|>\n",
        "assistant\n",
    ]


def test_a_template_with_tools_is_given_them(tmp_path: Path) -> None:
    write_byte_tokenizer(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{{ tools | tojson }}{{ messages | length }}")
    text = TextProcessor(tmp_path)
    assert text.render_chat(HELLO, tools=[WEATHER]) == f"{json.dumps([WEATHER])}1"


@pytest.mark.parametrize("name", ["mistral", "llama3"])
def test_marks_that_are_control_tokens_reach_the_parser(tmp_path: Path, name: str) -> None:
    """They are left out of answers otherwise."""
    write_byte_tokenizer(tmp_path)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    form = FORMATS[name]
    tokenizer.add_special_tokens([form.opening])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    text = TextProcessor(tmp_path)
    ids = text.encode(f"{form.opening}[]<|im_end|>")
    assert len(ids) == 4
    assert text.detokenizer().push(ids).text == "[]"
    assert text.detokenizer(shown=form.marks).push(ids).text == f"{form.opening}[]"


async def test_forced_calls_and_strict_tools_are_grammars(
    api: Api, client: openai.AsyncOpenAI
) -> None:
    """What they allow is tested with the grammars; here, that the engine is given them."""
    strict = {"type": "function", "function": {"name": "f", "strict": True}}
    named = {"type": "function", "function": {"name": "add"}}
    grammars = []
    for body in (
        {},
        {"tool_choice": "required"},
        {"tool_choice": named},
        {"tools": [WEATHER, strict]},
        {"tools": [strict], "tool_choice": "none"},
        {"response_format": {"type": "json_object"}},
        {"response_format": {"type": "json_object"}, "tool_choice": "required"},
    ):
        await ask(client, **body)
        grammar = api.engine.requests[-1].sampling.grammar
        grammars.append(None if grammar is None else grammar.text)
    free, required, one, held, hidden, either, beside = grammars
    assert beside == required  # nothing is said that the format could be about
    assert either is not None
    assert "answer" in either
    assert free is None
    assert hidden is None
    assert required is not None
    assert "get_weather" in required
    assert "add" in required
    assert one is not None
    assert "get_weather" not in one
    assert held is not None
    assert "[lazy]" in held
    api.engine.answer = lambda request, index: CALL
    answer = await ask(client, tool_choice=named)
    assert answer.choices[0].message.content == CALL  # of another function than the one named


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("{{ messages }}", "hermes"),
        ("{% if tools %}<tool_call>\n{% endif %}", "hermes"),
        ("{% if tools %}<tool_call>[\n{% endif %}", "smollm"),
        ('{% if tools %}{"name": f, "parameters": p}{% endif %}', "llama3"),
        ("{% if tools %}<|python_tag|>{% endif %}", "llama3"),
        ("{% if tools %}[AVAILABLE_TOOLS][TOOL_CALLS]{% endif %}", "mistral"),
    ],
)
def test_the_form_is_read_off_the_template(source: str, name: str) -> None:
    assert format_of(source).name == name
    chosen = format_of(source, "mistral").name
    assert chosen == ("mistral" if "tools" in source else "hermes")
    assert FORMATS[name].name == name


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [ADD, ADD]}, "tools"),
        ({"extra_body": {"guided_regex": "a"}}, "guided_regex"),
        ({"extra_body": {"guided_regex": "a"}, "tool_choice": "required"}, "guided_regex"),
        ({"tools": [ADD] * 129}, "tools"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice"),
    ],
)
async def test_refusals(client: openai.AsyncOpenAI, body: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await ask(client, **body)
    assert caught.value.param == param
