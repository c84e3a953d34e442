"""A tenant that floods the engine within its limits, beside another that asks now and then: what it
does to the other's time to first token, in the engine and through HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import json
import statistics
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import aiohttp

from tenora_bench.client import (
    BenchError,
    Completion,
    Management,
    complete,
    load_session,
    managing,
)
from tenora_bench.metrics import RequestRecord
from tenora_bench.server import ServerUnderTest, serve
from tenora_bench.tenancy.experiment import Claim, Experiment, Options, Outcome, median_ratio
from tenora_bench.tenancy.live import LiveEngine, LiveRequest, live_engine, tenant_of
from tenora_bench.tenancy.traffic import answers_ms, quantile, ttfts_ms
from tenora_bench.trace import random_tokens

ROUNDS = 5
REQUESTS = 16  # of the quiet tenant in a run: the P99 is the slowest
EVERY_S = 0.2
PROMPT_TOKENS, OUTPUT_TOKENS = 64, 4
HEAD_START_S = 1.5
"""The flood's: all that it asks for runs or waits when the first of the others comes."""

END_S = 0.5
"""Until what was given up has ended."""

MOST = {"engine": 2.0, "http": 4.0}
ALONE = "alone"
OVERSIZED = "4 clients of oversized prompts"
OVERSIZED_BYTES = 4_000_000
NOISY, QUIET = "noisy", "quiet"


@dataclass(frozen=True)
class Flood:
    """`requests` at once, each of `n` sequences."""

    requests: int
    prompt_tokens: int
    output_tokens: int
    n: int = 1


FLOODS = {
    ALONE: Flood(0, 0, 0),
    "64 long prompts": Flood(64, 1500, 16),
    "64 streams of 300 tokens": Flood(64, 32, 300),
    "2 requests of n=32": Flood(2, 32, 300, n=32),
    "240 short prompts": Flood(240, 50, 1),  # fewer than of one tenant may wait
}

Found = dict[str, list[list[RequestRecord]]]
"""The quiet tenant's records, by flood and round."""


def run(options: Options) -> Outcome:
    found = {"engine": asyncio.run(_in_engine(options))}
    with serve(options.scratch / "data", options.model, []) as server:
        found["http"] = asyncio.run(_through_http(options, server))
    return summarise(found)


async def _rounds(
    options: Options,
    kinds: Sequence[str],
    one_run: Callable[[str, str], Awaitable[list[RequestRecord]]],
) -> Found:
    """Each kind once a round, in turns, after a run that warms up."""
    found: Found = {kind: [] for kind in kinds}
    await one_run(ALONE, f"{options.seed}/warm-up")
    for number in range(options.rounds or ROUNDS):
        for kind in kinds[:: -1 if number % 2 else 1]:
            found[kind].append(await one_run(kind, f"{options.seed}/{number}/{kind}"))
    return found


async def _in_engine(options: Options) -> Found:
    async with live_engine(options.model, options.scratch) as engine:
        return await _rounds(options, list(FLOODS), partial(_engine_run, engine))


async def _engine_run(engine: LiveEngine, kind: str, seed: str) -> list[RequestRecord]:
    flood = FLOODS[kind]
    quiet = [
        LiveRequest(
            HEAD_START_S + number * EVERY_S,
            tenant_of(QUIET),
            random_tokens(PROMPT_TOKENS, f"{seed}/q{number}"),
            OUTPUT_TOKENS,
        )
        for number in range(REQUESTS)
    ]
    noisy = [
        LiveRequest(
            0.0,
            tenant_of(NOISY),
            random_tokens(flood.prompt_tokens, f"{seed}/{number}"),
            flood.output_tokens,
            n=flood.n,
        )
        for number in range(flood.requests)
    ]
    return await engine.play(quiet, background=noisy)


@dataclass(frozen=True)
class _Http:
    """Both tenants of a server, on a plan of 512 parallel requests."""

    load: aiohttp.ClientSession
    model: str
    keys: dict[str, str]

    async def ask(
        self, who: str, prompt: list[int], output_tokens: int, n: int = 1
    ) -> RequestRecord:
        more = {"n": n} if n > 1 else {}
        wanted = Completion(who, self.keys[who], self.model, None, prompt, output_tokens, more)
        return await complete(self.load, wanted)

    async def refused_for_ever(self) -> RequestRecord:
        """A prompt far longer than any context, again as soon as it is refused."""
        headers = {
            "authorization": f"Bearer {self.keys[NOISY]}",
            "content-type": "application/json",
        }
        asked = {"model": self.model, "prompt": " " * OVERSIZED_BYTES, "max_tokens": 1}
        body = json.dumps(asked).encode()  # once: the other's clock is in the same process
        while True:
            with contextlib.suppress(aiohttp.ClientError):  # it may close before all is sent
                async with self.load.post("/v1/completions", data=body, headers=headers) as reply:
                    if reply.status < 400:
                        raise BenchError("a prompt longer than the context was not refused")
                    await reply.read()


async def _through_http(options: Options, server: ServerUnderTest) -> Found:
    async with (
        managing(server.url, server.admin_key) as management,
        load_session(server.url) as load,
    ):
        http = _Http(load, *await _set_up(management))
        return await _rounds(options, [*FLOODS, OVERSIZED], partial(_http_run, http))


async def _set_up(management: Management) -> tuple[str, dict[str, str]]:
    """The base model and the tenants' keys."""
    plan = {"limits": {"parallel_requests": 512}}
    await management.call("PUT", "/admin/v1/plans/floods", management.admin_key, json=plan)
    keys = {name: await management.create_tenant(name, "floods") for name in (NOISY, QUIET)}
    return await management.base_model(keys[QUIET]), keys


async def _http_run(http: _Http, kind: str, seed: str) -> list[RequestRecord]:
    async def ask_later(number: int) -> RequestRecord:
        await asyncio.sleep(HEAD_START_S + number * EVERY_S)
        prompt = random_tokens(PROMPT_TOKENS, f"{seed}/q{number}")
        return await http.ask(QUIET, prompt, OUTPUT_TOKENS)

    if kind == OVERSIZED:
        work = [http.refused_for_ever() for _ in range(4)]
    else:
        flood = FLOODS[kind]
        prompts = [
            random_tokens(flood.prompt_tokens, f"{seed}/{number}")
            for number in range(flood.requests)
        ]
        work = [http.ask(NOISY, each, flood.output_tokens, flood.n) for each in prompts]
    async with _beside(work):
        return list(await asyncio.gather(*map(ask_later, range(REQUESTS))))


@asynccontextmanager
async def _beside(work: Sequence[Coroutine[Any, Any, RequestRecord]]) -> AsyncIterator[None]:
    """The flood runs, and is given up at the end. Raises BenchError when some of it was refused:
    then it was none."""
    tasks = [asyncio.create_task(each) for each in work]
    try:
        yield
        for task in tasks:
            if task.done() and task.result().error is not None:
                raise BenchError(f"a request of the flood failed: {task.result().error}")
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(END_S)


def summarise(found: dict[str, Found]) -> Outcome:
    """Each run's P99 over that alone in the same round; the claims are of the rounds' medians."""
    claims: list[Claim] = []
    rows: list[tuple[str, float, float, float, float, int]] = []
    details: dict[str, Any] = {}
    for way, runs in found.items():
        p99s = {
            kind: [quantile(ttfts_ms(records), 0.99) for records in rounds]
            for kind, rounds in runs.items()
        }
        details[way] = {"p99_ttft_ms_by_round": p99s}
        for kind, rounds in runs.items():
            records = [record for each in rounds for record in each]
            failed = sum(record.error is not None for record in records)
            p50, p99 = quantile(ttfts_ms(records), 0.5), statistics.median(p99s[kind])
            answer_ms = quantile(answers_ms(records), 0.5)
            ratio = median_ratio(list(zip(p99s[kind], p99s[ALONE], strict=True)))
            rows.append((f"{way}: {kind}", p50, p99, ratio, answer_ms, failed))
            if kind != ALONE:
                what = f"{way}: P99 TTFT of another beside {kind}, over alone"
                # A request without an answer has no time: it must not look like a quick one.
                figure = float("nan") if failed else ratio
                claims.append(Claim(what, figure, "below", MOST[way]))
    columns = ("run", "TTFT p50 ms", "p99 ms", "p99 over alone", "answer ms", "failed")
    return Outcome(claims=claims, columns=columns, rows=rows, details=details)


EXPERIMENT = Experiment("floods", "another's first token beside a flood within its limits", run)
