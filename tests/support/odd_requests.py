"""Hypothesis strategies for requests by the OpenAPI document: what the schemas ask for, with an
extreme number, date or text in the place of one field or two."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from hypothesis import strategies as st

from api_harness import STREAMS

NUMBERS = [0, -1, 1, 2**31, 2**53, 2**63, 2**64, 10**400, -(10**400), 5e-324, 1e-308, 1e308, 0.1]
NOT_NUMBERS = [float("inf"), float("-inf"), float("nan"), True, "1e999", "NaN"]
DATES = [
    "9999-12-31T23:59:59-23:59",
    "0001-01-01T00:00:00+14:00",
    "2199-12-31T23:59:59.999999Z",
    "2000-01-01T00:00:00",
    "infinity",
]
TEXTS = [
    "",
    " ",
    "\0",
    "a\0b",
    "\ud800",
    "a\udfffb",
    "\u202e\U0001f600",
    "../..",
    "%00",
    "{}",
    "x" * 300,
    "x" * 100_000,
]
_NESTED: list[Any] = [[], {}, [None], {"": {}}, [[[[1]]]]]
ODD: list[Any] = [None, *NUMBERS, *NOT_NUMBERS, *DATES, *TEXTS, *_NESTED]


@dataclass(frozen=True)
class Operation:
    """One method of one path, with the document that its schemas refer to."""

    method: str
    path: str
    spec: Mapping[str, Any]
    document: Mapping[str, Any]

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


def operations(document: Mapping[str, Any]) -> list[Operation]:
    return [
        Operation(method.upper(), path, spec, document)
        for path, methods in document["paths"].items()
        for method, spec in methods.items()
        if path not in STREAMS
    ]


Known = Mapping[str, list[Any]]
"""Good values of parameters and fields, by name: where a schema says less than the server."""

Place = tuple[str | int, ...]


@st.composite
def requests(draw: st.DrawFn, operation: Operation, known: Known) -> dict[str, Any]:
    """`url`, `content`, `files` and `headers` as httpx takes them."""
    asked = draw(_asked(operation, known))
    for _ in range(draw(st.sampled_from([0, 1, 1, 1, 2]))):
        places = list(_places(asked))
        if places:
            place, was = draw(st.sampled_from(places))
            asked = _with(asked, place, draw(_odd(was)))
    url = operation.path
    for name, value in asked["path"].items():
        url = url.replace(f"{{{name}}}", _quoted(value) or "x")
    query = "&".join(f"{name}={_quoted(value)}" for name, value in asked["query"].items())
    made: dict[str, Any] = {"url": f"{url}?{query}" if query else url}
    if "json" in asked:
        # As a client may: Infinity, NaN and halves of surrogate pairs are Python's, not JSON's.
        made["content"] = json.dumps(asked["json"]).encode()
        made["headers"] = {"content-type": "application/json"}
    elif "form" in asked:
        made["files"] = {name: (None, _text(each)[:9999]) for name, each in asked["form"].items()}
    return made


def _asked(operation: Operation, known: Known) -> st.SearchStrategy[dict[str, Any]]:
    """What goes into the path, the query and the body, all of it good as far as schemas tell."""
    parts: dict[str, dict[str, Any]] = {"path": {}, "query": {}}
    for each in operation.spec.get("parameters", []):
        name = each["name"]
        parts[each["in"]][name] = _named(name, each["schema"], operation.document, known)
    fields: dict[str, Any] = {
        "path": st.fixed_dictionaries(parts["path"]),
        "query": st.fixed_dictionaries({}, optional=parts["query"]),
    }
    kinds = {"application/json": "json", "multipart/form-data": "form"}
    for kind, content in operation.spec.get("requestBody", {}).get("content", {}).items():
        fields[kinds[kind]] = _fitting(content["schema"], operation.document, known)
    return st.fixed_dictionaries(fields)


def _named(
    name: str, schema: Mapping[str, Any], document: Mapping[str, Any], known: Known
) -> st.SearchStrategy[Any]:
    values = known.get(name)
    if not values:
        return _fitting(schema, document, known)
    # The same draw however many there are by now: earlier requests may have made some.
    return st.integers(0, 1000).map(lambda number: values[number % len(values)])


def _fitting(
    schema: Mapping[str, Any], document: Mapping[str, Any], known: Known
) -> st.SearchStrategy[Any]:
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[-1]
        return _fitting(document["components"]["schemas"][name], document, known)
    choices = schema.get("anyOf", schema.get("oneOf"))
    if choices is not None:
        return st.one_of(*(_fitting(each, document, known) for each in choices))
    if "enum" in schema or "const" in schema:
        return st.sampled_from(schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "object":
        return _object(schema, document, known)
    if schema.get("type") == "array":
        return st.lists(_fitting(schema.get("items", {}), document, known), min_size=1, max_size=3)
    return _leaf(schema)


def _leaf(schema: Mapping[str, Any]) -> st.SearchStrategy[Any]:
    kind = schema.get("type")
    if kind in ("integer", "number"):
        least = int(schema.get("minimum", schema.get("exclusiveMinimum", -1) + 1))
        return st.integers(least, int(min(schema.get("maximum", least + 100), 10**6)))
    if kind in ("boolean", "null"):
        return st.booleans() if kind == "boolean" else st.none()
    if schema.get("format") == "date-time":
        return st.sampled_from(["2026-11-01T00:00:00Z", "2031-05-06T07:08:09.000001+02:00"])
    if "pattern" in schema:
        letters = st.characters(codec="ascii", exclude_characters="\0")
        return st.from_regex(schema["pattern"], fullmatch=True, alphabet=letters)
    return st.sampled_from(["odd", "fake-base", "prod", "a b", "é"])


def _object(
    schema: Mapping[str, Any], document: Mapping[str, Any], known: Known
) -> st.SearchStrategy[Any]:
    needed = set(schema.get("required", []))
    fields = {
        name: _named(name, each, document, known)
        for name, each in schema.get("properties", {}).items()
    }
    return st.fixed_dictionaries(
        {name: each for name, each in fields.items() if name in needed},
        optional={name: each for name, each in fields.items() if name not in needed},
    )


def _odd(was: Any) -> st.SearchStrategy[Any]:
    """Mostly an extreme of the same kind, which types let pass."""
    extremes: list[Any] = ODD
    if isinstance(was, str):
        extremes = DATES if was[4:5] == "-" and was[:4].isdigit() else TEXTS
    elif isinstance(was, int | float):
        extremes = [*NUMBERS, *NOT_NUMBERS]
    return st.sampled_from([extremes, extremes, ODD]).flatmap(st.sampled_from)


def _places(value: Any, place: Place = ()) -> Iterator[tuple[Place, Any]]:
    """Where something stands in the request that may be replaced, and what: not its parts as a
    whole."""
    items: list[tuple[str | int, Any]] = []
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))
    for key, each in items:
        if place:
            yield (*place, key), each
        yield from _places(each, (*place, key))


def _with(value: Any, place: Place, odd: Any) -> Any:
    if not place:
        return odd
    copy: Any = dict(value) if isinstance(value, dict) else list(value)
    copy[place[0]] = _with(value[place[0]], place[1:], odd)
    return copy


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text.encode(errors="replace").decode()


def _quoted(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    # Half of a surrogate pair in a URL is three bytes that are not UTF-8.
    return quote(text.encode("utf-8", errors="surrogatepass")[:4000], safe="")
