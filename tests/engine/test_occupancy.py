"""What adapters took of memory, beside a plain model of loads, uses, evictions and pins that keeps
every interval by itself; as an engine counts it; and the records of each hour."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any, cast

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from engine_fakes import Rig, make_config, make_ref, make_request, make_tenant, run
from packed_adapters import packed
from tenora_engine.adapters.occupancy import Occupied, TierOccupancy
from tenora_engine.adapters.tiers import HostTier, packed_bytes
from tenora_engine.events import OccupancyRecord
from tenora_engine.transport.hours import OccupancyHours
from tenora_engine.transport.outbox import UsageOutbox

NS = 10**9
KB_S = 1000 * NS

EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["load", "use", "use", "pin", "unpin", "evict", "take"]),
        st.integers(0, 3),  # adapter
        st.integers(0, 2),  # tenant
        st.integers(0, 5 * NS),  # nanoseconds since the event before
        st.integers(1, 3_000_001),  # bytes, of a load
    ),
    max_size=60,
)
Events = list[tuple[str, int, int, int, int]]


class Plain:
    """Where each adapter lies since when, who used it last, and every interval that is over."""

    def __init__(self) -> None:
        self.now = 0
        self.lies: dict[str, tuple[int, int]] = {}  # digest -> (bytes, since)
        self.user: dict[str, str] = {}
        self.pins: Counter[str] = Counter()
        self.spent: Counter[tuple[str, str]] = Counter()

    def close(self, digest: str) -> None:
        if digest in self.lies:
            size, since = self.lies[digest]
            if digest in self.user:
                self.spent[self.user[digest], digest] += size * (self.now - since)
            self.lies[digest] = (size, self.now)

    def do(self, what: str, digest: str, tenant: str, size: int) -> None:
        self.close(digest)
        if what == "load":
            self.lies[digest] = (size, self.now)
        elif what == "evict":
            self.lies.pop(digest, None)
        elif what in ("use", "pin"):
            self.user[digest] = tenant
            self.pins[digest] += what == "pin" and digest in self.lies
        elif what == "unpin":
            self.pins[digest] = max(self.pins[digest] - 1, 0)


@given(events=EVENTS)
@settings(max_examples=300)
def test_every_byte_and_nanosecond_is_somebodys_or_nobodys(events: Events) -> None:
    plain = Plain()
    tier = TierOccupancy(lambda: plain.now)
    taken: Counter[tuple[str, str]] = Counter()
    for what, adapter, number, later, size in events:
        plain.now += later
        digest, tenant = f"a{adapter}", f"t{number}"
        if what in ("load", "evict") and plain.pins[digest]:
            continue  # an engine does neither to what is in use
        plain.do(what, digest, tenant, size)
        if what == "load":
            tier.hold(digest, digest, size)
        elif what == "evict":
            tier.drop(digest)
        elif what == "take":
            taken.update(tier.take())
        elif what != "unpin":
            tier.use(digest, tenant)
    taken.update(tier.take())
    for digest in plain.lies:
        plain.close(digest)
    for key, byte_ns in plain.spent.items():
        exact = Fraction(byte_ns, KB_S)
        assert taken[key] == exact.numerator // exact.denominator, "only the last fraction waits"
    assert set(taken) <= set(plain.spent)


def test_an_engine_counts_its_arena_by_who_used_it_last(monkeypatch: pytest.MonkeyPatch) -> None:
    rig, now = Rig.build(make_config(max_adapters=1)), [0]
    monkeypatch.setattr(rig.memory.adapters.occupancy, "_clock_ns", lambda: now[0])
    a, b = make_ref("a", rank=8), make_ref("b", rank=3)  # of 2 pages and of 1

    def ask(name: str, who: str, ref: Any) -> None:
        asked = make_request(name, [1, 2], tenant=make_tenant(who), adapter=ref, max_tokens=2)
        rig.engine.submit(asked)
        run(rig)

    ask("1", "first", a)
    now[0] += 1000 * NS
    ask("2", "second", a)
    now[0] += 500 * NS
    ask("3", "first", b)  # a goes for it
    now[0] += 250 * NS
    page = rig.config.page_bytes
    assert rig.engine.take_occupancy() == {
        "device": {
            ("first", a.digest): 2 * page,
            ("second", a.digest): page,
            ("first", b.digest): page // 4,
        },
        "host": {},
    }
    assert rig.engine.take_occupancy()["device"] == {}


def test_host_memory_is_whose_request_came_last(monkeypatch: pytest.MonkeyPatch) -> None:
    now, (one, two, warmed) = [0], (packed(1), packed(2), packed(3))
    size = packed_bytes(one)
    tier = HostTier(2 * size)
    monkeypatch.setattr(tier.occupancy, "_clock_ns", lambda: now[0])
    tier.put_below(warmed, 10**9)
    tier.occupancy.use(one.digest, "first")  # as the loader tells, before it is there
    tier.put(one)
    now[0] += KB_S
    tier.occupancy.use(one.digest, "second")
    tier.occupancy.use(two.digest, "second")
    tier.put(two)  # what was warmed goes, which nobody has used
    now[0] += KB_S
    tier.put(one)
    tier.remove(one.digest)
    now[0] += KB_S
    assert tier.occupancy.take() == {
        ("first", one.digest): size,
        ("second", one.digest): size,
        ("second", two.digest): 2 * size,
    }


class Hour:
    def __init__(self) -> None:
        self.occupied: Occupied = {("t", "sha256:a"): 7}

    def take_occupancy(self) -> dict[str, Occupied]:
        taken, self.occupied = self.occupied, {}
        return {"device": taken, "host": {}}


def test_a_record_an_hour_and_one_at_the_end(tmp_path: Path) -> None:
    now_s, kept, engine = [3600 * 10 + 100.0], list[OccupancyRecord](), Hour()
    hours = OccupancyHours(cast(Any, engine), kept.extend, lambda: now_s[0])
    now_s[0] = 3600 * 11 - 0.1
    hours.look()
    assert kept == []
    now_s[0] = 3600 * 11 + 0.4
    hours.look()
    assert [(r.begins_s, r.ends_s, r.kb_s) for r in kept] == [(36_100.0, 39_600.0, 7)]
    now_s[0] = 3600 * 12.5
    hours.look()
    assert len(kept) == 1, "nothing was held"
    engine.occupied = {("t", "sha256:a"): 1}
    hours.end()
    assert [(r.begins_s, r.ends_s, r.kb_s) for r in kept[1:]] == [(43_200.0, 45_000.0, 1)]
    assert len({record.event_id for record in kept}) == 2
    outbox = UsageOutbox(tmp_path)
    outbox.append(kept)
    outbox.close()
    outbox = UsageOutbox(tmp_path)
    assert outbox.oldest() == kept
    assert outbox.totals("").days == [], "no sequence has ended"
    outbox.acknowledge([record.event_id for record in kept])
    assert outbox.pending == 0
    outbox.close()
