"""How an alias divides its callers: by its weights, each caller always alike, and with no more of
them moved by a change than must."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tenora_platform.registry.split import PARTS, divided, of_serving, part_of, shares

KEY = b"of these tests"


@st.composite
def weights(draw: st.DrawFn) -> dict[int, int]:
    """Of one to six of nine versions, adding up to 100."""
    versions = draw(st.lists(st.integers(1, 9), min_size=1, max_size=6, unique=True))
    count = len(versions) - 1
    cuts = draw(st.lists(st.integers(1, 99), min_size=count, max_size=count, unique=True))
    edges = [0, *sorted(cuts), PARTS]
    return {version: edges[at + 1] - edges[at] for at, version in enumerate(versions)}


@given(st.lists(weights(), min_size=1, max_size=6))
def test_parts_follow_the_weights_and_move_as_few_as_possible(
    history: list[dict[int, int]],
) -> None:
    parts: list[int] = []
    for now in history:
        before, parts = parts, divided(parts, now)
        assert Counter(parts) == now
        if before:
            had = Counter(before)
            least = sum(max(0, weight - had[version]) for version, weight in now.items())
            assert sum(old != new for old, new in zip(before, parts, strict=True)) == least


@given(weights(), st.text())
def test_callers_are_split_within_two_percent_and_stay(wanted: dict[int, int], name: str) -> None:
    """Over 10,000 of them, 2% of all being four deviations at the most."""
    parts = divided((), wanted)
    asked = [parts[part_of(KEY, "tenant", name, f"user {number}")] for number in range(10_000)]
    again = [
        parts[part_of(KEY, "tenant", name, f"user {number}")] for number in range(0, 10_000, 97)
    ]
    assert asked[::97] == again
    found = Counter(asked)
    for version, weight in wanted.items():
        assert abs(found[version] - weight * 100) <= 200, (version, weight)


@given(st.integers(1, 99), st.integers(1, 99), weights())
def test_a_version_that_grows_keeps_its_callers(
    few: int, more: int, others: dict[int, int]
) -> None:
    """As a roll-out grows: whoever has version 10 at `few` percent has it at `more`."""
    few, more = sorted((few, more))
    first = divided(divided((), others), shares(others, 10, few))
    second = divided(first, shares(others, 10, more))
    has = {at for at, version in enumerate(first) if version == 10}
    assert has <= {at for at, version in enumerate(second) if version == 10}
    assert sum(old != new for old, new in zip(first, second, strict=True)) == more - few + sum(
        max(0, second.count(each) - first.count(each)) for each in others
    )


@given(weights(), st.integers(1, 100))
def test_shares_add_up_and_keep_proportions(before: dict[int, int], percent: int) -> None:
    made = shares(before, 10, percent)
    assert sum(made.values()) == PARTS
    assert made[10] == percent
    for version, weight in before.items():
        exact = weight * (PARTS - percent) / PARTS
        assert abs(made.get(version, 0) - exact) < 1
    assert shares({10: 100}, 10, percent) == {10: 100}


@given(weights(), st.sets(st.integers(1, 9)))
def test_parts_of_revoked_versions_go_to_the_others(now: dict[int, int], gone: set[int]) -> None:
    parts = divided((), now)
    serving = set(now) - gone
    found = of_serving(parts, serving)
    if not serving:
        assert found == []
        return
    for old, new in zip(parts, found, strict=True):
        assert new == old if old in serving else new in serving
    total = sum(now[version] for version in serving)
    for version in serving:
        assert abs(found.count(version) - now[version] * PARTS / total) <= 1


def test_nobody_can_tell_the_part_without_the_key() -> None:
    others = [part_of(b"another key", "t", "a", f"user {number}") for number in range(1000)]
    mine = [part_of(KEY, "t", "a", f"user {number}") for number in range(1000)]
    assert sum(a == b for a, b in zip(mine, others, strict=True)) < 40  # 10 expected by chance
    assert part_of(KEY, "t", "ab", "c") != part_of(KEY, "t", "a", "bc")
