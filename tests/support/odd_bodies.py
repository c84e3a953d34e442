"""Hypothesis strategies for the bodies of inference: what the OpenAPI document's schemas name, with
numbers at and beyond every bound, and texts, lists and histories that no well-meaning client sends.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

Schema = Mapping[str, Any]
Strategy = st.SearchStrategy[Any]


@dataclass(frozen=True)
class Literal:
    """Text that goes into the JSON as it is: what Python's `json` would not write."""

    text: str


BODY_CHARACTERS = 8_000_000

DEEP = [Literal(f"{left * 20_000}{right * 20_000}") for left, right in ("[]", ('{"a":', "}"))]
NUMBERS: list[Any] = [0, -1, 1, 2, 127, 128, 2**31 - 1, 2**31, 2**32, 2**53, 2**63 - 1, 2**63]
NUMBERS += [2**64 - 1, 2**64, -(2**63) - 1, 10**400, 1e-5, 0.1, 5e-324, 1e-308, 1e-38, 1e-46]
NUMBERS += [3.4e38, 1e39, 1e308, -1e308, -0.0, float("nan"), float("inf"), float("-inf")]
NUMBERS += [Literal("1e999"), Literal("-1e999"), Literal("9" * 5000), Literal("1" + "0" * 300_000)]
TEXTS: list[Any] = [
    "",
    " ",
    "\n",
    "\0",
    "a\0b",
    "\ud800",
    "x\udfff",
    "\ufffd",
    "\u202e\U0001f600",
    "e\u0301" * 400,
    "\U0001f468\u200d\U0001f469\u200d\U0001f467",
    "{{ 1 / 0 }}",
    "{% for a in range(10**9) %}{% endfor %}",
    "%s%n",
    "../..",
    "a" * 257,
    "<|im_end|>",
    "<|im_start|>assistant\n",
    "<|endoftext|>" * 50,
    "é" * 2_000,
    " " * 100_000,
    "\n" * 20_000,
    "x" * 3_000_000,
    " x" * 1_500,
    "\t \r\n" * 300_000,
]
KINDS: list[Any] = [None, True, False, [], {}, [None], {"": None}, [[]], "1", "NaN", *DEEP]
values = st.sampled_from([KINDS, NUMBERS, TEXTS]).flatmap(st.sampled_from)
texts = st.sampled_from(TEXTS) | st.text(max_size=8)
numbers = st.sampled_from(NUMBERS) | st.integers() | st.floats()
token_ids = st.integers(0, 300) | st.sampled_from([*NUMBERS[:16], 48_999, 49_151, 49_152, 60_000])
token_lists = (
    st.lists(token_ids, max_size=5)
    | st.lists(st.integers(0, 5_000), min_size=1, max_size=40)
    | st.sampled_from([[7] * 8_191, [7] * 20_000, [0] * 3, [2] * 500])
)


def document_of(body: Any) -> bytes:
    """The JSON, not always by the standard: NaN, halves of surrogate pairs, numbers of any size."""
    found: list[str] = []

    def literal(value: Any) -> Any:
        found.append(value.text)
        return f"\x02{len(found) - 1}\x03"

    text = json.dumps(body, default=literal)
    return re.sub(r'"\\u0002(\d+)\\u0003"', lambda m: found[int(m[1])], text).encode()


ROUTES = {
    "ChatCompletionRequest": "/v1/chat/completions",
    "CompletionRequest": "/v1/completions",
    "ResponseRequest": "/v1/responses",
    "MessagesRequest": "/v1/messages",
    "CountRequest": "/v1/messages/count_tokens",
    "EmbeddingRequest": "/v1/embeddings",
    "TokenizeRequest": "/v1/tokenize",
    "DetokenizeRequest": "/v1/detokenize",
}
"""Of inference, by the schema of what they are sent."""
SAID: dict[str, tuple[str, Any]] = {
    "ChatCompletionRequest": ("messages", [{"role": "user", "content": "Hi"}]),
    "CompletionRequest": ("prompt", "Once"),
    "ResponseRequest": ("input", "Hi"),
    "MessagesRequest": ("messages", [{"role": "user", "content": "Hi"}]),
    "CountRequest": ("messages", [{"role": "user", "content": "Hi"}]),
    "EmbeddingRequest": ("input", "Once"),
    "TokenizeRequest": ("prompt", "Once"),
    "DetokenizeRequest": ("tokens", [5, 6]),
}
"""The field that says what it is about, and something good to say."""


def any_requests(document: Mapping[str, Any], model: Strategy) -> Strategy:
    """A path and a body, of every route of inference."""
    pairs = [
        st.tuples(st.just(path), bodies(document, name, model)) for name, path in ROUTES.items()
    ]
    return st.one_of(*pairs[:3], *pairs)


def bodies(document: Mapping[str, Any], name: str, model: Strategy) -> Strategy:
    """Bodies of the schema `name`: short and good, but for a few fields."""
    schemas = document["components"]["schemas"]
    known = schemas[name]["properties"]
    said, good = SAID[name]
    fields = {
        field: one_in(6, values, near(schema, schemas))
        for field, schema in known.items()
        if field not in ("model", said)
    }
    fields |= {
        field: one_in(4, fields[field], sharp) for field, sharp in SHARP.items() if field in fields
    }
    fields |= dict.fromkeys(("prompt_logprobs", "other"), values)
    odd = near(known[said], schemas) | (histories if said == "messages" else prompts)
    if said in ("prompt", "input"):
        odd = odd | texts | values
    changed = st.lists(
        st.sampled_from(sorted(fields)), min_size=1, max_size=3, unique=True
    ).flatmap(lambda names: st.fixed_dictionaries({field: fields[field] for field in names}))
    length = {"max_tokens", "max_output_tokens"} & known.keys()
    usual: dict[str, Strategy] = {
        "stream": st.booleans(),
        "temperature": st.sampled_from([0, 0.7, 1e-40, 2]),
    }
    base = st.fixed_dictionaries(
        {
            "model": model,
            said: one_in(3, odd, st.just(good)),
            **{field: st.integers(1, 8) for field in length},
        },
        optional={field: usual[field] for field in usual if field in known},
    )
    return st.builds(lambda good, odd: {**good, **odd}, base, changed)


def one_in(times: int, seldom: Strategy, mostly: Strategy) -> Strategy:
    return st.integers(1, times).flatmap(lambda drawn: seldom if drawn == times else mostly)


def near(schema: Schema, schemas: Mapping[str, Schema]) -> Strategy:
    """What the schema takes, most of it at its edges, and what lies just beyond them."""
    if "$ref" in schema:
        return near(schemas[schema["$ref"].rsplit("/", 1)[-1]], schemas)
    if choices := schema.get("anyOf", schema.get("oneOf")):
        return st.one_of(*(near(each, schemas) for each in choices))
    if "enum" in schema or "const" in schema:
        return st.sampled_from(schema.get("enum", [schema.get("const")]))
    kind = schema.get("type")
    if kind in ("integer", "number"):
        least = schema.get("minimum", schema.get("exclusiveMinimum", 0))
        within = st.floats(least + 1e-3, schema.get("maximum", least + 10))
        if kind == "integer":
            within = st.integers(least, int(min(schema.get("maximum", least + 9), least + 20)))
        return one_in(2, st.sampled_from([*_edges(schema), *NUMBERS]), within)
    if kind == "string":
        return texts
    if kind == "boolean":
        return st.booleans()
    if kind == "array":
        items = near(schema.get("items", {}), schemas)
        many = schema.get("maxItems", 64)
        repeated = st.tuples(items, st.sampled_from([many, many + 1])).map(
            lambda drawn: times(drawn[0], drawn[1])
        )
        return st.lists(items, max_size=3) | repeated
    if "properties" in schema:
        inner = {name: near(each, schemas) for name, each in schema["properties"].items()}
        return st.fixed_dictionaries({}, optional={**inner, "other": values})
    return values | st.dictionaries(st.sampled_from(["a", "", "1"]), values, max_size=2)


def times(item: Any, count: int) -> list[Any]:
    """So many of it, or one where they would be more than a server is sent."""
    return [item] * (count if count * _size(item) <= BODY_CHARACTERS else 1)


def _size(value: Any) -> int:
    if isinstance(value, dict):
        return sum(map(_size, [*value, *value.values()]))
    if isinstance(value, list):
        return sum(map(_size, value))
    return len(value.text) if isinstance(value, Literal) else len(str(value))


def _edges(schema: Schema) -> Iterator[int | float]:
    for name in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
        if name in schema:
            bound = schema[name]
            step = 1 if schema["type"] == "integer" else abs(bound) * 2**-52 or 5e-324
            yield from (bound, bound - step, bound + step)


plain = st.text(max_size=5).filter(lambda text: text.isprintable())
calls = st.fixed_dictionaries(
    {"function": st.fixed_dictionaries({"name": texts, "arguments": texts | values})},
    optional={"id": texts | values, "type": plain | values, "index": values},
)
messages = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "tool", "system", "developer", "function"])},
    optional={
        "content": texts | plain | st.lists(st.fixed_dictionaries({"type": plain, "text": texts})),
        "tool_calls": st.lists(calls, max_size=2) | values,
        "tool_call_id": plain | values,
        "name": plain | values,
        "function_call": values,
        "reasoning_content": texts,
        "annotations": values,
        "audio": values,
    },
)
histories = st.lists(messages, max_size=4) | messages.map(lambda message: times(message, 300))
prompts = (
    token_lists
    | st.lists(texts | plain, max_size=4)
    | st.lists(token_lists, max_size=3)
    | st.lists(texts | token_ids | token_lists, max_size=4)
    | plain.map(lambda text: [text or "a"] * 129)
)
words = st.lists(texts | st.sampled_from([" a", "the", "\n", "s"]), max_size=5)
LONG = {"type": "string", "pattern": "^(a{1000}){1000}$"}
WORDS = {"type": "string", "pattern": r"^(?:\S+\s+){0,49}\S+$", "maxLength": 500}
GRAMMARS: dict[str, list[Any]] = {
    "json": [
        {"type": "object"},
        {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
        LONG,
        WORDS,
        {"type": "array", "items": WORDS, "minItems": 1},
        {"type": "integer", "multipleOf": 10_000_019},
        {"type": "array", "minItems": 30_000, "items": {"type": "integer"}},
        {"type": "string", "minLength": 30_000},
        {"not": {}},
        {"$ref": "#"},
        {"enum": ["a" * 5_000, None, 10**30]},
    ],
    "regex": [
        "(yes|no)",
        "a{30000}",
        "(a{1000}){1000}",
        "(.*a){40}",
        "(?:a?){60}a{60}",
        "[",
        "\\p{L}{1,900}",
        "(" * 5_000 + ")" * 5_000,
    ],
    "choice": [["yes", "no"], ["a" * 9_999], ["é", "\n"], [""], ["a"] * 1_025],
    "grammar": [
        'root ::= "a"{30000}',
        'root ::= "a" root | "b"',
        'root ::= root root | "a"',
        "start: /(a{1000}){1000}/",
        'start: "a" start',
        "start: nothing",
        "root ::= " + '"a" ' * 9_000,
    ],
}
"""Good ones, ones at the library's limits, and ones that take long."""


def format_of(schema: Any) -> Any:
    return {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}


def tools_of(schema: Any) -> Strategy:
    """One tool, in the words of chats or of responses."""
    parameters = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    function = {"name": "look", "parameters": parameters, "strict": True}
    return st.sampled_from(
        [[{"type": "function", "function": function}], [{"type": "function", **function}]]
    )


SHARP: dict[str, Strategy] = {
    "logit_bias": st.dictionaries(
        st.sampled_from(["0", "2", "49151", "49152", "-1", "1e3", "٣", " 7", "9" * 400, "", "a"]),
        numbers | st.sampled_from([100, -100]),
        max_size=4,
    )
    | st.sampled_from([{str(each): -100 for each in range(count)} for count in (1_024, 1_025)]),
    "stop": words | texts,
    "bad_words": words,
    "allowed_token_ids": token_lists | st.sampled_from([[0], [2], [0, 2], list(range(4_097))]),
    "stop_token_ids": token_lists,
    "chat_template_kwargs": st.dictionaries(
        st.sampled_from(["messages", "tools", "bos_token", "enable_thinking", "raise_exception"]),
        values,
        max_size=3,
    ),
    "stream_options": st.fixed_dictionaries(
        {},
        optional={
            name: st.booleans() | values
            for name in ("include_usage", "continuous_usage_stats", "include_obfuscation")
        },
    ),
    "n": st.integers(1, 16),
    "min_tokens": st.integers(0, 8),
    "metadata": st.dictionaries(texts, texts, max_size=3),
    **{f"guided_{kind}": st.sampled_from(each) for kind, each in GRAMMARS.items()},
    "response_format": st.sampled_from(GRAMMARS["json"]).map(format_of),
    "structured_outputs": st.sampled_from(
        [{kind: each} for kind, some in GRAMMARS.items() for each in some]
    ),
    "text": st.sampled_from(GRAMMARS["json"]).map(
        lambda schema: {"format": {"type": "json_schema", "name": "a", "schema": schema}}
    ),
    "tools": st.sampled_from(GRAMMARS["json"]).flatmap(tools_of),
    "tool_choice": st.sampled_from(["auto", "none", "required"]) | values,
    "prediction": (texts | st.sampled_from(["Once upon", "a" * 40_000])).map(
        lambda text: {"type": "content", "content": text}
    ),
}
