"""An adapter's own chat template: its chats go through it, everybody else's through the base
model's; and what a hostile one does, it does to itself alone."""

from __future__ import annotations

import asyncio
import contextlib
import json
import marshal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from adapter_files import adapter_config, adapter_form, adapter_tensors, safetensors
from api_harness import Api, TestTenant
from platform_fixtures import MakeApi
from tenora_engine.errors import InvalidRequestError
from tenora_platform.apart.client import Apart
from tenora_platform.evaluations.worker import EvaluationWorker
from tenora_platform.intake.report import Problem
from tenora_platform.probing.prompts import BUILT_IN
from tenora_platform.probing.worker import Prober
from tenora_platform.templates.check import TEMPLATE_BYTES_MAX, template_problem
from tenora_platform.templates.process import Answer, Question
from tenora_platform.templates.renderer import COMPILED_KEPT, AdapterTemplate, Renderer

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}[{{ m['role'] | upper }}] {{ m['content'] | trim }}\n"
    "{% endfor %}{% if add_generation_prompt %}[ASSISTANT]{% endif %}"
)
MESSAGES = [
    {"role": "user", "content": " What is it? "},
    {"role": "assistant", "content": "A test."},
    {"role": "user", "content": "Thanks."},
]
SHORT = "{% for m in messages %}{{ m.content }}{% endfor %}"
"""Of a good template, for hostile ones to end with."""


@pytest.fixture(scope="module")
def renderer() -> Iterator[Renderer]:
    apart = Apart()
    yield Renderer(apart)
    apart.close()


@pytest.fixture
async def alone(make_api: MakeApi) -> AsyncIterator[Api]:
    async with make_api() as api:
        yield api


async def push(
    api: Api, tenant: TestTenant, name: str, template: str | bytes | None, seed: int = 0
) -> httpx.Response:
    form = adapter_form(api.engine.model, name, seed=seed)
    if template is not None:
        raw = template if isinstance(template, bytes) else template.encode()
        form["chat_template"] = ("chat_template.jinja", raw)
    return await api.call(tenant.key, "POST", "/v1/adapters", files=form)


async def checked(api: Api, tenant: TestTenant, made: httpx.Response) -> dict[str, Any]:
    assert made.status_code == 202, made.text
    path = f"/v1/adapters/{made.json()['name']}/versions/{made.json()['version']}"
    for _ in range(1000):
        found: dict[str, Any] = (await api.call(tenant.key, "GET", path)).json()
        if found["state"] not in ("quarantined", "validating"):
            return found
        await asyncio.sleep(0.02)
    raise AssertionError("not checked")


async def prompt_of(api: Api, tenant: TestTenant, model: str, **more: Any) -> str:
    """The text that the engine was given."""
    body = {"model": model, "messages": MESSAGES, "max_tokens": 1, **more}
    answer = await api.call(tenant.key, "POST", "/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    return api.engine.text.decode(api.engine.requests[-1].prompt_token_ids, skip_special=False)


def by_transformers(template: str, messages: Any = None, **more: Any) -> str:
    """What transformers would make of it, with the fake model's special tokens."""
    tokens = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    made, _ = render_jinja_template(
        [messages or MESSAGES],
        chat_template=template,
        **{"add_generation_prompt": True, **tokens, **more},
    )
    return str(made[0])


async def test_a_versions_chats_go_through_its_own_template(alone: Api) -> None:
    api = alone
    acme, other = await api.new_tenant("acme"), await api.new_tenant("other")
    own = await checked(api, acme, await push(api, acme, "tone", TEMPLATE))
    assert (own["state"], own["has_chat_template"]) == ("active", True)
    plain = await checked(api, acme, await push(api, acme, "tone", None))
    assert (plain["state"], plain["has_chat_template"]) == ("active", False)
    assert plain["digest"] == own["digest"], "the same content, stored once"
    await checked(api, other, await push(api, other, "tone", None))

    base = by_transformers(api.engine.text.chat_template_source or "")
    expected = by_transformers(TEMPLATE)
    assert expected != base
    assert await prompt_of(api, acme, "tone@1") == expected
    assert await prompt_of(api, acme, "tone@2") == base
    assert await prompt_of(api, acme, "fake-base") == base
    assert await prompt_of(api, other, "tone") == base, "another tenant's version of one content"


async def test_evaluations_and_probes_ask_as_chats_do(alone: Api) -> None:
    """The version through its own template, the base model through its own."""
    api = alone
    tenant = await api.new_tenant("acme", plan="premium")
    await checked(api, tenant, await push(api, tenant, "tone", TEMPLATE))
    api.engine.requests.clear()
    body = {
        "adapter": "tone",
        "versions": ["base", 1],
        "scoring": "exact",
        "items": [{"messages": MESSAGES, "expected": "x"}],
    }
    made = await api.call(tenant.key, "POST", "/v1/evaluations", json=body)
    path = f"/v1/evaluations/{made.json()['id']}"
    while (await api.call(tenant.key, "GET", path)).json()["ended_at"] is None:
        await EvaluationWorker(api.state).run_once()
    asked = {
        request.adapter is None: api.engine.text.decode(
            request.prompt_token_ids, skip_special=False
        )
        for request in api.engine.requests
    }
    base = by_transformers(api.engine.text.chat_template_source or "")
    assert asked == {True: base, False: by_transformers(TEMPLATE)}
    api.engine.requests.clear()
    while await Prober(api.state).run_once():
        pass
    said = [{"role": "user", "content": BUILT_IN[0]}]
    probed = {
        api.engine.text.decode(request.prompt_token_ids, skip_special=False)
        for request in api.engine.requests
    }
    assert by_transformers(TEMPLATE, said) in probed


@pytest.mark.parametrize(
    ("served", "shadowed"), [(None, TEMPLATE), (TEMPLATE, None), (TEMPLATE, SHORT)]
)
async def test_a_shadow_asks_through_its_own(
    alone: Api, served: str | None, shadowed: str | None
) -> None:
    api, tenant = alone, await alone.new_tenant(plan="premium")
    for seed, template in enumerate((served, shadowed)):
        await checked(api, tenant, await push(api, tenant, "tone", template, seed))
    body = {
        "targets": [{"version": 1, "weight": 100}],
        "shadow": {"version": 2, "percent": 100},
    }
    path = "/v1/adapters/tone/aliases/prod"
    assert (await api.call(tenant.key, "PUT", path, json=body)).status_code == 200
    api.engine.requests.clear()
    base = api.engine.text.chat_template_source or ""
    assert await prompt_of(api, tenant, "tone") == by_transformers(served or base)
    async with asyncio.timeout(10):
        while not (await api.call(tenant.key, "GET", f"{path}/shadow")).json()["data"]:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    _, copy = api.engine.requests
    made = api.engine.text.decode(copy.prompt_token_ids, skip_special=False)
    assert made == by_transformers(shadowed or base)


async def test_open_answers_and_arguments(alone: Api) -> None:
    tenant = await alone.new_tenant()
    template = TEMPLATE + "{% if mood is defined %}({{ mood }}){% endif %}"
    await checked(alone, tenant, await push(alone, tenant, "tone", template))
    opened = await prompt_of(alone, tenant, "tone", continue_final_message=True)
    assert opened.endswith("[USER] Thanks.")
    mooded = await prompt_of(alone, tenant, "tone", chat_template_kwargs={"mood": "glad"})
    assert mooded == by_transformers(template, mood="glad")


async def test_control_tokens_in_messages_stay_text(alone: Api) -> None:
    """Whatever the template does with them."""
    tenant = await alone.new_tenant()
    await checked(alone, tenant, await push(alone, tenant, "tone", TEMPLATE))
    body = {
        "model": "tone",
        "max_tokens": 1,
        "messages": [{"role": "user", "content": "<|im_end|>"}],
    }
    await alone.call(tenant.key, "POST", "/v1/chat/completions", json=body)
    ids = alone.engine.requests[-1].prompt_token_ids
    assert ids.count(0) == 1  # bos, of the template's own
    assert ids.count(1) == 0


async def test_the_base_models_own_template_takes_no_detour(alone: Api) -> None:
    tenant = await alone.new_tenant()
    source = alone.engine.text.chat_template_source
    made = await checked(alone, tenant, await push(alone, tenant, "same", source))
    assert (made["state"], made["has_chat_template"]) == ("active", False)


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{% for m in messages %}", "Unexpected end of template"),
        ("Hello", "leaves out the user's message"),
        ("{{ raise_exception('only in Latin') }}", "only in Latin"),
        ("{{ messages[0].nothing.at_all }}", "has no attribute"),
        ("{% include 'other' %}" + SHORT, "no loader"),
        ("{{ ().__class__.__bases__ }}" + SHORT, "unsafe"),
    ],
)
async def test_a_template_that_does_not_render_is_refused(
    alone: Api, template: str, words: str
) -> None:
    tenant = await alone.new_tenant()
    made = await checked(alone, tenant, await push(alone, tenant, "bad", template))
    assert made["state"] == "rejected"
    [problem] = made["validation"]["problems"]
    assert (problem["field"], problem["code"]) == ("chat_template", "invalid_chat_template")
    assert words in problem["message"]


@pytest.mark.parametrize(
    "template",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}" + SHORT,
        "{% set ns = namespace(x='aaaaaaaa') %}{% for a in range(60) %}"
        "{% set ns.x = ns.x ~ ns.x %}{% endfor %}" + SHORT,
        "{{ 'a' | center(10 ** 10) }}" + SHORT,
        "{{ 9 ** (9 ** 9) }}" + SHORT,
        "{% macro f(n) %}{{ f(n - 1) }}{{ f(n - 1) }}{% endmacro %}{{ f(500) }}" + SHORT,
        "{% set ns = namespace(x=[1]) %}{% for a in range(60) %}"
        "{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}" + SHORT,
        "{% for a in range(99999) %}{{ 'x' * 9999 }}{% endfor %}" + SHORT,
    ],
    ids=["loops", "doubling", "padding", "powers", "recursion", "nesting", "output"],
)
def test_a_bomb_harms_itself_alone(renderer: Renderer, template: str) -> None:
    """It ends within its second, and the next template renders."""
    begun = time.monotonic()
    problem = template_problem(AdapterTemplate(renderer, template, {}))
    assert isinstance(problem, Problem)
    assert time.monotonic() - begun < 8
    assert template_problem(AdapterTemplate(renderer, SHORT, {})) is None


def test_nothing_of_one_rendering_is_left_for_the_next(renderer: Renderer) -> None:
    """Jinja's globals are shared by the templates of one environment; processes share nothing."""
    keep = "{% set joiner_ = joiner('x') %}{{ joiner_() }}" + SHORT
    own = AdapterTemplate(renderer, keep, {})
    words = [own.render([{"role": "user", "content": "a"}]) for _ in range(3)]
    assert words == ["a"] * 3


def test_the_process_is_started_again(renderer: Renderer) -> None:
    template = AdapterTemplate(renderer, SHORT, {})
    assert template.render([{"role": "user", "content": "a"}]) == "a"
    process = renderer._apart._process
    assert process is not None
    process.kill()
    process.wait()
    with contextlib.suppress(InvalidRequestError):  # what was on its way
        template.render([{"role": "user", "content": "a"}])
    assert template.render([{"role": "user", "content": "b"}]) == "b"


@pytest.mark.parametrize(
    ("template", "status"),
    [(b"x" * (TEMPLATE_BYTES_MAX + 1), 400), (b"\xff\xfe", 400), (b"a\0b", 400), (b"", 202)],
    ids=["large", "no UTF-8", "NUL", "empty"],
)
async def test_what_is_no_text_is_refused_at_once(alone: Api, template: bytes, status: int) -> None:
    tenant = await alone.new_tenant()
    made = await push(alone, tenant, "x", template)
    assert made.status_code == status
    if status == 202:
        assert (await checked(alone, tenant, made))["has_chat_template"] is False
    else:
        assert made.json()["error"]["param"] == "chat_template"


async def test_an_import_brings_its_template(make_api: MakeApi, tmp_path: Path) -> None:
    async with make_api(import_prefixes=f"file://{tmp_path}/") as api:
        tenant = await api.new_tenant()
        folder = tmp_path / "run"
        folder.mkdir()
        (folder / "adapter_config.json").write_text(json.dumps(adapter_config()))
        weights = safetensors(adapter_tensors(api.engine.model))
        (folder / "adapter_model.safetensors").write_bytes(weights)
        (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
        body = {"name": "a", "source": f"file://{folder}"}
        made = await api.call(tenant.key, "POST", "/v1/adapters/import", json=body)
        assert (await checked(api, tenant, made))["has_chat_template"] is True
        assert await prompt_of(api, tenant, "a") == by_transformers(TEMPLATE)


def test_a_template_is_compiled_once_for_its_version_alone() -> None:
    apart = Apart()
    made = Renderer(apart)
    asked: list[bool] = []
    real = made._answer

    def noting(question: Question) -> Answer:
        asked.append(question.compiled is not None)
        return real(question)

    made._answer = noting  # type: ignore[method-assign]
    with contextlib.closing(apart):
        own = AdapterTemplate(made, TEMPLATE, {"bos_token": "<|im_start|>"}, "adv_1", "t1")
        for _ in range(3):
            assert own.render(MESSAGES, add_generation_prompt=True) == by_transformers(TEMPLATE)
        assert own.render_open(MESSAGES, add_generation_prompt=False).endswith("Thanks.")
        assert asked == [False, True, True, True]
        # The code could be anything, so that nobody else is given it, not even for the same text.
        other = AdapterTemplate(made, TEMPLATE, {}, "adv_2")
        other.render(MESSAGES)
        assert asked[4:] == [False]
        for number in range(COMPILED_KEPT):
            made._keep(f"adv_x{number}", "t2", b"")
        own.render(MESSAGES)
        assert asked[5:] == [True], "it is forgotten for no other tenant's"
        for number in range(COMPILED_KEPT):
            made._keep(f"adv_y{number}", "t1", b"")
        own.render(MESSAGES)
        assert asked[6:] == [False], "what was used longest ago is forgotten"


@pytest.mark.parametrize("code", [b"", b"\xff" * 100, marshal.dumps(7), marshal.dumps("x")])
def test_code_that_is_none_harms_its_owner_alone(renderer: Renderer, code: bytes) -> None:
    renderer._keep("adv_bad", "t1", code)
    with pytest.raises(InvalidRequestError, match="could not be rendered"):
        AdapterTemplate(renderer, SHORT, {}, "adv_bad").render(MESSAGES)
    assert AdapterTemplate(renderer, SHORT, {}, "adv_good").render(MESSAGES)
