"""One run of `tenora bench portal`: a platform with a pretend engine, filled, and its portal in a
browser. Knows the platform by HTTP, and is given what fills its database."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import httpx

from tenora_bench.client import BenchError
from tenora_bench.kills.pretend import held_engine
from tenora_bench.machine import machine
from tenora_bench.metrics import percentile
from tenora_bench.portal.browser import (
    WHEEL_PX,
    WHEEL_S,
    PageOf,
    chromium,
    interactive,
    scrolled,
    sign_in,
    watched,
)
from tenora_bench.portal.load import Fill, PortalLoad
from tenora_bench.server import ServerUnderTest, serve
from tenora_engine.transport.messages import Boot

Part = Literal["lists", "pages", "scrolling", "map"]
PARTS: tuple[Part, ...] = get_args(Part)
_LISTS = {
    "tenant": (
        "/v1/adapters?limit=50",
        "/v1/adapters?limit=50&sort=name",
        "/v1/adapters?limit=50&sort=-requests",
        "/v1/adapters?limit=50&sort=-cost",
        "/v1/adapters?limit=50&q=4999",
        "/v1/requests?limit=100",
        "/v1/requests?limit=100&sort=-duration",
        "/v1/requests?limit=100&sort=-cost",
        "/v1/requests?limit=100&adapter=adapter-00001",
    ),
    "operator": (
        "/admin/v1/tenants?limit=50",
        "/admin/v1/tenants?limit=50&sort=-spend",
        "/admin/v1/requests?limit=100",
        "/admin/v1/requests?limit=100&sort=-cost",
        "/admin/v1/audit_logs?limit=50&q=nobody",
        "/admin/v1/engine/pages",
    ),
}
_CHART = "main .uplot canvas"
PAGES = {
    "tenant": (
        PageOf("/overview", _CHART),
        PageOf("/adapters"),
        PageOf("/adapters/adapter-00000", "main h2, main h3"),
        PageOf("/requests"),
        PageOf("/usage", _CHART),
        PageOf("/playground", "main textarea"),
    ),
    "operator": (
        PageOf("/operator", "main h2, main h3"),
        PageOf("/operator/memory", "main canvas"),
        PageOf("/operator/requests"),
        PageOf("/operator/tenants"),
    ),
}
_ASKED = 20  # of each list, behind three that are not counted
_NAVIGATIONS = 3
_WATCHED_S = 10.0


def measure_portal(
    scratch: Path,
    model: Path,
    boot_of: Callable[[Path, Path], Boot],
    fill: Fill,
    load: PortalLoad,
    parts: frozenset[Part],
    wait: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """`boot_of`: the pretend engine of a platform in a data directory. `wait` is called between
    filling and measuring. Raises BenchError."""
    data = scratch / "data"
    data.mkdir(parents=True, exist_ok=True)
    boot = boot_of(data, model)
    options = ["--engine", boot.address.endpoint]
    with held_engine(boot, data / "engine.log"), serve(data, model, options) as server:
        tenant_id, key = _tenant(server)
        began = time.perf_counter()
        fill(data, tenant_id, load)
        filled_s = time.perf_counter() - began
        wait()
        keys = {"tenant": key, "operator": server.admin_key}
        return {
            "machine": machine(),
            "adapters": load.adapters,
            "requests": load.requests,
            "other_tenants": load.others,
            "filled_s": round(filled_s, 1),
            **_measure(server, keys, parts),
        }


def _tenant(server: ServerUnderTest) -> tuple[str, str]:
    with httpx.Client(base_url=server.url, headers=_bearer(server.admin_key), timeout=60) as http:
        tenant = _json(http.post("/admin/v1/tenants", json={"name": "Acme"}))
        path = f"/admin/v1/tenants/{tenant['id']}/api_keys"
        return tenant["id"], _json(http.post(path, json={"name": "bench"}))["key"]


def _measure(
    server: ServerUnderTest, keys: Mapping[str, str], parts: frozenset[Part]
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if "lists" in parts:
        found["lists"] = {
            path: _asked(server.url, keys[side], path)
            for side, paths in _LISTS.items()
            for path in paths
        }
    if parts == {"lists"}:
        return found
    with chromium() as browser:
        url = server.url
        states = {side: sign_in(browser, url, key) for side, key in keys.items()}
        if "pages" in parts:
            found["pages"] = {
                page.path: interactive(browser, url, states[side], page, _NAVIGATIONS)
                for side, pages in PAGES.items()
                for page in pages
            }
        if "map" in parts:
            page = PageOf("/operator/memory", "main canvas")
            found["map"] = watched(browser, url, states["operator"], page, _WATCHED_S)
        if "scrolling" in parts:
            found["scrolling"] = {}
            for label, path in (("Adapters", "/adapters"), ("Requests", "/requests")):
                asked = (browser, url, states["tenant"], PageOf(path), label)
                found["scrolling"][f"{label}, by wheel"] = scrolled(*asked, WHEEL_PX, WHEEL_S)
                found["scrolling"][label] = scrolled(*asked)
    return found


def _asked(url: str, key: str, path: str) -> dict[str, float]:
    """Whole answers, one after the other, ms."""
    times = []
    with httpx.Client(base_url=url, headers=_bearer(key), timeout=60) as http:
        for _ in range(_ASKED + 3):
            began = time.perf_counter()
            _json(http.get(path))
            times.append((time.perf_counter() - began) * 1000)
    counted = times[3:]
    return {
        "p50_ms": round(percentile(counted, 0.5) or 0, 1),
        "p99_ms": round(percentile(counted, 0.99) or 0, 1),
    }


def _bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def _json(answer: httpx.Response) -> Any:
    if answer.is_error:
        where = f"{answer.request.method} {answer.request.url}"
        raise BenchError(f"{where} answered {answer.status_code}: {answer.text[:500]}")
    return answer.json()
