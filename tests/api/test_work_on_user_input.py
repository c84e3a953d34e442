"""What users write is worked on within bounds: in a process apart where it could take any time, and
what is made of it is short, can be printed and can be stored."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import json
import os
import resource
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import text
from sqlalchemy.exc import DataError

from adapter_files import adapter_config, adapter_form
from api_harness import Api, TestTenant
from tenora_engine.errors import InvalidRequestError
from tenora_engine.printable import BRIEF_MAX, MESSAGE_MAX, brief
from tenora_engine.text.chat_template import ChatTemplate
from tenora_platform.apart.client import Apart
from tenora_platform.errors import BadRequestError, UnavailableError
from tenora_platform.evaluations.scorer import Scorer
from tenora_platform.evaluations.scoring import SchemaError
from tenora_platform.intake.report import Problem
from tenora_platform.mending import REPLACEMENT, mended
from tenora_platform.templates.process import Question
from tenora_platform.templates.renderer import Renderer

BOMB = r"(\w{1,200}){1,20}"
"""One of these takes the library's compiler 30 ms."""


def patterns(count: int) -> dict[str, Any]:
    return {"properties": {str(place): {"pattern": f"{place}{BOMB}"} for place in range(count)}}


def doubling(levels: int) -> dict[str, Any]:
    """A schema whose validation takes twice as long for each level."""
    defs: dict[str, Any] = {"d0": {"type": "integer"}}
    for level in range(1, levels):
        below = {"$ref": f"#/$defs/d{level - 1}"}
        defs[f"d{level}"] = {"anyOf": [{"allOf": [below]}, {"allOf": [below]}]}
    return {"$ref": f"#/$defs/d{levels - 1}", "$defs": defs}


@pytest.fixture(scope="module")
def scorer() -> Iterator[Scorer]:
    apart = Apart()
    yield Scorer(apart)
    apart.close()


async def test_schemas_that_take_for_ever_to_compile_are_refused(scorer: Scorer) -> None:
    with pytest.raises(SchemaError, match="processor time"):
        await scorer.check("t", [json.dumps(patterns(3000))])
    assert await scorer.check("t", ['{"type": "object"}']) is None, "and others are not"


async def test_a_validation_that_takes_for_ever_ends(scorer: Scorer) -> None:
    item = {"schema": doubling(40)}
    with pytest.raises(BadRequestError, match="processor time"):
        await scorer.score("t", "json_schema", item, '"a text"')
    assert await scorer.score("t", "json_schema", {"schema": doubling(3)}, "7") == 1.0


async def test_the_loop_goes_on_meanwhile(scorer: Scorer) -> None:
    """Others are answered while a schema is compiled, also those whose own schemas are."""
    compiling = asyncio.create_task(scorer.check("slow", [json.dumps(patterns(3000))]))
    await asyncio.sleep(0)
    for _ in range(3):
        assert await scorer.check("quick", ['{"pattern": "^a"}']) is None
    assert not compiling.done()
    with pytest.raises(SchemaError):
        await compiling


async def test_each_way_of_scoring(scorer: Scorer) -> None:
    for scoring, item, answer, score in (
        ("exact", {"expected": "a"}, " a ", 1.0),
        ("contains", {"expected": "a"}, "bab", 1.0),
        ("choice", {"expected": "B", "choices": ["A", "B"]}, "(b)", 1.0),
        ("choice", {"expected": "B", "choices": ["A", "B"]}, "(a)", 0.0),
        ("json_schema", {"schema": {"type": "array"}}, "[]", 1.0),
        ("json_schema", {"schema": {"type": "array"}}, "{}", 0.0),
    ):
        assert await scorer.score("t", scoring, item, answer) == score  # type: ignore[arg-type]


async def test_which_schema_is_none(scorer: Scorer) -> None:
    good = '{"type": "object"}'
    found = await scorer.check("t", [good, json.dumps({"type": "x" * 10_000}), good])
    assert found is not None
    place, why = found
    assert place == 1
    assert 0 < len(why) <= BRIEF_MAX


GREETING = Question("hello", {}, [], {}, is_open=False, characters_most=10)


@pytest.fixture
def large_descriptors(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Pipes have numbers as in a process with thousands of connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
    pipe = os.pipe

    def large_pipe() -> tuple[int, int]:
        made = pipe()
        moved = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, 1500) for each in made]
        for each in made:
            os.close(each)
        return moved[0], moved[1]

    monkeypatch.setattr("os.pipe", large_pipe)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("large_descriptors")
async def test_thousands_of_connections_leave_it_working(scorer: Scorer) -> None:
    assert await scorer.check("t", ['{"type": "object"}']) is None
    assert Renderer(scorer._apart).render(GREETING) == "hello"


async def test_without_a_descriptor_it_is_unavailable(
    scorer: Scorer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a while, and so it is no 500, nor the client's fault."""

    def no_pipe() -> tuple[int, int]:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("os.pipe", no_pipe)
    with pytest.raises(UnavailableError):
        await scorer.check("t", ['{"type": "object"}'])
    with pytest.raises(UnavailableError):
        Renderer(scorer._apart).render(GREETING)


@given(st.text() | st.text(alphabet="\0\x1b\u202e\n\ud800a"))
def test_printable(words: str) -> None:
    shown = brief(words, 20)
    assert shown.isprintable()
    assert len(shown) <= 20


def test_every_error_is_short_and_printable() -> None:
    long = "\0\x1b[2J\u202e\ud800" * 1_000_000
    said = [
        str(InvalidRequestError(f"it says {long}")),
        BadRequestError(f"it says {long}").message,
        Problem(field=long, code="c", message=long).message,
        Problem(field=long, code="c", message=long).field,
    ]
    for each in said:
        assert each.isprintable()
        assert len(each) <= MESSAGE_MAX


def test_rendering_ends_where_no_prompt_is_longer() -> None:
    """While it is rendered, not behind it: the whole would be a terabyte."""
    loops = "{% for a in range(99999) %}{% for b in range(99999) %}" + "x" * 100
    template = ChatTemplate(loops + "{% endfor %}{% endfor %}", {})
    for render in (template.render, template.render_open):
        with pytest.raises(InvalidRequestError, match="writes more than 1"):
            render([{"role": "user", "content": "a"}], 1000)


values = st.recursive(
    st.none() | st.integers() | st.floats() | st.text() | st.text(alphabet="\0\ud800a"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(values)
def test_what_is_mended_can_be_stored(value: Any) -> None:
    made = mended(value)
    written = json.dumps(made, ensure_ascii=False)
    assert "\0" not in written
    assert "\\u0000" not in written.replace("\\\\", "")
    written.encode()
    assert mended(made) is made, "and is left alone"


async def test_work_beside_requests_stores_any_text(api: Api) -> None:
    db, odd = api.state.db.patient(), "a\0b\ud800c"
    create = text("create temporary table odd (words text, value jsonb, list text[])")
    insert = text("insert into odd values (:words, cast(:value as jsonb), :list)")
    read = text("select words, list from odd")
    async with db.admin_session() as session:
        await session.execute(create)
        await session.execute(insert, {"words": odd, "value": "{}", "list": [odd]})
        [row] = (await session.execute(read)).all()
    assert row == (f"a{REPLACEMENT}b?c", [f"a{REPLACEMENT}b?c"])
    with pytest.raises((DataError, UnicodeError)):  # a client's is refused
        async with api.state.db.admin_session() as session:
            await session.execute(
                text("update plans set name = :odd where name = :odd"), {"odd": odd}
            )


async def push(api: Api, tenant: TestTenant, template: str, **config: Any) -> dict[str, Any]:
    form = adapter_form(api.engine.model, "odd")
    form["chat_template"] = ("chat_template.jinja", template.encode())
    if config:
        form["adapter_config"] = ("adapter_config.json", json.dumps(adapter_config(**config)))
    made = await api.call(tenant.key, "POST", "/v1/adapters", files=form)
    assert made.status_code == 202, made.text
    path = "/v1/adapters/odd/versions/1"
    async with asyncio.timeout(30):
        while True:
            found: dict[str, Any] = (await api.call(tenant.key, "GET", path)).json()
            if found["state"] not in ("quarantined", "validating"):
                return found
            await asyncio.sleep(0.02)


ODD_ERROR = "{% set x = '\\0\\x1b[2J\\u202e\\ud800' %}{{ raise_exception(x * 1000000) }}"


@pytest.mark.parametrize("template", [ODD_ERROR, "{{ messages['" + "\\0" * 10_000 + "'] + 1 }}"])
async def test_a_templates_words_are_short_wherever_they_go(api: Api, template: str) -> None:
    tenant = await api.new_tenant()
    found = await push(api, tenant, template)
    assert found["state"] == "rejected"
    [problem] = found["validation"]["problems"]
    assert (problem["code"], len(problem["message"]) < 600) == ("invalid_chat_template", True)
    assert problem["message"].isprintable()
    for path in ("/v1/events", "/v1/adapters", "/v1/adapters/odd/versions", "/v1/audit_logs"):
        assert len((await api.call(tenant.key, "GET", path)).content) < 16_384, path


async def test_a_requests_own_template_is_bounded(api: Api) -> None:
    tenant = await api.new_tenant()
    body = {"model": "fake-base", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
    for template, words in (
        (ODD_ERROR, "could not be rendered"),
        ("{% for a in range(9999) %}{{ 'x' * 999 }}{% endfor %}", "writes more than"),
    ):
        for path in ("/v1/chat/completions", "/v1/tokenize"):
            asked = {**body, "chat_template": template}
            if path == "/v1/tokenize":
                del asked["max_tokens"]
            answer = await api.call(tenant.key, "POST", path, json=asked)
            assert answer.status_code == 400, answer.text
            assert words in answer.json()["error"]["message"]
            assert len(answer.content) < 1000


async def test_half_a_character_from_a_template(api: Api) -> None:
    tenant = await api.new_tenant()
    body = {
        "model": "fake-base",
        "messages": [{"role": "user", "content": "Hi"}],
        "chat_template": "{{ '\\ud800' }}{{ messages[0].content }}",
        "max_tokens": 1,
    }
    answer = await api.call(tenant.key, "POST", "/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("with_template", [False, True])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/tokenize", "/v1/responses"])
async def test_numbers_that_no_template_takes(api: Api, path: str, with_template: bool) -> None:
    tenant = await api.new_tenant()
    said = [{"role": "user", "content": "Hi"}]
    body: dict[str, Any] = {"model": "fake-base", "chat_template_kwargs": {"a": 10**3999}}
    body |= {"input": "Hi"} if path == "/v1/responses" else {"messages": said}
    if with_template and path != "/v1/responses":
        body["chat_template"] = "{{ messages[0].content }}"
    answer = await api.call(tenant.key, "POST", path, json=body)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert (error["param"], error["code"]) == ("chat_template_kwargs.a", "invalid_value")


async def test_arguments_of_a_call_that_no_template_takes(api: Api) -> None:
    """They are a text, which stays one."""
    tenant = await api.new_tenant()
    call = {"name": "f", "arguments": json.dumps({"a": 10**30})}
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": call}]},
        {"role": "tool", "tool_call_id": "1", "content": "x"},
    ]
    body = {"model": "fake-base", "messages": messages, "max_tokens": 1}
    body["chat_template"] = "{% for m in messages %}{{ m }}{% endfor %}"
    answer = await api.call(tenant.key, "POST", "/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text


async def test_a_preflight_examines_patterns_apart(api: Api) -> None:
    tenant = await api.new_tenant()
    form = adapter_form(api.engine.model, "a")
    weights = form["weights"][1]
    header = weights[: 8 + int.from_bytes(weights[:8], "little")]
    patterns = {f".*.*.*.*{place}": 2 for place in range(2)}
    config = json.dumps(adapter_config(rank_pattern=patterns)).encode()
    parts = {
        "name": (None, b"a"),
        "adapter_config": ("adapter_config.json", config),
        "header": ("header", header),
        "weights_bytes": (None, str(len(weights)).encode()),
    }
    answer = await api.call(tenant.key, "POST", "/v1/adapters/preflight", files=parts)
    assert answer.status_code == 200, answer.text
    assert api.state.preflights.last is not None, "it ran in a process apart"
