"""Why something would be given up next, in words. It knows the policies by what they go by, and
takes every number from the engine."""

from __future__ import annotations

from tenora_engine.pages import Departure

_TAKEN_BY = {
    "anyone": "No tenant has a share of the arena, so anybody may take it.",
    "common": "Whoever has no share lives on what is left, together with its holder.",
    "own": "It is the asking tenant's own.",
    "own_limit": "The asking tenant holds its maximum, so it takes from itself.",
    "own_partition": "Tenants are strictly apart, so it takes from itself.",
    "above_guarantee": "{holder} holds more than it is guaranteed.",
    "above_limit": "{holder} holds more than its maximum, so it goes before all others.",
}
_BY_COST = {
    "joint": "Of all that can go it is worth least: its cost for its size, times how often it was "
    "used of late.",
    "elora": "Of all that can go it is worth least: size times uses, fading with time.",
    "chameleon": "It scores least: how often and how lately it was used, and its size.",
}
_BY_TIME = "Nothing that can go was used longer ago."
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
        parts.append("A waiting request needs it: it is spared while anything else is left.")
    return " ".join(parts)


def per_mib_ms(departure: Departure) -> float | None:
    if departure.again_s is None:
        return None
    return departure.again_s * 1000 * _MIB / departure.again_bytes


def _cost(departure: Departure) -> str:
    rate = per_mib_ms(departure)
    if departure.again_s is None or rate is None:
        return "Nothing is known that could bring it back."
    does = "To compute a page of it again" if departure.again_by == "compute" else "To copy it back"
    return f"{does} takes {_ms(departure.again_s * 1000)}, {_ms(rate)} a MiB."


def _ms(milliseconds: float) -> str:
    return f"{milliseconds:.3g} ms" if milliseconds < 1000 else f"{milliseconds / 1000:.3g} s"


def _span(seconds: float) -> str:
    seconds = max(seconds, 0.0)
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
