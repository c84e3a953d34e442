"""`tenora bench serve --trace`: a trace replayed on a server."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tenora_bench.adapters import AdapterSpec, write_adapter
from tenora_bench.client import Completion, complete, load_session, managing
from tenora_bench.machine import machine
from tenora_bench.metrics import RequestRecord, summarise
from tenora_bench.server import ServerUnderTest
from tenora_bench.trace import TraceRequest, prompt_of


async def replay(
    server: ServerUnderTest,
    requests: Sequence[TraceRequest],
    model: Path,
    scratch: Path,
    speed: float,
    block_tokens: int,
    targets_ms: tuple[float, float],
) -> dict[str, Any]:
    """Send a trace open loop, `speed` times as fast as written; tenants and adapters are made on
    the server first. Returns the per-run object of CONTRACT.md under "run"."""
    async with (
        managing(server.url, server.admin_key) as management,
        load_session(server.url) as load,
    ):
        await management.open_plan("bench")
        keys = {}
        for tenant in sorted({r.tenant for r in requests}):
            keys[tenant] = await management.create_tenant(tenant, "bench")
        wanted_adapters = {(r.tenant, r.adapter): r.rank for r in requests if r.adapter}
        for number, ((tenant, adapter), rank) in enumerate(sorted(wanted_adapters.items())):
            folder = scratch / f"{tenant}-{adapter}"
            write_adapter(folder, model, AdapterSpec(str(adapter), rank, seed=number))
            await management.upload(keys[tenant], str(adapter), folder)
        base = await management.base_model(next(iter(keys.values())))
        loop = asyncio.get_running_loop()
        begin = loop.time()

        async def send(number: int, request: TraceRequest) -> RequestRecord:
            await asyncio.sleep(max(0.0, begin + request.t_s / speed - loop.time()))
            wanted = Completion(
                tenant=request.tenant,
                key=keys[request.tenant],
                model=request.adapter or base,
                adapter=request.adapter,
                prompt=prompt_of(request, number, block_tokens),
                output_tokens=request.output_tokens,
            )
            return await complete(load, wanted)

        records = await asyncio.gather(*(send(n, r) for n, r in enumerate(requests)))
    return {
        "machine": machine(),
        "speed": speed,
        "run": summarise(records, *targets_ms),
        "errors": sorted({r.error for r in records if r.error})[:10],
        "client_peak_resident_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }
