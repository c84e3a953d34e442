"""Adapters written by PEFT itself: read, packed into granules, unpacked and compared with PEFT's
own delta weights; and everything that is refused, with the field that is named."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from peft import LoraConfig as PeftLoraConfig
from peft import get_peft_model
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from tenora_engine.adapters.identity import (
    adapter_digest,
    config_key,
    normalise_config,
    weights_key,
)
from tenora_engine.adapters.pack import (
    CorruptEntryError,
    deserialise,
    layout_key,
    pack_adapter,
    packed_pages,
    serialise,
)
from tenora_engine.adapters.packed import PackedAdapter
from tenora_engine.adapters.peft_format import (
    AdapterFormatError,
    TensorInfo,
    check_tensors,
    effective_modules,
    module_path,
    parse_adapter_config,
    parse_tensor_name,
    tensor_name,
)
from tenora_engine.config import LORA_MODULES
from tenora_engine.errors import AdapterLoadError
from tiny_model import DIGEST, MODEL, PAGE

pytestmark = pytest.mark.filterwarnings(
    "ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"  # peft on transformers 5
)

LAYERS = MODEL.num_layers
PLAIN = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 4, "target_modules": ["q_proj"]}

CASES: dict[str, dict[str, Any]] = {
    "plain": {"r": 8, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj"]},
    "rank one": {"r": 1, "lora_alpha": 3, "target_modules": ["down_proj"]},
    "rslora": {"r": 6, "lora_alpha": 12, "use_rslora": True, "target_modules": "all-linear"},
    "regex": {"r": 3, "target_modules": r".*\.(0|2)\.(self_attn\.k_proj|mlp\.up_proj)"},
    "full names": {
        "r": 2,
        "target_modules": ["model.layers.1.self_attn.o_proj", "gate_proj"],
        "layers_to_transform": [0],
    },
    "patterns": {
        "r": 4,
        "lora_alpha": 5,
        "target_modules": list(LORA_MODULES),
        # In sorted order, because PEFT sorts them when it saves, and the first match counts.
        "rank_pattern": {r"layers\.1\.mlp\..*": 2, r"layers\.2\..*": 3, "q_proj": 7, "up_proj": 9},
        "alpha_pattern": {r"^model\.layers\.0\.mlp\.up_proj": 1, "mlp.up_proj": 2, "v_proj": 11},
    },
    "patterns and rslora": {
        "r": 4,
        "target_modules": ["q_proj", "o_proj", "down_proj"],
        "rank_pattern": {"o_proj": 13},
        "alpha_pattern": {"o_proj": 26},
        "use_rslora": True,
    },
    "layers": {
        "r": 5,
        "target_modules": ["k_proj", "gate_proj"],
        "layers_to_transform": [0, 2],
        "layers_pattern": "layers",
    },
    "one layer": {"r": 5, "target_modules": ["k_proj"], "layers_to_transform": 1},
    "excluded": {
        "r": 4,
        "target_modules": "all-linear",
        "exclude_modules": r".*\.1\..*|.*\.v_proj",
    },
    "excluded names": {
        "r": 4,
        "target_modules": ["q_proj", "v_proj"],
        "exclude_modules": ["v_proj"],
    },
}


@pytest.fixture(scope="module")
def base() -> Any:
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
    )
    return LlamaForCausalLM(config)


def written_by_peft(
    base: Any, folder: Path, options: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Tensor], dict[tuple[int, str], Tensor]]:
    """What save_pretrained wrote, and PEFT's own delta weights `[out, in]`."""
    peft_model = get_peft_model(
        copy.deepcopy(base), PeftLoraConfig(task_type="CAUSAL_LM", **options)
    )
    for name, parameter in peft_model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(len(name)))
    peft_model.save_pretrained(folder)
    config = json.loads((folder / "adapter_config.json").read_text())
    tensors = safetensors.torch.load_file(folder / "adapter_model.safetensors")
    deltas = {}
    for layer in range(LAYERS):
        for module in LORA_MODULES:
            found = peft_model.base_model.model.get_submodule(module_path(layer, module))
            if hasattr(found, "lora_A"):
                deltas[layer, module] = found.get_delta_weight("default").detach()
    return config, tensors, deltas


def unpacked(packed: PackedAdapter, layer: int, module: str) -> Tensor | None:
    """The delta weight `[out, in]` read from the pages as PackedAdapter describes them."""
    index = LORA_MODULES.index(module)
    features_in, features_out = MODEL.modules[module]
    rank = int(packed.rank[layer, index])
    delta = torch.zeros(features_out, features_in)
    for row in range(rank):
        page = packed.pages[int(packed.granule_page[layer, row])]
        a = int(packed.granule_start[layer, row]) + int(packed.a_offset[layer, index])
        b = int(packed.granule_start[layer, row]) + int(packed.b_offset[layer, index])
        delta += torch.outer(page[b : b + features_out], page[a : a + features_in])
    return delta * float(packed.scale[layer, index]) if rank else None


def pack(config: dict[str, Any], tensors: dict[str, Tensor], page: int = PAGE) -> PackedAdapter:
    parsed = parse_adapter_config(config)
    return pack_adapter(DIGEST, parsed, tensors, MODEL, page, "float32", max_rank=64)


@pytest.mark.parametrize("name", CASES)
def test_packed_adapter_equals_pefts_delta_weights(name: str, base: Any, tmp_path: Path) -> None:
    config, tensors, deltas = written_by_peft(base, tmp_path, CASES[name])
    packed = pack(config, tensors)
    for layer in range(LAYERS):
        for module in LORA_MODULES:
            mine, theirs = unpacked(packed, layer, module), deltas.get((layer, module))
            assert (mine is None) == (theirs is None), (layer, module)
            if mine is not None and theirs is not None:
                torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)
    # The normalised config says the same, and PEFT's own reader takes it.
    normalised = json.loads(normalise_config(config))
    again = pack(normalised, tensors)
    assert torch.equal(again.pages, packed.pages)
    assert torch.equal(again.scale, packed.scale)
    assert PeftLoraConfig(**normalised).r == config["r"]
    assert normalise_config(normalised) == normalise_config(config)


@st.composite
def rank_tables(draw: st.DrawFn) -> dict[str, int]:
    """A rank for some modules of each layer, by full path."""
    paths = [module_path(layer, name) for layer in range(LAYERS) for name in LORA_MODULES]
    chosen = draw(st.lists(st.sampled_from(paths), min_size=1, unique=True))
    return {path: draw(st.integers(1, 12)) for path in chosen}


@given(ranks=rank_tables(), page=st.integers(480, 3000), dtype=st.sampled_from(["F32", "BF16"]))
@settings(max_examples=40)
def test_any_mix_of_ranks_packs_without_padding(
    ranks: dict[str, int], page: int, dtype: str
) -> None:
    config = {
        **PLAIN,
        "target_modules": list(ranks),
        "rank_pattern": {f"^{path}": rank for path, rank in ranks.items()},
    }
    effective = effective_modules(parse_adapter_config(config), MODEL)
    assert {module_path(*key): lora.rank for key, lora in effective.items()} == ranks
    generator = torch.Generator().manual_seed(page)
    tensors = {}
    for (layer, module), lora in effective.items():
        features_in, features_out = MODEL.modules[module]
        for matrix, shape in (("A", (lora.rank, features_in)), ("B", (features_out, lora.rank))):
            values = torch.randn(shape, generator=generator)
            name = f"base_model.model.{module_path(layer, module)}.lora_{matrix}.weight"
            tensors[name] = values if dtype == "F32" else values.bfloat16()
    packed = pack(config, tensors, page)
    elements = sum(tensor.numel() for tensor in tensors.values())
    for (layer, module), lora in effective.items():
        a = tensors[tensor_name(layer, module, "A")].float()
        b = tensors[tensor_name(layer, module, "B")].float()
        delta = unpacked(packed, layer, module)
        assert delta is not None
        torch.testing.assert_close(delta, b @ a * lora.scale, rtol=1e-4, atol=1e-4)
    # Nothing is stored twice and nothing between granules: what is not zero is the adapter.
    assert int(packed.pages.count_nonzero()) == sum(
        int(t.count_nonzero()) for t in tensors.values()
    )
    assert packed.num_pages == packed_pages(effective, MODEL, page, "float32")
    assert packed.num_pages <= 1 + elements // (page - 480 + 1)
    again = deserialise(serialise(packed), packed.layout_key, DIGEST)
    for name in ("pages", "granule_page", "granule_start", "rank", "a_offset", "b_offset", "scale"):
        assert torch.equal(getattr(again, name), getattr(packed, name)), name


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("use_dora", {"use_dora": True}),
        ("modules_to_save", {"modules_to_save": ["lm_head"]}),
        ("bias", {"bias": "some"}),
        ("lora_bias", {"lora_bias": True}),
        ("trainable_token_indices", {"trainable_token_indices": [1]}),
        ("layer_replication", {"layer_replication": [[0, 2]]}),
        ("target_parameters", {"target_parameters": ["w"]}),
        ("alora_invocation_tokens", {"alora_invocation_tokens": [5]}),
        ("use_qalora", {"use_qalora": True}),
        ("peft_type", {"peft_type": "LOHA"}),
        ("peft_type", {"peft_type": None}),
        ("task_type", {"task_type": "SEQ_CLS"}),
        ("init_lora_weights", {"init_lora_weights": "pissa_niter_4"}),
        ("a_field_of_next_year", {"a_field_of_next_year": True}),
        ("r", {"r": 0}),
        ("r", {"r": 2.5}),
        ("r", {"r": True}),
        ("lora_alpha", {"lora_alpha": float("nan")}),
        ("lora_alpha", {"lora_alpha": "16"}),
        ("use_rslora", {"use_rslora": "yes"}),
        ("target_modules", {"target_modules": None}),
        ("target_modules", {"target_modules": []}),
        ("target_modules", {"target_modules": [1]}),
        ("target_modules", {"target_modules": "((("}),
        ("target_modules", {"target_modules": ["q_proj", "lm_head"]}),
        ("target_modules", {"target_modules": ".*embed_tokens"}),
        ("rank_pattern", {"rank_pattern": {"q_proj": -1}}),
        ("rank_pattern", {"rank_pattern": {"q_(proj": 1}}),
        ("rank_pattern", {"rank_pattern": ["q_proj"]}),
        ("alpha_pattern", {"alpha_pattern": {"q_proj": "x"}}),
        ("layers_to_transform", {"layers_to_transform": [-1]}),
        ("layers_to_transform", {"layers_to_transform": 1, "target_modules": ".*q_proj"}),
        ("layers_pattern", {"layers_to_transform": 1, "layers_pattern": 7}),
    ],
)
def test_refused_config_names_its_field(field: str, changes: dict[str, Any]) -> None:
    with pytest.raises(AdapterFormatError) as refused:
        parse_adapter_config({**PLAIN, **changes})
    assert [problem.field for problem in refused.value.problems] == [field]
    assert field in str(refused.value)


def test_every_problem_is_reported_at_once() -> None:
    with pytest.raises(AdapterFormatError) as refused:
        parse_adapter_config({**PLAIN, "r": -1, "use_dora": True, "bias": "some"})
    assert {problem.field for problem in refused.value.problems} == {"r", "use_dora", "bias"}


@pytest.mark.parametrize(
    "pattern",
    ["(a+)+$", "(.*)*", "(a|a)*b", ".*.*.*.*.*.*x", "((.*)(.*)){9}", r"(.+)\1", "x{1000}y*"],
)
def test_patterns_that_could_run_for_ever_are_refused(pattern: str) -> None:
    with pytest.raises(AdapterFormatError):
        parse_adapter_config({**PLAIN, "target_modules": pattern})
    with pytest.raises(AdapterFormatError):
        parse_adapter_config({**PLAIN, "rank_pattern": {pattern: 3}})


def test_the_slowest_accepted_pattern_comes_to_an_end() -> None:
    parsed = parse_adapter_config({**PLAIN, "target_modules": ".*.*.*.*x"})
    assert effective_modules(parsed, MODEL) == {}


def test_a_pattern_of_another_trainer_is_accepted() -> None:
    pattern = (
        r"(?:.*?(?:language|text).*?(?:self_attn|mlp).*?(?:k_proj|v_proj).*?)"
        r"|(?:\bmodel\.layers\.[\d]{1,}\.(?:self_attn|mlp)\.(?:(?:k_proj|v_proj|q_proj)))"
    )
    parsed = parse_adapter_config({**PLAIN, "target_modules": pattern})
    assert set(effective_modules(parsed, MODEL)) == {
        (layer, name) for layer in range(LAYERS) for name in ("q_proj", "k_proj", "v_proj")
    }


def infos(rank: int = 4, layers: int = LAYERS) -> dict[str, TensorInfo]:
    found = {}
    for layer in range(layers):
        found[tensor_name(layer, "q_proj", "A")] = TensorInfo("F32", (rank, 32))
        found[tensor_name(layer, "q_proj", "B")] = TensorInfo("F32", (32, rank))
    return found


def check(tensors: dict[str, TensorInfo], max_rank: int = 64) -> list[str]:
    effective = effective_modules(parse_adapter_config(PLAIN), MODEL)
    return [problem.field for problem in check_tensors(effective, tensors, MODEL, max_rank)]


def test_tensor_problems_name_the_tensor() -> None:
    a = tensor_name(1, "q_proj", "A")
    assert check(infos()) == []
    assert check({**infos(), a: TensorInfo("F32", (5, 32))}) == [a]
    assert check({**infos(), a: TensorInfo("F64", (4, 32))}) == [a]
    assert check({name: info for name, info in infos().items() if name != a}) == [a]
    beyond = tensor_name(3, "q_proj", "A")
    assert check({**infos(), beyond: TensorInfo("F32", (4, 32))}) == [beyond]
    other = tensor_name(0, "v_proj", "A")
    assert check({**infos(), other: TensorInfo("F32", (4, 32))}) == [other]
    assert check({**infos(), "../x": TensorInfo("F32", (4, 32))}) == ["../x"]
    assert check(infos(), max_rank=3) == ["r"]


@pytest.mark.parametrize(
    "rename",
    [
        lambda name: name.removeprefix("base_model.model."),
        lambda name: name.replace(".weight", ".default.weight"),
        lambda name: name.removeprefix("base_model.model.").replace(".weight", ".default.weight"),
    ],
    ids=["no prefix", "default", "both"],
)
def test_other_tools_names_are_read(rename: Callable[[str], str]) -> None:
    tensors = {name: torch.randn(info.shape) for name, info in infos().items()}
    renamed = {rename(name): tensor for name, tensor in tensors.items()}
    assert not renamed.keys() & tensors.keys()
    assert check({rename(name): info for name, info in infos().items()}) == []
    assert torch.equal(pack(PLAIN, renamed).pages, pack(PLAIN, tensors).pages)
    a = tensor_name(1, "q_proj", "A")
    assert check({**infos(), rename(a): TensorInfo("F32", (4, 32))}) == [a], "once is enough"


def test_no_matching_module_is_refused() -> None:
    effective = effective_modules(
        parse_adapter_config({**PLAIN, "target_modules": ["c_attn"]}), MODEL
    )
    assert [p.field for p in check_tensors(effective, {}, MODEL, 64)] == ["target_modules"]


@pytest.mark.parametrize(
    "name",
    [
        "base_model.model.model.layers.0.mlp.q_proj.lora_A.weight",
        "base_model.model.model.layers.00.self_attn.q_proj.lora_A.weight",
        "base_model.model.model.layers.0.self_attn.q_proj.lora_C.weight",
        "base_model.model.model.layers.0.self_attn.q_proj.lora_A.other.weight",
        "model.model.layers.0.self_attn.q_proj.lora_A.weight",
        "base_model.model.lm_head.lora_A.weight",
        "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight\n",
        "",
    ],
)
def test_other_tensor_names_are_not_ours(name: str) -> None:
    assert parse_tensor_name(name) is None


def test_values_and_pages_that_do_not_fit() -> None:
    tensors = {name: torch.ones(info.shape) for name, info in infos().items()}
    with pytest.raises(AdapterLoadError, match="raise block_tokens"):
        pack(PLAIN, tensors, page=63)
    tensors[tensor_name(2, "q_proj", "B")][3, 1] = float("inf")
    with pytest.raises(AdapterLoadError, match="NaN or infinity"):
        pack(PLAIN, tensors)
    tensors[tensor_name(2, "q_proj", "B")] = torch.ones(32, 4, dtype=torch.float64)
    with pytest.raises(AdapterFormatError, match="F64"):
        pack(PLAIN, tensors)


def test_identity_depends_on_what_the_adapter_does_only() -> None:
    weights = hashlib.sha256(b"weights").hexdigest()
    config = normalise_config(PLAIN)
    digest = adapter_digest(config, weights)
    trained = {**PLAIN, "lora_dropout": 0.1, "base_model_name_or_path": "x", "lora_alpha": 8.0}
    assert adapter_digest(normalise_config(trained), weights) == digest
    assert adapter_digest(normalise_config({**PLAIN, "lora_alpha": 9}), weights) != digest
    assert adapter_digest(config, hashlib.sha256(b"other").hexdigest()) != digest
    one = normalise_config({**PLAIN, "rank_pattern": {"q_proj": 1, "layers.0.*": 2}})
    two = normalise_config({**PLAIN, "rank_pattern": {"layers.0.*": 2, "q_proj": 1}})
    assert one != two  # PEFT takes the first that matches
    hexes = digest.removeprefix("sha256:")
    assert config_key(digest) == f"adapters/{hexes}/adapter_config.json"
    assert weights_key(digest) == f"adapters/{hexes}/adapter_model.safetensors"


@pytest.mark.parametrize("digest", ["", "sha256:", "sha256:../../x", "sha256:" + "AB" * 32])
def test_a_malformed_digest_never_becomes_a_path(digest: str) -> None:
    with pytest.raises(AdapterLoadError):
        weights_key(digest)


@given(data=st.data())
@settings(max_examples=150)
def test_damaged_bytes_are_found(data: st.DataObject) -> None:
    tensors = {name: torch.ones(info.shape) for name, info in infos().items()}
    packed = pack(PLAIN, tensors)
    whole = serialise(packed)
    damage = data.draw(st.sampled_from(["cut", "flip", "swap"]))
    at = data.draw(st.integers(0, len(whole) - 1))
    if damage == "cut":
        broken = whole[:at]
    elif damage == "flip":
        broken = (
            whole[:at] + bytes([whole[at] ^ (1 << data.draw(st.integers(0, 7)))]) + whole[at + 1 :]
        )
    else:
        broken = data.draw(st.binary(max_size=100))
    with pytest.raises(CorruptEntryError):
        deserialise(broken, packed.layout_key, DIGEST)


def test_entries_of_others_are_refused() -> None:
    tensors = {name: torch.ones(info.shape) for name, info in infos().items()}
    whole = serialise(pack(PLAIN, tensors))
    with pytest.raises(CorruptEntryError):
        deserialise(whole, layout_key(MODEL, PAGE, "bfloat16"), DIGEST)
    with pytest.raises(CorruptEntryError):
        deserialise(whole, layout_key(MODEL, PAGE, "float32"), "sha256:" + "cd" * 32)
