"""Answers that follow schemas, through the whole platform, to the official client; beside another
tenant's, which they do not change."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Literal

import jsonschema_rs
import openai
import pytest
from pydantic import BaseModel, Field

from running_platform import Running, RunningTenant

HELLO: list[Any] = [{"role": "user", "content": "Describe a person in JSON."}]


class Person(BaseModel):
    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=120)
    mood: Literal["good", "bad"]


def client(running: Running, tenant: RunningTenant) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=running.api, api_key=tenant.key, max_retries=0)


async def test_answers_parse_beside_others(running: Running) -> None:
    async with client(running, running.acme) as acme, client(running, running.globex) as globex:

        async def plain() -> str:
            answer = await globex.chat.completions.create(
                model="support", messages=HELLO, temperature=0, max_tokens=24
            )
            return str(answer.choices[0].message.content)

        async def person(model: str, seed: int) -> None:
            answer = await acme.chat.completions.parse(
                model=model, messages=HELLO, response_format=Person, seed=seed, max_tokens=200
            )
            assert answer.choices[0].finish_reason == "stop"
            assert answer.choices[0].message.parsed is not None

        alone = await plain()
        models = [running.base_model, "support", "support"]
        people = [person(model, seed) for seed, model in enumerate(models)]
        beside = await asyncio.gather(plain(), *people)
        assert beside[0] == alone
        async with acme.chat.completions.stream(
            model="support", messages=HELLO, response_format=Person, max_tokens=200
        ) as stream:
            assert (await stream.get_final_completion()).choices[0].message.parsed is not None


async def test_formats_of_vllm_and_what_is_refused(running: Running) -> None:
    schema = {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 1, "maxItems": 3}
    async with client(running, running.acme) as acme:

        async def complete(**extra: Any) -> str:
            answer = await acme.completions.create(
                model=running.base_model, prompt="x", max_tokens=40, extra_body=extra
            )
            assert answer.choices[0].finish_reason == "stop"
            return answer.choices[0].text

        assert await complete(guided_choice=["yes", "no"]) in ("yes", "no")
        assert (await complete(structured_outputs={"regex": "[0-9]{4}"})).isdigit()
        assert await complete(guided_grammar='root ::= "ab" | "cd"') in ("ab", "cd")
        jsonschema_rs.validate(schema, json.loads(await complete(guided_json=schema)))
        for extra, named in (
            ({"guided_json": {"not": {}}}, "not"),
            ({"guided_regex": "(a"}, "regular expression"),
            ({"guided_json": {"type": "integer", "multipleOf": 10000019}}, "longer than"),
        ):
            with pytest.raises(openai.BadRequestError, match=named) as refused:
                await complete(**extra)
            assert refused.value.param == next(iter(extra))
