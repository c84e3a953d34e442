"""`tenora bench serve`: load on a server, closed loop beside a peer, or a trace replayed."""

from __future__ import annotations

import asyncio
import platform
import resource
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import torch

from tenora_bench.adapters import AdapterSpec, write_adapter
from tenora_bench.client import BenchError, Completion, Management, complete
from tenora_bench.metrics import RequestRecord, summarise
from tenora_bench.peers import PeftPeer
from tenora_bench.server import ServerUnderTest
from tenora_bench.trace import TraceRequest, prompt_of, random_tokens


@dataclass(frozen=True)
class Workload:
    """A closed loop: `streams` requests in flight, `requests` in all."""

    streams: int
    requests: int
    prompt_tokens: int
    output_tokens: int
    adapters: int
    ranks: tuple[int, ...]
    rounds: int
    ttft_target_ms: float
    tpot_target_ms: float


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    cpu = platform.processor() or "unknown"
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        cpu = f"{len(names)} x {names[0].split(':', 1)[1].strip()}" if names else cpu
    return {
        "cpu": cpu,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def connect(server: ServerUnderTest) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=256)
    return httpx.AsyncClient(base_url=server.url, timeout=600, limits=limits)


async def closed_loop(
    http: httpx.AsyncClient, requests: Sequence[Completion], streams: int
) -> list[RequestRecord]:
    """Send `requests` in order, `streams` of them in flight."""
    waiting = iter(requests)
    records: list[RequestRecord] = []

    async def stream() -> None:
        for request in waiting:
            records.append(await complete(http, request))

    await asyncio.gather(*(stream() for _ in range(streams)))
    return records


def completions(
    load: Workload, key: str, base: str, adapters: Sequence[str | None], seed: str
) -> list[Completion]:
    """Fresh prompts (no two rounds share a prefix), the adapters taken in turn."""
    return [
        Completion(
            tenant="bench",
            key=key,
            model=adapters[number % len(adapters)] or base,
            adapter=adapters[number % len(adapters)],
            prompt=random_tokens(load.prompt_tokens, f"{seed}/{number}"),
            output_tokens=load.output_tokens,
        )
        for number in range(load.requests)
    ]


def checked(records: Sequence[RequestRecord]) -> Sequence[RequestRecord]:
    failed = [r.error for r in records if r.error]
    if failed:
        raise BenchError(f"{len(failed)} of {len(records)} requests failed; first: {failed[0]}")
    return records


def middle(rounds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The round of median throughput, with every round's throughput beside it."""
    ranked = sorted(rounds, key=lambda entry: float(entry["output_tokens_per_s"]))
    rates = [round(float(entry["output_tokens_per_s"]), 2) for entry in rounds]
    return {**ranked[len(ranked) // 2], "rounds_output_tokens_per_s": rates}


def ratio_of_rounds(ours: Sequence[dict[str, Any]], other: Sequence[dict[str, Any]]) -> float:
    """Median over the rounds of our rate / the other's, round by round."""
    pairs = zip(ours, other, strict=True)
    return statistics.median(
        float(a["output_tokens_per_s"]) / float(b["output_tokens_per_s"]) for a, b in pairs
    )


async def compare(
    server: ServerUnderTest, load: Workload, folders: Sequence[Path], peft: PeftPeer | None
) -> dict[str, Any]:
    """Mixed adapters, base only, and the peer, in turn, `load.rounds` times."""
    names = [folder.name for folder in folders]
    runs: dict[str, list[dict[str, Any]]] = {"mixed": [], "base": []}
    if peft is not None:
        runs["peft_mixed"] = []
    async with connect(server) as http:
        management = Management(http, server.admin_key)
        await management.open_plan("bench")
        key = await management.create_tenant("bench", "bench")
        base = await management.base_model(key)
        for folder in folders:
            await management.upload(key, folder.name, folder)
        # One uncounted round loads the adapters and warms every shape.
        for round_number in range(load.rounds + 1):
            for kind, adapters in (("mixed", names), ("base", [None])):
                wanted = completions(load, key, base, adapters, f"{kind}/{round_number}")
                records = checked(await closed_loop(http, wanted, load.streams))
                if round_number:
                    targets = load.ttft_target_ms, load.tpot_target_ms
                    runs[kind].append(summarise(records, *targets))
            if peft is not None:
                answer = await asyncio.to_thread(peft_round, peft, load, names, round_number)
                if round_number:
                    runs["peft_mixed"].append(answer)
    result: dict[str, Any] = {
        "machine": machine(),
        "workload": asdict(load),
        "runs": {kind: middle(rounds) for kind, rounds in runs.items()},
        "ratios": {"mixed_over_base": ratio_of_rounds(runs["mixed"], runs["base"])},
        "peak_resident_bytes": peak_resident(server),
    }
    if peft is not None:
        result["ratios"]["mixed_over_peft"] = ratio_of_rounds(runs["mixed"], runs["peft_mixed"])
    return result


def peft_round(
    peft: PeftPeer, load: Workload, names: Sequence[str], round_number: int
) -> dict[str, Any]:
    """As many static batches of `streams` as the workload has requests."""
    seconds = tokens = 0.0
    for first in range(0, load.requests, load.streams):
        numbers = range(first, min(first + load.streams, load.requests))
        prompts = [random_tokens(load.prompt_tokens, f"peft/{round_number}/{n}") for n in numbers]
        adapters = [names[n % len(names)] for n in numbers]
        answer = peft.generate(prompts, adapters, load.output_tokens)
        seconds += answer["seconds"]
        tokens += answer["output_tokens"]
    return {"seconds": seconds, "output_tokens": tokens, "output_tokens_per_s": tokens / seconds}


def peak_resident(server: ServerUnderTest) -> int | None:
    """Peak resident bytes of the server's whole process tree, summed, as the kernel counts them
    (shared pages count once per process). None when the server is not ours."""
    if server.pid is None:
        return None
    family, total = [server.pid], 0
    while family:
        pid = family.pop()
        status = Path(f"/proc/{pid}/status")
        if not status.exists():
            continue
        peak = [line for line in status.read_text().splitlines() if line.startswith("VmHWM")]
        total += int(peak[0].split()[1]) * 1024 if peak else 0
        for task in Path(f"/proc/{pid}/task").iterdir():
            family += map(int, (task / "children").read_text().split())
    return total


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
    async with connect(server) as http:
        management = Management(http, server.admin_key)
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
            return await complete(http, wanted)

        records = await asyncio.gather(*(send(n, r) for n, r in enumerate(requests)))
    return {
        "machine": machine(),
        "speed": speed,
        "run": summarise(records, *targets_ms),
        "errors": sorted({r.error for r in records if r.error})[:10],
        "client_peak_resident_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }
