"""The worst inputs known for each kind of work on what a tenant sends, as HTTP requests. Knows
neither when nor how often they are sent."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count, cycle
from typing import Any

from tenora_bench.grammars.hostile import hostile_schemas

BODY_BYTES = 8 * 1024**2 - 4096
"""Almost as much as bodies of inference and of evaluations may have."""
BOMB = r"(\w{1,200}){1,20}"
"""One of these takes a compiler of patterns 30 ms."""


@dataclass(frozen=True)
class Shot:
    """One request. `key`: None for the tenant's own."""

    method: str
    path: str
    body: bytes | None = None
    key: str | None = None
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Target:
    """The knowledge of a hostile tenant: its models' ids, an adapter of its own, and every route of
    the API's description."""

    base: str
    adapter: str
    reads: tuple[str, ...]
    writes: tuple[tuple[str, str], ...]  # method and path


def target_of(document: dict[str, Any], base: str, adapter: str) -> Target:
    """The tenant's routes of an OpenAPI document; streams that wait for news aside."""
    filled = [
        (method.upper(), _filled(path, adapter))
        for path, methods in document["paths"].items()
        if path.startswith("/v1/")
        for method in methods
    ]
    return Target(
        base,
        adapter,
        tuple(path for method, path in filled if method == "GET" and "stream" not in path),
        tuple(each for each in filled if each[0] in ("POST", "PUT", "PATCH")),
    )


def _filled(path: str, adapter: str) -> str:
    """With names of what there is, as far as it is known."""
    parts = path.split("/")
    known = {"{name}": adapter, "{version}": "1", "{alias}": "stable", "{model}": adapter}
    return "/".join(known.get(part, "x" if "{" in part else part) for part in parts)


def _json(method: str, path: str, value: Any) -> Shot:
    return Shot(method, path, json.dumps(value, ensure_ascii=False).encode())


# Evaluations


def evaluations(target: Target) -> Iterator[Shot]:
    """Bodies of 8 MB, of many values, of many messages, of many schemas, and of lines."""
    head = {"adapter": target.adapter, "versions": ["base"], "scoring": "exact", "max_tokens": 1}
    message = {"role": "user", "content": "x" * 900}
    long = {"messages": [message] * 8, "expected": "a"}
    value = {"schema": {"enum": list(range(250))}, "prompt": "p", "expected": "a"}
    patterns = {"properties": {str(place): {"pattern": f"{place}{BOMB}"} for place in range(300)}}
    pattern = {"prompt": "p", "schema": {"title": "t", **patterns}}
    lines = "\n".join(json.dumps({"prompt": "x" * 7000, "expected": "a"}) for _ in range(1000))
    deep = "[" * 190 + "]" * 190
    bodies = [
        {**head, "items": [long] * 1000},
        {**head, "items": [value] * 1000},
        {**head, "scoring": "json_schema", "items": [pattern] * 400},
        {**head, "items": lines},
        {**head, "items": "\n".join([deep] * 1000)},
        {**head, "items": [{"prompt": "x" * 7900, "expected": "a"}] * 1000},
    ]
    made = [json.dumps(body).encode() for body in bodies]
    for number, body in zip(count(), cycle(made)):
        # Every other one twice, as a client does that has had no answer.
        headers = {"idempotency-key": secrets.token_hex(8)} if number % 2 else {}
        yield Shot("POST", "/v1/evaluations", body, headers=headers)


# Inference


def templates(target: Target) -> Iterator[Shot]:
    """Templates that write much, take long, or raise long errors."""
    message = [{"role": "user", "content": "x" * 1000}]
    texts = [
        "{% for i in range(99999) %}{{ messages[0].content }}{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{{ raise_exception(messages[0].content * 9999) }}",
        "{{ ('x' * 4000000) }}",
        "{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}",
    ]
    for number, text in zip(count(), cycle(texts)):
        path = ("/v1/chat/completions", "/v1/tokenize")[number % 2]
        more = {"max_tokens": 1} if number % 2 == 0 else {}
        body = {"model": target.base, "messages": message, "chat_template": text, **more}
        yield _json("POST", path, body)


def long_texts(target: Target) -> Iterator[Shot]:
    """Texts of up to 7.6 MB to all that makes tokens of them."""
    sizes = [7_600_000, 660_000, 250_000, 60_000]
    words = [("wort " * (size // 5), ("\u00e4\U0001f600" * (size // 6))) for size in sizes]
    said = [json.dumps(each, ensure_ascii=False).encode() for pair in words for each in pair]
    head = b'{"model":' + json.dumps(target.base).encode()
    ids = {"model": target.base, "tokens": list(range(100, 8000))}
    few = b"[" + b",".join([json.dumps("wort " * 600).encode()] * 64) + b"]"
    for text in cycle(said):
        chat = b',"messages":[{"role":"user","content":' + text + b"}]"
        for path, more in (
            ("/v1/tokenize", b',"prompt":' + text),
            ("/v1/tokenize", b',"return_token_strs":true' + chat),
            ("/v1/messages/count_tokens", chat),
            ("/v1/completions", b',"max_tokens":1,"prompt":' + text),
            ("/v1/completions", b',"max_tokens":1,"prompt":' + few),
            ("/v1/embeddings", b',"input":' + text),
            ("/v1/responses", b',"input":' + text),
        ):
            yield Shot("POST", path, head + more + b"}")
        yield _json("POST", "/v1/detokenize", ids)


def grammars(target: Target) -> Iterator[Shot]:
    """No two alike, each as slow as it is let be."""
    ask = [{"role": "user", "content": "x"}]
    for number, schema in zip(count(), hostile_schemas()):
        body: dict[str, Any] = {"model": target.base, "messages": ask, "max_tokens": 4}
        if number % 3:
            named = {"name": "s", "schema": schema}
            form = {"type": "json_schema", "json_schema": named}
            yield _json("POST", "/v1/chat/completions", {**body, "response_format": form})
        else:
            pattern = f"({BOMB}){{{number % 7 + 1}}}{secrets.token_hex(4)}"
            yield _json("POST", "/v1/chat/completions", {**body, "guided_regex": pattern})


def generations(target: Target) -> Iterator[Shot]:
    """Answers that are long, many, watched by patterns, and told with all their odds."""
    body = {"model": target.base, "prompt": "Tell me all.", "ignore_eos": True}
    bodies = [
        {**body, "max_tokens": 200, "n": 8, "temperature": 1.0},
        {**body, "max_tokens": 100, "stop_regex": ["(a*)*b", "(x+x+)+y", "(.*a){12}"]},
        {**body, "max_tokens": 64, "logprobs": 5, "echo": True, "prompt": "x " * 2000},
        {**body, "max_tokens": 32, "stop": [secrets.token_hex(8) for _ in range(4)]},
        {**body, "max_tokens": 1, "prompt": [[number] * 50 for number in range(100, 164)]},
        {**body, "max_tokens": 300, "stream": True},
    ]
    for each in cycle(bodies):
        yield _json("POST", "/v1/completions", each)


# Management


def reads(target: Target) -> Iterator[Shot]:
    """Every route that reads, with as much as it gives."""
    large = [
        "/v1/usage?start=2024-01-01T00:00:00Z&bucket=1h&group_by=model,api_key,adapter&limit=744",
        "/v1/usage?start=2020-01-01T00:00:00Z&bucket=1d&include=costs&top=100",
        "/v1/costs?start=2020-01-01T00:00:00Z&bucket=1d&limit=744",
        "/v1/requests?limit=100&q=x&sort=-cost&start=2020-01-01T00:00:00Z",
        "/v1/audit_logs/export",
        "/v1/ledger?limit=100",
        "/v1/rejected_calls?limit=100&q=x&start=2020-01-01T00:00:00Z",
        "/v1/timeseries?metric=requests&step=60",
        "/v1/events?limit=100",
    ]
    for path in cycle([*large, *target.reads]):
        yield Shot("GET", path)


def odd_bodies(target: Target) -> Iterator[Shot]:
    """Deep, wide and long JSON to every route that takes a body."""
    wide = json.dumps({f"k{number}": number for number in range(30_000)})
    bodies = [
        b'{"a":' * 180 + b"1" + b"}" * 180,
        b"[" * 500_000,
        wide.encode(),
        json.dumps({"name": "x" * 1_000_000}).encode(),
        json.dumps({"items": [[]] * 8_000}).encode(),
        json.dumps({"a": [1.5] * 16_000}).encode(),
        b'{"n":' + b"9" * 900_000 + b"}",
        ('{"u":"' + "\\ud800" * 150_000 + '"}').encode(),
        b"\xff" * 900_000,
    ]
    for number in count():
        method, path = target.writes[number % len(target.writes)]
        yield Shot(method, path, bodies[number % len(bodies)])


def wrong_keys(target: Target) -> Iterator[Shot]:
    """Keys that there are not, of the form of ours and of none."""
    for number in count():
        key = f"tnr_{secrets.token_hex(6)}_{secrets.token_hex(24)}" if number % 2 else "x" * 4000
        yield Shot("GET", ("/v1/models", "/v1/usage")[number % 2], key=key)
        sign_in = json.dumps({"key": key}).encode()
        yield Shot("POST", "/auth/session", sign_in, key="")


def changes(target: Target) -> Iterator[Shot]:
    """Rows that other work follows from: keys (of which webhooks tell), aliases, prompts, uploads
    that are begun."""
    for number in count():
        yield _json("POST", "/v1/api_keys", {"name": f"k{number}"})
        yield _json("POST", "/v1/uploads", {"bytes": 10_000_000})
        prompts = {"prompts": ["x" * 1000] * 8}
        yield _json("PUT", f"/v1/adapters/{target.adapter}/probe_prompts", prompts)
        yield _json("PUT", f"/v1/adapters/{target.adapter}/aliases/a{number % 30}", {"version": 1})


Shots = Callable[[Target], Iterator[Shot]]

SHOTS: dict[str, Shots] = {
    each.__name__.replace("_", "-"): each
    for each in (
        evaluations,
        templates,
        long_texts,
        grammars,
        generations,
        reads,
        odd_bodies,
        wrong_keys,
        changes,
    )
}
