"""JSON that ends: whatever a model writes, an answer whose budget allows for an end has one, and
lies no deeper than asked."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema_rs
import numpy as np
import pytest

from tenora_engine.config import EngineConfig
from tenora_engine.engine import Engine, build_engine
from tenora_engine.events import UNTOLD_LOGPROB, FinishEvent, TokenEvent, TokenLogprob
from tenora_engine.grammar.checker import compile_text
from tenora_engine.grammar.closing import JsonAnswer, find_way
from tenora_engine.grammar.guide import Guide, Vocabulary
from tenora_engine.grammar.hints import Hints, hints_of
from tenora_engine.grammar.json_text import JsonText, Place
from tenora_engine.request import GenerationRequest, Grammar, SamplingParams, Tenant
from tenora_engine.text.processor import TextProcessor
from tiny_folder import write_tiny_folder

ANY = {"type": "object"}
NESTED = {
    "type": "object",
    "properties": {"answer": {"$ref": "#"}, "name": {"type": "string"}},
    "required": ["name"],
    "additionalProperties": False,
}
RUNAWAY = {
    "type": "object",
    "properties": {"answer": {"$ref": "#"}},
    "additionalProperties": False,
}
FIRST_BYTE = 2  # of the tiny model


@pytest.fixture(scope="module")
def vocabulary(base_model_dir: Path) -> Vocabulary:
    text = TextProcessor(base_model_dir)
    return Vocabulary(base_model_dir, text.vocab_size, [2], threads=2)


def begun(vocabulary: Vocabulary, schema: Any, **options: Any) -> Guide:
    text = json.dumps(schema)
    guide = Guide(vocabulary, vocabulary.matcher(compile_text("json_schema", text)))
    guide.hints = hints_of(schema)
    return guide.begin(Grammar("json_schema", text, **options))


def shortest(guide: Guide) -> int | None:
    assert guide.hints is not None
    way = guide.way(partial(find_way, JsonText(), guide.hints), ())
    return None if way is None else len(way)


def written(guide: Guide, room: int, chance: random.Random, liked: frozenset[int]) -> bytes:
    """What a model writes that takes any token which may come, or one that it likes."""
    found = b""
    while room:
        row = guide.vocabulary.fill([guide])[0]
        bits = np.unpackbits(row.view(np.uint8), bitorder="little")
        tokens = np.flatnonzero(bits).tolist()
        if chance.random() < 0.8:
            tokens = [token for token in tokens if token in liked] or tokens
        token = chance.choice(tokens)
        if token in guide.vocabulary.ends:
            assert guide.can_end(token)
            break
        token = guide.kept(token, room)
        room -= 1
        found += guide.vocabulary.bytes_of(token)
        if not guide.advance(token):
            assert guide.error is None
            break
    return found


def random_schema(chance: random.Random, depth: int = 3) -> dict[str, Any]:
    kinds = ["string", "integer", "boolean", "enum", "null", "any"]
    kind = chance.choice(kinds + ["object", "array", "either"] * (2 if depth else 0))
    if kind == "any":
        return {}
    if kind == "enum":
        return {"enum": chance.sample(["red", "green", 5, None, "long words of a list"], 3)}
    if kind == "either":
        return {"anyOf": [{"type": "null"}, random_schema(chance, 0)]}
    if kind == "array":
        item = random_schema(chance, depth - 1)
        return {"type": "array", "items": item, "minItems": chance.randrange(3)}
    if kind != "object":
        return {"type": kind}
    names = chance.sample(["name", "age", "tags", "answer", "child", "b"], chance.randrange(1, 5))
    return {
        "type": "object",
        "properties": {name: random_schema(chance, depth - 1) for name in names},
        "required": [name for name in names if chance.random() < 0.6],
        "additionalProperties": chance.random() < 0.3,
    }


@pytest.mark.parametrize("seed", range(16))
def test_what_may_end_within_its_budget_is_json(vocabulary: Vocabulary, seed: int) -> None:
    chance = random.Random(seed)
    schema = random_schema(chance)
    least = shortest(begun(vocabulary, schema))
    assert least is not None, schema
    structure = frozenset(
        token for each in b'{[",:' for token in vocabulary.tokens_of(bytes([each]))
    )
    validator = jsonschema_rs.validator_for(schema)
    for liked in (frozenset(), structure):
        for room in (least, least + 1, least + chance.randrange(2, 60)):
            guide = begun(vocabulary, schema)
            answer = written(guide, room, chance, liked)
            validator.validate(json.loads(answer))


def test_an_answer_whose_budget_is_too_small_is_left_alone(vocabulary: Vocabulary) -> None:
    words = {"type": "string", "minLength": 60, "pattern": "^[a-z]*$"}
    schema = {"type": "object", "properties": {"a": words}, "required": ["a"]}
    answer = written(begun(vocabulary, schema), 6, random.Random(1), frozenset())
    assert answer.startswith(b'{"a":')
    with pytest.raises(json.JSONDecodeError):
        json.loads(answer)


def test_a_token_that_opens_too_deep_and_closes_again_is_exchanged() -> None:
    """As large vocabularies have them."""
    spelled = {1: b"[{}]", 2: b"[", 3: b"[]"}
    guide: Any = SimpleNamespace(
        vocabulary=SimpleNamespace(bytes_of=spelled.__getitem__), way=lambda search, ahead: [2, 9]
    )
    for depth, kept in ((1, 2), (2, 1)):
        assert JsonAnswer(guide, Hints(), closes=False, max_depth=depth).kept(1, 400) == kept
    assert JsonAnswer(guide, Hints(), closes=False, max_depth=1).kept(3, 400) == 3


@pytest.mark.parametrize("schema", [ANY, NESTED, RUNAWAY], ids=["any", "required", "optional"])
@pytest.mark.parametrize("depth", [1, 3, 8])
def test_nothing_is_opened_below_the_deepest_level(
    vocabulary: Vocabulary, schema: Any, depth: int
) -> None:
    liked = frozenset(vocabulary.tokens_of(b"{") + vocabulary.tokens_of(b"["))
    liked |= frozenset(vocabulary.tokens_of(b"answer") + vocabulary.tokens_of(b'":'))
    guide = begun(vocabulary, schema, max_depth=depth, closes=False)
    answer = written(guide, 400, random.Random(depth), liked)
    assert guide.hints is not None
    text, deepest = JsonText(), 0
    for byte in answer:
        text.feed(bytes([byte]))
        deepest = max(deepest, text.depth)
    assert deepest <= max(depth, guide.hints.depth) + 1  # one that the schema asked for


@pytest.mark.parametrize(
    ("text", "place", "opened"),
    [
        (b"", Place.VALUE, b""),
        (b"{", Place.FIRST_KEY, b"{"),
        (b'{"a', Place.IN_KEY, b"{"),
        (b'{"a"', Place.COLON, b"{"),
        (b'{"a": [', Place.FIRST_ITEM, b"{["),
        (b'{"a":[1, ', Place.VALUE, b"{["),
        (b'{"a":[1', Place.IN_SCALAR, b"{["),
        (b'{"a":"x\\"}', Place.IN_STRING, b"{"),
        (b'{"a":"x\\\\"', Place.AFTER_VALUE, b"{"),
        (b'{"a":"}","b":', Place.VALUE, b"{"),
        (b'{"a":true,', Place.KEY, b"{"),
        (b'{"a":{}}', Place.AFTER_VALUE, b""),
    ],
)
def test_where_a_text_is_in_json(text: bytes, place: Place, opened: bytes) -> None:
    whole, parts = JsonText(), JsonText()
    whole.feed(text)
    for byte in text:
        parts = parts.copy()
        parts.feed(bytes([byte]))
    for found in (whole, parts):
        assert (found.place, bytes(found.opened)) == (place, opened)


def test_hints_of_odd_schemas_are_bounded() -> None:
    assert hints_of(None).depth == 0
    wide = {"required": [f"k{each}" for each in range(10_000)]}
    assert len(hints_of(wide).keys) == 64


# Through an engine, on a tiny model of random weights.


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("closing") / "model"
    write_tiny_folder(folder)
    return folder


@pytest.fixture(scope="module", params=[0, 16], ids=["plain", "drafts"])
def engine(folder: Path, request: pytest.FixtureRequest) -> Iterator[Engine]:
    engine = build_engine(
        EngineConfig(
            model=str(folder),
            served_name="tiny",
            load_format="dummy",
            dtype="float32",
            memory_bytes=1024**3,
            max_context_tokens=512,
            arena_bytes=8 * 1024**2,
            max_adapters=1,
            max_draft_tokens=request.param,
        )
    )
    yield engine
    engine.close()


def asked(
    engine: Engine,
    schema: Any,
    max_tokens: int,
    seed: int,
    logprobs: int | None = None,
    **form: Any,
) -> tuple[list[int], list[TokenLogprob], str]:
    grammar = Grammar("json_schema", json.dumps(schema), "response_format", **form)
    sampling = SamplingParams(grammar=grammar, seed=seed, max_tokens=max_tokens, logprobs=logprobs)
    tenant = Tenant(key="t", namespace="t")
    prompt = [FIRST_BYTE + byte for byte in b"hello"]
    engine.submit(
        GenerationRequest(
            request_id=f"r{seed}", tenant=tenant, prompt_token_ids=prompt, sampling=sampling
        )
    )
    token_ids: list[int] = []
    logprobs_found: list[TokenLogprob] = []
    while True:
        for event in engine.step():
            if isinstance(event, TokenEvent):
                token_ids += event.token_ids
                logprobs_found += event.logprobs or []
            elif isinstance(event, FinishEvent):
                return token_ids, logprobs_found, event.reason


@pytest.mark.parametrize("schema", [ANY, NESTED], ids=["any", "required"])
def test_answers_of_an_engine_end_by_stop(engine: Engine, folder: Path, schema: Any) -> None:
    text, validator = TextProcessor(folder), jsonschema_rs.validator_for(schema)
    for seed in range(8):
        token_ids, logprobs, reason = asked(engine, schema, 24 + seed, seed, logprobs=2)
        assert reason == "stop"
        validator.validate(json.loads(text.decode(token_ids)))
        assert [each.token_id for each in logprobs] == token_ids
        assert all(each.logprob >= UNTOLD_LOGPROB for each in logprobs)


def test_without_closing_the_budget_may_cut_an_answer_off(engine: Engine) -> None:
    ends = {asked(engine, ANY, 24, seed, closes=False)[2] for seed in range(8)}
    assert "length" in ends
