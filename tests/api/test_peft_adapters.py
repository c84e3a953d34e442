"""Adapters as PEFT itself writes them, with and without task_type, and as other tools do: each is
accepted, and what is wrong with one is said in a few words."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from fake_engine import FakeEngine
from tenora_engine.config import ModelInfo
from tenora_platform.intake.check import CheckedAdapter, check_adapter

BASE = "base_model.model."
Renaming = Callable[[str], str]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelInfo:
    return FakeEngine(tmp_path_factory.mktemp("model")).model


@pytest.fixture(params=["CAUSAL_LM", None], ids=["task_type", "no task_type"])
def folder(request: pytest.FixtureRequest, model: ModelInfo, tmp_path: Path) -> Path:
    """What save_pretrained writes for the fake engine's model."""
    torch.manual_seed(0)
    base = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=model.vocab,
            hidden_size=model.hidden,
            intermediate_size=model.intermediate,
            num_hidden_layers=model.num_layers,
            num_attention_heads=model.heads,
            num_key_value_heads=model.kv_heads,
        )
    )
    config = LoraConfig(r=4, target_modules=["q_proj", "down_proj"], task_type=request.param)
    lora = get_peft_model(base, config)
    for name, parameter in lora.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter)
    lora.save_pretrained(tmp_path / "adapter")
    written = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert bool(written["auto_mapping"]) == (request.param is None), "what PEFT does"
    return tmp_path / "adapter"


def check(folder: Path, model: ModelInfo, **changes: Any) -> CheckedAdapter:
    config = json.loads((folder / "adapter_config.json").read_text()) | changes
    weights = folder / "adapter_model.safetensors"
    return check_adapter(json.dumps(config).encode(), weights, model, 16)


def rename(folder: Path, new_name: Renaming) -> None:
    file = folder / "adapter_model.safetensors"
    save_file({new_name(name): tensor for name, tensor in load_file(file).items()}, file)


def plain(name: str) -> str:
    return name.removeprefix(BASE)


def default(name: str) -> str:
    return name.replace(".weight", ".default.weight")


def gpt2(name: str) -> str:
    return plain(name).replace("model.layers.", "transformer.h.").replace("self_attn.", "attn.")


def said(checked: CheckedAdapter) -> str:
    return json.dumps([problem.model_dump() for problem in checked.report.problems])


def test_peft_adapters_are_accepted(folder: Path, model: ModelInfo) -> None:
    checked = check(folder, model)
    assert checked.report.problems == checked.report.warnings == []
    assert checked.rank == 4
    assert checked.target_modules == ("q_proj", "down_proj")


@pytest.mark.parametrize("new_name", [plain, default, lambda name: plain(default(name))])
def test_other_names_are_accepted(folder: Path, model: ModelInfo, new_name: Renaming) -> None:
    as_written = check(folder, model)
    rename(folder, new_name)
    checked = check(folder, model)
    assert checked.report.problems == []
    assert checked.report.facts is not None
    assert as_written.report.facts is not None
    assert checked.report.facts.modules == as_written.report.facts.modules


def test_one_matrix_under_two_names(folder: Path, model: ModelInfo) -> None:
    file = folder / "adapter_model.safetensors"
    tensors = load_file(file)
    name = next(iter(tensors))
    save_file(tensors | {plain(name): tensors[name].clone()}, file)
    assert [problem.code for problem in check(folder, model).report.problems] == [
        "duplicate_tensor"
    ]


def test_what_is_missing_is_summed_up(folder: Path, model: ModelInfo) -> None:
    """Of a larger model, to which each matrix would otherwise add a line."""
    large = msgspec.structs.replace(model, num_layers=40)
    checked = check(folder, large)
    [missing] = checked.report.problems
    assert missing.code == "tensor_missing"
    assert "152 of the 160 matrices" in missing.message
    assert "2 x 'base_model.model.model.layers.N.mlp.down_proj.lora_A.weight'" in missing.message
    assert len(said(checked)) < 1000


def test_other_architectures_names_are_shown(folder: Path, model: ModelInfo) -> None:
    rename(folder, gpt2)
    checked = check(folder, model)
    assert {problem.code for problem in checked.report.problems} == {
        "tensor_missing",
        "unknown_tensor",
    }
    assert "2 x 'transformer.h.N.attn.q_proj.lora_A.weight'" in said(checked)
    assert len(said(checked)) < 1000


def test_problems_of_one_kind_are_one(folder: Path, model: ModelInfo) -> None:
    [shapes] = check(folder, model, r=8).report.problems
    assert (shapes.field, shapes.code) == ("weights", "shape_mismatch")
    assert "[4, 32]; adapter_config.json asks for [8, 32]; the same for 7 more" in shapes.message


@pytest.mark.parametrize(
    ("named", "warned"),
    [
        ("fake-base", False),
        ("someone/Fake-Base", False),
        ("/home/someone/models/fake-base/", False),
        ("C:\\models\\fake-base", False),
        ("", False),
        (None, False),
        (7, False),
        ("meta-llama/Llama-3.1-8B", True),
        ("fake-base-2", True),
    ],
)
def test_another_base_model_is_a_warning(
    folder: Path, model: ModelInfo, named: object, warned: bool
) -> None:
    checked = check(folder, model, base_model_name_or_path=named)
    assert checked.report.accepted
    assert [warning.code for warning in checked.report.warnings] == ["other_base_model"] * warned
    refused = check(folder, model, base_model_name_or_path=named, r=8)
    assert [warning.code for warning in refused.report.warnings] == ["other_base_model"] * warned
