"""What may be counted in a schema, an expression or a grammar: what is beyond is refused by name,
with its place, its limit and what to do; what is not is compiled, and followed to its end."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tenora_engine.errors import InvalidRequestError
from tenora_engine.grammar.checker import Checker
from tenora_engine.grammar.counts import (
    check_counts,
    counted_characters,
)
from tenora_engine.grammar.followed import FORMATS
from tenora_engine.grammar.followed import followed as followed_where
from tenora_engine.grammar.guide import Vocabulary
from tenora_engine.grammar.least import least_of
from tenora_engine.grammar.reasons import sentence_of
from tenora_engine.grammar.schemas import has_expressions
from tenora_engine.request import Grammar
from tenora_engine.text.tool_formats import HERMES
from tenora_engine.text.tool_grammar import CallableTool, calls_in_text, forced_calls
from tiny_folder import write_tiny_folder


def followed(kind: str, text: str) -> str:
    return followed_where(kind, text, lambda schema: True)


INT = {"type": "integer"}
EOS, FIRST_BYTE = 1, 2


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    """One token a byte."""
    folder = tmp_path_factory.mktemp("counts") / "model"
    write_tiny_folder(folder)
    return Vocabulary(folder, 258, [EOS], 1)


@pytest.fixture(scope="module")
def checker() -> Iterator[Checker]:
    made = Checker()
    yield made
    made.close()


def at(schema: dict[str, Any]) -> dict[str, Any]:
    """Somewhere within another."""
    return {"anyOf": [INT, {"type": "object", "properties": {"a/b": schema}}]}


PLACE = "#/anyOf/1/properties/a/b"
KEYWORDS = [
    ("minLength", 2_000),
    *(
        (name + what, 1_000_000)
        for name in ("min", "max")
        for what in ("Items", "Properties", "Contains")
    ),
]


@pytest.mark.parametrize(("keyword", "limit"), KEYWORDS)
def test_each_keyword_is_refused_by_its_name(keyword: str, limit: int) -> None:
    check_counts("json_schema", json.dumps(at({keyword: limit})))
    for count in (limit + 1, 10**9, 1e30):
        with pytest.raises(ValueError, match=f"^{keyword} at {PLACE} is ") as refused:
            check_counts("json_schema", json.dumps(at({keyword: count})))
        assert f"the maximum is {limit}: " in str(refused.value)
        assert "smaller" in str(refused.value)


@pytest.mark.parametrize("length", [2_001, 65_535, 1e30])
def test_a_large_maximum_is_not_followed(length: float) -> None:
    """Schemas as people have them say 65,535. A string without a maximum takes no states."""
    schema = at({"type": "string", "maxLength": length, "minLength": 3})
    check_counts("json_schema", json.dumps(schema))
    kept = json.loads(followed("json_schema", json.dumps(schema)))
    assert kept == at({"type": "string", "minLength": 3})
    call = f'start: "x" %json {json.dumps(schema)} "y" a\na: %json{json.dumps(at(INT))}'
    made = followed("grammar", call)
    assert made == f'start: "x" %json {json.dumps(kept)} "y" a\na: %json{json.dumps(at(INT))}'
    below = json.dumps(at({"maxLength": 2_000}))
    assert followed("json_schema", below) == below
    assert followed("regex", "a{3}") == "a{3}"


def test_what_must_come_is_added_up() -> None:
    """The states are those of the whole answer, and equal strings have the same."""
    strings = {f"f{each}": {"type": "string", "minLength": each} for each in (699, 700, 701)}
    for schema in ({"properties": strings}, {"anyOf": [INT, {"properties": strings}]}):
        with pytest.raises(ValueError, match=r"^minLength .* added up, is 2100; the maximum is"):
            check_counts("json_schema", json.dumps(schema))
    equal = {f"f{each}": {"type": "string", "minLength": 50} for each in range(50)}
    for free in (
        {"properties": equal},
        {"$defs": strings, "$ref": "#/$defs/f700"},
        {"anyOf": [*strings.values()]},
    ):
        check_counts("json_schema", json.dumps(free))


WIDE = [".", "[^<>]", r"[\w.]", "é", "(.|\n)", "(?:a.)"]


@pytest.mark.parametrize("part", WIDE)
def test_what_may_have_several_bytes_may_come_less_often(part: str) -> None:
    check_counts("regex", part + "{1,2000}")
    check_counts("regex", "[a-z]{1,10000}")
    with pytest.raises(
        ValueError, match=r"the count \{1,2001\} in .* is 2001; the maximum is 2000"
    ):
        check_counts("regex", part + "{1,2001}")


@pytest.mark.parametrize(
    ("pattern", "kept"),
    [
        ("^.{1,5000}$", "^.{1,}$"),
        ("^[^<>]{1,3000}$", "^[^<>]{1,}$"),
        (r"\w{0,2001}", r"\w{0,}"),
        ("^.{1,2000}$", "^.{1,2000}$"),
        ("^a.{1,5000}$", "^a.{1,5000}$"),
        ("^(.{1,5000})$", "^(.{1,5000})$"),
        ("^.{5000}$", "^.{5000}$"),
        ("^{1,5000}", "^{1,5000}"),
        ("", ""),
        ("^", "^"),
    ],
)
def test_a_pattern_that_only_counts_is_as_maxlength(pattern: str, kept: str) -> None:
    made = json.loads(followed("json_schema", json.dumps(at({"pattern": pattern}))))
    assert made == at({"pattern": kept})


def test_a_long_answer_keeps_to_a_pattern_that_only_counts(
    checker: Checker, vocabulary: Vocabulary
) -> None:
    """It came to the end of its lexer after 1,079 tokens of 5,000."""
    schema = json.dumps({"type": "string", "pattern": "^.{1,5000}$"})
    verdict = checker.check(Grammar("json_schema", schema), 5.0)
    matcher = vocabulary.matcher(verdict.grammar, is_plain=verdict.is_plain)
    answer = '"' + "日本語 and more of it. " * 190
    for token in vocabulary.tokens_of(answer.encode()):
        assert matcher.compute_bitmask()
        assert matcher.consume_token(token), matcher.get_error()


SAYS_NOTHING = [
    {"uniqueItems": False},
    {"propertyNames": {"type": "string"}},
    {"propertyNames": {}},
    *({"format": name} for name in ("password", "byte", "binary", "int32", "x-own")),
    *({name: None} for name in ("pattern", "format", "minItems", "maxLength", "title", "type")),
]


@pytest.mark.parametrize("keyword", SAYS_NOTHING, ids=json.dumps)
def test_what_says_nothing_is_passed_over(keyword: dict[str, Any], checker: Checker) -> None:
    schema = at({"items": keyword, "const": {"a": keyword}})
    made = json.loads(followed("json_schema", json.dumps(schema)))
    assert made == at({"items": {}, "const": {"a": keyword}})
    checker.check(Grammar("json_schema", json.dumps(at({"type": "object"} | keyword))), 5.0)


@pytest.mark.parametrize(
    "keyword", [{"uniqueItems": True}, {"propertyNames": {"pattern": "^a"}}, {"not": {}}]
)
def test_what_says_something_is_refused_by_name(keyword: dict[str, Any], checker: Checker) -> None:
    with pytest.raises(InvalidRequestError, match=next(iter(keyword))):
        checker.check(Grammar("json_schema", json.dumps(at(keyword))), 5.0)


def test_the_library_knows_each_format_and_null_is_a_value(checker: Checker) -> None:
    for name in FORMATS:
        kept = json.dumps({"type": "string", "format": name})
        assert followed("json_schema", kept) == kept
        checker.check(Grammar("json_schema", kept), 5.0)
    values = json.dumps({"anyOf": [{"const": None}, {"enum": [None]}, {"default": None}]})
    assert followed("json_schema", values) == values


def test_a_value_keeps_what_looks_like_a_keyword() -> None:
    """Also where a reference leads to a property that is named as what holds values."""
    schema = {
        "properties": {
            "default": {"type": "string", "maxLength": 9_000},
            "b": {"const": {"maxLength": 5_000}},
            "c": {"$ref": "#/properties/default"},
        }
    }
    made = json.loads(followed("json_schema", json.dumps(schema)))
    assert made["properties"]["b"] == {"const": {"maxLength": 5_000}}
    assert made["properties"]["default"] == {"type": "string"}


@pytest.mark.parametrize("before", ["#/", "#/%65xamples/1", "http://a/b#/"])
@pytest.mark.parametrize("of", ["examples/1", "default", "const", "enum/1"])
def test_a_value_that_a_reference_leads_into_is_a_schema(of: str, before: str) -> None:
    """However the reference is written."""
    of = "examples/1" if "%" in before else of
    name = of.partition("/")[0]
    hostile = {"type": "string", "minLength": 10**8}
    value = [INT, hostile] if "/" in of else hostile
    ref = before if "%" in before else before + of
    schema = {"$id": "http://a/b", "$ref": ref, name: value}
    with pytest.raises(ValueError, match="minLength"):
        check_counts("json_schema", json.dumps(schema))
    check_counts("json_schema", json.dumps({"type": "object", name: value}))


@pytest.mark.parametrize("ref", ["http://b/c#/examples/0", "#/$defs/none"])
def test_a_reference_that_leads_nowhere_is_refused(ref: str) -> None:
    with pytest.raises(ValueError, match=r"\$ref at #/properties/a"):
        check_counts("json_schema", json.dumps({"properties": {"a": {"$ref": ref}}}))


def test_a_schema_behind_what_only_looks_like_one_is_looked_at() -> None:
    hostile = json.dumps({"type": "string", "minLength": 10**6})
    for before in ('start: q | "%json {x"\nq: ', "// %json {\nstart: "):
        with pytest.raises(ValueError, match="minLength"):
            check_counts("grammar", f"{before}%json {hostile}")


@pytest.mark.parametrize("odd", [[1], 7, "x", None])
def test_odd_patterns_are_the_librarys_to_refuse(odd: object) -> None:
    check_counts("json_schema", json.dumps({"patternProperties": odd}))


def test_minima_are_found_behind_references_and_in_all_of_several() -> None:
    long = {"type": "string", "minLength": 500}
    schemas = [
        {"$ref": "#/$defs/a~1b", "$defs": {"a/b": long}},
        {"allOf": [{"type": "string"}, long]},
        {"type": "object", "properties": {"a": long}, "required": ["a"] * 40},
    ]
    for schema in schemas:
        assert 500 <= least_of(schema).num_bytes <= 510, schema
    around = {"$ref": "#/$defs/a", "$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}]}}}
    assert not least_of(around)


def test_characters_that_are_counted_are_added_up() -> None:
    schema = {
        "a": {"maxLength": 100},
        "b": {"minLength": 5, "maxLength": 50_000},
        "c": {"pattern": "^a{7}$"},
    }
    text = json.dumps({"properties": schema})
    assert counted_characters("json_schema", text) == 100 + 5 + 7
    assert counted_characters("grammar", f"start: %json {text}") == 112
    assert counted_characters("regex", "(a{3}){4}") == 3 + 12


@pytest.mark.parametrize(
    "expression", [{"pattern": "^a"}, {"format": "date"}, {"patternProperties": {"^a": True}}]
)
def test_beside_expressions_fewer_characters_can_be_demanded(expression: dict[str, Any]) -> None:
    schema = {"type": "object", "properties": {"a": expression, "b": {"minLength": 2_001}}}
    with pytest.raises(ValueError, match=r"^minLength at #/properties/b is 2001"):
        check_counts("json_schema", json.dumps(schema))
    assert has_expressions(schema)
    assert not has_expressions({"const": expression, "maxLength": 5})


@pytest.mark.parametrize("keyword", ["const", "enum", "default", "examples"])
def test_values_are_no_keywords(keyword: str) -> None:
    check_counts("json_schema", json.dumps({keyword: [{"minLength": 10**9}]}))


@pytest.mark.parametrize("name", ["const", "default", "required", "properties", "pattern"])
@pytest.mark.parametrize("where", ["properties", "$defs", "patternProperties"])
def test_properties_may_have_names_of_keywords(name: str, where: str) -> None:
    schema = {where: {name: {"items": {"minLength": 10**9}}}}
    with pytest.raises(ValueError, match=f"^minLength at #/{re.escape(where)}/{name}/items is "):
        check_counts("json_schema", json.dumps(schema))
    assert has_expressions(schema) == (where == "patternProperties")


COUNTS = [
    ("a{2001}", "{2001}", 2_000),
    ("x[{}]a{0,10001}", "{0,10001}", 10_000),
    ("(a{100}){100}", "{100}", 2_000),
    ("(?:(?:a{0,10}b){10}c){10}", "{10}", 500),
    ("(.{0,50},){50}", "{50}", 500),
    (r"(\d{1,3}\.){0,400}", "{0,400}", 500),
]


@pytest.mark.parametrize(("expression", "count", "limit"), COUNTS)
def test_counts_of_expressions_and_their_products(
    expression: str, count: str, limit: int, checker: Checker
) -> None:
    """Wherever expressions can be."""
    grammars = {
        "in the expression": Grammar("regex", expression, "regex"),
        "in pattern at #/items": Grammar(
            "json_schema", json.dumps({"items": {"pattern": expression}}), "guided_json"
        ),
        "in an expression of WORD": Grammar(
            "grammar", f"start: WORD\nWORD: /{expression}/", "ebnf"
        ),
    }
    for where, grammar in grammars.items():
        with pytest.raises(InvalidRequestError) as refused:
            checker.check(grammar, 5.0)
        said = str(refused.value)
        assert f"the count {count} {where}" in said
        assert f"the maximum is {limit}: use a smaller one" in said
        assert refused.value.param == grammar.param


@pytest.mark.parametrize(
    "expression",
    [r"\{99999\}", "[a{99999}]", "[]{99999}]", r"\x{99999}", r"\u{99999}b", "a{x}", "({0,3}", "a)"],
)
def test_what_is_no_count_is_none(expression: str) -> None:
    check_counts("regex", expression)


@pytest.mark.parametrize(
    ("text", "rule", "limit"),
    [
        ('start: a{4001}\na: "x"', "start", 4_000),
        ('start: "a"~1..4001', "start", 4_000),
        ('start: "a"{5000,}', "start", 4_000),
        ('start: b{0,50}\nb: a{0,50}\na: "x" | "y"', "start", 200),
        ('start: c\nc: b{100}\nb: (a "y")*\na: "x"?', "c", None),
        ('start: (a{0,20}){20}\na: "x"', "start", 200),
        ('start: b{0,8}\nb: c{0,8} // x{9}\nc: d{0,8}\nd: "x" | start', "start", 200),
        ('start: a{0,101}\na: "x"?', "start", 200),
        ('start: A\nA: B{0,50}\nB: C{0,50} "y"\nC: /[a-z]/', "A", 200),
        ('root ::= row{0,50}\nrow ::= [^"{3}\\]]{0,50} "x"', "root", 200),
        ("root ::= ROW{0,50}\nROW ::= cell{0,50}\ncell ::= [a-z]", "root", 200),
    ],
)
def test_counts_of_rules_and_their_products(text: str, rule: str, limit: int | None) -> None:
    if limit is None:
        return check_counts("grammar", text)
    with pytest.raises(ValueError, match=rf" in {rule}\b.*; the maximum is {limit}: "):
        check_counts("grammar", text)
    return None


def test_rows_of_cells_that_are_terminals_may_be_many() -> None:
    text = 'start: row{1,4000}\nrow: CELL ("," CELL){3} "\\n"\nCELL: /[a-z]{1,60}/'
    check_counts("grammar", text)
    check_counts("grammar", 'start: start{1,100} | "x"')


STRICT_ONLY: list[tuple[dict[str, Any], str]] = [
    ({"minLength": 9000}, "minLength at #/properties/p is 9000; the maximum is 2000"),
    ({"maxItems": 2_000_000}, "maxItems at #/properties/p is 2000000; the maximum is 1000000"),
    ({"pattern": "^(?!\\.)(?!.*\\.\\.)[a-z.]+@[a-z.]+$"}, "look-ahead"),
    ({"pattern": "^([a-z]{0,50},){50}$"}, "the count {50} in pattern at #/properties/p"),
    ({"anyOf": [{"pattern": "("}, {"type": "integer"}]}, "unclosed group"),
    ({"$ref": "https://elsewhere.test/x"}, "elsewhere.test/x"),
]


@pytest.mark.parametrize("make", [forced_calls, calls_in_text])
@pytest.mark.parametrize(("keyword", "said"), STRICT_ONLY, ids=[said for _, said in STRICT_ONLY])
def test_a_tool_is_held_to_the_same_where_it_is_strict(
    make: Any, keyword: dict[str, Any], said: str, checker: Checker
) -> None:
    """What cannot be followed of one that is not is passed over, with nothing else of it."""
    schema = {"type": "object", "properties": {"n": INT, "p": {"type": "string"} | keyword}}
    small = CallableTool("small", {"type": "object"})
    for strict in (True, False):
        tools = [small, CallableTool("large", schema, strict)]
        grammar = Grammar("grammar", make(HERMES, tools, False), "tools")
        if not strict:
            checker.check(grammar, 5.0)
            continue
        with pytest.raises(InvalidRequestError) as refused:
            checker.check(grammar, 5.0)
        assert str(refused.value).startswith("the parameters of the tool 'large' are not")
        assert said in str(refused.value)
        assert "call_" not in str(refused.value)
        assert refused.value.param == "tools"


def test_of_a_tool_that_is_not_strict_the_rest_is_followed(checker: Checker) -> None:
    strings = {f"f{each}": {"type": "string", "minLength": 50 + each} for each in range(50)}
    email = {"type": "string", "pattern": "^(?!x)y$"}
    schema = {"type": "object", "properties": {**strings, "e": email, "n": {"enum": [1, 2]}}}
    tools = [CallableTool("f", schema)]
    made = checker.check(Grammar("grammar", forced_calls(HERMES, tools, False), "tools"), 5.0)
    assert "(?!" not in made.grammar
    assert "enum" in made.grammar


LARGE = {"type": "string", "minLength": 2_000, "maxLength": 2_000}
AT_THE_LIMIT = {
    "characters": Grammar("json_schema", json.dumps(LARGE)),
    "items": Grammar("json_schema", json.dumps({"type": "array", "items": INT, "minItems": 10**6})),
    "properties": Grammar("json_schema", json.dumps({"type": "object", "maxProperties": 10**6})),
    "nested items": Grammar(
        "json_schema",
        json.dumps(
            {
                "type": "array",
                "minItems": 10**6,
                "items": {"type": "array", "minItems": 10**6, "items": LARGE},
            }
        ),
    ),
    "expression": Grammar("regex", ".{2000}"),
    "nested expression": Grammar("regex", "([a-z]{0,25} ){20}"),
    "exact ones": Grammar("regex", "([a-z]{40}-){50}"),
    "terminal": Grammar("grammar", 'start: "a"{4000}'),
    "rule": Grammar("grammar", 'start: a{4000}\na: "x" | "y"'),
    "nested rule": Grammar("grammar", 'start: b{0,14}\nb: a{0,14}\na: "x" | "y"'),
}


@pytest.mark.parametrize("name", AT_THE_LIMIT)
def test_what_is_at_the_limit_is_compiled_and_followed(
    name: str, checker: Checker, vocabulary: Vocabulary
) -> None:
    grammar = AT_THE_LIMIT[name]
    verdict = checker.check(grammar, 5.0)
    matcher = vocabulary.matcher(verdict.grammar, is_plain=verdict.is_plain)
    letter = FIRST_BYTE + ord("a")  # takes as many states as any
    for place in range(10_100):
        bits = int.from_bytes(matcher.compute_bitmask(), "little") & ~(1 << EOS)
        assert bits, matcher.get_error()
        chosen = letter
        if not bits >> letter & 1 or not place:
            allowed = [each for each in range(258) if bits >> each & 1]
            chosen = allowed[(7919 * place) % len(allowed)]
        assert matcher.consume_token(chosen), matcher.get_error()
        if matcher.is_stopped():
            return


@pytest.mark.parametrize(
    ("schema", "num_bytes", "commas"),
    [
        ({"type": "array", "minItems": 5000, "items": INT}, 10_001, 4_999),
        (
            {"type": "array", "minItems": 3, "prefixItems": [{"type": "string", "minLength": 5}]},
            13,
            2,
        ),
        ({"type": "string", "minLength": 100}, 102, 0),
        ({"type": "object", "minProperties": 2}, 11, 1),
        (
            {
                "type": "object",
                "required": ["a", "b"],
                "properties": {"a": {"type": "string", "minLength": 9}, "b": INT, "c": LARGE},
            },
            11,
            0,
        ),
        ({"anyOf": [{"type": "string", "minLength": 9}, INT]}, 0, 0),
        ({"minLength": 9}, 0, 0),
        ({"type": ["string", "null"], "minLength": 9}, 0, 0),
        ({"type": "object", "required": ["a"], "properties": {"a": INT}}, 0, 0),
        (True, 0, 0),
    ],
)
def test_what_every_answer_needs(schema: Any, num_bytes: int, commas: int) -> None:
    least = least_of(schema)
    assert (least.num_bytes, least.commas) == (num_bytes, commas)


def test_an_answer_of_the_shortest_form_is_never_refused(vocabulary: Vocabulary) -> None:
    """What is said to be needed is a lower bound, with any tokens."""
    for count in (1, 7, 100):
        schema = {"type": "array", "minItems": count, "items": {"type": "string", "minLength": 3}}
        shortest = json.dumps(["aaa"] * count, separators=(",", ":"))
        least = least_of(schema)
        assert least.num_bytes == len(shortest)
        assert vocabulary.least_tokens(least) == len(shortest)
        assert least.tokens(longest=9, most_commas=2) <= -(-len(shortest) // 5)


@pytest.mark.parametrize(
    "said",
    [
        "lexer error: too many states: 20000 >= 20000\n<non-verbose/>",
        "lexer error: too many expressions constructed\n<non-verbose/>",
    ],
)
def test_what_gives_up_later_says_what_to_do(said: str) -> None:
    assert "use smaller counts (maxLength, {m,n})" in sentence_of(said)


def test_a_path_is_shown_by_its_end(tmp_path: Path) -> None:
    schema: dict[str, Any] = {"minLength": 99_999}
    for _ in range(60):
        schema = {"properties": {"inner": schema}}
    with pytest.raises(ValueError, match=r"^minLength at \.\.\..*inner is 99999") as refused:
        check_counts("json_schema", json.dumps(schema))
    assert len(str(refused.value)) < 250
