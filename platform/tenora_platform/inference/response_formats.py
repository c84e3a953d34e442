"""What an answer is to follow, as bodies say it: OpenAI's `response_format`, vLLM's
`structured_outputs` and its older `guided_*`, SGLang's `regex` and `ebnf`. Whether it can be
followed, the engine says."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from typing import Annotated, Any, Literal

import msgspec
from pydantic import Field

from tenora_engine.request import JSON_DEPTH, JSON_DEPTH_MAX, Grammar
from tenora_platform.errors import BadRequestError
from tenora_platform.inference.bounds import CHOICES_GIVEN_MAX, at_most
from tenora_platform.inference.given import Given

ANY_OBJECT = {"type": "object"}
NO_SPACES = {"whitespace_flexible": False, "key_separator": ":", "item_separator": ","}

JsonSchema = dict[str, Any] | bool
Texts = Annotated[list[str], at_most(CHOICES_GIVEN_MAX)]


class NamedSchema(Given):
    """`strict` or not, the answer follows the schema."""

    name: str = Field(min_length=1, max_length=64)
    description: str | None = None
    json_schema: JsonSchema | None = Field(default=None, alias="schema")
    strict: bool | None = None


class ResponseFormat(Given):
    """OpenAI's. `schema` is that of a json_object, as llama.cpp and others have it."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None
    object_schema: JsonSchema | None = Field(default=None, alias="schema")


class StructuredOutputs(Given):
    """vLLM's; one of the first five."""

    json_schema: JsonSchema | str | None = Field(default=None, alias="json")
    regex: str | None = None
    choice: Texts | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool | None = None  # of JSON, which else may have some


class FormatFields(Given):
    """Of a request for an answer; at most one of them may ask for something."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: JsonSchema | str | None = None
    guided_regex: str | None = None
    guided_choice: Texts | None = None
    guided_grammar: str | None = None
    regex: str | None = None
    ebnf: str | None = None

    # Tenora's own, of an answer that is JSON.
    json_close: bool = True
    json_max_depth: int = Field(default=JSON_DEPTH, ge=1, le=JSON_DEPTH_MAX)


def grammar_of(body: FormatFields) -> Grammar | None:
    """Raises BadRequestError where several are asked for, or one lacks what it is about."""
    found = list(_grammars(body))
    if len(found) > 1:
        raise _invalid(found[1].param, _several({grammar.param: None for grammar in found}))
    if not found:
        return None
    return msgspec.structs.replace(found[0], closes=body.json_close, max_depth=body.json_max_depth)


def _grammars(body: FormatFields) -> Iterator[Grammar]:
    if body.response_format is not None:
        yield from _of_openai(body.response_format)
    if body.structured_outputs is not None:
        yield from _of_outputs(body.structured_outputs)
    yield from _of_vllm("guided_json", body.guided_json)
    yield from _of_vllm("guided_regex", regex=body.guided_regex)
    yield from _of_vllm("guided_choice", choice=body.guided_choice)
    yield from _of_vllm("guided_grammar", grammar=body.guided_grammar)
    yield from _of_vllm("regex", regex=body.regex)
    yield from _of_vllm("ebnf", grammar=body.ebnf)


def _several(params: Collection[str]) -> str:
    """Why formats of these fields, more than one format in all, are too many."""
    if len(params) == 1:
        asked = "one of json, regex, choice, grammar and json_object can be set in"
        return f"Only {asked} {next(iter(params))}: an answer has one format."
    return f"Only one of {' and '.join(params)} can be set: an answer has one format."


def _of_openai(wanted: ResponseFormat) -> Iterator[Grammar]:
    named = wanted.json_schema
    if wanted.object_schema is not None and wanted.type != "json_object":
        raise _invalid(
            "response_format",
            f"response_format of type {wanted.type} takes no schema beside its type.",
        )
    if wanted.type == "json_schema":
        if named is None or named.json_schema is None:
            raise _invalid(
                "response_format", "response_format of type json_schema needs json_schema.schema."
            )
        yield _schema(named.json_schema, "response_format")
    elif named is not None:
        raise _invalid(
            "response_format", f"response_format of type {wanted.type} takes no json_schema."
        )
    elif wanted.type == "json_object":
        schema = wanted.object_schema
        yield _schema(ANY_OBJECT if schema in (None, {}) else schema, "response_format")


def _of_outputs(outputs: StructuredOutputs) -> Iterator[Grammar]:
    asked = (outputs.json_schema, outputs.regex, outputs.choice, outputs.grammar)
    if not outputs.json_object and all(each is None for each in asked):
        raise _invalid(
            "structured_outputs",
            "structured_outputs needs one of json, regex, choice, grammar or json_object.",
        )
    found = list(_of_vllm("structured_outputs", *asked))
    if outputs.json_object:
        found.append(_schema(ANY_OBJECT, "structured_outputs"))
    yield from map(_without_spaces, found) if outputs.disable_any_whitespace else found


def _of_vllm(
    param: str,
    schema: JsonSchema | str | None = None,
    regex: str | None = None,
    choice: list[str] | None = None,
    grammar: str | None = None,
) -> Iterator[Grammar]:
    """Empty ones are not as if they were left out: they are refused, as in vLLM. The schema {}
    allows every JSON value."""
    texts = {"json": schema, "regex": regex, "grammar": grammar}
    for name, text in texts.items():
        if isinstance(text, str) and not (text if name == "regex" else text.strip()):
            raise _empty(param, name, "an empty text")
    if choice is not None and not choice:
        raise _empty(param, "choice", "an empty list")
    if schema is not None:
        yield _schema(schema, param)
    if choice is not None:
        yield Grammar("choice", json.dumps(choice, ensure_ascii=False), param)
    if regex is not None:
        yield Grammar("regex", regex, param)
    if grammar is not None:
        yield Grammar("grammar", grammar, param)


def _empty(param: str, name: str, what: str) -> BadRequestError:
    field = f"{param}.{name}" if param == "structured_outputs" else param
    return _invalid(field, f"{field} is {what}; leave it out where an answer is to follow nothing.")


def _schema(schema: JsonSchema | str, param: str) -> Grammar:
    """In the order of its own keys, in which an answer has its properties. `true` is as {}:
    all that is JSON."""
    if schema is True:
        schema = {}
    if not isinstance(schema, str):
        schema = json.dumps(schema, ensure_ascii=False, separators=(",", ":"))
    return Grammar("json_schema", schema, param)


def _without_spaces(grammar: Grammar) -> Grammar:
    """A schema says so itself; one that cannot be read is the engine's to refuse."""
    if grammar.kind != "json_schema":
        return grammar
    try:
        schema = json.loads(grammar.text)
    except (ValueError, RecursionError):
        return grammar
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        return grammar
    given = schema.get("x-guidance")
    options = {**(given if isinstance(given, dict) else {}), **NO_SPACES}
    return _schema({**schema, "x-guidance": options}, grammar.param)


def _invalid(param: str, message: str) -> BadRequestError:
    return BadRequestError(message, param=param, code="invalid_value")
