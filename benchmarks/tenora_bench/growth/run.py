"""Platforms on books of growing size, beside a pretend engine: what start-up, every page, every job
and doing nothing take. Knows the platform by HTTP and by its processes, and is given what fills its
database."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx

from tenora_bench.growth.claims import claims
from tenora_bench.growth.jobs import Jobs
from tenora_bench.growth.processes import Parts, parts_of
from tenora_bench.growth.routes import TIMES, Routes
from tenora_bench.growth.size import Fill, Filled, Size
from tenora_bench.kills.platform import Pretend
from tenora_bench.kills.pretend import held_engine
from tenora_bench.machine import machine
from tenora_bench.money.records import month_before
from tenora_bench.server import ServerUnderTest, serve

_ANSWER_S = 120.0


def measure_growth(
    scratch: Path,
    model: Path,
    sizes: Sequence[Size],
    fill: Fill,
    pretend: Pretend,
    *,
    quiet_s: float,
    times: int = TIMES,
) -> dict[str, Any]:
    """The smallest first, each in a folder of its own; each route is asked so many `times` after
    its first answer. Raises BenchError."""
    how = _How(model, fill, pretend, quiet_s, times)
    results = [_measure_one(scratch / str(number), size, how) for number, size in enumerate(sizes)]
    return {"machine": machine(), "results": results, "claims": claims(results)}


@dataclass(frozen=True)
class _How:
    model: Path
    fill: Fill
    pretend: Pretend
    quiet_s: float
    times: int


def _measure_one(folder: Path, size: Size, how: _How) -> dict[str, Any]:
    data = folder / "data"
    data.mkdir(parents=True)
    filled = how.fill(data, size)
    boot = how.pretend(data, how.model)
    with ExitStack() as stack:
        stack.enter_context(held_engine(boot, folder / "engine.log"))
        options = ["--engine", boot.address.endpoint, "--probe-adapters"]
        began = time.perf_counter()
        server = stack.enter_context(serve(data, how.model, options))
        ready_s = time.perf_counter() - began
        return {
            "size": size.name,
            "fill": filled.figures,
            "ready_s": ready_s,
            **_measure_served(server, data, filled, how),
        }


def _measure_served(
    server: ServerUnderTest, data: Path, filled: Filled, how: _How
) -> dict[str, Any]:
    assert server.pid is not None  # we started it
    parts = parts_of(server.pid, data)
    time.sleep(how.quiet_s)
    quiet = _quiet(parts, how.quiet_s)
    admin = {"authorization": f"Bearer {server.admin_key}"}
    with httpx.Client(base_url=server.url, timeout=_ANSWER_S) as http:
        operator = httpx.Client(base_url=server.url, timeout=_ANSWER_S, headers=admin)
        with operator:
            period = f"{month_before(datetime.now(UTC))[0]:%Y-%m}"
            jobs = Jobs(operator, server.pid, parts.worker).all(period)
        routes = _routes(
            http, server.admin_key, filled, how.times
        )  # of what the jobs have made, too
    return {"quiet": quiet, "jobs": jobs, "routes": routes, "after_mb": parts.memory_mb()}


def _quiet(parts: Parts, seconds: float) -> dict[str, Any]:
    """Memory, and shares of a core, while nobody asks for anything."""
    memory, before, began = parts.memory_mb(), parts.cpu_s(), time.perf_counter()
    time.sleep(seconds)
    passed = time.perf_counter() - began
    cores = {name: (used - before[name]) / passed for name, used in parts.cpu_s().items()}
    return {"mb": memory, "cores": cores}


def _routes(http: httpx.Client, admin_key: str, filled: Filled, times: int) -> list[dict[str, Any]]:
    average = Routes(http, admin_key, filled.average, "average", times)
    large = Routes(http, admin_key, filled.large, "large", times)
    operator = Routes(http, admin_key, filled.large, "operator", times)
    asked = [*average.tenants(), *large.tenants(), *operator.operators()]
    return [asdict(each) for each in asked]
