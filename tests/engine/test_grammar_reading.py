"""What users write as a grammar is read within limits: its size first, then in a process apart, in
time linear in the text; and none of it is kept."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from guided_engine import guided_engine, request
from tenora_engine.engine import Engine
from tenora_engine.errors import InvalidRequestError
from tenora_engine.grammar import compiler as compiler_module
from tenora_engine.grammar.checker import Checker
from tenora_engine.grammar.compiler import GrammarCompiler
from tenora_engine.grammar.counts import check_counts
from tenora_engine.request import Grammar
from tiny_folder import write_tiny_folder

PATIENCE_S = 60.0  # only a hang takes as long


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("guided") / "model"
    write_tiny_folder(folder)
    return folder


@pytest.fixture
def engine(folder: Path) -> Iterator[Engine]:
    with guided_engine(folder) as engine:
        yield engine


@pytest.fixture
def compiler(engine: Engine) -> GrammarCompiler:
    return engine.grammars


def test_what_users_wrote_is_read_in_the_process_for_checks_alone(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has a limit of processor time. In the engine's, an expression held everybody for 61 s."""

    def fails(*_: object) -> None:
        raise AssertionError("the engine's process reads a grammar")

    for module, names in {
        "counts": ("read", "repeats_of", "rules_of", "nodes_of", "schemas_in"),
        "schemas": ("nodes_of", "referred"),
        "hints": ("hints_of",),
        "least": ("least_of", "referred"),
    }.items():
        for name in names:
            monkeypatch.setattr(f"tenora_engine.grammar.{module}.{name}", fails)
    schema = '{"type": "array", "minItems": 3, "items": {"pattern": "a{3}", "maxLength": 50}}'
    [guide] = compiler.guides(request("one", Grammar("json_schema", schema))).result(PATIENCE_S)
    assert (guide.characters, guide.hints.depth if guide.hints else None) == (53, 2)
    wanted = request("few", Grammar("json_schema", schema), max_tokens=1)
    with pytest.raises(InvalidRequestError, match="minItems"):
        compiler.guides(wanted).result(PATIENCE_S)


@pytest.mark.parametrize(
    "grammar",
    [
        Grammar("regex", "a{" + " " * 30_000),
        Grammar("regex", r"\p{" * 90_000),
        Grammar("json_schema", json.dumps({"pattern": "a{" + " " * 3_000})),
        Grammar("json_schema", json.dumps({"x" * 60_000: [1] * 60_000})),
        Grammar("grammar", "start: " + '"' + '\\"' * 30_000),
        Grammar("grammar", "start: " + "a[" * 30_000),
    ],
    ids=["spaces", "classes", "pattern", "key", "quotes", "brackets"],
)
def test_reading_is_linear(grammar: Grammar) -> None:
    """In processor time of its own process. Whether it is one is another question."""
    checker = Checker()
    try:
        with contextlib.suppress(InvalidRequestError):
            checker.check(grammar, 2.0)
        assert checker._process is not None
        assert checker._process.poll() is None, "it took more than 2 s"
    finally:
        checker.close()


@pytest.mark.parametrize(
    ("text", "is_told"),
    [
        ('?start: r{0,50}\nr: c{0,50}\nc: "x" | "y"', True),
        ('start: r{0,50} "::="\nr: c{0,50}\nc: "x" | "y"', True),
        ('root ::= r{0,50}\nr ::= c{0,50} "start:"\nc ::= "x" | "y"', False),
    ],
)
def test_only_who_writes_larks_form_is_told_of_terminals(text: str, is_told: bool) -> None:
    with pytest.raises(ValueError, match="the maximum is 200: use smaller counts") as refused:
        check_counts("grammar", text)
    assert ("a name in capitals" in str(refused.value)) == is_told


@pytest.mark.parametrize("text", ['?start: a\na: "x"', '!start: "a"', 'root ::= "start:"'])
def test_each_form_is_read_as_what_it_is(text: str, compiler: GrammarCompiler) -> None:
    compiler.guides(request("form", Grammar("grammar", text))).result(PATIENCE_S)


def test_what_is_too_large_is_refused_before_it_is_read(engine: Engine) -> None:
    text = "(a|b)" * 300_000
    with pytest.raises(InvalidRequestError, match="guided_regex has more than 65536 bytes"):
        engine.prepare(request("large", Grammar("regex", text, "guided_regex")))
    with pytest.raises(InvalidRequestError, match="make it shorter"):
        engine.prepare(request("wide", Grammar("regex", "é" * 40_000)))


def test_no_more_is_counted_than_its_lexer_can_have_states_for(compiler: GrammarCompiler) -> None:
    """Whoever follows expressions has 20,000 states, whatever these count."""
    string = {"type": "string", "maxLength": 1_500}
    other = {"type": "string", "maxLength": 1_501}
    plain = json.dumps({"items": string, "additionalProperties": other})
    wanted = {plain: 3_001, json.dumps({"items": string, "$defs": {"a": {"pattern": "^a"}}}): 1_500}
    for text, characters in wanted.items():
        schema = request("plain", Grammar("json_schema", text))
        assert compiler.guides(schema).result(PATIENCE_S)[0].characters == characters
    long = request("long", Grammar("regex", "[a-z]{0,9000}"))
    assert compiler.guides(long).result(PATIENCE_S)[0].characters == 2_000


def test_tokens_of_long_pieces_are_not_remembered(compiler: GrammarCompiler) -> None:
    """4,096 keys of a schema, of 60 kB each, would take 250 MB and their tokens more."""
    [guide] = compiler.guides(request("one", Grammar("regex", "a"))).result(PATIENCE_S)
    vocabulary = guide.vocabulary
    assert vocabulary.tokens_of(b"a" * 65) == vocabulary.tokens_of(b"a" * 65)
    assert vocabulary.tokens_of(b'"') == vocabulary.tokens_of(b'"')
    assert list(vocabulary._tokens) == [b'"']


def test_no_text_is_kept_and_the_cache_is_bounded_in_bytes(compiler: GrammarCompiler) -> None:
    """A seventh of it holds no grammar whose states may come to more."""
    for name, schema in {"few": "{}", "many": '{"type": "string", "maxLength": 2000}'}.items():
        compiler.guides(request(name, Grammar("json_schema", schema))).result(PATIENCE_S)
    with pytest.raises(InvalidRequestError):
        compiler.guides(request("none", Grammar("regex", "(" * 60_000))).result(PATIENCE_S)
    assert {len(digest) for _, digest in compiler._compiled} == {32}
    assert len(compiler._compiled) == 2, "and the refusal"
    assert compiler._compiled.used <= compiler._compiled.capacity == compiler_module.CACHED_BYTES
