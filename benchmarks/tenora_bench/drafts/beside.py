"""Drafts of ours beside vLLM's, in one interleaved run over HTTP: each way of drafting is a server
of its own, and each is measured beside its own kind without drafts."""

from __future__ import annotations

import json
import random
import statistics
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any, Protocol

from tenora_bench.client import BenchError
from tenora_bench.drafts.measure import first_turns
from tenora_bench.machine import machine, threads
from tenora_bench.metrics import RequestRecord, summarise
from tenora_bench.peers.interface import Request, Setup, System
from tenora_bench.peers.registry import choose, missing_modules
from tenora_bench.peers.tenora import tenora
from tenora_bench.peers.vllm import vllm
from tenora_bench.server import serve
from tenora_bench.trace import random_tokens
from tenora_engine.text.processor import TextProcessor

NONE = "none"
OURS = "tenora-lookup"  # as it is served without any setting
VLLM = {
    NONE: None,
    "ngram": {
        "method": "ngram",
        "num_speculative_tokens": 5,
        "prompt_lookup_max": 4,
        "prompt_lookup_min": 2,
    },
    "suffix": {"method": "suffix"},
}
KV_GIB = 1  # for each of three
PASSAGE_TOKENS = 150  # stands there twice, and is begun a third time
BEGUN_TOKENS = 48  # of 16 a quarter of the answers went astray
ANSWER_TOKENS = 96
STREAMS = {1: 2, 16: 16}  # requests by how many are in flight


class Text(Protocol):
    def encode(self, text: str) -> list[int]: ...

    def encode_chat(self, messages: list[dict[str, Any]]) -> list[int]: ...


def without(name: str) -> str:
    """The system of the same kind that has no drafts."""
    return f"{name.split('-')[0]}-{NONE}"


@dataclass(frozen=True)
class Case:
    streams: int
    requests: list[Request]
    copies: list[list[int]] | None = None  # what each answer is expected to copy


def chosen_methods(names: Sequence[str]) -> list[str]:
    """Of VLLM, from "vllm" (all of them) or "vllm-ngram"; without drafts always, and first. Raises
    BenchError on others."""
    every = [f"vllm-{method}" for method in VLLM]
    for name in names:
        if name not in ("vllm", *every):
            raise BenchError(f"there are no drafts of {name!r}; there are vllm, {', '.join(every)}")
    wanted = {"vllm-none", *(every if "vllm" in names else names)}
    return [method for method in VLLM if f"vllm-{method}" in wanted]


def vllm_python(methods: Sequence[str], pythons: Mapping[str, Path]) -> Path:
    """Raises BenchError, with how to install it, where vLLM or what `methods` need is missing."""
    python = choose(["vllm"], pythons)["vllm"]
    if "suffix" in methods and missing_modules(python, ["arctic_inference"]):
        raise BenchError(f"vllm-suffix: {python} has no arctic_inference (docs/peers.md)")
    return python


def _asked(
    prompts: Sequence[list[int]], adapters: Sequence[str | None], **more: Any
) -> list[Request]:
    more["return_token_ids"] = True
    return [
        Request(prompt, adapters[n % len(adapters)], ANSWER_TOKENS, {**more, "seed": n})
        for n, prompt in enumerate(prompts)
    ]


def chats_of_round(number: int, turns: Sequence[str]) -> Sequence[str]:
    """No two rounds have one in common: vLLM's suffixes are looked up in earlier answers too.
    Raises BenchError when there are no more."""
    count = sum(STREAMS.values())
    if len(turns) < (number + 1) * count:
        raise BenchError(f"{number + 1} rounds take {(number + 1) * count} chats of {len(turns)}")
    return turns[number * count :][:count]


def cases_of(
    seed: str,
    chats: Sequence[str],  # as many as requests
    turns: Sequence[str],  # what passages are made of
    text: Text,
    adapters: Sequence[str | None],
) -> dict[str, Case]:
    cases: dict[str, Case] = {}
    for streams, count in STREAMS.items():
        own, chats = chats[:count], chats[count:]
        named = f"{streams} stream{'s' * (streams > 1)}"
        passages = []
        for n in range(count):
            shuffled = random.Random(f"{seed}/{streams}/{n}").sample(turns, len(turns))
            written = "\n".join(shuffled)[: 20 * PASSAGE_TOKENS]
            passages.append(text.encode(written)[:PASSAGE_TOKENS])
        cases[f"copying, {named}"] = Case(
            streams,
            _asked([2 * p + p[:BEGUN_TOKENS] for p in passages], adapters),
            [p[BEGUN_TOKENS:][:ANSWER_TOKENS] for p in passages],
        )
        asked = [text.encode_chat([{"role": "user", "content": each}]) for each in own]
        cases[f"chats, {named}"] = Case(streams, _asked(asked, adapters, ignore_eos=False))
        drawn = [random_tokens(64, f"{seed}/{streams}/{n}") for n in range(count)]
        cases[f"random, {named}"] = Case(streams, _asked(drawn, adapters, temperature=1.0))
    return cases


def alike(answer: Sequence[int], other: Sequence[int]) -> float:
    """The share of `other` up to where `answer` first differs from it."""
    pairs = zip(answer, other, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)) / max(len(other), 1)


def figures(
    case: Case,
    records: Sequence[RequestRecord],
    none: Sequence[RequestRecord],
    ours: Sequence[RequestRecord],
) -> dict[str, float | None]:
    """Of a system; `none` is what its own kind answered without drafts, `ours` what ours did."""
    run = summarise(records, 0.0, 0.0)
    found = {
        "tokens_per_s": run["output_tokens_per_s"],
        "tpot_ms": run["mean_tpot_ms"],
        "ttft_ms": run["p50_ttft_ms"],
        "same_answers": statistics.fmean(
            one.token_ids == other.token_ids for one, other in zip(records, none, strict=True)
        ),
        "as_ours": statistics.fmean(
            alike(one.token_ids, other.token_ids) for one, other in zip(records, ours, strict=True)
        ),
    }
    if case.copies:
        found["copied"] = statistics.fmean(
            statistics.fmean(a == b for a, b in zip(r.token_ids, ids, strict=False))
            for r, ids in zip(records, case.copies, strict=True)
        )
    return found


def setup_of(model: Path, adapters: Sequence[Path], python: Path, scratch: Path) -> Setup:
    return Setup(
        python=python,
        model=model.absolute(),
        adapters=tuple(adapters),
        dtype="bfloat16",
        threads=threads(),
        streams_max=max(STREAMS),
        tokens_max=2 * PASSAGE_TOKENS + BEGUN_TOKENS + ANSWER_TOKENS,
        scratch=scratch,
    )


@asynccontextmanager
async def started(
    setup: Setup, methods: Sequence[str], layer: Path | None
) -> AsyncIterator[dict[str, System]]:
    """All of them, by name, paused."""
    ours = {NONE: ["--max-draft-tokens", "0"], "lookup": []}
    if layer is not None:
        ours["layer"] = ["--draft-layer", str(layer)]
    systems: dict[str, System] = {}
    async with AsyncExitStack() as stack:
        for method in methods:
            own = replace(setup, scratch=setup.scratch / f"vllm-{method}")
            own.scratch.mkdir()
            speculative = VLLM[method]
            options = ["--speculative-config", json.dumps(speculative)] if speculative else []
            system = await stack.enter_async_context(vllm(own, KV_GIB, options))
            system.pause()
            systems[f"vllm-{method}"] = system
        for method, options in ours.items():
            options = ["--dtype", setup.dtype, "--threads", str(setup.threads), *options]
            server = stack.enter_context(serve(setup.scratch / method, setup.model, options))
            systems[f"tenora-{method}"] = await stack.enter_async_context(
                tenora(server, setup.adapters)
            )
        yield systems


async def one_round(
    systems: Mapping[str, System], cases: Mapping[str, Case], turn: int
) -> dict[str, dict[str, dict[str, float | None]]]:
    """Figures by case and system; which system begins changes with `turn`. Raises BenchError on a
    request that failed."""
    order = list(systems)
    order = order[turn % len(order) :] + order[: turn % len(order)]
    found = {}
    for name, case in cases.items():
        records: dict[str, list[RequestRecord]] = {}
        for each in order:
            systems[each].resume()
            records[each] = await systems[each].run(case.requests, case.streams)
            systems[each].pause()
            if failed := [r.error for r in records[each] if r.error]:
                raise BenchError(f"{each}, {name}: {failed[0]}")
        found[name] = {
            each: figures(case, got, records[without(each)], records[without(OURS)])
            for each, got in records.items()
        }
    return found


def medians(rounds: Sequence[Mapping[str, Any]], case: str) -> dict[str, dict[str, Any]]:
    """By system: each figure's median over the rounds, and of ratios of tokens a second within a
    round: its own over those of its kind without drafts, and ours with drafts over its own."""
    table: dict[str, dict[str, Any]] = {}
    for name in rounds[0][case]:
        own = [each[case] for each in rounds]
        table[name] = {
            figure: statistics.median(values)
            for figure in own[0][name]
            if (values := [each[name][figure] for each in own if each[name][figure] is not None])
        }
        for heading, one, other in (("over_none", name, without(name)), ("ours_over", OURS, name)):
            table[name][heading] = statistics.median(
                each[one]["tokens_per_s"] / each[other]["tokens_per_s"] for each in own
            )
    return table


async def compare(
    setup: Setup,
    methods: Sequence[str],
    chats: Path,  # JSON lines, as `first_turns` wants them
    layer: Path | None,
    rounds: int,
    keep: Callable[[dict[str, Any]], None],
) -> dict[str, Any]:
    """`rounds` rounds after one that is not counted; `keep` is given the result after each."""
    text, turns = TextProcessor(setup.model), first_turns(chats)
    names: list[str | None] = [*(folder.name for folder in setup.adapters)] or [None]
    asked = [chats_of_round(number, turns) for number in range(rounds)]
    done: list[dict[str, Any]] = []
    result: dict[str, Any] = {"machine": machine(), "threads": threads(), "rounds": done}
    result |= {"adapters": len(setup.adapters), "vllm": {each: VLLM[each] for each in methods}}
    async with started(setup, methods, layer) as systems:
        warm = cases_of("warm-up", asked[0], turns, text, names)
        await one_round(systems, {n: case for n, case in warm.items() if "chats" not in n}, 0)
        for number, chats_now in enumerate(asked):
            cases = cases_of(str(number), chats_now, turns, text, names)
            done.append(await one_round(systems, cases, number))
            result["medians"] = {case: medians(done, case) for case in done[0]}
            result["peak_memory"] = {n: sum(s.peak_memory().values()) for n, s in systems.items()}
            keep(result)
    return result
