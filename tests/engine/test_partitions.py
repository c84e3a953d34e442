"""Shares of tenants: minimum and maximum hold, strict isolation lets nothing through, and whoever
fits its partition gets its pages."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from engine_fakes import Rig, make_config, make_ref, make_request
from tenora_engine.errors import ContextLengthError, InvalidRequestError, QueueFullError
from tenora_engine.events import FinishEvent
from tenora_engine.memory.evictor import Item
from tenora_engine.memory.manager import MemoryManager
from tenora_engine.memory.partitions import Partitions
from tenora_engine.memory.policies import POLICIES, make_policy
from tenora_engine.memory.pool import PagePool
from tenora_engine.request import Tenant

ISOLATING = [name for name in POLICIES if name != "static-lru"]


def tenant(name: str, least: float = 0.0, most: float = 1.0) -> Tenant:
    return Tenant(key=name, namespace=f"ns-{name}", min_memory_share=least, max_memory_share=most)


def build(policy: str = "joint", num_pages: int = 20, *, strict: bool = False) -> Rig:
    config = make_config(num_pages=num_pages, strict_isolation=strict, max_adapters=8)
    return Rig.build(config, policy=make_policy(policy))


def run(rig: Rig, *, steps: int = 500) -> list[FinishEvent]:
    ends: list[FinishEvent] = []
    while rig.engine.has_work:
        rig.now_s += 0.5
        ends += [event for event in rig.engine.step() if isinstance(event, FinishEvent)]
        rig.engine.check_integrity()
        steps -= 1
        assert steps, "it does not come to an end"
    return ends


def serve(rig: Rig, who: Tenant, name: str, prompt: list[int], adapter: str | None = None) -> None:
    ref = None if adapter is None else make_ref(adapter, rank=5)  # one page
    rig.engine.submit(
        make_request(name, prompt, tenant=who, adapter=ref, max_tokens=1, ignore_eos=True)
    )
    assert {event.reason for event in run(rig)} == {"length"}


def used(memory: MemoryManager, who: Tenant) -> int:
    """Cached KV and adapters of a tenant, when nothing runs."""
    roots = [root for root in memory.tree.roots() if root.namespace == who.namespace]
    adapters = [item for item in memory.adapters.residents() if item.namespace == who.namespace]
    return sum(root.cached_pages for root in roots) + sum(len(item.pages) for item in adapters)


def residency(memory: MemoryManager, who: Tenant) -> list[tuple[str, int, int]]:
    """What a tenant has on the device."""
    return sorted(
        [
            (root.digest, root.cached_pages, root.live_pages)
            for root in memory.tree.roots()
            if root.namespace == who.namespace
        ]
        + [
            (item.digest, len(item.pages), item.references)
            for item in memory.adapters.residents()
            if item.namespace == who.namespace
        ]
    )


PROMPTS = st.lists(
    # at most four pages of KV and one of an adapter: it fits every share below
    st.tuples(st.integers(0, 30), st.integers(1, 15), st.sampled_from([None, "p", "q", "r"])),
    max_size=6,
)


@settings(max_examples=60)
@given(visits=st.lists(st.tuples(st.integers(0, 2), PROMPTS), max_size=5))
def test_nobody_takes_a_minimum_and_borrowed_pages_go_first(
    visits: list[tuple[int, list[tuple[int, int, str | None]]]],
) -> None:
    rig = build(num_pages=20)
    tenants = [tenant("a", 0.3, 0.5), tenant("b", 0.2, 0.3), tenant("c", 0.0, 0.25)]
    least = {"a": 6, "b": 4, "c": 0}
    number = 0
    for who, prompts in visits:
        for token, length, adapter in prompts:
            before = {t.key: used(rig.memory, t) for t in tenants}
            number += 1
            serve(rig, tenants[who], f"r{number}", [token] * length, adapter)
            for other in tenants:
                if other is not tenants[who]:
                    kept = min(before[other.key], least[other.key])
                    assert used(rig.memory, other) >= kept


def test_beyond_its_maximum_a_tenant_takes_from_nobody_but_itself() -> None:
    rig = build(num_pages=20)
    quiet, greedy = tenant("quiet", 0.0, 0.5), tenant("greedy", 0.0, 0.5)
    for number in range(3):
        serve(rig, quiet, f"q{number}", [number] * 12)
    kept = used(rig.memory, quiet)
    assert kept == 9
    for number in range(20):
        serve(rig, greedy, f"g{number}", [number] * 16)
    assert used(rig.memory, quiet) == kept
    assert used(rig.memory, greedy) == 20 - kept  # it has borrowed what nobody uses
    for number in range(10, 13):
        serve(rig, quiet, f"q{number}", [number] * 4)
    assert used(rig.memory, quiet) > kept, "and gives it back first"


@settings(max_examples=100)
@given(
    policy=st.sampled_from(ISOLATING),
    mine=PROMPTS,
    theirs=st.lists(PROMPTS, max_size=4),
)
def test_strict_isolation_lets_nobody_see_what_others_do(
    policy: str,
    mine: list[tuple[int, int, str | None]],
    theirs: list[list[tuple[int, int, str | None]]],
) -> None:
    """The same requests at the same times, alone and beside another tenant who uses adapters of
    equal content: at each of them the tenant finds the same in its cache."""
    alone, beside = build(policy, 24, strict=True), build(policy, 24, strict=True)
    me, other = tenant("me", 0.5), tenant("other", 0.5)
    for number, (token, length, adapter) in enumerate(mine):
        now_s = 1000.0 + 100 * number
        if number < len(theirs):
            beside.now_s = now_s
            for i, (t, size, name) in enumerate(theirs[number]):
                serve(beside, other, f"o{number}-{i}", [t] * size, name)
                assert residency(beside.memory, me) == residency(alone.memory, me)
        alone.now_s = beside.now_s = now_s + 50
        for rig in (alone, beside):
            serve(rig, me, f"m{number}", [token] * length, adapter)
        assert residency(beside.memory, me) == residency(alone.memory, me)


def test_without_strict_isolation_the_same_test_fails() -> None:
    rig = build(num_pages=24)
    me, other = tenant("me"), tenant("other")
    serve(rig, me, "m", [1] * 12)
    before = residency(rig.memory, me)
    rig.now_s += 3600.0
    for number in range(20):
        serve(rig, other, f"o{number}", [number] * 19)
    assert residency(rig.memory, me) != before


@pytest.mark.parametrize(
    ("policy", "strict"),
    [(name, False) for name in POLICIES] + [(name, True) for name in ISOLATING],
)
@settings(max_examples=40)
@given(data=st.data())
def test_who_fits_its_partition_gets_its_pages(
    policy: str, strict: bool, data: st.DataObject
) -> None:
    """All tenants at once; then nothing waits for ever and nobody is cut short for others."""
    rig = build(policy, 20, strict=strict)
    tenants = [tenant("a", 0.4, 0.5), tenant("b", 0.3, 0.6), tenant("c", 0.25)]
    names = data.draw(st.lists(st.sampled_from("abc"), max_size=14))
    sent = 0
    for number, name in enumerate(names):
        length = data.draw(st.integers(1, 30))
        adapter = data.draw(st.sampled_from([None, None, "p", "q", "r"]))
        request = make_request(
            f"r{number}",
            data.draw(st.lists(st.integers(0, 1), min_size=length, max_size=length)),
            tenant=next(t for t in tenants if t.key == name),
            adapter=None if adapter is None else make_ref(adapter, rank=5),
            max_tokens=4,
            ignore_eos=True,
        )
        try:
            rig.engine.submit(request)
        except ContextLengthError:
            continue
        sent += 1
    ends = run(rig)
    assert len(ends) == sent
    for event in ends:
        if event.reason == "error":
            assert event.usage.adapter_digest is not None  # it did not fit beside its adapter
        elif event.usage.output_tokens < 4:
            assert event.usage.adapter_digest is not None


def test_an_adapter_that_another_tenant_uses_in_my_share_cuts_nobody_short() -> None:
    """Found by the test above: q lies in a's pages, c runs it, and a needs the page."""
    rig = build(num_pages=20)
    tenants = {t.key: t for t in (tenant("a", 0.4, 0.5), tenant("b", 0.3, 0.6), tenant("c", 0.25))}
    sent: list[tuple[str, int, str | None]] = [
        ("b", 5, None), ("b", 5, "r"), ("b", 12, None), ("a", 30, None), ("c", 10, None),
        ("b", 7, "r"), ("a", 15, None), ("a", 8, None), ("c", 15, None), ("b", 1, "p"),
        ("c", 9, "r"), ("c", 12, "q"), ("a", 1, "q"),
    ]  # fmt: skip
    for number, (name, length, adapter) in enumerate(sent):
        ref = None if adapter is None else make_ref(adapter, rank=5)
        prompt = [0] * length if number != 7 else [0, 0, 0, 1, 0, 0, 0, 0]
        rig.engine.submit(
            make_request(
                f"r{number}",
                prompt,
                tenant=tenants[name],
                adapter=ref,
                max_tokens=4,
                ignore_eos=True,
            )
        )
    ends = run(rig)
    assert all(e.usage.output_tokens == 4 for e in ends if e.usage.adapter_digest is None)


def test_strict_isolation_needs_a_share() -> None:
    rig = build(strict=True)
    rig.engine.submit(make_request("a", [1], tenant=tenant("a", 0.7)))
    with pytest.raises(QueueFullError, match=r"strict isolation: .* in flight leave only 6 pages"):
        rig.engine.submit(make_request("b", [1], tenant=tenant("b", 0.5)))
    with pytest.raises(InvalidRequestError, match="memory share is less than one page"):
        rig.engine.submit(make_request("c", [1], tenant=tenant("c")))
    small = tenant("d", 0.1)
    with pytest.raises(InvalidRequestError, match="too small for an adapter"):
        rig.engine.submit(make_request("d", [1], tenant=small, adapter=make_ref("x")))
    with pytest.raises(ContextLengthError, match="maximum context length is 56 tokens"):
        rig.engine.submit(make_request("e", [1] * 57, tenant=tenant("a", 0.7)))
    run(rig)


def test_a_strict_newcomer_gets_the_share_of_who_has_been_idle_longest() -> None:
    rig = build(num_pages=100, strict=True)
    first = [tenant(name, 0.25) for name in "abcd"]
    for who in first:
        serve(rig, who, who.key, [1] * 8, "p")
    serve(rig, first[0], "a again", [1] * 8, "p")
    before = [residency(rig.memory, who) for who in first]
    serve(rig, tenant("e", 0.25), "e", [2] * 8)
    after = [residency(rig.memory, who) for who in first]
    assert after[1] == []
    assert [after[0], *after[2:]] == [before[0], *before[2:]], "the others keep all they had"
    serve(rig, tenant("f", 0.3), "f", [2] * 8)
    assert [bool(residency(rig.memory, who)) for who in first] == [True, False, False, False]


def test_a_strict_newcomer_takes_from_nobody_whose_requests_are_in_flight() -> None:
    rig = build(num_pages=20, strict=True)
    running, waiting, new = tenant("r", 0.5), tenant("w", 0.5), tenant("n", 0.5)
    for who in (running, waiting):
        serve(rig, who, f"cached-{who.key}", [3] * 12)
    rig.engine.submit(make_request("r", [4] * 4, tenant=running, ignore_eos=True))
    rig.engine.step()
    rig.engine.submit(make_request("w", [4] * 4, tenant=waiting, ignore_eos=True))
    kept = [residency(rig.memory, who) for who in (running, waiting)]
    with pytest.raises(QueueFullError, match="in flight leave only 0 pages") as refusal:
        rig.engine.submit(make_request("n", [1], tenant=new))
    assert refusal.value.retry_after_ms > 0
    assert [residency(rig.memory, who) for who in (running, waiting)] == kept
    run(rig)
    serve(rig, new, "later", [1] * 8)


def test_a_strict_share_follows_the_plan_while_nothing_is_in_flight() -> None:
    rig = build(num_pages=20, strict=True)
    partitions = rig.memory._evictor.partitions

    def pages(name: str) -> int:
        return partitions.of(f"ns-{name}", "kv").max_pages

    serve(rig, tenant("a", 0.2), "one", [1] * 8)
    rig.engine.submit(make_request("two", [1] * 8, tenant=tenant("a", 0.2), ignore_eos=True))
    rig.engine.submit(make_request("three", [1], tenant=tenant("a", 0.7), ignore_eos=True))
    assert pages("a") == 4, "fixed while it is in use"
    run(rig)
    kept = residency(rig.memory, tenant("a"))
    serve(rig, tenant("a", 0.7), "grown", [1] * 8)
    assert pages("a") == 14
    assert kept[0][1] <= residency(rig.memory, tenant("a"))[0][1]
    serve(rig, tenant("a", 0.1), "shrunk", [1] * 5)
    assert pages("a") == 2
    serve(rig, tenant("b", 0.9), "b", [1])
    assert pages("b") == 18
    rig.engine.submit(make_request("b on", [1], tenant=tenant("b", 0.9), ignore_eos=True))
    serve(rig, tenant("a", 0.3), "no room to grow", [1] * 5)
    assert pages("a") == 2
    with pytest.raises(InvalidRequestError, match="memory share is less than one page"):
        rig.engine.submit(make_request("none", [1], tenant=tenant("a", 0.0)))


@settings(max_examples=60)
@given(
    policy=st.sampled_from(ISOLATING),
    visits=st.lists(st.tuples(st.integers(0, 4), PROMPTS), max_size=8),
)
def test_a_strict_tenant_loses_all_it_has_cached_or_nothing(
    policy: str, visits: list[tuple[int, list[tuple[int, int, str | None]]]]
) -> None:
    """What is left of the promise where shares are promised to more tenants than fit: who has
    nothing in flight may lose its whole share to a newcomer, and never a part of it; and whoever
    fits its share is served."""
    rig = build(policy, 24, strict=True)
    tenants = [tenant(name, 0.4) for name in "abcde"]  # nine pages; two have room
    number = 0
    for who, prompts in visits:
        for token, length, adapter in prompts:
            before = {t.key: residency(rig.memory, t) for t in tenants}
            number += 1
            serve(rig, tenants[who], f"r{number}", [token] * length, adapter)
            for other in tenants:
                if other is not tenants[who]:
                    assert residency(rig.memory, other) in (before[other.key], [])
            held = [t for t in tenants if residency(rig.memory, t)]
            assert len(held) <= 2


@pytest.mark.parametrize("strict", [False, True])
def test_a_namespace_that_is_forgotten_leaves_nothing(strict: bool) -> None:
    rig = build(num_pages=24, strict=strict)
    gone, stays = tenant("gone", 0.4), tenant("stays", 0.4)
    for who in (gone, stays):
        serve(rig, who, f"base-{who.key}", [1] * 9)
        serve(rig, who, f"adapter-{who.key}", [1] * 9, "p" if who is gone else "q")
    kept = residency(rig.memory, stays)
    request = make_request("runs", [5] * 5, tenant=gone, max_tokens=4, ignore_eos=True)
    rig.engine.submit(request)
    rig.engine.step()
    rig.engine.forget_namespace(gone.namespace)
    rig.engine.check_integrity()
    (end,) = run(rig)
    assert end.reason == "length", "what runs is not disturbed"
    assert not [r for r in rig.memory.tree.roots() if r.namespace == gone.namespace]
    assert residency(rig.memory, stays) == kept
    if strict:
        assert residency(rig.memory, gone) == []
        assert rig.memory._evictor.partitions.of(gone.namespace, "kv").used == 0
    rig.engine.forget_namespace("nobody's")


def test_a_static_split_cannot_isolate() -> None:
    with pytest.raises(ValueError, match="static-lru does not support strict isolation"):
        build("static-lru", strict=True)


def test_a_static_split_keeps_kv_out_of_the_adapters_part() -> None:
    rig = build("static-lru", 20)
    who = tenant("a")
    for number in range(6):
        serve(rig, who, f"r{number}", [number] * 16, f"x{number}")
    residents = list(rig.memory.adapters.residents())
    assert sum(len(item.pages) for item in residents) == 4
    assert rig.memory.pool.num_free == 0


def test_partitions_are_forgotten_when_nobody_needs_them() -> None:
    rig = build()
    partitions = rig.memory._evictor.partitions
    for number in range(50):
        who = tenant(f"t{number}", 0.01)
        serve(rig, who, f"r{number}", [1])
    assert len(list(partitions)) == 2  # the common one and the last tenant's


def test_a_minimum_that_was_promised_already_is_cut() -> None:
    partitions: Partitions[Item] = Partitions("tenant", PagePool(10), 4)
    for name, least in (("a", 0.7), ("b", 0.6)):
        partitions.register(tenant(name, least))
        partitions.of(f"ns-{name}", "kv").enter(1)
    assert [p.min_pages for p in partitions] == [0, 7, 3]
    assert partitions.most_pages(partitions.of("ns-b", "kv")) == 3
    partitions.register(tenant("a", 0.2))
    partitions.register(tenant("b", 0.6))
    assert [p.min_pages for p in partitions] == [0, 2, 6]


@pytest.mark.parametrize("shares", [[1.0], [0.5, 0.5], [0.999, 0.001]])
def test_shares_that_add_up_to_the_arena_leave_room_for_those_without(shares: list[float]) -> None:
    rig = build(num_pages=40)
    for number, share in enumerate(shares):
        serve(rig, tenant(f"t{number}", share), f"r{number}", [1] * 12)
    serve(rig, tenant("plain"), "p", [2] * 38)  # a quarter of the arena is ten pages of four


def test_a_minimum_leaves_what_others_have_in_flight() -> None:
    partitions: Partitions[Item] = Partitions("tenant", PagePool(10), 4)
    partitions.register(tenant("a", 0.2))
    a = partitions.of("ns-a", "kv")
    a.enter(8)
    partitions.register(tenant("b", 0.6))
    b = partitions.of("ns-b", "kv")
    assert (b.min_pages, partitions.most_pages(a)) == (2, 8)
    a.leave()
    partitions.register(tenant("b", 0.6))  # forgets a
    assert (b.min_pages, partitions.most_pages(partitions.of("ns-a", "kv"))) == (6, 4)
