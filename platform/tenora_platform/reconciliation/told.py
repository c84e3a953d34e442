"""What the last reconciliation and the last round of the canary found, as one process tells it to
the others, for `/readyz` and `/metrics`."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """Times are seconds since 1970, None where there was no run yet. `canary` says of each of its
    checks whether it was right."""

    reconciled_s: float | None = None
    differences: int = 0
    took_s: float = 0.0
    canary_s: float | None = None
    canary: dict[str, bool] = {}


@dataclass(slots=True)
class Proof:
    """What this process knows of it, None before it has looked."""

    told: Told | None = None


def proof_warnings(told: Told | None) -> list[str]:
    """For `/readyz`: requests are served, and somebody has to look."""
    if told is None:
        return []
    found = []
    if told.differences:
        found.append(f"The last reconciliation of the books found {told.differences} differences.")
    wrong = sorted(name for name, ok in told.canary.items() if not ok)
    if wrong:
        found.append(f"The synthetic check (canary) failed: {', '.join(wrong)}.")
    return [f"{each} See GET /admin/v1/reconciliation." for each in found]
