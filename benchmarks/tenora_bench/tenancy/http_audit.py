"""The prefix audit from outside: the whole way through HTTP, keys and limits of a server."""

from __future__ import annotations

import asyncio

from tenora_bench.client import BenchError, Completion, complete, load_session, managing
from tenora_bench.server import ServerUnderTest, serve
from tenora_bench.tenancy.experiment import Experiment, Options, Outcome
from tenora_bench.tenancy.prefix_audit import SAMPLES, VICTIMS, audit, judge

PLAN = "bench"


def run(options: Options) -> Outcome:
    with serve(options.scratch / "data", options.model, []) as server:
        return asyncio.run(audit_server(server, str(options.seed), SAMPLES))


async def audit_server(server: ServerUnderTest, seed: str, samples: int) -> Outcome:
    async with (
        managing(server.url, server.admin_key) as management,
        load_session(server.url) as load,
    ):
        await management.open_plan(PLAN)
        tenants = set(VICTIMS.values()) | {"attacker"}
        keys = {name: await management.create_tenant(name, PLAN) for name in sorted(tenants)}
        model = await management.base_model(keys["attacker"])

        async def ask(who: str, prompt: list[int]) -> float:
            record = await complete(load, Completion(who, keys[who], model, None, prompt, 1))
            if record.ttft_ms is None:
                raise BenchError(f"a request of {who} failed: {record.error}")
            return record.ttft_ms

        await audit(ask, 5, f"{seed}/warm-up")
        return judge(await audit(ask, samples, seed))


EXPERIMENT = Experiment("http-audit", "prefix-audit through a server's HTTP API", run)
