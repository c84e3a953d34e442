"""The engine on int8 adapter pages: weights that int8 can hold give the answers that float32 pages
give, in half of bfloat16's pages."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from adapter_store import publish
from tenora_engine.adapters.peft_format import tensor_name
from tenora_engine.config import LORA_MODULES, AdapterDType, DType, EngineConfig
from tenora_engine.engine import Engine, build_engine
from tenora_engine.errors import ModelLoadError
from tenora_engine.events import FinishEvent, TokenEvent
from tenora_engine.model.loader import load_model
from tenora_engine.request import AdapterRef, GenerationRequest, SamplingParams, Tenant

LAYERS, RANK = 30, 12
SHAPES = {
    "q_proj": (576, 576),
    "k_proj": (576, 192),
    "v_proj": (576, 192),
    "o_proj": (576, 576),
    "gate_proj": (576, 1536),
    "up_proj": (576, 1536),
    "down_proj": (1536, 576),
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="module")
def refs(store: Path, tmp_path_factory: pytest.TempPathFactory) -> list[AdapterRef]:
    return [publish(exact_adapter(tmp_path_factory.mktemp("adapter"), n), store) for n in range(2)]


def exact_adapter(folder: Path, seed: int) -> Path:
    """A PEFT folder whose every rank row is 127 times a power of two at most, in whole steps."""
    generator = torch.Generator().manual_seed(seed)

    def row(features: int, step: float) -> torch.Tensor:
        values = torch.randint(-100, 101, (features,), generator=generator).float()
        values[0] = 127
        return values * step

    tensors = {}
    for layer in range(LAYERS):
        for module in LORA_MODULES:
            features_in, features_out = SHAPES[module]
            a = torch.stack([row(features_in, 2.0 ** -(10 + r % 3)) for r in range(RANK)])
            b = torch.stack([row(features_out, 2.0 ** -(13 - r % 2)) for r in range(RANK)], dim=1)
            tensors[tensor_name(layer, module, "A")] = a.contiguous()
            tensors[tensor_name(layer, module, "B")] = b.contiguous()
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "r": RANK,
        "lora_alpha": RANK,
        "target_modules": list(LORA_MODULES),
        "rank_pattern": {},
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def engine_config(
    model: Path, store: Path, dtype: DType, adapter_dtype: AdapterDType
) -> EngineConfig:
    return EngineConfig(
        model=str(model),
        served_name="smollm2",
        dtype=dtype,
        adapter_dtype=adapter_dtype,
        memory_bytes=2 * 1024**3,
        max_context_tokens=256,
        max_rank=RANK,
        object_store=str(store),
    )


def answers(engine: Engine, refs: list[AdapterRef]) -> dict[str, list[int]]:
    """Greedy tokens by request id."""
    for index, ref in enumerate([*refs, None]):
        engine.submit(
            GenerationRequest(
                request_id=str(index),
                tenant=Tenant(key="tenant", namespace="namespace"),
                prompt_token_ids=list(range(400 + index, 430 + index)),
                sampling=SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True),
                adapter=ref,
            )
        )
    tokens: dict[str, list[int]] = {}
    finished = 0
    until_s = time.monotonic() + 120
    while finished < 3:
        assert time.monotonic() < until_s
        for event in engine.step():
            if isinstance(event, FinishEvent):
                finished += 1
            elif isinstance(event, TokenEvent):
                tokens.setdefault(event.request_id, []).extend(event.token_ids)
        if not engine.has_work:
            time.sleep(0.002)
    return tokens


def test_int8_pages_give_the_same_answers_where_nothing_is_rounded(
    base_model_dir: Path, store: Path, refs: list[AdapterRef]
) -> None:
    found = []
    for adapter_dtype in ("auto", "int8"):
        engine = build_engine(engine_config(base_model_dir, store, "float32", adapter_dtype))
        try:
            found.append(answers(engine, refs))
            engine.check_integrity()
        finally:
            engine.close()
    assert found[0] == found[1]
    assert len(set(map(tuple, found[0].values()))) == 3, "the adapters change nothing"


def test_int8_takes_half_the_pages(
    base_model_dir: Path, store: Path, refs: list[AdapterRef]
) -> None:
    pages = []
    for adapter_dtype in ("auto", "int8"):
        engine = build_engine(engine_config(base_model_dir, store, "bfloat16", adapter_dtype))
        try:
            answers(engine, refs)
            pages.append(engine.stats().pool.adapter_pages)
        finally:
            engine.close()
    assert pages[1] == pytest.approx(pages[0] / 2, rel=0.06)


def test_int8_needs_the_cpu(base_model_dir: Path, store: Path) -> None:
    config = EngineConfig(
        model=str(base_model_dir), served_name="m", device="cuda", adapter_dtype="int8"
    )
    with pytest.raises(ModelLoadError, match="adapter_dtype int8 needs device cpu"):
        load_model(config)
