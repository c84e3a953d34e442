"""Grammars of calls: whatever they let through is read as calls whose arguments the schemas allow,
and answers as models write them are let through."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema_rs
import numpy as np
import pytest
from llguidance import LLMatcher, LLTokenizer

from tenora_engine.grammar.checker import compile_text
from tenora_engine.text.tool_formats import FORMATS, ToolFormat
from tenora_engine.text.tool_grammar import CallableTool, calls_in_text, calls_or_json, forced_calls
from tenora_engine.text.tool_parser import ToolParser
from tool_reading import Call
from tool_reading import read as read_pieces

ADD: dict[str, Any] = {
    "type": "object",
    "properties": {
        "a": {"$ref": "#/$defs/digit"},
        "b": {"type": "array", "items": {"$ref": "#/$defs/digit"}, "maxItems": 2},
        "unit": {"enum": ["m", 'ö"}']},
    },
    "required": ["a"],
    "additionalProperties": False,
    "$defs": {"digit": {"type": "integer", "minimum": 0, "maximum": 9}},
}
TOOLS = [
    CallableTool("add", ADD, strict=True),
    CallableTool("now", {"type": "object", "properties": {}, "additionalProperties": False}),
]
SCHEMAS = {tool.name: jsonschema_rs.validator_for(tool.schema or {}) for tool in TOOLS}


def matcher(lark: str) -> LLMatcher:
    return LLMatcher(LLTokenizer("byte"), compile_text("grammar", lark))


def allows(lark: str, text: str) -> bool:
    """As a whole answer."""
    guide, written = matcher(lark), list(text.encode())
    return guide.validate_tokens(written) == len(written) and (
        guide.consume_tokens(written) and guide.is_accepting()
    )


def written(lark: str, chance: random.Random) -> str:
    """Whatever the grammar allows, a byte at a time, ended where it can be."""
    guide, made = matcher(lark), bytearray()
    while not guide.is_stopped() and len(made) < 2000:
        bits = np.frombuffer(guide.compute_bitmask(), np.uint8)
        allowed = np.flatnonzero(np.unpackbits(bits, bitorder="little")[:256])
        if not len(allowed) or (guide.is_accepting() and chance.random() < 0.5):
            break
        token = int(chance.choice(allowed))
        assert guide.consume_token(token)
        made.append(token)
    assert guide.is_accepting()
    return made.decode()


def read(form: ToolFormat, text: str) -> list[str | Call]:
    return read_pieces(ToolParser(form, SCHEMAS), [text])


@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
def test_what_is_forced_are_calls_that_validate(form: ToolFormat, parallel: bool) -> None:
    chance, counts = random.Random(21), set()
    lark = forced_calls(form, TOOLS, parallel)
    for _ in range(30):
        calls = read(form, written(lark, chance))
        counts.add(len(calls))
        for call in calls:
            assert isinstance(call, Call)
            assert SCHEMAS[call.name].is_valid(json.loads(call.arguments))
    assert (max(counts) > 1) == parallel
    assert min(counts) == 1


def call(form: ToolFormat, arguments: str = '{"a": 5, "unit": "m"}') -> str:
    return f'{{"name": "add", "{form.arguments}": {arguments}}}'


@pytest.mark.parametrize(
    ("form", "answer"),
    [
        ("hermes", "<tool_call>\n{}\n</tool_call>"),
        ("smollm", "<tool_call>[{}]</tool_call>"),
        ("llama3", "{}"),
        ("mistral", "[TOOL_CALLS] [{}]"),
    ],
)
def test_strict_tools_hold_calls_and_no_text(form: str, answer: str) -> None:
    chosen = FORMATS[form]
    good = answer.format(call(chosen))
    wrong = answer.format(call(chosen, '{"a": 55}'))
    assert allows(forced_calls(chosen, TOOLS, False), good)
    assert not allows(forced_calls(chosen, TOOLS, False), wrong)
    for parallel in (False, True):
        lark = calls_in_text(chosen, TOOLS, parallel)
        assert allows(lark, good)
        assert not allows(lark, wrong)
        for text in ("", "Hi, {there}.", "日本\n"):
            assert allows(lark, text)
        if not chosen.bare:
            assert allows(lark, f"Let me see.\n{good}")
            assert allows(lark, f"{good} So.") == parallel
            assert allows(lark, f"{good}\n{good}") == parallel
            assert not allows(lark, f"{good}\n{wrong}")


@pytest.mark.parametrize("name", ["hermes", "smollm", "mistral"])
def test_an_answer_is_json_or_a_call(name: str) -> None:
    form, digit = FORMATS[name], {"type": "integer", "minimum": 0, "maximum": 9}
    schema = {"type": "object", "properties": {"k": digit}, "required": ["k"]}
    lark = calls_or_json(form, TOOLS, False, {**schema, "additionalProperties": False})
    assert allows(lark, '{"k":1}')
    assert not allows(lark, '{"j":1}')
    assert not allows(lark, "Hi")
    chance = random.Random(5)
    said = [written(lark, chance) for _ in range(30)]
    calls = [each for text in said for each in read(form, text)]
    assert {type(each) for each in calls} == {str, Call}


def test_what_is_not_strict_may_have_any_schema() -> None:
    odd = {"type": "object", "not": {"required": ["x"]}}
    assert matcher(forced_calls(FORMATS["hermes"], [CallableTool("f", odd)], False))
    with pytest.raises(ValueError, match="not"):
        matcher(forced_calls(FORMATS["hermes"], [CallableTool("f", odd, strict=True)], False))
