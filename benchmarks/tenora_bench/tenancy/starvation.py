"""What a tenant feels of a crowd that waits for something: the rig and the arithmetic. In turns,
round by round, the tenant's requests are sent alone and beside a crowd. `starvation_cases` has the
crowds; this knows none of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from tenora_bench.client import BenchError
from tenora_bench.metrics import RequestRecord
from tenora_bench.tenancy.experiment import Claim, Options, Outcome
from tenora_bench.tenancy.live import GAVE_UP, LiveEngine, LiveRequest, live_engine
from tenora_bench.tenancy.slow_store import SlowStore
from tenora_bench.tenancy.traffic import quantile
from tenora_engine.events import EngineStats

ROUNDS = 4
GIVE_UP_S = 10.0
"""A request without its answer after so long is aborted, and counts as if its first token had come
then: so a figure next to requests that were given up is the least that it may be."""

AT_MOST = 1.5


@dataclass(frozen=True)
class Run:
    """`asked` is what is judged; the crowd is given up when that has ended. The adapters of
    `in_host` are brought up before, and taken from the device again."""

    asked: Sequence[LiveRequest]
    crowd: Sequence[LiveRequest] = ()
    in_host: Sequence[LiveRequest] = ()


@dataclass(frozen=True)
class Case:
    """One kind of run. `make` gets a seed; prompts of different seeds share nothing. `over` names
    the case in which nobody is beside, and against which it is held."""

    name: str
    make: Callable[[str], Run]
    over: str | None = None  # its P99 TTFT at most AT_MOST times that one's
    charges_at_most: float | None = None  # service and load time of a request over those
    ttft_ms: float | None = None  # what the tenant's plan promises; then `over` is not held
    tpot_ms: float | None = None


@dataclass(frozen=True)
class Seen:
    """One run. Service and load time are means of a request of those that were asked."""

    records: Sequence[RequestRecord]
    waited_s: Mapping[str, float]  # the crowd's, by cause
    own_waited_s: Mapping[str, float]
    service: float
    load_ms: float


Found = dict[str, list[Seen]]
"""By case, each round."""


def measure(
    options: Options, cases: Sequence[Case], store: SlowStore | None = None, **settings: Any
) -> Outcome:
    """Each case once a round in an engine of these settings."""
    return summarise(cases, asyncio.run(_rounds(options, cases, store, settings)))


async def _rounds(
    options: Options, cases: Sequence[Case], store: SlowStore | None, settings: dict[str, Any]
) -> Found:
    found: Found = {case.name: [] for case in cases}
    async with live_engine(options.model, options.scratch, **settings) as engine:
        await play(engine, cases[0].make(f"{options.seed}/warm-up"), store)
        for number in range(options.rounds or ROUNDS):
            for case in cases[:: -1 if number % 2 else 1]:
                run = case.make(f"{options.seed}/{number}/{case.name}")
                found[case.name].append(await play(engine, run, store))
    return found


async def play(
    engine: LiveEngine, run: Run, store: SlowStore | None = None, give_up_s: float = GIVE_UP_S
) -> Seen:
    """One run, after which nothing of it is left. Raises BenchError when some of the crowd was
    refused: then it was none."""
    await _bring_to_host(engine, run.in_host)
    before = await engine.stats()
    crowd = [asyncio.create_task(_send(engine, each, None)) for each in run.crowd]
    try:
        records = await asyncio.gather(*(_send(engine, each, give_up_s) for each in run.asked))
        for task in crowd:
            if task.done() and task.result().error is not None:
                raise BenchError(f"a request of the crowd failed: {task.result().error}")
    finally:
        for task in crowd:
            task.cancel()
        await asyncio.gather(*crowd, return_exceptions=True)
        if store is not None:
            store.release()
        await engine.idle()
    return _seen(run, records, before, await engine.stats())


async def _send(engine: LiveEngine, request: LiveRequest, give_up_s: float | None) -> RequestRecord:
    await asyncio.sleep(request.at_s)
    return await engine.complete(request, give_up_s)


async def _bring_to_host(engine: LiveEngine, requests: Sequence[LiveRequest]) -> None:
    records = await asyncio.gather(*(engine.complete(each) for each in requests))
    for request, record in zip(requests, records, strict=True):
        if record.error is not None or request.adapter is None:
            raise BenchError(f"an adapter could not be brought up: {record.error}")
        await engine.client.evict_adapter(request.tenant.namespace, request.adapter.digest)


def _seen(
    run: Run, records: Sequence[RequestRecord], before: EngineStats, after: EngineStats
) -> Seen:
    asking = {request.tenant.key for request in run.asked}
    crowd = {request.tenant.key for request in run.crowd}
    crowd = crowd - asking or crowd  # it may be the tenant's own
    (service, load_s), (service_before, load_before_s) = (
        _charged(stats, asking) for stats in (after, before)
    )
    return Seen(
        records,
        _waited_s(before, after, crowd),
        _waited_s(before, after, asking),
        (service - service_before) / len(records),
        (load_s - load_before_s) * 1e3 / len(records),
    )


def _waited_s(before: EngineStats, after: EngineStats, tenants: set[str]) -> dict[str, float]:
    """Of these tenants, between the two, by cause; the largest first."""
    waited_s: dict[str, float] = {}
    for stats, sign in ((after, 1), (before, -1)):
        for total in stats.telemetry.waits:
            if total.tenant in tenants:
                seconds = sign * total.seconds
                waited_s[total.cause] = waited_s.get(total.cause, 0.0) + seconds
    ranked = sorted(waited_s.items(), key=lambda item: -item[1])
    return {cause: seconds for cause, seconds in ranked if seconds > 0}


def _charged(stats: EngineStats, tenants: set[str]) -> tuple[float, float]:
    """Tokens of service, and seconds of loads."""
    meters = [meter for meter in stats.telemetry.meters if meter.tenant in tenants]
    return sum(m.service for m in meters), sum(m.adapter_load_s for m in meters)


def ttfts_ms(records: Sequence[RequestRecord], give_up_s: float = GIVE_UP_S) -> list[float]:
    """Of all but those that failed; where one was given up without a token, when that was."""
    waited = []
    for record in records:
        if record.ttft_ms is not None:
            waited.append(record.ttft_ms)
        elif record.error == GAVE_UP:
            waited.append(give_up_s * 1e3)
    return waited


def answers_ms(records: Sequence[RequestRecord], give_up_s: float = GIVE_UP_S) -> list[float]:
    """As `ttfts_ms`, until the end of the answer."""
    waited = []
    for record in records:
        if record.error == GAVE_UP:
            waited.append(give_up_s * 1e3)
        elif record.finished_s is not None and record.error is None:
            waited.append((record.finished_s - record.sent_s) * 1e3)
    return waited


def summarise(cases: Sequence[Case], found: Found) -> Outcome:
    """P99 is the median of the rounds' P99s, and a ratio one of such medians."""
    claims: list[Claim] = []
    rows: list[tuple[str, float, float, float, float | None, float, float, int, str]] = []
    details: dict[str, Any] = {}
    for case in cases:
        rounds = found[case.name]
        over = None if case.over is None else found[case.over]
        records = [record for seen in rounds for record in seen.records]
        waited = _part_of_waits(rounds)
        ttfts = ttfts_ms(records)
        rows.append(
            (
                case.name,
                quantile(ttfts, 0.5),
                _p99(rounds),
                max(ttfts, default=float("nan")),
                None if over is None else _p99(rounds) / _p99(over),
                median(quantile(answers_ms(seen.records), 0.99) for seen in rounds),
                median(seen.service for seen in rounds),
                sum(record.error is not None for record in records),
                ", ".join(f"{cause} {part:.0%}" for cause, part in waited.items()),
            )
        )
        claims += _claims(case, rounds, over)
        details[case.name] = {
            "ttft_ms_by_round": [ttfts_ms(seen.records) for seen in rounds],
            "answer_ms_by_round": [answers_ms(seen.records) for seen in rounds],
            "tpot_ms_by_round": [_tpots_ms(seen.records) for seen in rounds],
            "service_by_round": [seen.service for seen in rounds],
            "load_ms_by_round": [seen.load_ms for seen in rounds],
            "crowd_waited_s_by_round": [seen.waited_s for seen in rounds],
            "own_waited_s_by_round": [seen.own_waited_s for seen in rounds],
        }
    columns = (
        "beside",
        "p50 ms",
        "p99",
        "max",
        "over alone",
        "answer p99",
        "service",
        "failed",
        "crowd waits for",
    )
    return Outcome(claims, columns, rows, {"cases": details})


def _claims(case: Case, rounds: Sequence[Seen], over: Sequence[Seen] | None) -> list[Claim]:
    """NaN where a request failed, which has no time and must not look like a quick one; or was
    given up beside nobody, so that this machine cannot say. What was given up is not charged, and
    has waited for its first token as long as it is said to have, but for no other."""
    claims: list[Claim] = []
    errors, errors_alone = _errors(rounds), _errors(over or ())

    def claim(what: str, figure: float, at_most: float, *but: str) -> None:
        figure = float("nan") if errors_alone or errors - {*but} else figure
        claims.append(Claim(f"{what} beside {case.name}", figure, "at most", at_most))

    if case.ttft_ms is not None:
        claim("P99 TTFT in ms", _p99(rounds), case.ttft_ms)
    elif over is not None:
        claim("P99 TTFT", _p99(rounds) / _p99(over), AT_MOST, GAVE_UP)
    if over is not None and case.charges_at_most is not None:
        for what in ("service", "load_ms"):
            with_them, without = (median(getattr(s, what) for s in r) for r in (rounds, over))
            claim(f"{what} of a request", with_them / without, case.charges_at_most)
    if case.tpot_ms is not None:
        for name, part in (("median", 0.5), ("P99", 0.99)):
            tpot_ms = median(quantile(_tpots_ms(seen.records), part) for seen in rounds)
            claim(f"{name} TPOT in ms", tpot_ms, case.tpot_ms)
    return claims


def _errors(rounds: Sequence[Seen]) -> set[str]:
    return {record.error for seen in rounds for record in seen.records if record.error is not None}


def _p99(rounds: Sequence[Seen]) -> float:
    return median(quantile(ttfts_ms(seen.records), 0.99) for seen in rounds)


def _tpots_ms(records: Sequence[RequestRecord]) -> list[float]:
    return [record.tpot_ms for record in records if record.tpot_ms is not None]


def _part_of_waits(rounds: Sequence[Seen]) -> dict[str, float]:
    """By cause, the largest first; less than a twentieth is left out."""
    waited_s: dict[str, float] = {}
    for seen in rounds:
        for cause, seconds in seen.waited_s.items():
            waited_s[cause] = waited_s.get(cause, 0.0) + seconds
    total = sum(waited_s.values())
    ranked = sorted(waited_s.items(), key=lambda item: -item[1])
    return {cause: seconds / total for cause, seconds in ranked if seconds >= total / 20}
