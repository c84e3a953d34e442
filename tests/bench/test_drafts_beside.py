"""What the comparison of drafts computes and asks for, with systems that answer at once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tenora_bench.cli import app
from tenora_bench.client import BenchError
from tenora_bench.drafts.beside import (
    ANSWER_TOKENS,
    BEGUN_TOKENS,
    PASSAGE_TOKENS,
    STREAMS,
    Case,
    alike,
    cases_of,
    chats_of_round,
    chosen_methods,
    figures,
    medians,
    one_round,
)
from tenora_bench.metrics import RequestRecord
from tenora_bench.peers.interface import Request

TURNS = [f"What is {n} and what comes after it, in a few words? " * 4 for n in range(40)]


class Letters:
    def encode(self, text: str) -> list[int]:
        return [ord(each) for each in text]

    def encode_chat(self, messages: list[dict[str, Any]]) -> list[int]:
        return self.encode(messages[0]["content"])


class Fake:
    kinds = ("base",)

    def __init__(self, rate: float, answer: list[int]) -> None:
        self.rate, self.answer, self.awake = rate, answer, False
        self.met: list[int] = []

    def pause(self) -> None:
        self.awake = False

    def resume(self) -> None:
        self.awake = True

    def peak_memory(self) -> dict[str, int]:
        return {}

    async def run(self, requests: Sequence[Request], streams: int) -> list[RequestRecord]:
        assert self.awake
        self.met.append(streams)
        return [record(self.answer, 1 / self.rate) for _ in requests]


def record(ids: list[int], seconds: float = 1.0) -> RequestRecord:
    tokens = len(ids)
    return RequestRecord("bench", None, 0.0, 0.0, seconds, output_tokens=tokens, token_ids=ids)


def test_methods_are_chosen_by_name_and_none_is_always_there() -> None:
    assert chosen_methods(["vllm"]) == ["none", "ngram", "suffix"]
    assert chosen_methods(["vllm-suffix"]) == ["none", "suffix"]
    with pytest.raises(BenchError, match="'vllm-eagle'"):
        chosen_methods(["vllm-eagle"])


def test_a_passage_stands_twice_and_is_begun_again() -> None:
    cases = cases_of("0", chats_of_round(0, TURNS), TURNS, Letters(), ["x", None])
    assert list(cases)[:3] == ["copying, 1 stream", "chats, 1 stream", "random, 1 stream"]
    for streams, count in STREAMS.items():
        copying = cases[f"copying, {streams} stream{'s' * (streams > 1)}"]
        assert copying.copies is not None
        assert (copying.streams, len(copying.requests)) == (streams, count)
        for request, expected in zip(copying.requests, copying.copies, strict=True):
            passage = request.prompt[:PASSAGE_TOKENS]
            assert request.prompt == passage * 2 + passage[:BEGUN_TOKENS]
            assert passage[BEGUN_TOKENS:][:ANSWER_TOKENS] == expected
    assert [each.adapter for each in cases["chats, 16 streams"].requests[:3]] == ["x", None, "x"]
    assert cases["chats, 1 stream"].requests[0].more["ignore_eos"] is False
    assert cases["random, 16 streams"].requests[3].more["temperature"] == 1.0


def test_no_two_rounds_share_a_chat_and_too_few_are_told() -> None:
    first, second = chats_of_round(0, TURNS), chats_of_round(1, TURNS)
    assert len({*first, *second}) == 2 * sum(STREAMS.values())
    with pytest.raises(BenchError, match="3 rounds take 54 chats of 40"):
        chats_of_round(2, TURNS)


def test_answers_are_compared_with_those_without_drafts() -> None:
    case = Case(1, [], [[1, 2, 3, 4], [1, 2, 3, 4]])
    copied, strayed = record([1, 2, 3, 4]), record([1, 2, 9, 9])
    found = figures(case, [copied, strayed], [copied, copied], [strayed, strayed])
    assert (found["same_answers"], found["as_ours"], found["copied"]) == (0.5, 0.75, 0.75)
    assert found["tokens_per_s"] == 8
    assert alike([], [1]) == 0
    assert "copied" not in figures(Case(1, []), [copied], [copied], [copied])


async def test_each_is_measured_alone_and_beside_its_own_kind() -> None:
    systems = {
        "vllm-none": Fake(10, [1, 2]),
        "vllm-ngram": Fake(20, [1, 3]),
        "tenora-none": Fake(30, [1, 2]),
        "tenora-lookup": Fake(60, [1, 2]),
    }
    cases = {"a": Case(2, [Request([1], None, 2)])}
    rounds = [await one_round(systems, cases, turn) for turn in range(2)]
    assert [system.met for system in systems.values()] == [[2, 2]] * 4
    assert not any(system.awake for system in systems.values())
    table = medians(rounds, "a")
    assert table["vllm-ngram"]["over_none"] == pytest.approx(2)
    assert table["vllm-ngram"]["ours_over"] == pytest.approx(3)
    assert table["tenora-lookup"]["over_none"] == pytest.approx(2)
    assert (table["vllm-ngram"]["same_answers"], table["tenora-lookup"]["same_answers"]) == (0, 1)


async def test_a_failed_request_ends_the_run() -> None:
    class Failing(Fake):
        async def run(self, requests: Sequence[Request], streams: int) -> list[RequestRecord]:
            return [RequestRecord("bench", None, 0.0, error="400: min_p")]

    with pytest.raises(BenchError, match="vllm-none, a: 400: min_p"):
        await one_round({"vllm-none": Failing(1, [])}, {"a": Case(1, [])}, 0)


def test_chats_are_asked_for(tmp_path: Path) -> None:
    told = CliRunner().invoke(app, ["drafts", "--model", str(tmp_path), "--compare", "vllm"])
    assert told.exit_code == 1
    assert "one file of --chats" in told.output
