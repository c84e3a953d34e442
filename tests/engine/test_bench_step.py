"""`tenora bench step`, on a model so small that only its accounts matter."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from transformers import LlamaConfig, LlamaForCausalLM

from tenora_bench import lora_tax, step
from tenora_bench.adapters import publish_adapters
from tenora_engine.adapters.identity import weights_key
from tenora_engine.engine import Engine


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> step.Workload:
    folder = tmp_path_factory.mktemp("tiny")
    torch.manual_seed(3)
    config = LlamaConfig(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=512,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
    )
    model: Any = LlamaForCausalLM(config)
    model.bfloat16().save_pretrained(folder)
    return step.Workload(folder, "bfloat16", 1, prompt_tokens=5, rounds=1, steps=2)


@pytest.fixture(autouse=True)
def few_bytes_read_and_threads_put_back(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(step, "READ_BYTES", 1024**2)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("kernels", ["compiled", "torch"])
def test_every_moment_of_a_step_is_charged_to_one_phase(
    load: step.Workload, kernels: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kernels == "torch":
        monkeypatch.setattr("tenora_engine.model.linear.has_compiled_ops", lambda: False)
    result = step.measure_steps(load, tmp_path, [1, 3], 2, [4, 8])
    assert [(cell["name"], cell["streams"]) for cell in result["cells"]] == [
        ("base", 1),
        ("adapters", 1),
        ("base", 3),
        ("adapters", 3),
    ]
    for cell in result["cells"]:
        phases = cell["phases_ms"]
        assert tuple(phases) == step.PHASES
        assert all(phases[name] > 0 for name in step.PHASES if name not in ("sgmv", "waiting"))
        assert (phases["sgmv"] > 0) == (cell["name"] == "adapters")
    assert result["cells"][0]["of_weight_floor"] > 0


def test_nested_calls_are_charged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter((0.0, 1.0, 4.0, 10.0))  # outer begins, inner begins, inner ends, outer ends
    monkeypatch.setattr("tenora_bench.step.time.perf_counter", lambda: next(now))
    clock = step.PhaseClock()
    inner = clock.wrap("inner", lambda: "result")
    assert clock.wrap("outer", inner)() == "result"
    assert clock.take() == {"inner": 3.0, "outer": 7.0}
    assert clock.take() == {}


def test_a_step_is_one_message(load: step.Workload, tmp_path: Path) -> None:
    engine = build(load, tmp_path)
    submitted = step.requests(load, "r", 8, 512)
    out = step.Messaging(tmp_path)
    for request in submitted:
        out.add(request)
    step.start_decoding(engine, submitted)
    events = engine.step()
    assert len(events) == 8
    out.send(events)
    assert out.drain() == 1
    step.end(engine, submitted)
    engine.check_integrity()
    engine.close()
    out.close()


def test_taxes_are_judged_against_the_bytes_of_the_adapters(
    load: step.Workload, tmp_path: Path
) -> None:
    result = lora_tax.measure_taxes(load, tmp_path, [1, 2], [4, 16])
    taxes = result["taxes"]
    assert [(tax["adapters"], tax["streams"], tax["ranks"]) for tax in taxes] == [
        (1, 1, [8]),
        (1, 1, [16]),
        (1, 16, [8]),
        (1, 16, [16]),
        (2, 2, [8]),
        (2, 2, [4, 16]),
        (2, 16, [8]),
        (2, 16, [4, 16]),
    ]
    assert all(tax["tax_over_bytes"] for tax in taxes)


def test_the_bytes_of_adapters_are_those_of_their_files(
    load: step.Workload, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    refs = publish_adapters(tmp_path / "made", store, load.model, 2, [3, 8])
    total = 0
    for ref in refs:
        with safe_open(store / weights_key(ref.digest), "pt") as file:
            total += sum(file.get_tensor(name).nbytes for name in file.keys())  # noqa: SIM118
    engine = build(load, tmp_path)
    assert lora_tax.adapter_bytes(engine.config.model, refs) == total
    engine.close()


def test_the_memory_budget_is_logged_once(
    load: step.Workload, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "tenora_engine"):
        build(load, tmp_path).close()
    budgets = [
        record.getMessage() for record in caplog.records if "page arena" in record.getMessage()
    ]
    assert len(budgets) == 1
    assert "weights" in budgets[0]


def build(load: step.Workload, folder: Path) -> Engine:
    (folder / "store").mkdir(exist_ok=True)
    return step.build(load, 8, folder / "store")
