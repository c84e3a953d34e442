"""Why something would be given up next, in words. It knows the policies by what they go by, and
takes every number from the engine."""

from __future__ import annotations

from tenora_engine.pages import Departure

_TAKEN_BY = {
    "anyone": "No tenant has a guaranteed share of the arena, so any tenant may evict it.",
    "common": "Tenants without a share use what is left over, and its holder is one of them.",
    "own": "It belongs to the tenant that needs the memory.",
    "own_limit": "The tenant that needs the memory holds its maximum, so it evicts its own pages.",
    "own_partition": "Tenants are strictly isolated, so the tenant evicts its own pages.",
    "above_guarantee": "{holder} holds more than its guaranteed share.",
    "above_limit": "{holder} holds more than its maximum, so its pages are evicted first.",
}
_BY_COST = {
    "joint": "It is worth the least of all candidates: cost to bring it back per page, times how "
    "often it was used recently.",
    "elora": "It is worth the least of all candidates: size times uses, decaying over time.",
    "chameleon": (
        "It has the lowest score of all candidates: how often and how recently it was "
        "used, and its size."
    ),
}
_BY_TIME = "It is the least recently used of all candidates."
_MIB = 1 << 20


def reason(departure: Departure, policy: str, at_s: float, holder: str | None) -> str:
    """One sentence each: what decides, what it would cost, since when nobody uses it, and why the
    one who needs room may have this."""
    rule = _TAKEN_BY[departure.taken_by].format(holder=holder or "Its holder")
    parts = [_BY_COST.get(policy, _BY_TIME), _cost(departure)]
    times = "once" if departure.visits == 1 else f"{departure.visits} times"
    parts.append(f"Used {times}, idle for {_span(at_s - departure.last_used_s)}.")
    parts.append(rule)
    if departure.wanted:
        parts.append(
            "A waiting request needs it, so it is kept as long as there is anything else to evict."
        )
    return " ".join(parts)


def per_mib_ms(departure: Departure) -> float | None:
    if departure.again_s is None:
        return None
    return departure.again_s * 1000 * _MIB / departure.again_bytes


def _cost(departure: Departure) -> str:
    rate = per_mib_ms(departure)
    if departure.again_s is None or rate is None:
        return "There is no estimate of what bringing it back would take."
    does = "Computing a page of it again" if departure.again_by == "compute" else "Copying it back"
    return f"{does} takes {_ms(departure.again_s * 1000)}, {_ms(rate)} per MiB."


def _ms(milliseconds: float) -> str:
    return f"{milliseconds:.3g} ms" if milliseconds < 1000 else f"{milliseconds / 1000:.3g} s"


def _span(seconds: float) -> str:
    seconds = max(seconds, 0.0)
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
