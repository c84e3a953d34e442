"""The audits and experiments of cache and isolation: their arithmetic on fakes, and each once on a
model so small that only its accounts matter."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from fake_engine import write_byte_tokenizer
from tenora_bench.adapters import adapter_bytes
from tenora_bench.cache.timing import h200_llama3_8b
from tenora_bench.client import BenchError
from tenora_bench.metrics import RequestRecord
from tenora_bench.tenancy import (
    cold_load,
    eviction_audit,
    isolation_cost,
    live_order,
    many_adapters,
    prefix_audit,
)
from tenora_bench.tenancy.experiment import Options
from tenora_engine.adapters.tiers import StoreTier
from tenora_engine.request import AdapterRef

Ask = Callable[[str, list[int]], Awaitable[float]]


class FakeCache:
    """A server whose time to first token is that of the tokens it has not seen, and some noise."""

    def __init__(self, *, one_namespace: bool) -> None:
        self._one = one_namespace
        self._seen: set[tuple[str, tuple[int, ...]]] = set()
        self._draw = random.Random(3)
        self.prompts: list[tuple[int, ...]] = []

    async def ask(self, who: str, prompt: list[int]) -> float:
        self.prompts.append(tuple(prompt))
        namespace = "all" if self._one else who
        prefix = tuple(prompt[: prefix_audit.PREFIX_TOKENS])
        hit = (namespace, prefix) in self._seen
        self._seen.add((namespace, prefix))
        return (5.0 if hit else 20.0) + self._draw.gauss(0, 3)


async def test_an_audit_finds_what_namespaces_hide_and_what_they_do_not() -> None:
    isolated = FakeCache(one_namespace=False)
    found = await prefix_audit.audit(isolated.ask, 60, "0")
    assert [claim.held for claim in prefix_audit.judge(found).claims] == [True, True]
    assert len(set(isolated.prompts)) == len(isolated.prompts) == 2 * 4 * 60
    shared = await prefix_audit.audit(FakeCache(one_namespace=True).ask, 60, "0")
    assert [claim.held for claim in prefix_audit.judge(shared).claims] == [False, True]


async def test_an_eviction_audit_asks_as_often_for_both() -> None:
    asked: list[tuple[str, int]] = []

    async def ask(who: str, prompt: list[int]) -> float:
        asked.append((who, len(prompt)))
        return float(len(asked))

    found = await eviction_audit.audit(ask, 7, "0")
    assert {kind: len(times) for kind, times in found.items()} == {"busy": 7, "quiet": 7}
    assert sum(who == "victim" for who, _ in asked) == 7 * eviction_audit.VICTIM_PROMPTS
    assert sum(who == "attacker" for who, _ in asked) == 2 * 14
    apart = {"busy": [9.0] * 20, "quiet": [1.0] * 20}
    alike = {"busy": [1.0, 2.0] * 10, "quiet": [2.0, 1.0] * 10}
    outcome = eviction_audit.judge({"shared": apart, "strict": alike})
    assert [claim.held for claim in outcome.claims] == [True, True]
    outcome = eviction_audit.judge({"shared": alike, "strict": apart})
    assert [claim.held for claim in outcome.claims] == [False, False]


def record(ttft_s: float, tokens: int = 1, error: str | None = None) -> RequestRecord:
    return RequestRecord(
        "t", None, 0.0, first_token_s=ttft_s, finished_s=2.0, output_tokens=tokens, error=error
    )


def test_isolation_cost_is_the_median_ratio_of_the_rounds() -> None:
    rounds = {
        isolation_cost.ISOLATED: [[record(1.0)], [record(3.0)], [record(1.0)]],
        isolation_cost.SHARED: [[record(1.0)], [record(1.0)], [record(0.8)]],
    }
    (claim,) = isolation_cost.summarise(rounds).claims
    assert claim.figure == pytest.approx(1.25)


def test_tokens_per_second_are_those_of_all_requests_and_failures_are_named() -> None:
    assert many_adapters.tokens_per_s([record(0.5, 10), record(1.0, 30)]) == 20.0
    with pytest.raises(BenchError, match="1 of 2 requests failed: no"):
        many_adapters.tokens_per_s([record(0.5), record(1.0, error="no")])


def test_expected_distinct_adapters_are_those_drawn() -> None:
    drawn = [
        len({each.adapter for each in many_adapters.drawn(REFS, f"{n}", 16, (2, 1))})
        for n in range(300)
    ]
    expected = many_adapters.distinct(len(REFS))
    assert sum(drawn) / len(drawn) == pytest.approx(expected, rel=0.03)
    assert many_adapters.distinct(1) == pytest.approx(1.0)


REFS = [AdapterRef(f"sha256:{number:064x}", 8) for number in range(50)]


def test_the_order_is_one_if_both_have_it() -> None:
    three = {"a": (1.0, 10.0), "b": (2.0, 20.0), "c": (3.0, 30.0)}
    medians = {name: {"live": live, "sim": sim} for name, (live, sim) in three.items()}
    assert live_order.same_order(medians)
    medians["c"]["sim"] = 15.0
    assert not live_order.same_order(medians)
    outcome = live_order.summarise(
        {n: {k: [v] for k, v in m.items()} for n, m in medians.items()}, {}
    )
    assert [claim.held for claim in outcome.claims] == [False]
    assert outcome.details["rounds_of_same_order"] == 0


def test_a_trace_warms_up_every_adapter_and_is_that_of_its_seed() -> None:
    trace = live_order.make_trace(3)
    first, rest = trace[: live_order.ADAPTERS], trace[live_order.ADAPTERS :]
    assert len({each.adapter for each in first}) == live_order.ADAPTERS
    assert [each.t_s for each in trace] == sorted(each.t_s for each in trace)
    assert len(rest) == live_order.REQUESTS
    assert live_order.make_trace(3) == trace != live_order.make_trace(4)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    write_byte_tokenizer(folder)
    torch.manual_seed(3)
    config = LlamaConfig(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=41_000,  # that of prompts (trace.random_tokens)
        max_position_embeddings=4096,
        tie_word_embeddings=True,
    )
    model: Any = LlamaForCausalLM(config)
    model.bfloat16().save_pretrained(folder)
    return folder


@pytest.fixture(autouse=True)
def threads_put_back() -> Any:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def test_an_adapter_of_so_many_bytes(tiny: Path) -> None:
    rank = cold_load.rank_of(tiny, 1e6)
    many = 2 * rank * 2 * (2 * 64 + 2 * 96 + 128 + 3 * 160)  # layers, bytes, in + out of all
    assert many == pytest.approx(1e6, rel=0.01)


def test_registered_adapters_share_their_weights_and_nothing_else(
    tiny: Path, tmp_path: Path
) -> None:
    refs = many_adapters.register(tmp_path, tiny, 5)
    assert len({ref.digest for ref in refs}) == 5
    store = StoreTier(str(tmp_path / "store"))
    assert len({store.read(ref.digest)[0].lora_alpha for ref in refs}) == 5
    _, tensors = store.read(refs[0].digest)
    taken = sum(tensor.nbytes for tensor in tensors.values())
    assert taken == adapter_bytes(tiny, many_adapters.RANK, many_adapters.MODULES)


SMALL: list[tuple[Any, dict[str, Any]]] = [
    (prefix_audit, {"SAMPLES": 2}),
    (eviction_audit, {"SAMPLES": 2}),
    (isolation_cost, {"SECONDS": 1.0, "RATE": 8.0}),
    (many_adapters, {"MANY": 20, "REQUESTS": 8, "WARM_UP": 10, "OUTPUT_TOKENS": 4}),
    (cold_load, {"STREAMS": 2, "STEPS": 6, "BYTES": 1e5}),
    (live_order, {"REQUESTS": 8, "WARM_UP_S": 0.2, "RATE": 20.0, "ARENA_PAGES": 400}),
]


@pytest.mark.parametrize(("module", "settings"), SMALL, ids=lambda m: getattr(m, "__name__", ""))
def test_each_runs_on_a_small_model(
    module: Any,
    settings: dict[str, Any],
    tiny: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in settings.items():
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(live_order, "read_timing", lambda path: h200_llama3_8b())
    outcome = module.run(Options(tiny, tmp_path, rounds=1, timing=tmp_path))
    assert len(outcome.claims) >= 1
    assert all(len(row) == len(outcome.columns) for row in outcome.rows)
    assert outcome.as_dict()["claims"]
