"""How little any eviction policy could have paid: a lower bound of the cost of misses over a
recorded sequence of accesses, with the whole future known. Offline; it owns no memory."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_ROUNDS = 60  # of subgradient steps


@dataclass(frozen=True)
class Access:
    """Something was needed: a KV block or an adapter. `cost_s` is what a miss costs here."""

    key: Hashable
    num_bytes: int
    cost_s: float


def least_miss_cost(accesses: Sequence[Access], capacity_bytes: int, windows: int = 16) -> float:
    """Seconds that every policy pays for misses over `accesses`, in this order, with a cache of
    `capacity_bytes` that is empty at first.

    A provable bound, not a policy. To hit again at its next access, an item must be kept over all
    accesses between; so of the bytes x accesses there are it takes `num_bytes * gap` and saves
    `cost_s`. Dropped are the integrality of what is kept and that a prefix needs its parents; and
    the capacity, instead of at every access, is kept only on average in each of `windows` equal
    parts: with one this is PFOO-L (Berger, Beckmann and Harchol-Balter, SIGMETRICS 2018). Of that
    linear programme any prices `lambda >= 0` of the windows give, by weak duality, an upper bound
    of the saving: `sum_i max(0, cost_i - sum_w lambda_w use_iw) + sum_w lambda_w room_w`.
    The best single price is found exactly, the windows' by subgradient steps from there, and the
    least bound is returned. O(accesses x windows).
    """
    total_s = sum(access.cost_s for access in accesses)
    starts, ends, sizes, savings = _intervals(accesses, capacity_bytes)
    if not len(savings) or windows < 1:
        return total_s
    edges = np.linspace(0, len(accesses) - 1, windows + 1)
    inside = np.minimum(ends[:, None], edges[1:]) - np.maximum(starts[:, None], edges[:-1])
    use = sizes[:, None] * np.maximum(inside, 0.0)  # [intervals, windows] bytes x accesses
    room = capacity_bytes * np.diff(edges)  # [windows]
    prices = np.full(windows, _single_price(savings, use.sum(1), room.sum()))
    return max(total_s - _least_saving_bound(savings, use, room, prices), 0.0)


def _intervals(
    accesses: Sequence[Access], capacity_bytes: int
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Of each access that repeats an earlier one: from which access to which, of what size, for
    what saving. What does not fit the cache at all cannot be kept."""
    last: dict[Hashable, int] = {}
    rows: list[tuple[float, float, float, float]] = []
    for number, access in enumerate(accesses):
        before = last.get(access.key)
        if before is not None and access.num_bytes <= capacity_bytes:
            rows.append((before, number, access.num_bytes, access.cost_s))
        last[access.key] = number
    table = np.array(rows, dtype=np.float64).reshape(-1, 4)
    return table[:, 0], table[:, 1], table[:, 2], table[:, 3]


def _single_price(
    savings: NDArray[np.float64],  # [intervals]
    use: NDArray[np.float64],  # [intervals]
    room: float,
) -> float:
    """Of a byte over one access, where the room is just used up by what is worth more."""
    worth = savings / np.maximum(use, 1e-300)
    order = np.argsort(-worth)
    past = np.searchsorted(np.cumsum(use[order]), room)
    return 0.0 if past >= len(order) else float(worth[order[past]])


def _least_saving_bound(
    savings: NDArray[np.float64],  # [intervals]
    use: NDArray[np.float64],  # [intervals, windows]
    room: NDArray[np.float64],  # [windows]
    prices: NDArray[np.float64],  # [windows]
) -> float:
    """The least over the prices that were tried, each of which bounds the saving."""
    least = float(savings.sum())
    scale = float(prices.mean()) or float(savings.sum() / max(use.sum(), 1e-300))
    for step in range(_ROUNDS):
        net = savings - use @ prices
        kept = net > 0
        least = min(least, float(net[kept].sum() + room @ prices))
        excess = (use[kept].sum(0) - room) / room  # [windows]
        prices = np.maximum(prices + scale * excess / (2.0 + step), 0.0)
    return least
