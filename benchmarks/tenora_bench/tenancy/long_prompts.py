"""A tenant that asks now and then beside another with few requests that make steps long: prompts of
thousands of tokens, or many rows that decode; with and without promises to the first."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from tenora_bench.metrics import RequestRecord
from tenora_bench.tenancy.experiment import Claim, Experiment, Options, Outcome, median_ratio
from tenora_bench.tenancy.live import LiveEngine, LiveRequest, live_engine, tenant_of
from tenora_bench.tenancy.traffic import answers_ms, quantile, ttfts_ms
from tenora_bench.trace import random_tokens

ROUNDS = 5
REQUESTS = 20  # of the quiet tenant in a run
EVERY_S = 0.4
PROMPT_TOKENS, OUTPUT_TOKENS = 64, 8
HEAD_START_S = 3.0
"""The other's: its prompts are far along when the first request comes."""

SETTINGS = {"max_context_tokens": 8192, "arena_bytes": 1024**3}
MOST_TTFT = 1.5
PROMISED = 2.0
"""What is promised, over what the machine gives to one that is alone."""

NOISY, QUIET = "noisy", "quiet"


@dataclass(frozen=True)
class Beside:
    """`requests` of another tenant at once."""

    requests: int
    prompt_tokens: int
    output_tokens: int


ALONE = "alone"
CASES = {
    ALONE: Beside(0, 0, 0),
    "1 prompt of 7,600 tokens": Beside(1, 7600, 16),
    "4 prompts of 7,600 tokens": Beside(4, 7600, 16),
    "64 streams of 600 tokens": Beside(64, 32, 600),
}

Found = dict[str, list[list[RequestRecord]]]
"""The quiet tenant's records, by case and round."""


def run(options: Options, is_promised: bool = False) -> Outcome:
    return summarise(*asyncio.run(_measure(options, is_promised)))


async def _measure(options: Options, is_promised: bool) -> tuple[Found, float | None]:
    """Each case once a round, in turns, after runs that warm up; and the TPOT that was promised."""
    found: Found = {name: [] for name in CASES}
    async with live_engine(options.model, options.scratch, **SETTINGS) as engine:
        play = partial(_play, engine)
        await play(ALONE, f"{options.seed}/warm-up", {})
        first = await play(ALONE, f"{options.seed}/first", {})
        promises = _promises(first) if is_promised else {}
        for number in range(options.rounds or ROUNDS):
            for name in list(CASES)[:: -1 if number % 2 else 1]:
                seed = f"{options.seed}/{number}/{name}"
                found[name].append(await play(name, seed, promises))
    return found, promises.get("tpot_ms")


def _promises(alone: list[RequestRecord]) -> dict[str, float]:
    return {
        "ttft_ms": PROMISED * quantile(ttfts_ms(alone), 0.99),
        "tpot_ms": PROMISED * quantile(_tpots_ms(alone), 0.5),
    }


async def _play(
    engine: LiveEngine, name: str, seed: str, promises: dict[str, float]
) -> list[RequestRecord]:
    case = CASES[name]
    quiet, noisy = tenant_of(QUIET, **promises), tenant_of(NOISY)
    # The first only says that the tenant is there.
    times_s = [0.0, *(HEAD_START_S + number * EVERY_S for number in range(REQUESTS))]
    short = [
        LiveRequest(at_s, quiet, random_tokens(PROMPT_TOKENS, f"{seed}/q{at_s}"), OUTPUT_TOKENS)
        for at_s in times_s
    ]
    prompts = [random_tokens(case.prompt_tokens, f"{seed}/{n}") for n in range(case.requests)]
    others = [LiveRequest(0.5, noisy, prompt, case.output_tokens) for prompt in prompts]
    records = await engine.play(short, background=others)
    return records[1:]


def summarise(found: Found, promised_tpot_ms: float | None) -> Outcome:
    """TTFT: each run's P99 over that alone in the same round; claims are of the rounds' medians."""
    claims: list[Claim] = []
    rows: list[tuple[str, float, float, float, float, float, int]] = []
    p99s = {
        name: [quantile(ttfts_ms(records), 0.99) for records in rounds]
        for name, rounds in found.items()
    }
    for name, rounds in found.items():
        records = [record for each in rounds for record in each]
        failed = sum(record.error is not None for record in records)
        p50, p99 = quantile(ttfts_ms(records), 0.5), statistics.median(p99s[name])
        ratio = median_ratio(list(zip(p99s[name], p99s[ALONE], strict=True)))
        answer_ms, tpot_ms = quantile(answers_ms(records), 0.5), quantile(_tpots_ms(records), 0.5)
        rows.append((name, p50, p99, ratio, answer_ms, tpot_ms, failed))
        if name == ALONE:
            continue
        # A request without an answer has no time: it must not look like a quick one.
        ratio, tpot_ms = (float("nan"), float("nan")) if failed else (ratio, tpot_ms)
        what = f"P99 TTFT of another beside {name}, over alone"
        claims.append(Claim(what, ratio, "at most", MOST_TTFT))
        if promised_tpot_ms is not None:
            what = f"ms between two tokens of another beside {name}, as promised"
            claims.append(Claim(what, tpot_ms, "at most", promised_tpot_ms))
    columns = ("run", "TTFT p50 ms", "p99 ms", "p99 over alone", "answer ms", "TPOT ms", "failed")
    details: dict[str, Any] = {"p99_ttft_ms_by_round": p99s, "promised_tpot_ms": promised_tpot_ms}
    return Outcome(claims=claims, columns=columns, rows=rows, details=details)


def _tpots_ms(records: Iterable[RequestRecord]) -> list[float]:
    return [r.tpot_ms for r in records if r.error is None and r.tpot_ms is not None]


EXPERIMENT = Experiment(
    "long-prompts", "another's short requests beside long prompts or many rows", run
)
WITH_PROMISES = Experiment(
    "long-prompts-promised",
    "the same where the other was promised TTFT and TPOT",
    partial(run, is_promised=True),
)
