"""What the comparison computes: its workloads, medians and ratios, and which answers it accepts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tenora_bench.client import BenchError
from tenora_bench.comparison import (
    WORKLOADS,
    Workload,
    begin,
    checked,
    choose_workloads,
    medians,
    note_memory,
    one_round,
    ratios,
    requests_of,
)
from tenora_bench.metrics import RequestRecord
from tenora_bench.peers.interface import Request

LOAD = Workload(streams=2, requests=3, prompt_tokens=5, output_tokens=4)


def figures(rate: float, ttft: float | None = 1.0) -> dict[str, float | None]:
    return {
        "output_tokens_per_s": rate,
        "p50_ttft_ms": ttft,
        "p99_ttft_ms": ttft,
        "mean_tpot_ms": None,
    }


def a_round(workload: str, **runs: float) -> dict[str, Any]:
    named = {name.replace("_", " "): figures(rate) for name, rate in runs.items()}
    return {"workload": workload, "runs": named}


ROUNDS = [
    a_round("a", tenora_mixed=10, tenora_base=20, vllm_mixed=1, vllm_base=10),
    a_round("a", tenora_mixed=30, tenora_base=40, vllm_mixed=2, vllm_base=40),
    a_round("a", tenora_mixed=20, tenora_base=90, vllm_mixed=10, vllm_base=30),
    a_round("b", tenora_mixed=7, tenora_base=7),
]


def record(tokens: int, error: str | None = None) -> RequestRecord:
    return RequestRecord(
        "bench", None, sent_s=0, first_token_s=1, finished_s=2, output_tokens=tokens, error=error
    )


class Fake:
    """A system that answers at once, and notes whether it was awake."""

    def __init__(self, *kinds: str) -> None:
        self.kinds = kinds
        self.seen: list[tuple[str, ...]] = []
        self.awake = False

    def pause(self) -> None:
        self.awake = False

    def resume(self) -> None:
        self.awake = True

    def peak_memory(self) -> dict[str, int]:
        return {}

    async def run(self, requests: Sequence[Request], streams: int) -> list[RequestRecord]:
        assert self.awake
        self.seen.append(tuple(r.adapter or "" for r in requests))
        return [record(r.output_tokens) for r in requests]


def test_figures_are_medians_over_the_rounds_of_one_workload() -> None:
    table = medians(ROUNDS, "a")
    assert table["tenora mixed"]["output_tokens_per_s"] == 20
    assert table["vllm base"]["output_tokens_per_s"] == 30
    assert table["vllm base"]["rounds"] == 3
    assert table["vllm base"]["mean_tpot_ms"] is None
    assert set(medians(ROUNDS, "b")) == {"tenora mixed", "tenora base"}


def test_ratios_are_taken_within_a_round_and_kind() -> None:
    found = ratios(ROUNDS, "a")
    assert found["tenora mixed / vllm mixed"] == 10  # of 10, 15 and 2
    assert found["tenora base / vllm base"] == 2  # of 2, 1 and 3
    assert found["tenora mixed / tenora base"] == 0.5  # of 0.5, 0.75 and 0.22
    assert len(found) == 3


def test_no_two_rounds_share_a_prompt() -> None:
    first = requests_of(LOAD, ["x", "y"], "a/0/mixed")
    second = requests_of(LOAD, ["x", "y"], "a/1/mixed")
    prompts = {tuple(r.prompt) for r in first + second}
    assert len(prompts) == 6
    assert [r.adapter for r in first] == ["x", "y", "x"]
    assert first == requests_of(LOAD, ["x", "y"], "a/0/mixed")


def test_an_answer_cut_short_is_refused() -> None:
    assert len(checked([record(4)] * 3, LOAD, "vllm")) == 3
    with pytest.raises(BenchError, match="vllm: 1 of 3 requests failed: 500"):
        checked([record(4), record(4), record(0, "500")], LOAD, "vllm")
    with pytest.raises(BenchError, match=r"answers of \[3\] tokens"):
        checked([record(4), record(3), record(4)], LOAD, "vllm")
    with pytest.raises(BenchError, match="vllm"):
        checked([record(4)], LOAD, "vllm")


async def test_a_round_asks_each_system_for_what_it_can_do_while_the_others_sleep() -> None:
    both, base = Fake("mixed", "base"), Fake("base")
    loads = {"mixed": LOAD, "base": LOAD}
    got = await one_round({"tenora": both, "openvino-q4": base}, loads, ["x", "y"], "seed")
    assert list(got) == ["tenora mixed", "tenora base", "openvino-q4 base"]
    assert both.seen == [("x", "y", "x"), ("", "", "")]
    assert base.seen == [("", "", "")]
    assert not both.awake
    assert not base.awake


def test_the_largest_memory_is_kept_and_its_largest_process_is_the_engine() -> None:
    peaks: dict[str, Any] = {}
    for processes in ({"1 server": 5, "2 engine": 20}, {"1 server": 6, "2 engine": 10}, {}):
        note_memory(peaks, "vllm", processes)
    assert (peaks["vllm"]["total"], peaks["vllm"]["engine"]) == (25, 20)


def test_workloads_are_chosen_by_name() -> None:
    assert list(choose_workloads("single, streams16")) == ["single", "streams16"]
    assert choose_workloads("") == {}
    with pytest.raises(BenchError, match=r"'huge'.*streams16"):
        choose_workloads("huge")
    for load in WORKLOADS.values():
        assert load.requests % load.streams == 0


def test_rounds_are_added_only_to_a_comparison_of_the_same_kind(tmp_path: Path) -> None:
    settings = {"model": "m", "dtype": "bfloat16"}
    fresh = begin(None, settings)
    assert fresh["rounds"] == []
    file = tmp_path / "comparison.json"
    assert begin(file, settings)["settings"] == settings
    file.write_text(json.dumps(fresh | {"rounds": ROUNDS}))
    assert begin(file, settings)["rounds"] == ROUNDS
    with pytest.raises(BenchError, match="another dtype"):
        begin(file, settings | {"dtype": "float32"})
    file.write_text(json.dumps(fresh | {"machine": {"cpu": "another"}}))
    with pytest.raises(BenchError, match="another cpu"):
        begin(file, settings)
