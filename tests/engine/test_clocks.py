"""Whatever the wall clock does, intervals stay right, and nothing raises."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import msgspec
import pytest

from engine_clients import config as step_config
from engine_fakes import Rig, make_config, make_ref, make_request, make_tenant, run
from fake_step_engine import FakeStepEngine
from tenora_engine import clocks, loop
from tenora_engine.clocks import unix_offset
from tenora_engine.engine import Engine
from tenora_engine.errors import DeadlineError
from tenora_engine.events import Event, FinishEvent, OccupancyRecord
from tenora_engine.loop import EngineLoop
from tenora_engine.memory.costs import fade
from tenora_engine.request import GenerationRequest
from tenora_engine.transport.hours import OccupancyHours

UNIX_S = 1_790_000_000.0
JUMPS = (-13 * 3600.0, 3600.0, -1.0, 5e8)


class Wall:
    """A wall clock that goes with a rig's own, until it is set."""

    def __init__(self) -> None:
        self.rig: Rig | None = None
        self.set_by_s = 0.0

    def __call__(self) -> float:
        return UNIX_S + self.set_by_s + (0.0 if self.rig is None else self.rig.now_s)


@pytest.fixture
def wall() -> Wall:
    return Wall()


@pytest.fixture
def rig(wall: Wall) -> Rig:
    config = make_config(max_running=2)
    wall.rig = Rig.build(config, wall_clock=wall)
    return wall.rig


def submit(rig: Rig, name: str, **changes: Any) -> None:
    tenant = make_tenant(name[0], ttft_ms=60_000.0, late="refuse")
    rig.engine.submit(
        make_request(name, [len(name)] * 4, tenant=tenant, ignore_eos=True, **changes)
    )


def steps(rig: Rig, count: int) -> Iterator[Event]:
    for _ in range(count):
        rig.now_s += 0.25
        yield from rig.engine.step()
        rig.engine.check_integrity()


@pytest.mark.parametrize("jump_s", JUMPS)
def test_a_request_lasts_as_long_as_it_lasts(rig: Rig, wall: Wall, jump_s: float) -> None:
    """With adapters and waiting ones, so that heat, demand and waits are looked at, too."""
    events: list[Event] = []
    for name, adapter in (("a1", make_ref("x")), ("b1", None), ("c1", make_ref("y"))):
        submit(rig, name, adapter=adapter, max_tokens=4)
    events += steps(rig, 2)
    wall.set_by_s += jump_s
    submit(rig, "a2", adapter=make_ref("x"), max_tokens=2)
    rig.engine.stats()
    events += run(rig, 0.25)
    records = {e.request_id: e.usage for e in events if isinstance(e, FinishEvent)}
    assert sorted(records) == ["a1", "a2", "b1", "c1"], "none was refused for its deadline"
    for usage in records.values():
        assert usage.finish_reason == "length"
        assert usage.first_token_s is not None
        assert usage.arrival_s < usage.first_token_s < usage.finished_s
        assert usage.queue_ms < 5000
        assert sum(part.ms for part in usage.waits) == pytest.approx(usage.queue_ms, abs=1e-6)
    first = records["a1"]
    assert first.finished_s - first.arrival_s == pytest.approx(1.0, abs=1e-6)
    assert first.finished_s == pytest.approx(UNIX_S + 1001.0 + jump_s)
    assert all(meter.ttft.sum_s < 10 for meter in rig.engine.stats().telemetry.meters)


@pytest.mark.parametrize("jump_s", JUMPS)
def test_what_is_shown_is_unix_time_and_ages_are_right(rig: Rig, wall: Wall, jump_s: float) -> None:
    submit(rig, "a1", adapter=make_ref("x"), max_tokens=20)
    run(rig, 0.25)
    wall.set_by_s += jump_s
    rig.now_s += 30.0
    shown = rig.engine.pages("ns-a").describe()
    assert shown.at_s == wall()
    (adapter,) = shown.adapters
    assert shown.at_s - adapter.last_used_s == pytest.approx(30.0, abs=1e-3)
    since = [unused for unused in shown.runs[3::4] if unused]
    assert since
    assert all(29 <= shown.at_s - each <= 32 for each in since)
    (resident,) = rig.engine.stats().adapters
    assert wall() - resident.last_used_s == pytest.approx(30.0, abs=1e-3)


def test_what_a_request_has_waited_before_counts(rig: Rig) -> None:
    """And nothing else of its client's clock reaches the engine."""
    submit(rig, "a1", max_tokens=1, waited_s=59.0)
    with pytest.raises(DeadlineError):
        submit(rig, "b1", max_tokens=1, waited_s=61.0)
    assert [type(event).__name__ for event in run(rig, 0.25)] == ["TokenEvent", "FinishEvent"]
    fields = {field.name for field in msgspec.structs.fields(GenerationRequest)}
    assert {name for name in fields if name.endswith("_s")} == {"waited_s"}


@pytest.mark.parametrize("waited_s", [-3600.0, float("nan"), float("inf"), float("-inf"), 1e300])
def test_what_cannot_have_been_waited_stops_nothing(rig: Rig, waited_s: float) -> None:
    rig.engine.submit(make_request("r", [1], ignore_eos=True, max_tokens=1, waited_s=waited_s))
    *_, end = run(rig, 0.25)
    assert isinstance(end, FinishEvent)
    assert 0 <= end.usage.queue_ms < 90_000_000


def test_the_time_until_a_step_ends_is_waited_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command waits for the step that runs when it comes."""
    now_s, taken = [100.0], list[GenerationRequest]()
    monkeypatch.setattr(loop, "steady", lambda: now_s[0])
    engine = cast(Engine, FakeStepEngine(step_config()))
    monkeypatch.setattr(engine, "submit", lambda request, *_: taken.append(request))
    held = EngineLoop(engine, lambda events: None)
    submitted = held.submit(make_request("r", [1], waited_s=0.5))
    now_s[0] += 2.0
    held.start()
    submitted.result(20)
    held.stop()
    assert [each.waited_s for each in taken] == [2.5]


def test_heat_fades_and_never_grows() -> None:
    assert [fade(seconds) for seconds in (-1e9, -1.0, 0.0)] == [1.0] * 3
    assert fade(1.0) < 1.0


def test_a_simulated_clock_tells_unix_time_itself() -> None:
    assert unix_offset(lambda: 5.0)() == 0.0
    assert unix_offset(lambda: 5.0, lambda: 105.0)() == 100.0
    assert clocks.steady() + unix_offset(clocks.steady)() == pytest.approx(clocks.wall(), abs=60)


class Memory:
    """An engine of which an adapter takes a kilobyte."""

    def __init__(self) -> None:
        self.now_s = 50_000.0
        self.wall_s = 3600 * 20 + 600.0
        self._taken_s = self.now_s
        self.records: list[OccupancyRecord] = []
        self.hours = OccupancyHours(
            cast(Any, self), self.records.extend, lambda: self.wall_s, lambda: self.now_s
        )

    def take_occupancy(self) -> dict[str, dict[tuple[str, str], int]]:
        passed_s = round(self.now_s - self._taken_s)
        self._taken_s = self.now_s
        return {"device": {("t", "sha256:a"): passed_s} if passed_s else {}, "host": {}}

    def pass_time(self, seconds: int) -> None:
        for _ in range(seconds // 10):
            self.now_s += 10
            self.wall_s += 10
            self.hours.look()


@pytest.mark.parametrize("jump_s", [*JUMPS, -13 * 3600.0 - 7.0, 3600.0 * 30 + 3.0])
@pytest.mark.parametrize("before_s", [0, 10, 1800, 3000, 7200])
def test_hours_lose_and_double_nothing(jump_s: float, before_s: int) -> None:
    memory = Memory()
    memory.pass_time(before_s)
    memory.wall_s += jump_s
    memory.hours.look()
    memory.pass_time(5400)
    memory.hours.end()
    assert sum(record.kb_s for record in memory.records) == before_s + 5400
    for record in memory.records:
        assert record.begins_s <= record.ends_s
        # As long as what it holds was taken for, but for an hour's rest on either side.
        assert record.ends_s - record.begins_s <= record.kb_s + 10
        assert record.ends_s <= memory.wall_s - min(jump_s, 0.0)
