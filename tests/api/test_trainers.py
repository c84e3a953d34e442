"""Adapters of real trainers, from their folder to the answer: what is accepted answers as
transformers + peft does, what is refused says in one sentence what to do instead."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from peft import (
    LoraConfig,
    PeftModel,
    get_peft_model,
    get_peft_model_state_dict,
    set_peft_model_state_dict,
)
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

from fake_engine import write_byte_tokenizer
from refused_adapters import REFUSED
from tenora_engine.adapters.identity import config_key, weights_key
from tenora_engine.config import EngineConfig, ModelInfo
from tenora_engine.engine import Engine, build_engine
from tenora_engine.events import FinishEvent, TokenEvent
from tenora_engine.request import AdapterRef, GenerationRequest, SamplingParams, Tenant
from tenora_platform.cli.adapter_folder import AdapterFolder, read_folder
from tenora_platform.cli.errors import CliError
from tenora_platform.intake.check import CheckedAdapter, check_adapter
from trainers import ACCEPTED, ALL, as_saved

pytestmark = pytest.mark.filterwarnings(
    "ignore:`is_gradient_checkpointing` is deprecated:FutureWarning",
    "ignore:Setting `save_embedding_layers`:UserWarning",
    "ignore:`lora_bias=True`",
    "ignore:Adapter .* LoRA tensor",
    "ignore:The following .* keys did not match:RuntimeWarning",
)

PROMPT = [5, 80, 12, 200, 33, 7, 91, 150]
NEW_TOKENS = 12


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of two layers, its weights random."""
    folder = tmp_path_factory.mktemp("trainers") / "tiny"
    write_byte_tokenizer(folder)
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=258,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=256,
        eos_token_id=1,
        initializer_range=0.2,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def base(model_dir: Path) -> Any:
    return LlamaForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="module")
def engine(model_dir: Path, store: Path) -> Iterator[Engine]:
    config = EngineConfig(
        model=str(model_dir),
        served_name="tiny",
        dtype="float32",
        memory_bytes=256 * 1024**2,
        arena_bytes=16 * 1024**2,
        max_context_tokens=256,
        max_rank=16,
        object_store=str(store),
    )
    made = build_engine(config)
    yield made
    made.close()


@dataclass(frozen=True)
class Pushed:
    """A folder as `tenora adapter push` reads it, and the verdict on what it would send."""

    folder: AdapterFolder
    checked: CheckedAdapter
    weights: bytes

    def said(self) -> str:
        problems = self.checked.report.problems
        return "; ".join(f"{each.field}: {each.message}" for each in problems)


def pushed(folder: Path, model: ModelInfo, scratch: Path) -> Pushed:
    sent = read_folder(folder)
    with sent.open_weights() as file:
        weights = file.read()
    assert len(weights) == sent.weights_bytes
    assert weights.startswith(sent.header)
    scratch.write_bytes(weights)
    return Pushed(sent, check_adapter(sent.config, scratch, model, 16), weights)


def served(engine: Engine, store: Path, sent: Pushed) -> list[int]:
    """The engine's greedy tokens with the adapter, kept in the store as the platform does."""
    checked = sent.checked
    assert checked.digest is not None
    assert checked.config is not None
    assert checked.rank is not None
    contents = {
        config_key(checked.digest): checked.config,
        weights_key(checked.digest): sent.weights,
    }
    for key, content in contents.items():
        (store / key).parent.mkdir(parents=True, exist_ok=True)
        (store / key).write_bytes(content)
    request = GenerationRequest(
        request_id=checked.digest,
        tenant=Tenant(key="tenant", namespace="namespace"),
        prompt_token_ids=PROMPT,
        sampling=SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS),
        adapter=AdapterRef(checked.digest, checked.rank),
    )
    engine.submit(request)
    tokens: list[int] = []
    until_s = time.monotonic() + 60
    while time.monotonic() < until_s:
        for event in engine.step():
            if isinstance(event, TokenEvent):
                tokens += event.token_ids
            elif isinstance(event, FinishEvent):
                stop = event.stop_token_id
                return tokens if stop is None else [*tokens, stop]
        if not engine.has_work:
            time.sleep(0.002)
    raise AssertionError("no answer")


def expected(model: Any) -> list[int]:
    """Greedy tokens of transformers, with or without peft around it."""
    ids = torch.tensor([PROMPT])
    with torch.inference_mode():
        made = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=NEW_TOKENS,
            do_sample=False,
        )
    output: list[int] = made[0, len(PROMPT) :].tolist()
    return output


@pytest.mark.parametrize("trainer", ACCEPTED)
def test_accepted_folders_answer_as_peft_does(
    trainer: str,
    base: Any,
    engine: Engine,
    store: Path,
    tmp_path: Path,
) -> None:
    folder = tmp_path / trainer
    ACCEPTED[trainer](base, folder)
    sent = pushed(folder, engine.config.model, tmp_path / "weights")
    assert sent.checked.report.problems == []
    facts = sent.checked.report.facts
    assert facts is not None
    reference = PeftModel.from_pretrained(copy.deepcopy(base), as_saved(folder)).eval()
    matrices = [name for name, _ in reference.named_parameters() if "lora_" in name]
    assert facts.tensors == facts.tensors_applied == len(matrices)
    answer = expected(reference)
    assert answer != expected(base), "the adapter changes nothing"
    assert served(engine, store, sent) == answer


@pytest.mark.parametrize("what", REFUSED)
def test_refused_folders_say_what_to_do(
    what: str, base: Any, engine: Engine, tmp_path: Path
) -> None:
    refused = REFUSED[what]
    refused.make(base, tmp_path / "adapter")
    if refused.code == "":
        with pytest.raises(CliError) as error:
            read_folder(tmp_path / "adapter")
        assert refused.advice in f"{error.value} {error.value.hint}"
        return
    sent = pushed(tmp_path / "adapter", engine.config.model, tmp_path / "weights")
    problems = sent.checked.report.problems
    assert refused.code in {problem.code for problem in problems}, sent.said()
    assert any(refused.advice in problem.message for problem in problems), sent.said()
    assert all(len(problem.message) < 400 for problem in problems)
    assert sent.checked.digest is None


ODD = [
    "lm_head.lora_A.weight",
    "model.layers.0.self_attn.q_proj.lora_B.bias",
    "model.layers.0.self_attn.q_proj.lora_magnitude_vector",
    "model.layers.1.mlp.down_proj.lora_A.default.weight",
    "model.layers.1.mlp.down_proj.lora_A.other.weight",
    "model.layers.2.mlp.down_proj.lora_A.weight",
    "model.layers.0.mlp.q_proj.lora_A.weight",
    "model.layers.0.self_attn.rotary.lora_A.weight",
    "model.norm.weight",
    "model.layers.00.self_attn.q_proj.lora_A.weight",
]


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_no_accepted_config_drops_a_tensor(
    base: Any, engine: Engine, tmp_path: Path, data: st.DataObject
) -> None:
    """Whatever the config says and the file holds: what is accepted, peft loads to the last tensor,
    and puts LoRA on no module for which there is none."""
    draw = data.draw
    some = st.lists(st.sampled_from(ALL), min_size=1, max_size=3, unique=True)
    trained = draw(some)
    options: dict[str, Any] = {"r": 4, "target_modules": trained}
    if draw(st.booleans()):
        options["rank_pattern"] = {draw(st.sampled_from(ALL)): draw(st.integers(1, 6))}
    if draw(st.booleans()):
        options["layers_to_transform"] = draw(st.sampled_from([[0], [1], [0, 1], 1]))
    if draw(st.booleans()):
        options["exclude_modules"] = [draw(st.sampled_from(ALL))]
    fields = {"peft_type": "LORA", "task_type": "CAUSAL_LM", **options}
    try:
        tensors = get_peft_model_state_dict(peft_model(base, options))
    except ValueError:  # nothing is left to train
        return
    claimed = fields | draw(
        st.fixed_dictionaries(
            {},
            optional={
                "target_modules": some,
                "bias": st.sampled_from(["none", "all", "lora_only"]),
                "layers_to_transform": st.sampled_from([None, [0], [1]]),
                "use_dora": st.booleans(),
                "exclude_modules": st.none(),
                "next_year": st.sampled_from([None, False, True]),
            },
        )
    )
    for odd in draw(st.lists(st.sampled_from(ODD), max_size=1)):
        tensors[f"base_model.model.{odd}"] = torch.ones(4, 64)
    for gone in draw(st.lists(st.sampled_from(sorted(tensors)), max_size=1)):
        del tensors[gone]
    if not tensors:
        return
    file = tmp_path / "weights"
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, file)
    checked = check_adapter(json.dumps(claimed).encode(), file, engine.config.model, 16)
    if checked.report.problems:
        return
    known = {name: claimed[name] for name in claimed if name not in ("peft_type", "next_year")}
    loaded = set_peft_model_state_dict(peft_model(base, known), plain_names(tensors))
    assert loaded.unexpected_keys == []
    assert not [name for name in loaded.missing_keys if "lora_" in name]


def peft_model(base: Any, options: dict[str, Any]) -> Any:
    return get_peft_model(copy.deepcopy(base), LoraConfig(**options))


def plain_names(tensors: dict[str, Any]) -> dict[str, Any]:
    """As peft writes them: it takes `.default.` for another module."""
    return {name.replace(".default.", "."): tensor for name, tensor in tensors.items()}


def test_what_is_not_sent_is_listed(base: Any, tmp_path: Path) -> None:
    folder = tmp_path / "trl"
    ACCEPTED["trl"](base, folder)
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    (folder / "checkpoint-3").mkdir()
    sent = read_folder(folder)
    assert sent.skipped == (
        "README.md",
        "checkpoint-3/",
        "special_tokens_map.json",
        "tokenizer.json",
    )
    assert sent.chat_template == template
    named = [{"name": "default", "template": "A"}, {"name": "tool_use", "template": "B"}]
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    assert read_folder(folder).chat_template == "A"
    (folder / "chat_template.jinja").write_text("C")
    assert read_folder(folder).chat_template == "C"


def test_fields_of_newer_versions_are_named_in_a_warning(
    base: Any, engine: Engine, tmp_path: Path
) -> None:
    ACCEPTED["trl"](base, tmp_path / "trl")
    sent = pushed(tmp_path / "trl", engine.config.model, tmp_path / "weights")
    [warning] = [w for w in sent.checked.report.warnings if w.code == "ignored_fields"]
    assert "'quantum_config', 'enable_lora'" in warning.message
