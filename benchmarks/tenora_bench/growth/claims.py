"""Claims about large books, and whether they hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

FIRST_PAGE_MS = 300.0
INVOICES_S = 600.0
RECENT_S, RECENT_MB = 120.0, 300.0
QUIET_SHARE = 0.02
"""Limits the part of a core that worker and database may take together while nothing happens."""
RATIO, PLUS_MS = 2.0, 20.0
"""Bound what a tenant's page may cost among more tenants: a factor, and milliseconds more."""


def claims(results: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Each with its bound and what was measured, of results by growing size."""
    found = [_claim(each["size"], *claim) for each in results for claim in _of_one(each)]
    if len(results) > 1:
        small, large = results[0], results[-1]
        name, ratio = _grown_most(small, large)
        found.append(
            _claim(large["size"], f"a tenant's page against {small['size']} ({name})", ratio, 1.0)
        )
    return found


def _of_one(result: Mapping[str, Any]) -> Iterator[tuple[str, float, float]]:
    """(name, measured, bound) of one size."""
    answered = [each for each in result["routes"] if not each["skipped"]]
    # The very first answer is shown and not judged: a process loads code for it (a PDF's).
    slowest = max(answered, key=lambda each: each["median_ms"])
    name = f"slowest first page, ms ({slowest['asker']} {slowest['path']})"
    yield name, slowest["median_ms"], FIRST_PAGE_MS
    yield "routes that answer 5xx", sum(each["status"] >= 500 for each in answered), 0
    jobs = {each["job"]: each for each in result["jobs"]}
    yield "invoices of a month, s", jobs["invoices of a month"]["seconds"], INVOICES_S
    recent = jobs["reconciliation, recent"]
    yield "incremental reconciliation, s", recent["seconds"], RECENT_S
    yield "incremental reconciliation, MB", recent["mb"], RECENT_MB
    quiet = result["quiet"]["cores"]
    yield "quiet worker and database, cores", quiet["worker"] + quiet["postgres"], QUIET_SHARE


def _grown_most(small: Mapping[str, Any], large: Mapping[str, Any]) -> tuple[str, float]:
    """The page of the average tenant that has grown most, as a share of what it may."""
    before, after = (
        {
            each["path"]: each["median_ms"]
            for each in result["routes"]
            if each["asker"] == "average" and not each["skipped"]
        }
        for result in (small, large)
    )
    shares = {
        path: after[path] / (RATIO * before[path] + PLUS_MS) for path in before.keys() & after
    }
    worst = max(shares, key=lambda path: shares[path])
    return worst, shares[worst]


def _claim(size: str, name: str, measured: float, bound: float) -> dict[str, Any]:
    return {
        "size": size,
        "claim": name,
        "measured": measured,
        "bound": bound,
        "holds": measured <= bound,
    }
