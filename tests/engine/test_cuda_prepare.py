"""What is run before a GPU serves, with a decoder that computes nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from engine_fakes import make_config
from tenora_engine.config import EngineConfig
from tenora_engine.errors import ModelLoadError
from tenora_engine.executor import cuda
from tenora_engine.executor.cuda import CudaSteps
from tenora_engine.executor.cuda_inputs import StepArrays
from tenora_engine.executor.device_memory import allocate_table
from tenora_engine.executor.graphs import FILLERS_MAX, TOKEN_BUCKETS, token_buckets
from tenora_engine.executor.sampling import Asked, Sampled, choose
from tenora_engine.model.inputs import Arena, ForwardInputs
from tenora_engine.model.loader import read_model_info
from tenora_kernels.gpu import tuning
from tenora_kernels.segments import KVLayout

CONFIG = make_config()
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 1,
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "vocab_size": 50,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
}
VOCAB = 3000  # more than the candidates of top_p


class IdleDecoder:
    vocab = VOCAB

    def forward(self, inputs: ForwardInputs, arena: Arena) -> Tensor:
        return torch.zeros(inputs.token_ids.shape[0], 4)

    def logits(self, hidden: Tensor, rows: Tensor) -> Tensor:
        return torch.zeros(rows.shape[0], VOCAB)


def make_steps(capture: Callable[..., tuple[Callable[[], None], Tensor]]) -> CudaSteps:
    pool = torch.zeros(4, CONFIG.page_elements)
    kv = KVLayout(1, CONFIG.engine.block_tokens, 1, 4)
    return CudaSteps(
        IdleDecoder(),  # type: ignore[arg-type]
        Arena(pool=pool, flat=pool.view(-1), kv=kv, table=allocate_table(CONFIG)),
        parts=4,
        max_seqs=6,
        max_tokens=300,
        max_context=64,
        largest_bucket=4,
        capture=capture,
    )


def test_every_graph_is_replayed_once() -> None:
    runs: list[int] = []

    def capture(call: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        runs.append(0)
        number = len(runs) - 1

        def run() -> None:
            runs[number] += 1

        return run, call()

    make_steps(capture).prepare()
    assert len(runs) >= 6
    assert set(runs) == {1}


def test_steps_with_prompts_are_replays_unless_filling_up_would_cost_more() -> None:
    """Of up to as many tokens as a step has, in buckets; what has more sequences than there is room
    for, or leaves much of a bucket empty, is launched."""
    steps = make_steps(lambda call: (lambda: None, call()))
    steps.prepare()
    put = steps._graphs.put

    def bucket_of(*query: int) -> int | None:
        steps._staging.begin()
        replay = put(step_of(list(query)))
        return None if replay is None else replay.hidden.shape[0]

    assert [bucket_of(2, count) for count in (1, 62, 63, 200, 255, 298)] == [
        64, 64, 128, 256, 384, 384,
    ]  # fmt: skip
    assert bucket_of(1, 1, 1) == 4
    assert bucket_of(2, *[1] * 5) == 64
    assert bucket_of(2, *[1] * 6) is None
    assert bucket_of(400) is None
    assert token_buckets(2048)[-1] == 2048
    assert token_buckets(1000)[-2:] == (768, 1024)
    assert token_buckets(9000)[-1] == 2048
    far = [size for size in range(1025, 2049) if not is_near(size)]
    assert (far[0], far[-1]) == (1025, 1791)


def is_near(tokens: int) -> bool:
    bucket = next(size for size in TOKEN_BUCKETS if size >= tokens)
    return bucket - tokens <= FILLERS_MAX


def step_of(query: list[int]) -> StepArrays:
    lengths = np.array(query)
    return StepArrays(
        query=lengths,
        context=lengths,
        num_samples=np.ones(len(query), np.int64),
        adapter_slot=np.full(len(query), -1, np.int32),
        token_ids=np.zeros(lengths.sum(), np.int32),
        num_blocks=np.ones(len(query), np.int64) * 200,
        pages=np.zeros(len(query) * 200, np.int32),
    )


def test_choosing_is_tried_with_all_that_may_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the sizes of one sample and of all: penalties, lists, masks, every filter of a draw, and
    the draw that sorts all of the vocabulary."""
    seen: list[tuple[int, Asked | None, Sampled]] = []

    def noted(logits: Tensor, asked: Asked | None) -> Sampled:
        seen.append((logits.shape[0], asked, choose(logits, asked)))
        return seen[-1][2]

    monkeypatch.setattr(cuda, "choose", noted)
    make_steps(lambda call: (lambda: None, call())).prepare()
    asked = [(size, each) for size, each, _ in seen if each is not None]
    assert {size for size, _ in asked} == {1, 6}
    whole = [each for _, each in asked if each.changes is not None]
    assert whole
    for each in whole:
        assert all(value is not None for value in vars(each.changes).values())
        assert all(value is not None for value in vars(each.draws).values())
        assert each.given
    drawn = [each for _, each in asked if each.changes is None]
    assert all(replace(each, given={}).draws is not None for each in drawn)


def test_fp8_is_refused_by_name_before_ada(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(MODEL))
    config = EngineConfig(model=str(tmp_path), served_name="m", device="cuda", kv_dtype="fp8")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "A100")
    for own in ((8, 0), (8, 6)):
        tuning.capability.cache_clear()
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, own=own: own)
        with pytest.raises(ModelLoadError, match=rf"8\.9 .* A100 has 8\.{own[1]}; set kv_dtype"):
            read_model_info(config)
    tuning.capability.cache_clear()
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 9))
    assert read_model_info(config).architecture == "LlamaForCausalLM"
    tuning.capability.cache_clear()
