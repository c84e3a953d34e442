"""Forced calls of a set of questions with functions, as the Berkeley function-calling leaderboard
has them, over HTTP: whether each parses, names a function and fits its parameters; behind
`tenora bench tools`. Whether it is the right call is the model's affair, and not looked at."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import jsonschema_rs

from tenora_bench.client import BenchError, managing
from tenora_bench.machine import machine
from tenora_bench.server import ServerUnderTest

AT_ONCE = 8
PLAN = "bench-tools"
_TYPES = {"dict": "object", "float": "number", "tuple": "array"}
_JSON_TYPES = {"string", "integer", "number", "boolean", "array", "object", "null"}


@dataclass(frozen=True)
class Question:
    id: str
    messages: list[dict[str, str]]
    tools: list[dict[str, Any]]


def questions(folder: Path, count: int, seed: int) -> list[Question]:
    """So many of the folder's lines, drawn: an object with `id`, `question` (turns of messages, of
    which the first are taken) and `function`. Raises BenchError where there are none."""
    lines = [
        json.loads(line)
        for file in sorted(folder.glob("*.json"))
        for line in file.read_text().splitlines()
        if line.strip()
    ]
    asked = [each for each in lines if each.get("function")]
    if not asked:
        raise BenchError(f"{folder} has no questions with functions")
    drawn = random.Random(seed).sample(asked, min(count, len(asked)))
    return [
        Question(
            each["id"], each["question"][0], [_tool(function) for function in each["function"]]
        )
        for each in drawn
    ]


def _tool(function: dict[str, Any]) -> dict[str, Any]:
    made = {
        "name": re.sub(r"[^a-zA-Z0-9_-]", "_", function["name"])[:64],
        "description": function.get("description", ""),
        "parameters": json_schema(function["parameters"]),
    }
    return {"type": "function", "function": made}


def json_schema(found: Any) -> Any:
    """The questions' schemas have types of several languages; what JSON does not know is any."""
    if isinstance(found, list):
        return [json_schema(each) for each in found]
    if not isinstance(found, dict):
        return found
    made = {key: json_schema(each) for key, each in found.items() if key != "type"}
    kind = found.get("type")
    if isinstance(kind, str):
        kind = _TYPES.get(kind.lower(), kind.lower())
        if kind in _JSON_TYPES:
            made["type"] = kind
    elif kind is not None:  # a parameter of that name
        made["type"] = json_schema(kind)
    for key in ("optional", "default"):
        if not isinstance(made.get(key), dict):
            made.pop(key, None)
    return made


async def ask_all(
    server: ServerUnderTest, asked: list[Question], max_tokens: int
) -> dict[str, Any]:
    async with managing(server.url, server.admin_key) as management:
        await management.open_plan(PLAN)
        key = await management.create_tenant("bench tools", PLAN)
        model = await management.base_model(key)
    outcomes: Counter[str] = Counter()
    wrong: list[dict[str, str]] = []
    turns = asyncio.Semaphore(AT_ONCE)

    async def ask(http: httpx.AsyncClient, question: Question, number: int) -> None:
        body = {
            "model": model,
            "messages": question.messages,
            "tools": question.tools,
            "tool_choice": "required",
            "temperature": 0.8,
            "seed": number,
            "max_tokens": max_tokens,
        }
        async with turns:
            answer = await http.post("/v1/chat/completions", json=body)
        outcome, said = judge(question, answer.status_code, answer.json())
        outcomes[outcome] += 1
        if outcome not in ("valid", "cut"):
            wrong.append({"question": question.id, "outcome": outcome, "answer": said[:500]})

    headers = {"authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(base_url=server.url, headers=headers, timeout=600) as http:
        await asyncio.gather(*(ask(http, each, number) for number, each in enumerate(asked)))
    return {
        "machine": machine(),
        "questions": len(asked),
        "outcomes": dict(outcomes),
        "wrong": wrong,
    }


def judge(question: Question, status: int, answer: dict[str, Any]) -> tuple[str, str]:
    """valid; cut by max_tokens; or what is wrong, and the answer."""
    said = json.dumps(answer)
    if status != 200:
        return f"refused: {answer['error']['message'][:120]}", said
    [choice] = answer["choices"]
    if choice["finish_reason"] == "length":
        return "cut", said
    calls = choice["message"].get("tool_calls") or []
    if not calls or choice["finish_reason"] != "tool_calls":
        return "no call", said
    known = {each["function"]["name"]: each["function"]["parameters"] for each in question.tools}
    for call in calls:
        if call["function"]["name"] not in known:
            return "no function of that name", said
        try:
            arguments = json.loads(call["function"]["arguments"])
        except ValueError:
            return "arguments are no JSON", said
        schema = known[call["function"]["name"]]
        if not jsonschema_rs.validator_for(schema).is_valid(arguments):
            return "arguments do not fit", said
    return "valid", said
