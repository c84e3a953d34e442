"""Probes next to others: a twentieth of a core's time, by a clock that the tests turn; the pace
holds for all workers and through restarts, and the operator sees it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
from msgspec.structs import replace
from redis.asyncio import Redis
from redis.exceptions import RedisError

from adapter_files import adapter_form
from api_harness import SEAL, Api
from fake_engine import FakeEngine
from tenora_engine.events import EngineStats, UsageRecord
from tenora_engine.telemetry import ServiceMeter, TelemetryStats, WaitPart
from tenora_platform.probing.pace import QUIET_S, SHARE, Pace, Told, computed_s, told
from tenora_platform.probing.progress import progress, summary
from tenora_platform.probing.worker import Prober
from tenora_platform.registry.worker import IntakeWorker

OWN = "probes"


def usage(run_s: float, *, first_s: float = 0.0, waits_s: float = 0.0) -> UsageRecord:
    """Of a request that waited, took `first_s` to its first token and ran for `run_s` in all."""
    return UsageRecord(
        event_id="r:0", request_id="r", index=0, tenant=OWN, adapter_digest=None, context={},
        prompt_tokens=1, cached_tokens=0, output_tokens=1, arrival_s=0.0,
        first_token_s=waits_s + first_s, finished_s=waits_s + run_s, queue_ms=waits_s * 1000,
        adapter_load_ms=0.0, residency=None, tier="flex", finish_reason="stop",
        waits=[WaitPart("queue", "", waits_s * 1000)] if waits_s else [],
    )  # fmt: skip


class Stats(FakeEngine):
    """An engine of which a test says what it serves, and with how many threads."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.threads, self.running, self.served = 1, 0, 0

    async def stats(self) -> EngineStats:
        meters = [
            ServiceMeter("standard", "acme", finished={"stop": self.served}),
            ServiceMeter("flex", OWN, finished={"stop": 1000 + self.served}),
        ]
        return replace(
            await super().stats(),
            running=self.running,
            compute_threads=self.threads,
            telemetry=TelemetryStats(meters=meters),
        )


class Store:
    """Of Redis what a pace asks of it, by the clock of a test."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._kept: dict[str, tuple[bytes, float]] = {}  # value, and until when
        self.is_away = False

    async def set(self, key: str, value: bytes, ex: int = 0, px: int = 0) -> None:
        self._answer()
        self._kept[key] = value, self._clock() + ex + px / 1000

    async def get(self, key: str) -> bytes | None:
        self._answer()
        value, until_s = self._kept.get(key, (None, 0.0))
        return value if until_s > self._clock() else None

    async def pttl(self, key: str) -> int:
        self._answer()
        left_s = self._kept.get(key, (b"", 0.0))[1] - self._clock()
        return int(left_s * 1000) if left_s > 0 else -2

    def _answer(self) -> None:
        if self.is_away:
            raise RedisError("away")


class World:
    """A clock that goes on while somebody sleeps; others are served all the time, or nobody."""

    def __init__(self, engine: Stats) -> None:
        self.engine = engine
        self.now_s = 1000.0
        self.store = Store(lambda: self.now_s)
        self.redis = cast(Redis, self.store)
        self.slept: list[float] = []
        self.is_busy = True
        engine.served = 1

    def be_quiet(self) -> None:
        self.is_busy, self.engine.served = False, 0

    def pace(self) -> Pace:
        return Pace(self.engine, self.redis, SEAL, {OWN}, lambda: self.now_s, self.sleep)

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds
        self.engine.served += self.is_busy

    async def ask(self, pace: Pace, work: UsageRecord) -> float:
        """When it was sent."""
        await pace.turn()
        sent_s = self.now_s
        self.now_s += work.finished_s - work.arrival_s
        await pace.spent(work)
        return sent_s


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(Stats(tmp_path))


@pytest.mark.parametrize("threads", [1, 2, 8])
async def test_beside_others_it_takes_a_twentieth_of_a_core(world: World, threads: int) -> None:
    world.engine.threads, pace = threads, world.pace()
    begun_s = await world.ask(pace, usage(0.3))
    work = [0.1, 2.0, 0.05, 0.7, 1.1]
    for run_s in work:
        last_s = await world.ask(pace, usage(run_s))
    core_s = threads * (0.3 + sum(work[:-1]))
    assert core_s / (last_s - begun_s) == pytest.approx(SHARE, rel=0.01)


async def test_alone_it_goes_on_at_once_and_rests_when_others_come(world: World) -> None:
    world.be_quiet()
    pace = world.pace()
    for _ in range(10):
        await world.ask(pace, usage(1.0))
    assert world.slept == []
    world.engine.served += 1
    sent_s = world.now_s
    assert await world.ask(pace, usage(1.0)) == pytest.approx(sent_s + 19.0)


async def test_a_minute_after_the_last_request_it_goes_on(world: World) -> None:
    world.be_quiet()
    pace = world.pace()
    world.engine.threads = 16  # long rests
    await world.ask(pace, usage(1.0))
    world.engine.served += 1
    begun_s = world.now_s
    after_s = await world.ask(pace, usage(1.0)) - begun_s
    assert QUIET_S <= after_s < QUIET_S + 3


async def test_a_request_that_runs_counts_before_it_is_served(world: World) -> None:
    world.be_quiet()
    pace = world.pace()
    await world.ask(pace, usage(1.0))
    world.engine.running = 1
    begun_s = world.now_s
    assert await world.ask(pace, usage(1.0)) - begun_s >= 19.0 - 0.01


async def test_another_worker_and_one_that_starts_anew_keep_the_rest(world: World) -> None:
    one, other = world.pace(), world.pace()
    await world.ask(one, usage(5.0))
    ended_s = world.now_s
    assert await world.ask(other, usage(1.0)) >= ended_s + 95.0 - 0.01
    ended_s = world.now_s
    assert await world.ask(world.pace(), usage(1.0)) - ended_s >= QUIET_S - 0.01, (
        "whatever Redis lost"
    )


async def test_without_redis_it_keeps_its_own_rest(world: World) -> None:
    pace = world.pace()
    await world.ask(pace, usage(1.0))
    world.store.is_away, ended_s = True, world.now_s
    assert await world.ask(pace, usage(1.0)) - ended_s >= 19.0 - 0.01


def test_what_it_waited_is_no_work_and_others_share_the_decoding() -> None:
    assert computed_s(usage(3.0, first_s=1.0, waits_s=40.0), 0) == pytest.approx((3.0, 3.0))
    assert computed_s(usage(3.0, first_s=1.0, waits_s=40.0), 3) == pytest.approx((3.0, 1.5))
    assert computed_s(usage(3.0, first_s=3.0), 3) == pytest.approx((3.0, 3.0))
    odd = replace(usage(1.0), first_token_s=None, queue_ms=1e9)
    assert computed_s(odd, 2) == (0.0, 0.0)


async def test_what_it_tells(world: World) -> None:
    pace = world.pace()
    world.engine.threads = 2
    await pace.begin("version")
    for _ in range(3):
        await world.ask(pace, usage(1.0))
    said = await told(world.redis, SEAL)
    assert said is not None
    assert (said.is_paced, said.version) == (True, "version")
    assert said.core_s == pytest.approx(6.0)
    assert said.share <= SHARE * 1.01, "the rest of the last counts, though it is still to come"
    assert said.done_in_s(3) is None
    await pace.end(is_whole=True)
    said = await told(world.redis, SEAL)
    assert said is not None
    assert said.done_in_s(3) == pytest.approx(3 * 6.0 / SHARE)
    assert said.done_in_s(0) == 0.0


@pytest.mark.parametrize(
    ("waiting", "said", "text"),
    [
        (0, None, "No adapter is waiting for a probe."),
        (2, None, "2 versions wait to be probed; no worker is probing yet."),
        (1, (False, None), "One version waits to be probed; 10% of a core used."),
        (
            3,
            (True, 6.0),
            "3 versions wait to be probed; 10% of a core used (at most 5% while requests are "
            "served); done in about 6 minutes.",
        ),
        (99, (True, 60.0), "done in about 33 hours."),
    ],
)
def test_the_line_for_the_operator(
    waiting: int, said: tuple[bool, float | None] | None, text: str
) -> None:
    found = None
    if said is not None:
        found = Told(
            is_paced=said[0],
            version=None,
            core_s=6.0,
            window_s=60.0,
            version_core_s=said[1],
            version_s=said[1],
        )
    done_in_s = found.done_in_s(waiting) if found else None
    line = summary(True, waiting, found, done_in_s)
    assert line.endswith(text)
    assert "turned off" in summary(False, waiting, found, None)


async def test_the_operator_sees_it(api: Api) -> None:
    await api.state.redis.delete("tenora:probing:rest", "tenora:probing")
    while await Prober(api.state).run_once():
        pass
    tenant = await api.new_tenant("probing seen", plan="premium")
    for number in range(2):
        files = adapter_form(api.engine.model, f"seen-{number}", seed=300 + number)
        await api.call(tenant.key, "POST", "/v1/adapters", files=files)
    worker = IntakeWorker(api.state)
    path = "/admin/v1/probing"
    while (await api.admin("GET", path)).json()["waiting"] < 2:
        await worker.run_once()
    await api.state.redis.delete("tenora:probing")
    before = (await api.admin("GET", path)).json()
    assert (before["share"], before["most_share"], before["done_in_s"]) == (0.0, None, None)
    prober = Prober(api.state)
    assert await prober.run_once()
    seen = (await api.admin("GET", path)).json()
    assert (seen["waiting"], seen["enabled"]) == (1, False)
    assert "turned off" in seen["summary"]
    on = api.state.settings.model_copy(update={"probe_adapters": True})
    async with api.state.db.admin_session() as session:
        view = await progress(session, dataclasses.replace(api.state, settings=on))
    assert view.done_in_s is not None
    assert view.summary.startswith("One version waits to be probed; ")
    assert (await api.call(tenant.key, "GET", path)).status_code in (401, 403)
