"""A month of a million events, many tenants: what storing, a page, an invoice run and a whole
reconciliation take. Knows the platform by HTTP and by its command line, and is given what fills its
database."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import httpx

from tenora_bench.client import BenchError
from tenora_bench.machine import machine
from tenora_bench.money.records import month_before
from tenora_bench.server import ServerUnderTest, serve

PAGES = 100
"""Of each kind, after three that are not counted."""
TARGETS = {
    "event_bytes": 400.0,
    "month_page_p50_ms": 50.0,
    "invoice_run_s": 60.0,
    "reconciliation_s": 60.0,
}
"""What docs/benchmarks.md promises of a million events and 1,000 tenants: less than this."""


@dataclass(frozen=True, slots=True)
class Load:
    tenants: int
    events: int
    begin: datetime
    end: datetime  # exclusive; a month

    @property
    def period(self) -> str:
        return f"{self.begin:%Y-%m}"


@dataclass(frozen=True)
class Filled:
    """What filling a database took, and the tenant with the most events."""

    figures: dict[str, Any]
    largest_tenant: str
    request_id: str  # one of its requests


Fill = Callable[[Path, Load], Filled]
"""Stores a load in the database under a data directory that nothing runs on, and posts it to the
ledger."""


def measure_money(
    scratch: Path, model: Path, fill: Fill, *, tenants: int, events: int
) -> dict[str, Any]:
    """Raises BenchError."""
    begin, end = month_before(datetime.now(UTC))
    load = Load(tenants, events, begin, end)
    data = scratch / "data"
    data.mkdir(parents=True)
    filled = fill(data, load)
    with serve(data, model, []) as server:
        figures = filled.figures | _measure(server, load, filled)
    return {
        "machine": machine(),
        "tenants": tenants,
        "events": events,
        "month": load.period,
        "figures": figures,
        "missed": missed(figures),
    }


def missed(figures: dict[str, Any]) -> list[str]:
    """Targets that were not met, or not measured."""
    return [
        name
        for name, most in TARGETS.items()
        if not isinstance(figures.get(name), int | float) or figures[name] >= most
    ]


def _measure(server: ServerUnderTest, load: Load, filled: Filled) -> dict[str, Any]:
    tenant = filled.largest_tenant
    with httpx.Client(base_url=server.url, timeout=600) as http:
        admin = {"authorization": f"Bearer {server.admin_key}"}
        path = f"/admin/v1/tenants/{tenant}/api_keys"
        key = _json(http.post(path, headers=admin, json={"name": "bench"}))["key"]
        own = {"authorization": f"Bearer {key}"}
        month = {"start": load.begin.isoformat(), "end": load.end.isoformat()}
        by_adapter = {**month, "bucket": "1d", "group_by": "adapter"}
        found = {
            **_page(http, own, "month_page", "/v1/costs", by_adapter),
            **_page(http, own, "requests_page", "/v1/requests", {**month, "limit": "100"}),
            **_page(http, own, "receipt", f"/v1/requests/{filled.request_id}", {}),
            **_invoices(http, admin, load),
        }
        found |= _page(http, own, "requests_page_deep", "/v1/requests", _deep(http, own, month))
    return found | _reconciliation(server)


def _page(
    http: httpx.Client, headers: dict[str, str], name: str, path: str, query: dict[str, str]
) -> dict[str, Any]:
    """Whole answers as a client on this machine sees them, one after the other."""
    times_ms = []
    for _ in range(PAGES + 3):
        began = time.perf_counter()
        answer = http.get(path, headers=headers, params=query)
        times_ms.append((time.perf_counter() - began) * 1000)
        _json(answer)
    counted = times_ms[3:]
    return {f"{name}_p50_ms": median(counted), f"{name}_p99_ms": quantiles(counted, n=100)[98]}


def _deep(http: httpx.Client, headers: dict[str, str], month: dict[str, str]) -> dict[str, str]:
    """The query of a page far down the list."""
    query = {**month, "limit": "100"}
    for _ in range(50):
        page = _json(http.get("/v1/requests", headers=headers, params=query))
        if not page.get("has_more"):
            break
        query["after"] = page["data"][-1]["id"]
    return query


def _invoices(http: httpx.Client, admin: dict[str, str], load: Load) -> dict[str, Any]:
    """Final invoices of the whole month, and the same once more, which changes nothing."""
    found: dict[str, Any] = {}
    for name in ("invoice_run", "invoice_run_again"):
        made, after, began = 0, "", time.perf_counter()
        while True:
            body = {"period": load.period, "draft": False, "after": after}
            run = _json(http.post("/admin/v1/invoices/run", headers=admin, json=body))
            if run["failed"]:
                raise BenchError(f"invoices failed: {run['failed'][:3]}")
            made += run["made"]
            if not run["has_more"]:
                break
            after = run["next_after"]
        found |= {f"{name}_s": time.perf_counter() - began, f"{name}_made": made}
    return found


def _reconciliation(server: ServerUnderTest) -> dict[str, Any]:
    """As an operator asks for it. What it finds fails the measurement."""
    command = [sys.executable, "-m", "tenora_platform.cli.main", "usage", "reconcile"]
    command += ["--url", server.url, "--key", server.admin_key]
    began = time.perf_counter()
    ran = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    took = time.perf_counter() - began
    if ran.returncode:
        raise BenchError(f"reconcile ended with {ran.returncode}: {ran.stdout}{ran.stderr}"[:3000])
    return {"reconciliation_s": took}


def _json(answer: httpx.Response) -> Any:
    if answer.is_error:
        where = f"{answer.request.method} {answer.request.url}"
        raise BenchError(f"{where} answered {answer.status_code}: {answer.text[:500]}")
    return answer.json()
