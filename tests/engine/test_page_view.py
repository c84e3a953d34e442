"""The page view: what it says of each page is what a walk of all owners finds, and what it says
goes next is what really goes, in that order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from engine_fakes import Rig, make_config, make_ref, make_request, make_tenant, run
from tenora_engine.errors import AdapterBusyError
from tenora_engine.memory.evictor import Item
from tenora_engine.memory.forecast import DEPARTURES_MAX
from tenora_engine.memory.policies import POLICIES, make_policy
from tenora_engine.memory.pool import FREE
from tenora_engine.memory.prefix import PrefixNode, walk
from tenora_engine.pages import KINDS, ArenaPages, Pin, PinState
from tenora_engine.request import AdapterRef, Tenant

REFS = [make_ref(f"a{n}", rank) for n, rank in enumerate((1, 5, 6, 8))]


class Ticking(Rig):
    """Each look at the clock is a little later, so that no two things were used at one time."""

    ticks = 0.001

    def __getattribute__(self, name: str) -> object:
        if name == "now_s":
            object.__setattr__(self, "now_s", object.__getattribute__(self, "now_s") + self.ticks)
        return object.__getattribute__(self, name)


def pages_of(rig: Rig, namespace: str = "") -> ArenaPages:
    return rig.engine.pages(namespace).describe()


def each_page(pages: ArenaPages) -> list[tuple[str, str, str, int]]:
    """(kind, namespace, digest, since) of every page, the runs undone."""
    found = []
    runs = pages.runs
    for at in range(0, len(runs), 4):
        count, kind, owner, since = runs[at : at + 4]
        of = pages.owners[owner]
        found += [(KINDS[kind], of.namespace, of.digest, since)] * count
    return found


def walked(rig: Rig) -> list[tuple[str, str, str, int]]:
    """The same, from the owners themselves."""
    memory = rig.memory
    found = [("free", "", "", 0)] * memory.pool.total
    for root in memory.tree.roots():
        for node in walk(root):
            kind = "live" if node.references else "cached"
            since = 0 if node.references else int(node.last_used_s)
            for page in node.pages:
                found[page] = kind, root.namespace, root.digest, since
    for sequence in rig.engine._scheduler.running:
        request = sequence.request
        digest = "BASE" if request.adapter is None else request.adapter.digest
        for page in sequence.block_table:
            if found[page][0] == "free":
                found[page] = "live", request.tenant.namespace, digest, 0
    for resident in (*memory.adapters.residents(), *memory.adapters.arriving()):
        for page in resident.pages:
            found[page] = "adapter", resident.namespace, resident.digest, 0
    return found


def pin(rig: Rig, pins: list[Pin]) -> list[PinState]:
    """Told, and brought as far as that goes."""
    rig.engine.set_pins(pins)
    while rig.engine.has_work:
        rig.engine.step()
        rig.engine.check_integrity()
    return pages_of(rig).pins


def shared(tenant: Tenant, share: float) -> Tenant:
    return replace(tenant, min_memory_share=share, max_memory_share=min(2 * share, 1.0) or 1.0)


JOBS = st.lists(
    st.tuples(
        st.sampled_from("abcd"),
        st.sampled_from([None, None, *REFS]),
        st.sampled_from([[7] * 24, [5, 6] * 12, list(range(24))]),
        st.integers(1, 24),  # of that prefix
        st.lists(st.integers(0, 95), min_size=1, max_size=5),
        st.integers(1, 6),
        st.integers(1, 30),  # steps then
    ),
    min_size=1,
    max_size=14,
)


def used_arena(
    jobs: list[tuple[str, AdapterRef | None, list[int], int, list[int], int, int]],
    num_pages: int,
    policy: str,
    sharing: str,
) -> Rig:
    """An arena after so many requests, some of which may run."""
    strict = sharing == "strict"
    config = make_config(
        num_pages=num_pages, context_tokens=40, max_adapters=6, strict_isolation=strict
    )
    rig = Ticking.build(config, policy=make_policy(policy))
    for number, (name, ref, prefix, length, tail, tokens, steps) in enumerate(jobs):
        tenant = make_tenant(name, weight=1.0 + "abcd".index(name))
        if sharing != "none":
            tenant = shared(
                tenant, 0.25 if strict else {"a": 0.3, "b": 0.1, "c": 0.05}.get(name, 0.0)
            )
        request = make_request(
            f"r{number}", prefix[:length] + tail, tenant=tenant, adapter=ref, max_tokens=tokens,
            ignore_eos=True,
        )  # fmt: skip
        try:
            rig.engine.submit(request)
        except Exception:
            continue  # it does not fit
        for _ in range(steps):
            rig.engine.step()
    return rig


@given(JOBS, st.integers(16, 48), st.sampled_from(["none", "shares"]))
def test_every_page_has_the_owner_that_a_walk_finds(
    jobs: list[tuple[str, AdapterRef | None, list[int], int, list[int], int, int]],
    num_pages: int,
    sharing: str,
) -> None:
    rig = used_arena(jobs, num_pages, "joint", sharing)
    pages = pages_of(rig)
    assert each_page(pages) == walked(rig)
    counts = Counter(kind for kind, *_ in walked(rig))
    assert pages.kinds == [counts[kind] for kind in KINDS]
    runs = pages.runs
    neighbours = [tuple(runs[at + 1 : at + 4]) for at in range(0, len(runs), 4)]
    assert all(a != b for a, b in pairwise(neighbours)), "runs are whole"
    assert sum(each.used for each in pages.partitions) == num_pages - counts["free"]


@given(
    JOBS,
    st.integers(16, 48),
    st.sampled_from(["joint", *POLICIES]),
    st.sampled_from(["none", "shares", "shares", "strict"]),
    st.sampled_from("abcd"),
    st.sampled_from([None, 0, 1]),
)
@example(  # two pages of one run, by two rules
    [("b", None, [7] * 24, 1, [0, 0], 6, 5), ("b", None, [7] * 24, 1, [0] * 4, 2, 1)],
    16, "joint", "shares", "a", None,
)  # fmt: skip
def test_what_goes_next_is_what_is_shown(
    jobs: list[tuple[str, AdapterRef | None, list[int], int, list[int], int, int]],
    num_pages: int,
    policy: str,
    sharing: str,
    asks: str,
    pinned: int | None,
) -> None:
    if sharing == "strict" and policy == "static-lru":
        sharing = "none"
    rig = used_arena(jobs, num_pages, policy, sharing)
    if pinned is not None:
        rig.engine.set_pins([Pin(make_tenant("a"), REFS[pinned])] if sharing != "strict" else [])
        rig.engine.step()
    object.__setattr__(rig, "ticks", 0.0)  # time stands still from here on
    namespace = f"ns-{asks}"
    shown = pages_of(rig, namespace).departures
    # By pages: a run goes by one call or several, and is shown once for each rule by which it goes.
    expected = [(each.digest, page) for each in shown for page in each.pages]
    gone: list[tuple[str, int]] = []
    _watch(rig, lambda digest, pages: gone.extend((digest, page) for page in pages))
    while len(gone) <= len(expected) and rig.memory.allocator.try_allocate(1, "kv", namespace):
        pass
    assert gone[: len(expected)] == expected[: len(gone)]
    if len(shown) < DEPARTURES_MAX:
        assert len(gone) == len(expected)


def _watch(rig: Rig, note: Callable[[str, list[int]], None]) -> None:
    evict = rig.memory.allocator.evict

    def watched(item: Item, most: int) -> None:
        if isinstance(item, PrefixNode):
            note(item.root.digest, list(item.pages[-most:])[::-1])
        else:
            assert not item.pinned
            note(item.digest, list(item.pages))
        evict(item, most)

    rig.memory.allocator.evict = watched  # type: ignore[method-assign]


def test_a_pinned_adapter_outlives_what_everybody_else_needs() -> None:
    rig = Rig.build(make_config(num_pages=32, max_adapters=4))
    (state,) = pin(rig, [Pin(make_tenant("a"), REFS[3])])
    assert (state.state, state.num_pages) == ("pinned", 2)
    for number in range(12):
        tenant = make_tenant(f"t{number}")
        prompt = [number] * 40
        rig.engine.submit(
            make_request(f"r{number}", prompt, tenant=tenant, adapter=REFS[number % 3])
        )
        run(rig)
    (kept,) = [each for each in pages_of(rig).adapters if each.pinned]
    assert kept.digest == REFS[3].digest
    assert all(each.digest != REFS[3].digest for each in pages_of(rig).departures)
    assert rig.engine.set_pins([]) == []
    assert pages_of(rig).pinned_pages == 0
    assert REFS[3].digest in {each.digest for each in pages_of(rig).departures}
    rig.engine.check_integrity()


def test_pins_take_a_quarter_of_the_arena_and_half_of_the_slots() -> None:
    rig = Rig.build(make_config(num_pages=24, max_adapters=8, context_tokens=32))
    pins = [Pin(make_tenant("a"), make_ref(f"p{n}", 8)) for n in range(4)]  # of 2 pages each
    states = pin(rig, pins)
    assert [each.state for each in states] == ["pinned", "pinned", "pinned", "refused"]
    assert "6 pages are pinned and 0 more can be" in str(states[3].reason)
    rig = Rig.build(make_config(num_pages=200, max_adapters=4))
    states = pin(rig, pins)
    assert [each.state for each in states] == ["pinned", "pinned", "refused", "refused"]
    assert "2 adapters are pinned, and at most 2 can be" in str(states[2].reason)


def test_pins_leave_room_for_what_was_promised() -> None:
    """16 pages: one request in flight needs 14 of them, so that 2 can be pinned at most."""
    rig = Rig.build(make_config(num_pages=16, context_tokens=64))
    rig.engine.submit(make_request("long", [1] * 48, max_tokens=8, ignore_eos=True))
    rig.engine.step()
    rig.engine.set_pins([Pin(make_tenant("a"), make_ref(f"p{n}", 8)) for n in range(2)])
    finish = run(rig)[-1]
    assert getattr(finish, "reason", None) == "length"
    assert [each.state for each in pages_of(rig).pins] == ["pinned", "refused"]
    assert rig.engine.stats().counters["preemptions"] == 0


def test_what_is_pinned_counts_against_the_longest_request() -> None:
    rig = Rig.build(make_config(num_pages=16, context_tokens=64))
    pin(rig, [Pin(make_tenant("a"), make_ref("p", 8))])
    request = make_request("long", [1] * 48, max_tokens=16, ignore_eos=True)
    with pytest.raises(Exception, match="maximum context length is 56"):
        rig.engine.submit(request)


def test_an_adapter_that_runs_is_not_evicted_and_the_count_is_told() -> None:
    rig = Rig.build(make_config())
    for name in ("r1", "r2"):
        rig.engine.submit(make_request(name, [1, 2], adapter=REFS[2], ignore_eos=True))
    rig.engine.step()
    with pytest.raises(AdapterBusyError, match="2 requests run") as error:
        rig.engine.evict_adapter("ns-t0", REFS[2].digest)
    assert error.value.requests == 2
    run(rig)
    before = rig.engine.stats().pool.free_pages
    assert rig.engine.evict_adapter("ns-t0", REFS[2].digest) == 2
    assert rig.engine.stats().pool.free_pages == before + 2
    assert rig.engine.evict_adapter("ns-t0", REFS[2].digest) == 0
    pin(rig, [Pin(make_tenant("a"), REFS[2])])
    with pytest.raises(AdapterBusyError, match="pinned"):
        rig.engine.evict_adapter("ns-t0", REFS[2].digest)


def test_a_pin_comes_when_its_load_ends_and_fails_alone() -> None:
    rig = Rig.build(make_config(), instant=False)
    good, bad = make_ref("good"), make_ref("bad")
    rig.loader.bad.add(bad.digest)
    states = rig.engine.set_pins([Pin(make_tenant("a"), good), Pin(make_tenant("a"), bad)])
    assert [each.state for each in states] == ["loading", "loading"]
    for digest in list(rig.loader.in_flight):
        rig.loader.finish(digest)
    assert rig.engine.has_work
    rig.engine.step()
    pages = pages_of(rig)
    assert [each.state for each in pages.pins] == ["pinned", "failed"]
    assert "broken" in str(pages.pins[1].reason)
    rig.engine.forget_adapter("ns-a", good.digest)
    assert [each.digest for each in pages_of(rig).adapters] == []
    rig.engine.check_integrity()


def test_nobody_is_metered_for_a_pinned_adapter() -> None:
    rig = Rig.build(make_config())
    occupancy = rig.memory.adapters.occupancy
    time_ns = [0]
    occupancy._clock_ns = lambda: time_ns[0]
    rig.engine.submit(make_request("r", [1, 2], adapter=REFS[0], max_tokens=1))
    run(rig)
    size = rig.config.page_bytes
    for pinned in (True, False):
        rig.engine.set_pins([Pin(make_tenant("a"), REFS[0])] if pinned else [])
        time_ns[0] += 10**12
    assert occupancy.take() == {("t0", REFS[0].digest): size * 10**12 // 10**12}


def test_free_pages_have_no_owner() -> None:
    rig = Rig.build(make_config())
    assert set(walked(rig)) == {("free", "", "", 0)}
    assert pages_of(rig).runs == [32, 0, 0, 0]
    assert rig.memory.pool.kind(0) == FREE
