"""Waits: each second that a sequence waits is somebody's or something's doing, and no second is
missing or counted twice, whatever happens; and the causes are those that a reader would name."""

from __future__ import annotations

import random
from collections import defaultdict
from contextlib import suppress

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_fakes import Rig, make_config, make_ref, make_request, make_tenant
from tenora_engine.errors import InvalidRequestError, QueueFullError
from tenora_engine.events import Event, FinishEvent, UsageRecord
from tenora_engine.scheduling.wait_accounts import PARTS_MAX
from tenora_engine.scheduling.waits import MINUTES_KEPT, TOLD_S
from tenora_engine.telemetry import OTHER, WaitTotal

TENANTS = [
    make_tenant("a"),
    make_tenant("b", weight=3.0),
    make_tenant("c", tier="priority", ttft_ms=900.0, late="refuse"),
    make_tenant("d", ttft_ms=600.0, late="relegate"),
    make_tenant("e", tier="flex"),
]
REFS = [make_ref(f"a{number}", rank) for number, rank in enumerate((1, 3, 8, 8, 5))]


def rig_of(
    metrics_tenants: int = 100, instant: bool = True, can_preempt: bool = False, **config: int
) -> Rig:
    made = make_config(**config)  # type: ignore[arg-type]
    engine = msgspec.structs.replace(made.engine, metrics_tenants=metrics_tenants)
    made = msgspec.structs.replace(made, engine=engine)
    return Rig.build(made, instant=instant, can_preempt=can_preempt)


def step(rig: Rig, seconds: float = 1.0) -> list[Event]:
    """One step that takes so long."""
    run = rig.executor.run

    def run_slowly(batch: object) -> object:
        rig.now_s += seconds
        return run(batch)  # type: ignore[arg-type]

    rig.executor.run = run_slowly  # type: ignore[assignment, method-assign]
    try:
        return rig.engine.step()
    finally:
        rig.executor.run = run  # type: ignore[method-assign]


def drain(rig: Rig, seconds: float = 1.0) -> dict[str, UsageRecord]:
    """Until nothing is left to do: the records of what ended."""
    records = {}
    while rig.engine.has_work:
        for event in step(rig, seconds):
            if isinstance(event, FinishEvent):
                records[f"{event.request_id}:{event.index}"] = event.usage
    return records


def parts_of(record: UsageRecord) -> dict[tuple[str, str], float]:
    sums: defaultdict[tuple[str, str], float] = defaultdict(float)
    for part in record.waits:
        sums[part.cause, part.other] += part.ms / 1000
    return {cell: round(seconds, 6) for cell, seconds in sums.items()}


def totals_of(rig: Rig) -> dict[tuple[str, str, str], WaitTotal]:
    return {(t.tenant, t.cause, t.other): t for t in rig.engine.stats().telemetry.waits}


def submit(rig: Rig, name: str, tenant: str, **changes: object) -> None:
    tokens = changes.pop("tokens", 2)
    rig.engine.submit(
        make_request(
            name,
            [3] * 4,
            tenant=make_tenant(tenant),
            max_tokens=tokens,  # type: ignore[arg-type]
            ignore_eos=True,
            **changes,  # type: ignore[arg-type]
        )
    )


def test_behind_another_tenant_is_that_tenants_queue() -> None:
    rig = rig_of(max_running=1)
    submit(rig, "first", "beta", tokens=5)
    step(rig)
    submit(rig, "second", "acme")
    records = drain(rig)
    assert parts_of(records["first:0"]) == {}
    # It came after one of the five steps of beta's.
    assert parts_of(records["second:0"]) == {("queue", "beta"): 4.0}
    assert totals_of(rig)["acme", "queue", "beta"].seconds == pytest.approx(4.0)
    assert totals_of(rig)["acme", "queue", "beta"].sequences == 1


def test_behind_its_own_earlier_requests_is_its_own_doing() -> None:
    rig = rig_of(max_running=1)
    submit(rig, "first", "acme", tokens=5)
    step(rig)
    submit(rig, "second", "acme")
    assert parts_of(drain(rig)["second:0"]) == {("own", ""): 4.0}


def test_full_places_are_blamed_by_how_many_each_holds() -> None:
    rig = rig_of(max_running=4)
    for number, tenant in enumerate(("beta", "beta", "beta", "acme")):
        submit(rig, f"r{number}", tenant, tokens=8)
    for _ in range(3):
        step(rig)
    # What of one tenant waits cannot take a place of another within its share.
    submit(rig, "late", "beta")
    begun_s = rig.now_s
    records = drain(rig)
    record = records["late:0"]
    waited_s = record.queue_ms / 1000
    assert waited_s > 0
    assert begun_s == record.arrival_s
    parts = parts_of(record)
    assert parts["own", ""] == pytest.approx(3 * parts["queue", "acme"])
    assert sum(parts.values()) == pytest.approx(waited_s)


def test_before_the_engine_had_it_nobody_is_to_blame() -> None:
    rig = rig_of()
    submit(rig, "r", "acme", waited_s=0.75)
    rig.now_s += 0.25
    assert parts_of(drain(rig)["r:0"]) == {("start", ""): 1.0}


def test_a_load_of_its_own_comes_first_and_then_whoever_was_served() -> None:
    """Two seconds of six it would have waited if it had been alone."""
    rig = rig_of(instant=False, max_running=1)
    submit(rig, "busy", "beta", tokens=9)
    step(rig)
    submit(rig, "cold", "acme", adapter=REFS[1])
    step(rig)
    step(rig)
    rig.loader.finish(REFS[1].digest)
    parts = parts_of(drain(rig)["cold:0"])
    assert parts == {("load", ""): 2.0, ("queue", "beta"): 6.0}


def test_who_needs_nothing_else_waits_for_its_load_alone() -> None:
    rig = rig_of(instant=False)
    submit(rig, "cold", "acme", adapter=REFS[1])
    submit(rig, "same", "beta", adapter=REFS[1])
    rig.engine.step()
    rig.now_s += 3.0
    rig.loader.finish(REFS[1].digest)
    records = drain(rig)
    assert parts_of(records["cold:0"]) == parts_of(records["same:0"]) == {("load", ""): 3.0}


def test_want_of_pages_is_blamed_on_who_holds_them() -> None:
    # Beta's two hold all eight pages of 4 tokens, but not twice what the other needs.
    rig = rig_of(num_pages=8, max_running=8, max_step_tokens=64, max_prefill_chunk=64)
    for number in range(2):
        rig.engine.submit(
            make_request(
                f"big{number}",
                [number] * 12,
                tenant=make_tenant("beta"),
                max_tokens=4,
                ignore_eos=True,
            )
        )
    step(rig)
    rig.engine.submit(make_request("small", [9] * 20, tenant=make_tenant("acme"), max_tokens=1))
    parts = parts_of(drain(rig)["small:0"])
    assert parts.pop(("pages", "beta")) > 0
    assert set(parts) <= {("queue", "beta"), ("start", "")}


def test_siblings_wait_for_the_first_of_their_request() -> None:
    rig = rig_of(max_step_tokens=4, max_prefill_chunk=4)
    rig.engine.submit(make_request("r", [5] * 12, tenant=make_tenant("acme"), n=2, max_tokens=2))
    records = drain(rig)
    assert parts_of(records["r:0"]) == {}
    assert parts_of(records["r:1"]) == {("own", ""): 3.0}


def test_tenants_without_a_label_are_one() -> None:
    rig = rig_of(metrics_tenants=1, max_running=1)
    submit(rig, "first", "known", tokens=3)
    step(rig)
    submit(rig, "x", "unknown", tokens=3)
    submit(rig, "y", "stranger", tokens=3)
    records = drain(rig)
    others = [parts_of(records[f"{name}:0"]) for name in "xy"]
    assert {cause for parts in others for cause in parts} == {("queue", "known"), ("queue", OTHER)}
    assert {total.tenant for total in rig.engine.stats().telemetry.waits} <= {"known", OTHER}


def test_what_waits_still_is_in_the_totals() -> None:
    rig = rig_of(max_running=1)
    submit(rig, "first", "beta", tokens=20)
    step(rig)
    submit(rig, "second", "acme")
    seen = []
    for _ in range(4):
        step(rig, 2.0)
        total = totals_of(rig)["acme", "queue", "beta"]
        seen.append((total.seconds, total.sequences))
    assert seen == [(2.0, 1), (4.0, 1), (6.0, 1), (8.0, 1)]


def test_many_causes_of_one_are_told_as_few() -> None:
    names = [f"t{number:02}" for number in range(12)]
    rig = rig_of(max_running=12, max_step_tokens=64, num_pages=64)
    for name in names:
        submit(rig, name, name, tokens=6)
    step(rig)
    submit(rig, "late", "acme")
    record = drain(rig)["late:0"]
    assert len(record.waits) <= PARTS_MAX + 1
    assert sum(part.ms for part in record.waits) == pytest.approx(record.queue_ms)


def test_the_gap_of_two_that_wait_is_below_its_bound_and_noted_by_minute() -> None:
    rig = rig_of(max_running=2)
    for number in range(30):
        for tenant in ("a", "b"):
            submit(rig, f"{tenant}{number}", tenant, tokens=3 if tenant == "a" else 9)
    while rig.engine.has_work:
        for gap, bound in rig.engine._scheduler.queue.contested().values():
            assert gap < bound
        step(rig, 7.0)
    told = {
        each.begins_s: each.gap / each.bound for each in rig.engine.stats().telemetry.gap_minutes
    }
    assert 0 < len(told) <= MINUTES_KEPT
    assert all(0 <= part < 1 and minute % 60 == 0 for minute, part in told.items())
    assert max(told.values()) > 0


def test_one_alone_has_no_gap() -> None:
    rig = rig_of(max_running=1)
    for number in range(4):
        submit(rig, f"r{number}", "a")
    drain(rig)
    assert rig.engine.stats().telemetry.gap_minutes == []


class Day:
    """Random requests, aborts, loads and steps of all tenants on one engine in little memory."""

    def __init__(self, rig: Rig, seed: int, share: float) -> None:
        self.rig = rig
        self.draw = random.Random(seed)
        self.share = share
        self.number = 0
        self.records: list[UsageRecord] = []
        self.seen: dict[tuple[str, str, str, str], tuple[float, int]] = {}

    def live(self, actions: int) -> None:
        for _ in range(actions):
            chances = (self.submit,) * 9 + (self.step,) * 8 + (self.load,) * 2 + (self.abort,)
            self.draw.choice(chances)()
            self.rig.now_s += self.draw.choice((0.0, 0.0, 0.05))
            self.check_totals()
        while self.rig.engine.has_work or self.rig.engine._scheduler.requests.num_waiting:
            for digest in list(self.rig.loader.in_flight):
                self.rig.loader.finish(digest)
            self.step()
            self.rig.now_s += 0.01

    def submit(self) -> None:
        draw = self.draw
        self.number += 1
        request = make_request(
            f"r{self.number}",
            [draw.randrange(90) for _ in range(draw.randrange(1, 16))],
            tenant=msgspec.structs.replace(draw.choice(TENANTS), min_memory_share=self.share),
            adapter=draw.choice([None, None, *REFS]),
            max_tokens=draw.randrange(1, 12),
            n=draw.choice((1, 1, 2)),
            waited_s=draw.choice((0.0, 0.0, 0.2)),
        )
        with suppress(QueueFullError, InvalidRequestError):
            self.rig.engine.submit(request)

    def step(self) -> None:
        events = step(self.rig, self.draw.choice((0.0, 0.01, 0.3)))
        self.records += [event.usage for event in events if isinstance(event, FinishEvent)]

    def load(self) -> None:
        for digest in list(self.rig.loader.in_flight):
            if self.draw.random() < 0.5:
                self.rig.loader.finish(digest)

    def abort(self) -> None:
        self.rig.engine.abort(f"r{self.draw.randrange(self.number + 1)}")

    def check_totals(self) -> None:
        for total in self.rig.engine.stats().telemetry.waits:
            key = total.service_class, total.tenant, total.cause, total.other
            seconds, sequences = self.seen.get(key, (0.0, 0))
            assert total.seconds >= seconds - 1e-9
            assert total.sequences >= sequences
            self.seen[key] = total.seconds, total.sequences


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    metrics_tenants=st.sampled_from((0, 2, 100)),
    num_pages=st.sampled_from((12, 20, 64)),
    max_running=st.sampled_from((2, 4, 8)),
    instant=st.booleans(),
    can_preempt=st.booleans(),
    share=st.sampled_from((0.0, 0.15)),
)
def test_no_second_is_missing_or_counted_twice(
    seed: int,
    metrics_tenants: int,
    num_pages: int,
    max_running: int,
    instant: bool,
    can_preempt: bool,
    share: float,
) -> None:
    sizes = {"num_pages": num_pages, "max_running": max_running}
    rig = rig_of(metrics_tenants, instant, can_preempt, max_waiting=24, max_adapters=2, **sizes)
    day = Day(rig, seed, share)
    day.live(120)
    for record in day.records:
        assert all(part.ms >= 0 for part in record.waits)
        first = sum(part.ms for part in record.waits if part.cause != "preempted")
        if record.waits or record.queue_ms >= 1000 * TOLD_S:
            assert first == pytest.approx(record.queue_ms, abs=1e-3)
        again = sum(part.ms for part in record.waits if part.cause == "preempted")
        assert not again or record.preemptions
    day.check_totals()
    waits = rig.engine._scheduler.waits
    left = (waits._waiting, waits._by_digest, waits._short, waits._clocks)
    assert not any(left)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), max_running=st.sampled_from((2, 4)))
def test_totals_are_the_sums_of_what_each_sequence_is_told(seed: int, max_running: int) -> None:
    """Clocks agree and no plan refuses here: every wait has a record."""
    rig = rig_of(num_pages=20, max_running=max_running, max_waiting=24)
    draw = random.Random(seed)
    records: list[UsageRecord] = []
    for number in range(60):
        if draw.random() < 0.5:
            with suppress(QueueFullError):
                tokens = draw.randrange(1, 9)
                submit(rig, f"r{number}", draw.choice("ab"), tokens=tokens)
        records += [e.usage for e in step(rig, 0.1) if isinstance(e, FinishEvent)]
    records += drain(rig).values()
    expected: defaultdict[tuple[str, str, str], float] = defaultdict(float)
    for record in records:
        for part in record.waits:
            expected[record.tenant, part.cause, part.other] += part.ms / 1000
    found = {key: total.seconds for key, total in totals_of(rig).items()}
    assert found == pytest.approx(dict(expected), abs=1e-6)
