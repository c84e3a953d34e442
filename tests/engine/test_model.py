"""The decoder against transformers in float32: one prefill, chunks, decode, and adapters."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from decoder_harness import CONFIGS, NUM_PAGES, SIZES, TOKENS, Harness, save_random_model
from tenora_engine.config import LORA_MODULES, DType, EngineConfig
from tenora_engine.errors import ModelLoadError
from tenora_engine.model.compiled_decoder import CompiledDecoder
from tenora_engine.model.loader import load_model, read_model_info
from tenora_kernels.backend import has_compiled_ops
from tenora_kernels.compiled.decoder import Progress


@pytest.mark.usefixtures("kind")
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("chunks", [[41], [7, 7, 7, 7, 7, 6], [20, *[1] * 21], [1, 40]], ids=str)
def test_logits_equal_transformers(tmp_path: Path, name: str, chunks: list[int]) -> None:
    reference = save_random_model(tmp_path, CONFIGS[name]())
    with torch.inference_mode():
        expected = reference(torch.tensor([TOKENS])).logits[0]
    harness = Harness.of(tmp_path)
    parts, start = [], 0
    for chunk in chunks:
        parts.append(harness.run(TOKENS[start : start + chunk]))
        start += chunk
    # 1e-4 of logits that spread over about 10: float32 sums in another order.
    torch.testing.assert_close(torch.cat(parts), expected, atol=1e-4, rtol=1e-4)


def put_adapter(
    harness: Harness, slot: int, ranks: dict[str, int], scale: float
) -> dict[str, Tensor]:
    """Write random granules into the arena's second half, as decision 0001 lays them out. Gives the
    update of each weight, `scale * B A`, by its Hugging Face name."""
    info, arena = harness.model.info, harness.arena
    generator = torch.Generator().manual_seed(slot)
    order = sorted(ranks, key=lambda name: (-ranks[name], LORA_MODULES.index(name)))
    cursor = (NUM_PAGES // 2 + slot * 16) * arena.kv.page_elements
    updates: dict[str, Tensor] = {}
    for layer in range(info.num_layers):
        matrices = {
            name: (
                torch.randn(rank, info.modules[name][0], generator=generator) * 0.2,
                torch.randn(info.modules[name][1], rank, generator=generator) * 0.2,
            )
            for name, rank in ranks.items()
        }
        offset = 0
        for name in order:
            module = LORA_MODULES.index(name)
            arena.table.rank[slot, layer, module] = ranks[name]
            arena.table.scale[slot, layer, module] = scale
            arena.table.a_offset[slot, layer, module] = offset
            arena.table.b_offset[slot, layer, module] = offset + info.modules[name][0]
            offset += sum(info.modules[name])
            a, b = matrices[name]
            part = "mlp" if name in ("gate_proj", "up_proj", "down_proj") else "self_attn"
            updates[f"model.layers.{layer}.{part}.{name}.weight"] = scale * b @ a
        for row in range(max(ranks.values())):
            arena.table.granule_offset[slot, layer, row] = cursor
            for name in order:
                if ranks[name] > row:
                    granule = torch.cat([matrices[name][0][row], matrices[name][1][:, row]])
                    arena.flat[cursor : cursor + granule.numel()] = granule
                    cursor += granule.numel()
    return updates


@pytest.mark.usefixtures("kind")
@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "olmo2", "smollm3", "granite"])
def test_adapters_equal_merged_weights(tmp_path: Path, name: str) -> None:
    reference = save_random_model(tmp_path, CONFIGS[name]())
    harness = Harness.of(tmp_path)
    ranks = {module: rank for rank, module in enumerate(LORA_MODULES, start=1)}
    put_adapter(harness, 0, {"q_proj": 8}, scale=1.0)
    updates = put_adapter(harness, 1, ranks, scale=0.5)
    state = reference.state_dict()
    for weight, update in updates.items():
        state[weight] += update
    with torch.inference_mode():
        expected = reference(torch.tensor([TOKENS])).logits[0]
    parts = [harness.run(TOKENS[:30], slot=1)] + [
        harness.run([token], slot=1) for token in TOKENS[30:]
    ]
    torch.testing.assert_close(torch.cat(parts), expected, atol=2e-4, rtol=2e-4)


def test_shards_equal_one_file(tmp_path: Path) -> None:
    reference = save_random_model(tmp_path / "one", CONFIGS["llama"]())
    reference.save_pretrained(tmp_path / "many", max_shard_size="40KB")
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 1
    one, many = Harness.of(tmp_path / "one"), Harness.of(tmp_path / "many")
    torch.testing.assert_close(one.run(TOKENS), many.run(TOKENS), atol=0, rtol=0)


def test_model_info(tmp_path: Path) -> None:
    reference = save_random_model(tmp_path, CONFIGS["qwen3"]())
    config = EngineConfig(
        model=str(tmp_path), served_name="m", max_context_tokens=64, dtype="float32"
    )
    info = read_model_info(config)
    assert (info.id, info.architecture) == ("m", "Qwen3ForCausalLM")
    assert info.modules["q_proj"] == (48, 96)
    assert info.modules["v_proj"] == (48, 32)
    assert info.modules["down_proj"] == (80, 48)
    assert info.context_tokens == 64
    assert info.weight_bytes == 4 * sum(weight.numel() for weight in reference.parameters())


@pytest.mark.usefixtures("kind")
@pytest.mark.parametrize("name", ["llama", "qwen2", "olmo2", "granite"])
def test_bfloat16_is_as_near_as_transformers(tmp_path: Path, name: str) -> None:
    """Both round; ours may be at most twice as far from float32 as theirs."""
    reference = save_random_model(tmp_path, CONFIGS[name]())
    with torch.inference_mode():
        exact = reference(torch.tensor([TOKENS])).logits[0]
        theirs = reference.bfloat16()(torch.tensor([TOKENS])).logits[0].float()
    harness = Harness.of(tmp_path, "bfloat16")
    ours = torch.cat([harness.run(TOKENS[:30]), harness.run(TOKENS[30:])]).float()
    assert (ours - exact).square().mean() < 4 * (theirs - exact).square().mean()


@pytest.mark.parametrize("name", ["qwen3", "olmo2"])
def test_a_row_has_the_same_bits_in_any_batch_and_on_any_threads(tmp_path: Path, name: str) -> None:
    save_random_model(tmp_path, CONFIGS[name]())
    threads = torch.get_num_threads()
    results = []
    try:
        for count, chunks in ((1, [41]), (2, [41]), (3, [20, 1, 20]), (2, [1] * 41)):
            torch.set_num_threads(count)
            harness = Harness.of(tmp_path, "bfloat16")
            if not isinstance(harness.model.decoder, CompiledDecoder):
                pytest.skip("only the compiled decoder promises this")
            parts = torch.split(torch.tensor(TOKENS), chunks)
            results.append(torch.cat([harness.run(part.tolist()) for part in parts]))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(results[0], other) for other in results[1:])


@pytest.mark.skipif(not has_compiled_ops(), reason="of the compiled decoder alone")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_next_tokens_are_the_first_of_the_highest_logits(tmp_path: Path, dtype: DType) -> None:
    """A vocabulary of several blocks, in which each logit comes thrice and one is NaN."""
    config = transformers.LlamaConfig(**{**SIZES, "vocab_size": 3 * 1001})
    model = save_random_model(tmp_path, config)
    with torch.no_grad():
        model.lm_head.weight[2002:] = model.lm_head.weight[1001:2002] = model.lm_head.weight[:1001]
        model.lm_head.weight[17] = float("nan")
    model.save_pretrained(tmp_path)
    logits = Harness.of(tmp_path, dtype).run(TOKENS)
    assert logits[:, 17].isnan().all()
    harness = Harness.of(tmp_path, dtype)
    decoder, rows = harness.model.decoder, torch.arange(len(TOKENS))
    assert isinstance(decoder, CompiledDecoder)
    chosen = decoder.next_tokens(harness.inputs(TOKENS), harness.arena, rows)
    assert chosen == logits.float().nan_to_num(nan=-torch.inf).numpy().argmax(axis=1).tolist()
    assert all(token < 1001 or token % 1001 == 17 for token in chosen)


@pytest.mark.skipif(not has_compiled_ops(), reason="only the compiled decoder can be paused")
@pytest.mark.parametrize(("name", "dtype"), [("llama", "float32"), ("olmo2", "bfloat16")])
def test_a_paused_step_goes_on_as_if_nothing_had_been_run_meanwhile(
    tmp_path: Path, name: str, dtype: DType
) -> None:
    """Paused after every layer, with a longer step of another sequence on the same decoder each
    time."""
    save_random_model(tmp_path, CONFIGS[name]())
    alone = Harness.of(tmp_path, dtype)
    wanted = alone.run(TOKENS[:30])
    harness = Harness.of(tmp_path, dtype)
    decoder = harness.model.decoder
    assert isinstance(decoder, CompiledDecoder)
    other = replace(harness, block_table=harness.block_table[16:])
    inputs, rows = harness.inputs(TOKENS[:30]), torch.arange(30)
    for advance, result in (
        (decoder.advance_logits, wanted),
        (decoder.advance_tokens, wanted.float().argmax(1).tolist()),
    ):
        progress, pauses = Progress(pause=torch.ones(1, dtype=torch.int32)), 0
        while (found := advance(inputs, harness.arena, rows, progress)) is None:
            pauses += 1
            other.computed = 0
            other.run(TOKENS)
        assert pauses == SIZES["num_hidden_layers"] - 1
        assert torch.equal(torch.as_tensor(found), torch.as_tensor(result))
    assert torch.equal(harness.run(TOKENS[30:]), alone.run(TOKENS[30:])), "the same KV"


@pytest.mark.usefixtures("kind")
def test_decoder_refuses_what_lies_outside_its_tables(tmp_path: Path) -> None:
    save_random_model(tmp_path, CONFIGS["llama"]())
    harness = Harness.of(tmp_path)
    with pytest.raises((RuntimeError, IndexError), match="range"):
        harness.run([SIZES["vocab_size"]])


def rounded(rows: Tensor) -> Tensor:
    """Each row to whole numbers of its largest value / 127."""
    scale = rows.abs().amax(-1, keepdim=True).clamp(min=1e-30) / 127
    return (rows / scale).round() * scale


def rounded_in_groups(rows: Tensor) -> Tensor:
    """Each 64 neighbours of a row by themselves."""
    return torch.cat([rounded(part) for part in torch.split(rows, 64, dim=-1)], dim=-1)


@pytest.mark.parametrize("name", ["llama", "qwen2"])
def test_int8_weights_equal_rounded_linears(tmp_path: Path, name: str, kind: str) -> None:
    reference = save_random_model(tmp_path, CONFIGS[name]())
    if kind == "torch":
        with pytest.raises(ModelLoadError, match="compiled kernels"):
            Harness.of(tmp_path, weight_dtype="int8")
        return
    embedding = reference.model.embed_tokens.weight.detach().clone()
    for module in reference.modules():
        if isinstance(module, torch.nn.Linear):
            module.weight.data = rounded(module.weight.data)
            module.register_forward_pre_hook(lambda _, inputs: (rounded_in_groups(inputs[0]),))
    if kind != "compiled":  # it alone reads a tied embedding from the rounded head
        reference.model.embed_tokens.weight = torch.nn.Parameter(embedding)
    with torch.inference_mode():
        expected = reference(torch.tensor([TOKENS])).logits[0]
    harness = Harness.of(tmp_path, weight_dtype="int8")
    ours = torch.cat([harness.run(TOKENS[:30]), harness.run(TOKENS[30:])])
    # An input on the border between two whole numbers may fall to the other side, a step of 1/127
    # of one term, from where on its row differs; a wrong scale or offset would show in every row.
    errors = (ours - expected).abs() / expected.std()
    assert errors.amax(1).median() < 1e-5
    assert errors.square().mean().sqrt() < 0.02


def test_dummy_weights_need_a_config_only(tmp_path: Path) -> None:
    CONFIGS["qwen2"]().save_pretrained(tmp_path)
    text = json.loads((tmp_path / "config.json").read_text())
    text["architectures"] = ["Qwen2ForCausalLM"]
    (tmp_path / "config.json").write_text(json.dumps(text))
    config = EngineConfig(model=str(tmp_path), served_name="m", load_format="dummy")
    loaded = [load_model(config) for _ in range(2)]
    same = [Harness.around(model).run(TOKENS) for model in loaded]
    assert torch.equal(same[0], same[1])
    assert same[0].std() > 0


def change_config(folder: Path, **changes: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def test_folders_that_cannot_be_served_say_why(tmp_path: Path) -> None:
    def load(folder: Path, **options: Any) -> None:
        load_model(EngineConfig(model=str(folder), served_name="m", **options))

    with pytest.raises(ModelLoadError, match="does not exist"):
        load(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelLoadError, match=r"no config\.json"):
        load(tmp_path / "empty")
    folder = tmp_path / "model"
    save_random_model(folder, CONFIGS["mistral"]())
    change_config(folder, sliding_window=32)
    with pytest.raises(ModelLoadError, match="max_context_tokens to 32"):
        load(folder)
    load(folder, max_context_tokens=32)
    change_config(folder, sliding_window=None, rope_parameters={"rope_type": "longrope"})
    with pytest.raises(ModelLoadError, match="longrope"):
        load(folder)
    change_config(folder, rope_parameters=None, architectures=["GPT2LMHeadModel"])
    with pytest.raises(ModelLoadError, match="GPT2LMHeadModel is not supported"):
        load(folder)


def test_incomplete_weights_say_what_is_missing(tmp_path: Path) -> None:
    save_random_model(tmp_path, CONFIGS["llama"]())
    config = EngineConfig(model=str(tmp_path), served_name="m")
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    name = "model.layers.1.mlp.up_proj.weight"
    whole = tensors.pop(name)
    save_file(tensors, file)
    with pytest.raises(ModelLoadError, match=name):
        load_model(config)
    save_file({**tensors, name: whole[:-1].contiguous()}, file)
    with pytest.raises(ModelLoadError, match=r"config\.json asks for"):
        load_model(config)
    file.write_bytes(b"\x00" * 20)
    with pytest.raises(ModelLoadError, match="could not be read"):
        load_model(config)
    file.unlink()
    with pytest.raises(ModelLoadError, match=r"neither model\.safetensors"):
        load_model(config)
