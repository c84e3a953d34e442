"""Every family of models: what its config.json leaves out, and the engine with adapters against
transformers + peft."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model

from adapter_store import publish, randomise
from tenora_engine.config import LORA_MODULES, EngineConfig
from tenora_engine.engine import build_engine
from tenora_engine.errors import ModelLoadError
from tenora_engine.events import FinishEvent, TokenEvent
from tenora_engine.model.families import FAMILIES, read_spec, spec_of
from tenora_engine.request import AdapterRef, GenerationRequest, SamplingParams, Tenant

# peft 0.21 asks transformers 5.23 for a property that the latter has renamed.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")

SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 5,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 128,
}
# What shows in a tiny model: where it is another than the default.
FIELDS: dict[str, dict[str, Any]] = {
    "MistralForCausalLM": {"sliding_window": None},
    "SmolLM3ForCausalLM": {"no_rope_layers": [1, 0, 0, 1, 1], "pad_token_id": None},
    "GraniteForCausalLM": {
        "embedding_multiplier": 0.8,
        "attention_multiplier": 0.3,
        "residual_multiplier": 0.6,
        "logits_scaling": 1.7,
    },
}
NEW_TOKENS = 12


def config_of(architecture: str, **fields: Any) -> Any:
    config_class = getattr(transformers, architecture.replace("ForCausalLM", "Config"))
    return config_class(architectures=[architecture], **fields)


@pytest.mark.parametrize("architecture", FAMILIES)
def test_what_a_config_leaves_out_is_what_transformers_takes(architecture: str) -> None:
    sizes = SIZES | {"hidden_size": 1024, "num_attention_heads": 32}
    del sizes["num_key_value_heads"]
    whole = config_of(architecture, **sizes)
    assert spec_of({"architectures": [architecture], **sizes}) == spec_of(whole.to_dict())


@pytest.mark.parametrize("architecture", FAMILIES)
def test_every_tensor_of_a_checkpoint_is_known(architecture: str) -> None:
    config = config_of(architecture, **SIZES, **FIELDS.get(architecture, {}))
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    theirs = {name: tuple(tensor.shape) for name, tensor in model.named_parameters()}
    assert spec_of(config.to_dict()).tensor_shapes() == theirs


def test_layers_without_positions_are_as_many_as_layers() -> None:
    config = config_of("SmolLM3ForCausalLM", **SIZES).to_dict() | {"no_rope_layers": [1, 0]}
    with pytest.raises(ModelLoadError, match="names 2 of 5 layers"):
        spec_of(config)


def save_with_adapter(folder: Path, architecture: str) -> tuple[PeftModel, AdapterRef]:
    """A random model and a peft adapter on all its linears, saved, the latter in a store."""
    torch.manual_seed(3)
    config = config_of(architecture, **SIZES, **FIELDS.get(architecture, {}))
    base: Any = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in base.named_parameters():
            parameter.normal_(1.0 if "norm" in name else 0.0, 0.2)
    base.save_pretrained(folder / "model")
    lora = LoraConfig(r=4, lora_alpha=8, target_modules=list(LORA_MODULES), task_type="CAUSAL_LM")
    model = get_peft_model(base, lora, adapter_name="tuned")
    randomise(model, "tuned", seed=1)
    model.eval().save_pretrained(folder / "adapters")
    return model, publish(folder / "adapters" / "tuned", folder / "store")


def generate(folder: Path, requests: list[GenerationRequest]) -> dict[str, list[int]]:
    config = EngineConfig(
        model=str(folder / "model"),
        served_name="tiny",
        dtype="float32",
        arena_bytes=4 * 1024**2,
        memory_bytes=1024**3,
        block_tokens=8,
        max_step_tokens=32,
        max_prefill_chunk=7,
        max_adapters=2,
        max_rank=8,
        object_store=str(folder / "store"),
    )
    engine = build_engine(config)
    tokens: dict[str, list[int]] = {request.request_id: [] for request in requests}
    try:
        for request in requests:
            engine.submit(request)
        finished = 0
        while finished < len(requests):
            for event in engine.step():
                if isinstance(event, TokenEvent):
                    tokens[event.request_id] += event.token_ids
                finished += isinstance(event, FinishEvent)
    finally:
        engine.close()
    return tokens


@pytest.mark.parametrize("architecture", FAMILIES)
def test_the_engine_equals_transformers_and_peft(tmp_path: Path, architecture: str) -> None:
    """Base and adapter in the same steps, greedy, in float32."""
    reference, ref = save_with_adapter(tmp_path, architecture)
    prompt = torch.randint(0, 97, (33,), generator=torch.Generator().manual_seed(2)).tolist()
    requests = [
        GenerationRequest(
            request_id=name,
            tenant=Tenant(key="tenant", namespace="namespace"),
            prompt_token_ids=prompt,
            sampling=SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True),
            adapter=adapter,
        )
        for name, adapter in (("base", None), ("tuned", ref))
    ]
    tokens = generate(tmp_path, requests)
    with torch.inference_mode():
        for name, output in tokens.items():
            assert len(output) == NEW_TOKENS
            everything = torch.tensor([prompt + output])
            if name == "base":
                with reference.disable_adapter():
                    logits = reference(everything).logits[0]
            else:
                logits = reference(everything).logits[0]
            assert output == logits[len(prompt) - 1 : -1].argmax(dim=1).tolist(), name
    assert tokens["base"] != tokens["tuned"], "the adapter changes nothing"


def windows_of(architecture: str, **fields: Any) -> tuple[list[int | None], list[int | None]]:
    """Ours by layer, from config.json as it would be written, and those of transformers' layers."""
    config = config_of(architecture, **SIZES, **fields)
    with torch.device("meta"):
        layers = transformers.AutoModelForCausalLM.from_config(config).model.layers
    written = {"architectures": [architecture], **SIZES, **fields}
    attentions = [layer.self_attn for layer in layers]
    return (
        [layer.window for layer in spec_of(written).layers],
        [getattr(each, "sliding_window", None) for each in attentions],
    )


@pytest.mark.parametrize("architecture", ["Qwen2ForCausalLM", "Qwen3ForCausalLM"])
@pytest.mark.parametrize("first", [0, 1, 4, 5, 28, None])
def test_qwens_windows_begin_at_a_layer(architecture: str, first: int | None) -> None:
    """With as many layers as there are before it, none has one: such a model is served."""
    fields = {"use_sliding_window": True, "sliding_window": 32}
    if first is not None:
        fields["max_window_layers"] = first
    ours, expected = windows_of(architecture, **fields)
    assert ours == expected
    before = min(28 if first is None else first, 5)
    assert ours == [None] * before + [32] * (5 - before)


@pytest.mark.parametrize(
    ("architecture", "fields"),
    [
        ("Qwen2ForCausalLM", {"use_sliding_window": True, "max_window_layers": 2}),
        ("Qwen2ForCausalLM", {"use_sliding_window": False, "sliding_window": 32}),
        (
            "Qwen3ForCausalLM",
            {
                "use_sliding_window": True,
                "sliding_window": 16,
                "layer_types": ["full_attention", "sliding_attention", *["full_attention"] * 3],
            },
        ),
        (
            "SmolLM3ForCausalLM",
            {
                "use_sliding_window": True,
                "sliding_window": 16,
                "no_rope_layers": [1, 0, 0, 1, 1],
                "pad_token_id": None,
            },
        ),
    ],
)
def test_which_layers_have_windows(architecture: str, fields: dict[str, Any]) -> None:
    ours, expected = windows_of(architecture, **fields)
    assert ours == expected


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"rope_scaling": {"factor": 4.0, "beta_fast": 32}}, "beta_fast, factor and no rope_type"),
        ({"rope_parameters": {"factor": 4.0, "rope_theta": 5e5}}, "factor and no rope_type"),
        ({"rope_scaling": "yarn"}, "'yarn' is no object"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "'yarn' lacks 'factor'"),
        ({"rope_scaling": {"type": "linear"}}, "'linear' lacks 'factor'"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8}}, "lacks 'low_freq_factor'"),
        ({"rope_scaling": {"type": "yarn", "factor": "x"}}, "factor 'x'"),
        ({"rope_scaling": {"type": "yarn", "factor": 0.0}}, r"factor 0\.0"),
        ({"rope_theta": -1}, "rope_theta -1"),
        ({"hidden_size": "many"}, "of the wrong kind"),
        ({"num_attention_heads": 0}, "of the wrong kind"),
        ({"num_hidden_layers": None}, "of the wrong kind"),
        ({"layer_types": ["sliding_attention"], "sliding_window": 8}, "layer_types"),
        ({"sliding_window": 8, "layer_types": ["chunked_attention"] * 5}, "layer_types"),
    ],
)
def test_what_a_config_says_wrongly_is_named(
    tmp_path: Path, fields: dict[str, Any], words: str
) -> None:
    config = {"architectures": ["Qwen2ForCausalLM"], **SIZES, "use_sliding_window": True, **fields}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelLoadError, match=words):
        read_spec(str(tmp_path))


def test_a_config_is_an_object(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ModelLoadError, match="not a JSON object"):
        read_spec(str(tmp_path))
