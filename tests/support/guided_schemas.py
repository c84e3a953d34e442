"""JSON schemas of the shapes that the official test suite has a file for, as far as grammars follow
them; bounded, so that random tokens come to their ends."""

from __future__ import annotations

from typing import Any

_WORD = {"type": "string", "maxLength": 4}
_DIGIT = {"type": "integer", "minimum": 0, "maximum": 9}


def _object(properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
        **more,
    }


SCHEMAS: dict[str, Any] = {
    "const string": {"const": "it"},
    "const number": {"const": -1.5},
    "const null": {"const": None},
    "const object": {"const": {"a": [1, {"b": None}]}},
    "const with quotes": {"const": 'a "b" \\ \n'},
    "enum": {"enum": ["red", "green", 3, None, True]},
    "enum of objects": {"enum": [{"a": 1}, [1, 2], {}]},
    "enum beyond ascii": {"enum": ["größe", "日本", "\u00e9"]},
    "boolean": {"type": "boolean"},
    "null": {"type": "null"},
    "types": {"type": ["boolean", "null"]},
    "integer range": {"type": "integer", "minimum": -7, "maximum": 130},
    "integer exclusive": {"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 3},
    "number range": {"type": "number", "minimum": 0, "maximum": 1},
    "number exclusive": {"type": "number", "exclusiveMinimum": 0, "maximum": 12.5},
    "multiple of": {"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 999},
    "max length": {"type": "string", "maxLength": 5},
    "min length": {"type": "string", "minLength": 2, "maxLength": 5},
    "pattern": {"type": "string", "pattern": "^[a-c]{2,4}$"},
    "pattern of alternatives": {"type": "string", "pattern": "^(on|off|auto)$"},
    "pattern of digits": {"type": "string", "pattern": "^\\d{3}-\\d{4}$"},
    "date": {"type": "string", "format": "date"},
    "time": {"type": "string", "format": "time"},
    "uuid": {"type": "string", "format": "uuid"},
    "ipv4": {"type": "string", "format": "ipv4"},
    "array": {"type": "array", "items": _DIGIT, "maxItems": 4},
    "array of some": {"type": "array", "items": _DIGIT, "minItems": 2, "maxItems": 3},
    "array of none": {"type": "array", "maxItems": 0},
    "array of arrays": {
        "type": "array",
        "maxItems": 2,
        "items": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
    },
    "tuple": {"type": "array", "prefixItems": [_DIGIT, _WORD], "items": False, "minItems": 2},
    "tuple and more": {
        "type": "array",
        "prefixItems": [{"const": 1}],
        "items": {"type": "null"},
        "maxItems": 3,
    },
    "object": _object({"a": _DIGIT, "b": _WORD}),
    "empty object": {"type": "object", "additionalProperties": False},
    "object of objects": _object({"a": _object({"b": _object({"c": _DIGIT})})}),
    "optional properties": {
        "type": "object",
        "properties": {"a": _DIGIT, "b": {"type": "null"}, "c": {"type": "boolean"}},
        "required": ["b"],
        "additionalProperties": False,
    },
    "quoted names": _object({'a"b': _DIGIT, "c\\d": _DIGIT, "e f": _DIGIT}),
    "names beyond ascii": _object({"größe": _DIGIT, "名": _DIGIT}),
    "any of": {"anyOf": [_DIGIT, {"type": "null"}, {"const": "no"}]},
    "any of objects": {
        "anyOf": [
            _object({"kind": {"const": "a"}, "x": _DIGIT}),
            _object({"kind": {"const": "b"}, "y": {"type": "boolean"}}),
        ]
    },
    "one of apart": {"oneOf": [{"type": "boolean"}, _DIGIT]},
    "all of": {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 12}]},
    "all of objects": {
        "allOf": [
            {"type": "object", "properties": {"a": _DIGIT}, "required": ["a"]},
            {"properties": {"b": {"type": "null"}}, "required": ["b"]},
        ],
        "properties": {"a": True, "b": True},
        "additionalProperties": False,
    },
    "reference": {
        "$defs": {"digit": _DIGIT},
        "type": "array",
        "items": {"$ref": "#/$defs/digit"},
        "maxItems": 3,
    },
    "definitions": {"definitions": {"flag": {"type": "boolean"}}, "$ref": "#/definitions/flag"},
    "reference to a reference": {
        "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"enum": [1, 2]}},
        "$ref": "#/$defs/a",
    },
    "escaped reference": {"$defs": {"a/b~c": {"const": 5}}, "$ref": "#/$defs/a~1b~0c"},
    "recursion": {
        "$defs": {
            "tree": {
                "anyOf": [
                    {"type": "null"},
                    _object({"left": {"$ref": "#/$defs/tree"}}),
                ]
            }
        },
        "$ref": "#/$defs/tree",
    },
    "nullable": {"type": ["integer", "null"], "minimum": 0, "maximum": 99},
    "nullable any of": {"anyOf": [_WORD, {"type": "null"}]},
    "annotations": {
        "title": "A title",
        "description": "and more",
        "default": 1,
        "examples": [2],
        "type": "integer",
        "minimum": 1,
        "maximum": 3,
    },
    "enum and type": {"type": "string", "enum": ["a", "b"]},
    "array of enums": {"type": "array", "items": {"enum": ["x", "y"]}, "maxItems": 3},
    "array of objects": {"type": "array", "items": _object({"n": _DIGIT}), "maxItems": 2},
    "of a model": {
        "title": "Person",
        "type": "object",
        "properties": {
            "name": {"title": "Name", "type": "string", "maxLength": 6},
            "age": {"anyOf": [{"type": "integer", "minimum": 0, "maximum": 150}, {"type": "null"}]},
            "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
        },
        "required": ["name", "age", "tags"],
        "additionalProperties": False,
    },
    "false items": {"type": "array", "items": False},
    "pattern and length": {"type": "string", "pattern": "^[0-9]+$", "maxLength": 4},
    "negative range": {"type": "integer", "minimum": -20, "maximum": -3},
    "decimal range": {"type": "number", "minimum": -0.25, "maximum": 0.25},
    "large range": {"type": "integer", "minimum": 1000, "maximum": 99999},
    "deep": {"type": "array", "maxItems": 1, "items": _object({"a": {"enum": [[], [[]], {}]}})},
}
