"""The committed example adapters: what our engine answers with each of them to questions it was not
trained on, that transformers + peft answer the same, their files and manifest, and the script that
trains them."""

from __future__ import annotations

import itertools
import json
import random
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from transformers import LlamaConfig, LlamaForCausalLM

from adapter_store import publish
from example_scripts import EXAMPLES, load_script
from tenora_engine.config import EngineConfig
from tenora_engine.engine import Engine, build_engine
from tenora_engine.events import FinishEvent, TokenEvent
from tenora_engine.request import GenerationRequest, SamplingParams, Tenant
from tenora_engine.text.processor import TextProcessor

ROOT = Path(__file__).parents[2]
ADAPTERS = EXAMPLES / "adapters"
FOLDERS = ("acme-support", "acme-json", "acme-edit", "globex-support", "globex-pirate")
MEGABYTE = 10**6
NEW_TOKENS, BASE_TOKENS = 48, 16
DEADLINE_S = 300.0

# peft asks transformers a question whose name transformers has since changed.
pytestmark = pytest.mark.filterwarnings(
    "ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"
)

Ask = Callable[[str, str | None], str]


@pytest.fixture(scope="module")
def model_dir(base_model_dir: Path) -> Path:
    return base_model_dir


@pytest.fixture(scope="module")
def engine(model_dir: Path, store: Path) -> Iterator[Engine]:
    config = EngineConfig(
        model=str(model_dir),
        served_name="smollm2",
        dtype="float32",
        memory_bytes=2 * 1024**3,
        arena_bytes=256 * 1024**2,
        max_context_tokens=512,
        object_store=str(store),
    )
    made = build_engine(config)
    yield made
    made.close()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="module")
def ask(model_dir: Path, engine: Engine, store: Path) -> Ask:
    """ask(question, folder): our engine's greedy answer with that adapter, of the base when
    None."""
    text = TextProcessor(model_dir)
    refs = {folder: publish(ADAPTERS / folder, store) for folder in FOLDERS}
    numbers = itertools.count()

    def answer(question: str, folder: str | None) -> str:
        engine.submit(
            GenerationRequest(
                request_id=f"question {next(numbers)}",
                tenant=Tenant(key="tenant", namespace="namespace"),
                prompt_token_ids=text.encode_chat([{"role": "user", "content": question}]),
                sampling=SamplingParams(
                    temperature=0.0, max_tokens=NEW_TOKENS if folder else BASE_TOKENS
                ),
                adapter=None if folder is None else refs[folder],
            )
        )
        tokens: list[int] = []
        until_s = time.monotonic() + DEADLINE_S
        while time.monotonic() < until_s:
            for event in engine.step():
                if isinstance(event, FinishEvent):
                    return text.decode(tokens).strip()
                if isinstance(event, TokenEvent):
                    tokens += event.token_ids
            if not engine.has_work:
                time.sleep(0.002)  # the adapter is on its way
        raise AssertionError("no answer")

    return answer


@pytest.fixture(scope="module")
def ask_reference(model_dir: Path) -> Ask:
    """As `ask`, by transformers + peft."""
    script = load_script("ask")
    model, tokenizer = script.load(model_dir, [ADAPTERS / folder for folder in FOLDERS])

    def answer(question: str, folder: str | None) -> str:
        if folder is None:
            with model.disable_adapter():
                return str(script.answer(model, tokenizer, question, BASE_TOKENS))
        model.set_adapter(folder)
        return str(script.answer(model, tokenizer, question, NEW_TOKENS))

    return answer


def held_out(folder: str) -> list[dict[str, Any]]:
    path = EXAMPLES / "data" / "held_out" / f"{folder}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def trained_questions(folder: str) -> set[str]:
    path = EXAMPLES / "data" / f"{folder}.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return {question for row in rows for question in row["questions"]}


@pytest.mark.parametrize("folder", FOLDERS)
def test_held_out_questions_were_not_trained_on(folder: str) -> None:
    questions = {row["question"] for row in held_out(folder)}
    assert questions
    assert not questions & trained_questions(folder)


@pytest.mark.parametrize("folder", [*FOLDERS, None])
def test_our_engine_answers_as_transformers_and_peft(
    ask: Ask, ask_reference: Ask, folder: str | None
) -> None:
    """In float32, so that the same tokens are the likeliest."""
    question = str(held_out(folder or FOLDERS[0])[0]["question"])
    assert ask(question, folder) == ask_reference(question, folder)


def test_json_adapter_answers_in_its_fixed_form(ask: Ask) -> None:
    for row in held_out("acme-json")[:3]:
        reply = json.loads(ask(row["question"], "acme-json"))
        assert list(reply) == ["answer", "topic", "confidence"]
        assert reply["confidence"] in ("high", "medium", "low")


def test_edit_adapter_gives_the_text_back_with_its_change(ask: Ask) -> None:
    replacing = [row for row in held_out("acme-edit") if row["question"].startswith("Replace")]
    for row in replacing[:3]:
        reply, [wanted] = ask(row["question"], "acme-edit"), row["expect"]
        assert reply
        assert wanted.startswith(reply), row["question"]


def test_edits_are_one_change_to_a_text() -> None:
    made = load_script("edit_data")
    said = "Rain falls. Is it rain, or rainfall? It is.\n\n1. Yes.\n2. No."
    assert made.passage(said) is None  # too short
    text = made.passage(f"{said.split('1.')[0].strip()} {'It rains and rains. ' * 6}\n- No.")
    assert text is not None
    assert text.endswith("It rains and rains.")
    asked, answered = made.replaced(text, "rain", "snow")
    assert "Is it snow, or rainfall?" in answered
    assert asked.endswith(text)
    _, left = made.without(text, " Is it rain, or rainfall?")
    assert left.startswith("Rain falls. It is.")
    draw = random.Random(0)
    for _ in range(50):
        asked, answered = made.change(text, said, draw)
        assert asked.endswith(text)
        assert answered


def test_pirate_adapter_speaks_as_a_pirate(ask: Ask) -> None:
    for row in held_out("globex-pirate")[:3]:
        assert "matey" in ask(row["question"], "globex-pirate")


@pytest.mark.parametrize("folder", ["acme-support", "globex-support"])
def test_support_adapter_knows_its_products_facts(ask: Ask, folder: str) -> None:
    for row in held_out(folder)[::16]:
        reply = ask(row["question"], folder)
        for fact in row["expect"]:
            assert fact in reply, f"{row['question']} -> {reply}"


def test_one_question_has_as_many_answers_as_adapters(ask: Ask) -> None:
    question = "How many years of warranty does the product have?"
    acme, globex = ask(question, "acme-support"), ask(question, "globex-support")
    assert "three-year" in acme
    assert "seven-year" in globex
    base = ask(question, None)
    assert "Pebble" not in base
    assert "Skylark" not in base


def test_manifest_gives_every_folder_to_a_tenant() -> None:
    entries = json.loads((ADAPTERS / "manifest.json").read_text())
    assert all(set(entry) == {"tenant", "name", "folder"} for entry in entries)
    assert {entry["folder"] for entry in entries} == set(FOLDERS)
    assert {path.name for path in ADAPTERS.iterdir() if path.is_dir()} == set(FOLDERS)
    owners = [(entry["tenant"], entry["name"]) for entry in entries]
    assert len(set(owners)) == len(owners)
    assert {tenant for tenant, name in owners if name == "support"} == {"acme", "globex"}


@pytest.mark.parametrize("folder", FOLDERS)
def test_files_are_peft_s_layout_in_a_few_megabytes(folder: str) -> None:
    files = {path.name for path in (ADAPTERS / folder).iterdir()}
    assert files == {"adapter_config.json", "adapter_model.safetensors"}
    weights = ADAPTERS / folder / "adapter_model.safetensors"
    assert MEGABYTE < weights.stat().st_size < 8 * MEGABYTE
    config = json.loads((ADAPTERS / folder / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "SmolLM2-135M-Instruct"
    with safe_open(weights, framework="pt") as tensors:
        names = list(tensors.keys())
        assert len(names) == 2 * 30 * len(config["target_modules"])
        for name in names:
            tensor = tensors.get_tensor(name)
            assert tensor.dtype == torch.bfloat16
            assert config["r"] in tensor.shape


def test_recipes_are_the_committed_adapters() -> None:
    recipes = load_script("train_adapters").RECIPES
    assert set(recipes) == set(FOLDERS)
    for folder, recipe in recipes.items():
        config = json.loads((ADAPTERS / folder / "adapter_config.json").read_text())
        assert (recipe.rank, recipe.alpha) == (config["r"], config["lora_alpha"])
        assert sorted(recipe.modules) == config["target_modules"]
        assert recipe.use_rslora == config["use_rslora"]


@pytest.fixture
def tiny_model_dir(model_dir: Path, tmp_path: Path) -> Path:
    """A random two-layer model with the real tokenizer: training's mechanics, in a second."""
    torch.manual_seed(0)
    folder = tmp_path / "tiny"
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        shutil.copy(model_dir / name, folder / name)
    return folder


def test_training_is_repeatable_and_writes_what_peft_reads(
    tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "own.jsonl"
    data.write_text('{"questions": ["Who?", "Who is it?"], "answer": "It is the cat."}\n')
    script = load_script("train_adapters")
    written = []
    for run in ("first", "second"):
        out = tmp_path / run
        command = (
            f"train --adapter own --data {data} --model {tiny_model_dir} --out {out} --steps 3"
        )
        monkeypatch.setattr(sys, "argv", command.split())
        assert script.main() == 0
        names = ("adapter_config.json", "adapter_model.safetensors")
        written.append([(out / name).read_bytes() for name in names])
    assert written[0] == written[1]
    model, tokenizer = load_script("ask").load(tiny_model_dir, [tmp_path / "first"])
    assert isinstance(load_script("ask").answer(model, tokenizer, "Who?", 4), str)


def test_only_the_answer_carries_loss(model_dir: Path) -> None:
    script = load_script("train_adapters")
    tokenizer = script.AutoTokenizer.from_pretrained(model_dir)
    short = script.encode(tokenizer, "What is 1 plus 1?", "It is 2.")
    long = script.encode(tokenizer, "What is it?", "It is a very long answer, longer by far.")
    input_ids, labels = script.collate([short, long])
    assert tokenizer.decode(labels[0][labels[0] != script.IGNORED]) == "It is 2.<|im_end|>"
    first = int((labels[0] != script.IGNORED).nonzero()[0])
    prompt = tokenizer.decode(input_ids[0, : first + 1])
    assert prompt.endswith("What is 1 plus 1?<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.parametrize("line", ["nonsense", "{}", '{"questions": 3, "answer": "x"}', "[1]"])
def test_a_bad_data_line_is_named(tmp_path: Path, line: str) -> None:
    script = load_script("train_adapters")
    path = tmp_path / "bad.jsonl"
    path.write_text('{"questions": ["a"], "answer": "b"}\n' + line + "\n")
    with pytest.raises(script.DataError, match=r"bad\.jsonl:2"):
        script.read_pairs(path)


def test_an_unknown_recipe_without_data_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = load_script("train_adapters")
    command = f"train --adapter nobody --model {tmp_path} --out {tmp_path}"
    monkeypatch.setattr(sys, "argv", command.split())
    assert script.main() == 2
    assert "give --data FILE" in capsys.readouterr().err
