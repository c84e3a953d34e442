"""Outputs follow their grammars, whatever is random: through a whole engine on a tiny model of
random weights, one token a byte."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from guided_schemas import SCHEMAS
from tenora_bench.recorded.replay import replay
from tenora_engine.config import EngineConfig
from tenora_engine.engine import Engine, build_engine
from tenora_engine.errors import InvalidRequestError
from tenora_engine.events import FinishEvent, TokenEvent, TokenLogprob
from tenora_engine.executor import executor as executor_module
from tenora_engine.executor.recording import Planned, Recording
from tenora_engine.request import GenerationRequest, Grammar, SamplingParams, Tenant
from tenora_engine.text.processor import TextProcessor
from tenora_kernels.backend import has_compiled_ops
from tiny_folder import write_tiny_folder

EOS, FIRST_BYTE, VOCAB = 1, 2, 258
PHONE = Grammar("regex", "[0-9]{3}-[0-9]{4}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("guided") / "model"
    write_tiny_folder(folder)
    return folder


def engine_of(folder: Path, **options: Any) -> Engine:
    config = EngineConfig(
        model=str(folder),
        served_name="tiny",
        load_format="dummy",
        dtype="float32",
        memory_bytes=1024**3,
        max_context_tokens=512,
        **{"arena_bytes": 8 * 1024**2, "max_adapters": 1, **options},
    )
    return build_engine(config)


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[Engine]:
    engine = engine_of(folder)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def text(folder: Path) -> TextProcessor:
    return TextProcessor(folder)


def request(name: str, grammar: Grammar | None, **sampling: Any) -> GenerationRequest:
    params = {"temperature": 1.0, "seed": 7, "max_tokens": 120, **sampling}
    return GenerationRequest(
        request_id=name,
        tenant=Tenant(key="t", namespace=sampling.pop("namespace", "t")),
        prompt_token_ids=[FIRST_BYTE + byte for byte in name.encode()],
        sampling=SamplingParams(grammar=grammar, **params),
    )


class Answer:
    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.logprobs: list[TokenLogprob] = []
        self.end: FinishEvent | None = None

    @property
    def reason(self) -> str:
        assert self.end is not None
        return self.end.reason

    def text(self, processor: TextProcessor) -> str:
        return processor.decode(self.token_ids)


def answers(engine: Engine, *requests: GenerationRequest) -> dict[tuple[str, int], Answer]:
    found: dict[tuple[str, int], Answer] = {}
    wanted = sum(each.sampling.n for each in requests)
    for each in requests:
        engine.submit(each)
    while wanted:
        for event in engine.step():
            assert isinstance(event, TokenEvent | FinishEvent)
            answer = found.setdefault((event.request_id, event.index), Answer())
            if isinstance(event, TokenEvent):
                answer.token_ids += event.token_ids
                answer.logprobs += event.logprobs or []
            else:
                answer.end = event
                wanted -= 1
    return found


def schema(content: Any) -> Grammar:
    return Grammar("json_schema", json.dumps(content), "response_format")


@pytest.mark.parametrize("name", SCHEMAS)
def test_what_ends_by_stop_validates(engine: Engine, text: TextProcessor, name: str) -> None:
    found = answers(engine, request(name, schema(SCHEMAS[name]), n=6))
    stopped = [answer.text(text) for answer in found.values() if answer.reason == "stop"]
    assert {answer.reason for answer in found.values()} <= {"stop", "length"}
    assert stopped
    validator = jsonschema_rs.validator_for(SCHEMAS[name])
    for output in stopped:
        validator.validate(json.loads(output))
        outside = re.sub(r'"(?:[^"\\]|\\.)*"', '""', output)
        assert not re.search(r"(?<![:,])\s|[^\S ]|\s\s", outside), "spaces between tokens"


@pytest.mark.parametrize("drafts", [0, 16])
def test_where_the_library_gives_up_an_answer_has_not_ended_by_stop(
    folder: Path, text: TextProcessor, drafts: int
) -> None:
    """Its masks of such a pattern, of MaskBench's, grow beyond its limits as words come; they then
    have the end of the sequence alone."""
    words = {"type": "string", "pattern": r"^(?:\S+\s+){0,49}\S+$", "maxLength": 500}
    content = {"type": "array", "items": words, "minItems": 1}
    engine = engine_of(folder, max_draft_tokens=drafts)
    found = answers(engine, request("words", schema(content), n=16, max_tokens=60))
    [meter] = engine.stats().telemetry.meters
    engine.close()
    validator = jsonschema_rs.validator_for(content)
    reasons = set()
    for answer in found.values():
        reasons.add(answer.reason)
        if answer.reason == "stop":
            validator.validate(json.loads(answer.text(text)))
        elif answer.reason == "error":
            assert answer.end is not None
            assert answer.end.error is not None
            assert "the grammar cannot be followed any further" in answer.end.error
            assert (answer.end.fault, answer.end.param) == ("request", "response_format")
            usage = answer.end.usage
            assert (usage.prompt_tokens, usage.output_tokens) == (0, 0), "it is not charged"
    assert "error" in reasons
    assert meter.finished.get("invalid", 0) >= 1
    assert "error" not in meter.finished, "it is no failure of the engine's"


@pytest.mark.parametrize(
    "grammar",
    [
        PHONE,
        Grammar("grammar", 'start: /[0-9]{3}/ "-" /[0-9]{4}/'),
        Grammar("grammar", 'root ::= [0-9]{3} "-" [0-9]{4}'),
    ],
    ids=["regex", "lark", "gbnf"],
)
def test_other_grammars(engine: Engine, text: TextProcessor, grammar: Grammar) -> None:
    for answer in answers(engine, request("phone", grammar, n=4)).values():
        assert answer.reason == "stop"
        assert re.fullmatch(r"[0-9]{3}-[0-9]{4}", answer.text(text))


def test_choices(engine: Engine, text: TextProcessor) -> None:
    words = ["yes", "no", 'per"haps', "größer"]
    found = answers(engine, request("choice", Grammar("choice", json.dumps(words)), n=16))
    assert {answer.text(text) for answer in found.values()} <= set(words)
    assert len({answer.text(text) for answer in found.values()}) > 1


@pytest.mark.parametrize(
    ("grammar", "named"),
    [
        (schema({"not": {"type": "object"}}), '"not"'),
        (schema({"type": "array", "uniqueItems": True}), '"uniqueItems"'),
        (Grammar("json_schema", '{"type":', "response_format"), "JSON schema"),
        (Grammar("regex", "(a", "response_format"), "regular expression"),
        (Grammar("grammar", "start: nothing", "response_format"), "grammar"),
        (Grammar("choice", "[]", "response_format"), "choices"),
        (schema({"const": "x" * 100_000}), "65536 bytes"),
    ],
    ids=["not", "uniqueItems", "no json", "regex", "grammar", "no choice", "large"],
)
def test_what_is_not_supported_is_refused_by_name(
    engine: Engine, grammar: Grammar, named: str
) -> None:
    with pytest.raises(InvalidRequestError, match=re.escape(named)) as refused:
        engine.submit(request("refused", grammar))
    assert refused.value.param == "response_format"
    assert not engine.has_work


def test_a_grammar_stands_above_other_rules(engine: Engine, text: TextProcessor) -> None:
    letters = tuple(text.encode("abc"))
    against = {
        "allowed_token_ids": letters,
        "logit_bias": dict.fromkeys(letters, 100.0),
        "bad_words": tuple((digit,) for digit in text.encode("0123456789")),
        "min_tokens": 60,
        "ignore_eos": True,
    }
    found = answers(
        engine,
        request("drawn", PHONE, n=3, **against),
        request("greedy", PHONE, temperature=0.0, **against),
    )
    for answer in found.values():
        assert answer.reason == "stop"
        assert re.fullmatch(r"[0-9]{3}-[0-9]{4}", answer.text(text))


def test_rules_choose_among_what_a_grammar_allows(engine: Engine, text: TextProcessor) -> None:
    bias = dict.fromkeys(text.encode("7"), 100.0)
    found = answers(engine, request("seven", PHONE, logit_bias=bias))
    assert found["seven", 0].text(text) == "777-7777"


def test_the_end_comes_where_the_grammar_has_one(engine: Engine, text: TextProcessor) -> None:
    end = {EOS: 100.0}
    found = answers(engine, request("end", Grammar("regex", "a{3,9}"), logit_bias=end))
    assert found["end", 0].text(text) == "aaa"
    assert found["end", 0].end is not None
    assert found["end", 0].end.stop_token_id == EOS
    later = answers(
        engine, request("later", Grammar("regex", "a{3,9}"), logit_bias=end, min_tokens=5)
    )
    assert later["later", 0].text(text) == "aaaaa"


def test_logprobs_are_of_the_model(engine: Engine) -> None:
    one = {"temperature": 0.0, "max_tokens": 1, "logprobs": 20}
    plain = answers(engine, request("same", None, **one))["same", 0]
    guided = answers(engine, request("same", PHONE, **one))["same", 0]
    assert guided.token_ids != plain.token_ids
    assert guided.logprobs[0].top == plain.logprobs[0].top


def crowd() -> list[GenerationRequest]:
    """Guided ones among others, greedy and drawn."""
    made = []
    for number in range(18):
        grammar = [None, schema(SCHEMAS["of a model"]), PHONE][number % 3]
        made.append(
            request(
                f"{number}", grammar, temperature=number % 2 * 0.9, max_tokens=60, n=1 + number % 2
            )
        )
    return made


@pytest.mark.skipif(not has_compiled_ops(), reason="torch promises no bits")
def test_guided_rows_change_nobody_elses_tokens_nor_does_preemption(folder: Path) -> None:
    roomy = engine_of(folder, max_running=1)
    alone: dict[tuple[str, int], Answer] = {}
    for each in crowd():
        alone |= answers(roomy, each)
    roomy.close()
    page_bytes = 2 * 2 * 16 * 2 * 16 * 4
    tight = engine_of(folder, arena_bytes=24 * page_bytes, max_running=12, max_step_tokens=33)
    together = answers(tight, *crowd())
    assert tight.stats().counters["preemptions"] > 0
    tight.close()
    assert {key: answer.token_ids for key, answer in together.items()} == {
        key: answer.token_ids for key, answer in alone.items()
    }
    assert {key: answer.reason for key, answer in together.items()} == {
        key: answer.reason for key, answer in alone.items()
    }


@pytest.mark.skipif(not has_compiled_ops(), reason="torch promises no bits")
def test_drafts_change_nothing(folder: Path) -> None:
    """Tokens that a grammar forces are drafts, and others are cut to what it allows."""
    grammars = [schema(content) for content in SCHEMAS.values()]
    without, drafted = (_answered(folder, grammars, drafts=most) for most in (0, 16))
    assert [(each.reason, each.token_ids) for each in drafted] == [
        (each.reason, each.token_ids) for each in without
    ]


def _answered(folder: Path, grammars: list[Grammar], drafts: int) -> list[Answer]:
    engine = engine_of(folder, max_draft_tokens=drafts)
    requests = [
        request(f"{number:03}{'ab' * 6}", each, n=2, temperature=number % 3 * 0.6)
        for number, each in enumerate(grammars)
    ]
    found = answers(engine, *requests)
    accepted = engine.stats().counters["drafts_accepted"]
    engine.close()
    assert bool(accepted > 30) == bool(drafts)
    return [found[key] for key in sorted(found)]


def test_recordings_hold_the_masks(folder: Path, tmp_path: Path) -> None:
    engine = engine_of(folder, record=str(tmp_path / "steps"), threads=1)
    answers(engine, *crowd())
    engine.close()
    recording = Recording(tmp_path / "steps")
    plans = [frame.plan for frame in recording.frames() if isinstance(frame, Planned)]
    changes = [plan.sampling.changes for plan in plans if plan.sampling is not None]
    assert any(each is not None and each.masks is not None for each in changes)
    replayed = replay(tmp_path / "steps")
    assert replayed.tokens > 0
    assert not replayed.differing_rows


@pytest.mark.skipif(not has_compiled_ops(), reason="torch makes logits in any case")
def test_the_compiled_choice_is_that_of_the_logits(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Greedy rows with masks and without, in one step."""
    grammars = [None, schema(SCHEMAS["of a model"]), PHONE]
    wanted = [
        request(f"{number}", grammars[number % 3], temperature=0.0, max_tokens=40)
        for number in range(9)
    ]
    compiled = engine_of(folder)
    chosen = answers(compiled, *wanted)
    compiled.close()
    monkeypatch.setattr(executor_module, "is_likeliest", lambda sampling: sampling is None)
    of_logits = engine_of(folder)
    expected = answers(of_logits, *wanted)
    of_logits.close()
    assert {key: answer.token_ids for key, answer in chosen.items()} == {
        key: answer.token_ids for key, answer in expected.items()
    }
