"""What a checkpoint holds: every tensor is used, known to be idle, or refused by name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from decoder_harness import CONFIGS, SIZES, TOKENS, Harness, save_random_model
from tenora_engine.config import EngineConfig
from tenora_engine.errors import ModelLoadError
from tenora_engine.model.loader import load_model, read_model_info


def change_weights(folder: Path, **changes: Tensor | None) -> None:
    """Tensors of its one file by their names with "__" for "."; None takes one away."""
    file = folder / "model.safetensors"
    tensors = load_file(file)
    for name, tensor in changes.items():
        if tensor is None:
            del tensors[name.replace("__", ".")]
        else:
            tensors[name.replace("__", ".")] = tensor
    save_file(tensors, file, metadata={"format": "pt"})


def theirs(folder: Path) -> Tensor:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        logits: Tensor = model(torch.tensor([TOKENS])).logits[0]
    return logits


@pytest.mark.parametrize("name", ["llama", "qwen3", "granite"])
@pytest.mark.parametrize("embedding", ["another", "equal", "none"])
def test_a_head_beside_tied_embeddings_is_used_as_transformers_uses_it(
    tmp_path: Path, name: str, embedding: str, kind: str
) -> None:
    """It had been passed over, and answers were wrong without a word."""
    model = save_random_model(tmp_path, CONFIGS[name]())
    head = torch.randn(97, SIZES["hidden_size"], generator=torch.Generator().manual_seed(7)) * 0.2
    if embedding == "equal":
        head = model.model.embed_tokens.weight.detach().clone()
    change_weights(tmp_path, lm_head__weight=head)
    if embedding == "none":
        change_weights(tmp_path, model__embed_tokens__weight=None)
    harness = Harness.of(tmp_path)
    assert harness.model.spec.tied_embeddings == (embedding != "another")
    config = EngineConfig(model=str(tmp_path), served_name="m", dtype="float32")
    more = harness.model.info.weight_bytes - read_model_info(config).weight_bytes
    # Packed weights have a copy of the embedding for a head anyway.
    counted = embedding == "another" and kind != "torch on packed weights"
    assert (more > 0) == counted, "the memory budget knows of it"
    torch.testing.assert_close(harness.run(TOKENS), theirs(tmp_path), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("lm_head.bias", "correct config.json"),
        ("model.layers.1.self_attn.q_proj.bias", "correct config.json"),
        ("model.layers.1.self_attn.q_norm.weight", "correct config.json"),
        ("model.layers.0.mlp.up_proj.weight_scale", "Quantised weights are not supported"),
        ("model.layers.0.mlp.up_proj.weight_scale_inv", "Quantised weights are not supported"),
        ("model.layers.0.self_attn.k_scale", "Quantised weights are not supported"),
        ("model.layers.9.mlp.up_proj.weight", "config.json"),
        ("score.weight", "remove the tensors"),
    ],
)
def test_a_tensor_that_nothing_uses_is_refused_by_name(
    tmp_path: Path, name: str, advice: str
) -> None:
    save_random_model(tmp_path, CONFIGS["llama"]())
    change_weights(tmp_path, **{name: torch.ones(48)})
    with pytest.raises(ModelLoadError, match=re.escape(name)) as refusal:
        load_model(EngineConfig(model=str(tmp_path), served_name="m"))
    assert advice in str(refusal.value)


def test_buffers_that_are_computed_anew_change_nothing(tmp_path: Path) -> None:
    save_random_model(tmp_path, CONFIGS["llama"]())
    expected = Harness.of(tmp_path).run(TOKENS)
    buffers = {
        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(6),
        "model.rotary_emb.inv_freq": torch.ones(6),
        "model.layers.1.self_attn.bias": torch.ones(1, 1, 8, 8, dtype=torch.bool),
        "model.layers.1.self_attn.masked_bias": torch.tensor(-1e4),
    }
    change_weights(tmp_path, **buffers)
    torch.testing.assert_close(Harness.of(tmp_path).run(TOKENS), expected, atol=0, rtol=0)


@pytest.mark.parametrize(
    "dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.int8, torch.uint8, torch.int32]
)
@pytest.mark.parametrize("name", ["model.layers.0.mlp.up_proj.weight", "model.norm.weight"])
def test_weights_of_eight_bits_are_refused_by_name(
    tmp_path: Path, dtype: torch.dtype, name: str
) -> None:
    """Also where config.json has no quantization_config."""
    save_random_model(tmp_path, CONFIGS["llama"]())
    change_weights(tmp_path, **{name: load_file(tmp_path / "model.safetensors")[name].to(dtype)})
    with pytest.raises(ModelLoadError, match=rf"{name} in model\.safetensors is .*quantised"):
        load_model(EngineConfig(model=str(tmp_path), served_name="m"))


def test_a_shard_holds_nothing_that_its_index_does_not_name(tmp_path: Path) -> None:
    """transformers reads what is in the files."""
    model = save_random_model(tmp_path / "one", CONFIGS["llama"]())
    model.save_pretrained(tmp_path, max_shard_size="40KB")
    shard = min(tmp_path.glob("*.safetensors"))
    save_file({**load_file(shard), "model.extra.weight": torch.ones(3)}, shard)
    with pytest.raises(ModelLoadError, match=r"model\.extra\.weight"):
        load_model(EngineConfig(model=str(tmp_path), served_name="m"))
