"""The starvation experiments: what they make of the times they are given, how a run goes, and that
their crowds wait for what they are said to wait for."""

from __future__ import annotations

import math
import os
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from itertools import chain
from pathlib import Path

import pytest

from engine_clients import FOREVER, in_process_client
from fake_step_engine import TOO_LONG
from tenora_bench.client import BenchError
from tenora_bench.metrics import RequestRecord
from tenora_bench.tenancy import starvation_cases as cases
from tenora_bench.tenancy.live import GAVE_UP, LiveEngine, LiveRequest, tenant_of
from tenora_bench.tenancy.slow_store import URL, SlowStore, slow_store
from tenora_bench.tenancy.starvation import GIVE_UP_S, Case, Run, Seen, play, summarise
from tenora_engine.adapters.tiers import StoreTier
from tenora_engine.errors import AdapterLoadError
from tiny_folder import write_tiny_folder

NOBODY = Case("nobody", lambda seed: Run([]))
BLOCK_TOKENS = 16


def record(ttft_ms: float | None, error: str | None = None) -> RequestRecord:
    if ttft_ms is None:
        return RequestRecord("t", None, 0.0, error=error)
    first_s = ttft_ms / 1e3
    return RequestRecord("t", None, 0.0, first_s, first_s + 0.3, output_tokens=4, error=error)


def seen(
    *records: RequestRecord,
    service: float = 24.0,
    load_ms: float = 10.0,
    waited_s: dict[str, float] | None = None,
) -> Seen:
    return Seen(records, waited_s or {}, {}, service, load_ms)


def test_the_ratio_is_one_of_the_medians_of_the_rounds() -> None:
    found = {
        "nobody": [seen(record(9), record(p99)) for p99 in (10, 20, 500)],
        "crowd": [seen(record(9), record(p99)) for p99 in (900, 30, 10)],
    }
    outcome = summarise([NOBODY, Case("crowd", NOBODY.make, "nobody")], found)
    (claim,) = outcome.claims
    assert claim.figure == 30 / 20
    assert claim.held
    assert [row[1:5] for row in outcome.rows] == [(9, 20, 500, None), (9, 30, 900, 1.5)]


def test_a_request_that_was_given_up_waited_that_long_at_least() -> None:
    found = {
        "nobody": [seen(record(10))],
        "crowd": [seen(record(10), record(None, GAVE_UP))],
        "begun": [seen(record(40, GAVE_UP))],
    }
    others = [Case(name, NOBODY.make, "nobody") for name in ("crowd", "begun")]
    outcome = summarise([NOBODY, *others], found)
    crowd, begun = outcome.claims
    assert crowd.figure == GIVE_UP_S * 1e3 / 10
    assert begun.figure == 4.0
    assert outcome.rows[2][5] == GIVE_UP_S * 1e3, "its answer did not come"


def test_where_a_request_failed_nothing_is_claimed() -> None:
    found = {"nobody": [seen(record(10))], "crowd": [seen(record(10), record(None, "refused"))]}
    crowd = Case("crowd", NOBODY.make, "nobody", charges_at_most=1.5, tpot_ms=500.0)
    claims = summarise([NOBODY, crowd], found).claims
    assert len(claims) == 5
    assert all(math.isnan(claim.figure) for claim in claims)


def test_where_the_tenant_was_given_up_beside_nobody_nothing_is_claimed() -> None:
    found = {"nobody": [seen(record(None, GAVE_UP))], "crowd": [seen(record(None, GAVE_UP))]}
    (claim,) = summarise([NOBODY, Case("crowd", NOBODY.make, "nobody")], found).claims
    assert not claim.held


def test_charges_and_promises_are_held_against_their_bounds() -> None:
    found = {
        "nobody": [seen(record(10), service=24.0, load_ms=10.0)],
        "crowd": [seen(record(10), service=3401.0, load_ms=12.0)],
    }
    crowd = Case("crowd", NOBODY.make, "nobody", charges_at_most=1.5, tpot_ms=50.0)
    ttft, service, load, *tpots = summarise([NOBODY, crowd], found).claims
    assert (ttft.held, service.held, load.held) == (True, False, True)
    assert service.figure == 3401 / 24
    for tpot in tpots:
        assert tpot.figure == pytest.approx(100.0), "0.3 s for three tokens more"
        assert not tpot.held
    promised = Case("crowd", NOBODY.make, "nobody", ttft_ms=5.0)
    (ttft,) = summarise([NOBODY, promised], found).claims
    assert not ttft.held


def test_what_the_crowd_waited_for_is_said_where_it_is_a_part_of_it() -> None:
    waited = [{"load": 6.0, "queue": 0.1}, {"load": 1.0, "own": 2.9}]
    found = {"nobody": [seen(record(10), waited_s=each) for each in waited]}
    assert summarise([NOBODY], found).rows[0][-1] == "load 70%, own 29%"


@asynccontextmanager
async def fake_engine(folder: Path) -> AsyncIterator[LiveEngine]:
    client = in_process_client(folder)
    await client.start()
    try:
        yield LiveEngine(client)
    finally:
        await client.stop()


def some(tenant: str, output_tokens: int, first_token: int = 1) -> LiveRequest:
    return LiveRequest(0.0, tenant_of(tenant), [first_token, 2], output_tokens)


async def test_a_run_ends_with_the_requests_that_are_judged(tmp_path: Path) -> None:
    crowd = [some("crowd", FOREVER) for _ in range(3)]
    async with fake_engine(tmp_path) as engine:
        found = await play(engine, Run([some("quiet", 3), some("quiet", 5)], crowd))
        assert (await engine.stats()).running == 0
    assert [each.output_tokens for each in found.records] == [3, 5]
    assert all(each.error is None and each.ttft_ms is not None for each in found.records)


async def test_who_waits_too_long_is_given_up_and_said_to_be(tmp_path: Path) -> None:
    async with fake_engine(tmp_path) as engine:
        asked = [some("quiet", 3), some("quiet", FOREVER)]
        found = await play(engine, Run(asked), give_up_s=0.2)
        assert (await engine.stats()).running == 0
    assert [each.error for each in found.records] == [None, GAVE_UP]


async def test_a_crowd_that_is_refused_is_none(tmp_path: Path) -> None:
    async with fake_engine(tmp_path) as engine:
        run = Run([some("quiet", 50)], [some("crowd", 1, TOO_LONG)])
        with pytest.raises(BenchError, match="do not fit"):
            await play(engine, run)
        assert (await engine.stats()).running == 0


@pytest.fixture
def store(tmp_path: Path) -> SlowStore:
    return SlowStore(b"weights", {"peft_type": "LORA", "r": 8, "target_modules": ["q_proj"]}, 0.0)


def test_the_slow_store_is_read_as_any_other_and_hangs_until_it_is_released(tmp_path: Path) -> None:
    write_tiny_folder(tmp_path)
    before = dict(os.environ)
    with (
        slow_store(tmp_path, tmp_path, delay_s=0.0) as slow,
        ThreadPoolExecutor() as threads,
    ):
        tier = StoreTier(URL)
        one, other = slow.fresh(2)
        assert one.digest != other.digest
        (config, tensors), (others, _) = tier.read(one.digest), tier.read(other.digest)
        assert config.r == one.rank
        assert config.lora_alpha != others.lora_alpha
        assert len(tensors) == 2 * 4 * 2, "A and B of four modules in two layers"
        (never,) = slow.hanging(1)
        reading = threads.submit(tier.read, never.digest)
        assert tier.read(one.digest)[0] == config, "others come meanwhile"
        assert not reading.done()
        slow.release()
        with pytest.raises(AdapterLoadError, match="has no"):
            reading.result(60)
    assert dict(os.environ) == before


def all_cases(store: SlowStore) -> list[Case]:
    made = (cases.page_cases(), cases.work_cases())
    with_store = (cases.load_cases(store), cases.slot_cases(store), cases.tier_cases(store))
    return list(chain(*made, *with_store))


def shapes(requests: Sequence[LiveRequest]) -> list[tuple[object, ...]]:
    return [
        (each.at_s, each.tenant.key, len(each.prompt), each.output_tokens, each.adapter is None)
        for each in requests
    ]


def test_what_is_compared_is_asked_for_in_the_same_way(store: SlowStore) -> None:
    made = all_cases(store)
    for case in made:
        if case.over is None:
            continue
        # Of two experiments, which both have a case beside nobody, that of its own.
        alone = next(c for c in reversed(made[: made.index(case)]) if c.name == case.over)
        beside, without = case.make("s/1"), alone.make("s/2")
        if case.tpot_ms is None:
            assert shapes(beside.asked) == shapes(without.asked), case.name
        with_adapters = sum(r.adapter is not None for r in beside.crowd)
        more = len(beside.crowd) - len(without.crowd)
        assert more > 0 or (more == 0 and with_adapters), case.name
        assert not {tuple(r.prompt) for r in beside.asked} & {
            tuple(r.prompt) for r in without.asked
        }


def pages_of(tokens: int) -> int:
    return -(-tokens // BLOCK_TOKENS)


def test_of_a_full_share_one_request_runs_and_the_others_wait() -> None:
    made = {case.name: case.make("s") for case in cases.page_cases()}
    lines: dict[str, list[LiveRequest]] = {}
    for request in chain(made["39 in a full share"].crowd, made["20 full shares"].crowd):
        lines.setdefault(request.tenant.key, []).append(request)
    assert sum(line[0].tenant.min_memory_share for line in lines.values()) <= 1
    own = lines.pop("quiet")
    needed = sum(pages_of(len(r.prompt) + r.output_tokens) for r in own)
    assert needed < cases.EMPTY_SHARE * cases.ARENA_PAGES / 2, "its share is empty"
    assert len(lines) == 1 + cases.MANY
    for first, *waiting in lines.values():
        pages = int(first.tenant.min_memory_share * cases.ARENA_PAGES)
        assert waiting
        for request in waiting:
            assert pages_of(len(first.prompt)) + pages_of(len(request.prompt)) > pages
        for request in (first, *waiting):
            assert len(request.prompt) + request.output_tokens <= pages * BLOCK_TOKENS


def test_more_adapters_are_in_use_than_there_are_slots(store: SlowStore) -> None:
    for case in cases.slot_cases(store):
        run = case.make("s")
        streams = [r for r in run.crowd if r.output_tokens == cases.STREAM_TOKENS]
        assert {request.at_s for request in streams} <= {0.0}, "these come to the slots first"
        if case.over is not None:
            assert len({request.adapter for request in streams}) == cases.SLOTS
            assert len({r.adapter for r in run.crowd}) > 2 * cases.SLOTS
        resident = {request.adapter for request in run.asked} - {None}
        assert resident <= {request.adapter for request in streams}


def test_cold_adapters_are_new_and_those_in_host_memory_are_brought_there(store: SlowStore) -> None:
    by_name = {case.name: case for case in cases.tier_cases(store)}
    cold = by_name["cold: behind 8 of one tenant"]
    runs = [cold.make(seed) for seed in ("s/1", "s/2")]
    adapters = [r.adapter for run in runs for r in (*run.asked, *run.crowd)]
    assert len(set(adapters)) == len(adapters)
    service = {len(r.prompt) + 2 * r.output_tokens for r in runs[0].asked}
    assert service == {24}
    for name in ("host hit: nobody", "host hit: 40 loads that hang"):
        run = by_name[name].make(name)
        assert [r.adapter for r in run.in_host] == [r.adapter for r in run.asked]
        assert all(a.tenant == b.tenant for a, b in zip(run.in_host, run.asked, strict=True))
