"""How an alias divides its callers: a hundred parts, each of one version, and which part a caller
is in. Pure; who the caller is and what the versions are is not its matter."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from hashlib import blake2b

PARTS = 100


def divided(parts: Sequence[int], weights: Mapping[int, int]) -> list[int]:
    """`parts` (the version of each; empty: none is given yet) as `weights` want them, which add up
    to PARTS. No more of them move than must: what a version had and keeps stays where it is."""
    left = dict(weights)
    kept: list[int | None] = []
    for version in parts or [0] * PARTS:
        stays = left.get(version, 0) > 0
        kept.append(version if stays else None)
        if stays:
            left[version] -= 1
    free = iter([version for version in sorted(left) for _ in range(left[version])])
    return [next(free) if version is None else version for version in kept]


def of_serving(parts: Sequence[int], serving: Collection[int]) -> list[int]:
    """The parts with those of versions that serve no more given to the others, in proportion; the
    others keep theirs. Empty if none serves."""
    alive = [version for version in parts if version in serving]
    if not alive:
        return []
    orphans = len(parts) - len(alive)
    heirs = iter([alive[at * len(alive) // orphans] for at in range(orphans)])
    return [version if version in serving else next(heirs) for version in parts]


def shares(before: Mapping[int, int], version: int, percent: int) -> dict[int, int]:
    """Weights with `percent` of `version`; the others divide the rest as they did before, by
    largest remainders. Without others all of it is the version's."""
    others = {each: weight for each, weight in before.items() if each != version}
    total, rest = sum(others.values()), PARTS - percent
    if not total:
        return {version: PARTS}
    made = {each: weight * rest // total for each, weight in others.items()}
    by_remainder = sorted(others, key=lambda each: (-(others[each] * rest % total), each))
    for each in by_remainder[: rest - sum(made.values())]:
        made[each] += 1
    weights = {**made, version: percent}
    return {each: weight for each, weight in sorted(weights.items()) if weight}


def part_of(key: bytes, *names: str) -> int:
    """The part of whoever these names stand for; without the key nobody can tell which."""
    text = "\0".join(names).encode(errors="surrogatepass")
    return int.from_bytes(blake2b(text, digest_size=8, key=key).digest()) % PARTS
