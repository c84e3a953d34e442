"""Closed loops on our server and its peers in turn, round by round, and their medians."""

from __future__ import annotations

import json
import statistics
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tenora_bench.client import BenchError
from tenora_bench.machine import machine, threads
from tenora_bench.metrics import RequestRecord, summarise
from tenora_bench.peers.interface import KINDS, Request, Setup, System
from tenora_bench.peers.registry import PEERS
from tenora_bench.peers.tenora import tenora
from tenora_bench.server import ServerUnderTest
from tenora_bench.trace import random_tokens

OURS = "tenora"
FIGURES = ("output_tokens_per_s", "p50_ttft_ms", "p99_ttft_ms", "mean_tpot_ms")


@dataclass(frozen=True)
class Workload:
    """A closed loop: `streams` requests in flight, `requests` in all."""

    streams: int
    requests: int
    prompt_tokens: int
    output_tokens: int


WORKLOADS = {
    "streams16": Workload(streams=16, requests=16, prompt_tokens=64, output_tokens=64),
    "streams8": Workload(streams=8, requests=8, prompt_tokens=64, output_tokens=64),
    "single": Workload(streams=1, requests=2, prompt_tokens=64, output_tokens=64),
    "long": Workload(streams=2, requests=2, prompt_tokens=1000, output_tokens=32),
    "long-single": Workload(streams=1, requests=1, prompt_tokens=1000, output_tokens=32),
}


def choose_workloads(text: str) -> dict[str, Workload]:
    """Those of WORKLOADS named in "streams16,long". Raises BenchError on a name not there."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in WORKLOADS:
            raise BenchError(f"there is no workload {name!r}; there are {', '.join(WORKLOADS)}")
    return {name: WORKLOADS[name] for name in names}


def requests_of(load: Workload, adapters: Sequence[str | None], seed: str) -> list[Request]:
    """Fresh prompts (no two rounds share a prefix), the adapters taken in turn."""
    return [
        Request(
            prompt=random_tokens(load.prompt_tokens, f"{seed}/{number}"),
            adapter=adapters[number % len(adapters)],
            output_tokens=load.output_tokens,
        )
        for number in range(load.requests)
    ]


def checked(records: Sequence[RequestRecord], load: Workload, who: str) -> Sequence[RequestRecord]:
    """Raises BenchError unless each request ended with all its tokens."""
    failed = [r.error for r in records if r.error]
    if failed:
        raise BenchError(f"{who}: {len(failed)} of {len(records)} requests failed: {failed[0]}")
    short = [r.output_tokens for r in records if r.output_tokens != load.output_tokens]
    if short or len(records) != load.requests:
        raise BenchError(f"{who}: answers of {short} tokens, not all of {load.output_tokens}")
    return records


@asynccontextmanager
async def started(
    server: ServerUnderTest, setup: Setup, peers: Mapping[str, Path]
) -> AsyncIterator[dict[str, System]]:
    """Our server and `peers` (by name, with the interpreter of each), all started, all paused."""
    async with AsyncExitStack() as stack:
        systems: dict[str, System] = {}
        for name, python in peers.items():
            own = replace(setup, python=python, scratch=setup.scratch / name)
            own.scratch.mkdir()
            system = await stack.enter_async_context(PEERS[name].start(own))
            system.pause()
            systems[name] = system
        ours = await stack.enter_async_context(tenora(server, setup.adapters))
        yield {OURS: ours, **systems}


async def one_round(
    systems: Mapping[str, System], loads: Mapping[str, Workload], names: Sequence[str], seed: str
) -> dict[str, dict[str, float | None]]:
    """The figures of every system by "system kind", under the load of each kind, each measured
    while the others are paused."""
    figures: dict[str, dict[str, float | None]] = {}
    for kind, load in loads.items():
        requests = requests_of(load, names if kind == "mixed" else [None], f"{seed}/{kind}")
        for name, system in systems.items():
            if kind not in system.kinds:
                continue
            system.resume()
            records = checked(await system.run(requests, load.streams), load, f"{name} {kind}")
            system.pause()
            run = summarise(records, 0.0, 0.0)
            figures[f"{name} {kind}"] = {figure: run[figure] for figure in FIGURES}
    return figures


async def compare(
    server: ServerUnderTest,
    setup: Setup,
    peers: Mapping[str, Path],
    workloads: Mapping[str, Workload],
    rounds: int,
    result: dict[str, Any],
    keep: Callable[[dict[str, Any]], None],
) -> None:
    """Add to `result` (see `begin`) `rounds` rounds of each workload on each system, interleaved.
    `keep` is given it after each round, so that a run cut short has not been in vain."""
    result["workloads"] |= {name: asdict(load) for name, load in workloads.items()}
    adapters = [folder.name for folder in setup.adapters]
    async with started(server, setup, peers) as systems:
        for load in workloads.values():
            # Loads every adapter and meets the shapes, in a fraction of a round's time.
            brief = replace(load, requests=len(adapters), prompt_tokens=8, output_tokens=4)
            await one_round(systems, {"mixed": brief, "base": load}, adapters, "warm-up")
        for _ in range(rounds):
            for name, load in workloads.items():
                seed = f"{name}/{len(result['rounds'])}"
                runs = await one_round(systems, dict.fromkeys(KINDS, load), adapters, seed)
                now = datetime.now(UTC).isoformat(timespec="seconds")
                result["rounds"].append({"workload": name, "ended": now, "runs": runs})
                for system, state in systems.items():
                    note_memory(result["peak_memory"], system, state.peak_memory())
                keep(result)


def begin(path: Path | None, settings: dict[str, Any]) -> dict[str, Any]:
    """A result without rounds yet, or the one in `path` to go on with. Raises BenchError when that
    one was made on another machine or with other settings."""
    fresh: dict[str, Any] = {"machine": machine(), "settings": settings, "workloads": {}}
    fresh |= {"rounds": [], "peak_memory": {}}
    if path is None or not path.exists():
        return fresh
    found: dict[str, Any] = json.loads(path.read_text())
    same = [("cpu", "machine"), ("kernels", "machine"), *((name, "settings") for name in settings)]
    for name, of in same:
        if found.get(of, {}).get(name) != fresh[of][name]:
            raise BenchError(f"{path} was made with another {name}; name another --json")
    return found


def note_memory(peaks: dict[str, Any], system: str, processes: Mapping[str, int]) -> None:
    """Keep the largest sum so far of a system's processes; `engine` is its largest process, which
    is the one that computes."""
    total = sum(processes.values())
    if total >= peaks.get(system, {"total": 0})["total"]:
        engine = max(processes.values(), default=0)
        peaks[system] = {"total": total, "engine": engine, "processes": dict(processes)}


def medians(rounds: Sequence[Mapping[str, Any]], workload: str) -> dict[str, dict[str, Any]]:
    """Each figure's median over the rounds of `workload`, by "system kind", and how many rounds."""
    runs = [r["runs"] for r in rounds if r["workload"] == workload]
    table = {}
    for run in dict.fromkeys(name for r in runs for name in r):
        own = [r[run] for r in runs if run in r]
        values = {figure: [r[figure] for r in own if r[figure] is not None] for figure in FIGURES}
        table[run] = {
            "rounds": len(own),
            **{name: statistics.median(got) if got else None for name, got in values.items()},
        }
    return table


def ratios(rounds: Sequence[Mapping[str, Any]], workload: str) -> dict[str, float]:
    """Medians over the rounds of our tokens/s over another's of the same kind, and of our mixed
    over our base."""
    runs = [r["runs"] for r in rounds if r["workload"] == workload]
    found = {}
    for run in dict.fromkeys(name for r in runs for name in r):
        system, kind = run.rsplit(" ", 1)
        ours = f"{OURS} mixed" if system == OURS else f"{OURS} {kind}"
        if ours == run:
            continue
        pairs = [(r[ours], r[run]) for r in runs if run in r and ours in r]
        found[f"{ours} / {run}"] = statistics.median(
            a["output_tokens_per_s"] / b["output_tokens_per_s"] for a, b in pairs
        )
    return found


def setup_of(
    model: Path, adapters: Sequence[Path], dtype: str, workloads: Mapping[str, Workload], here: Path
) -> Setup:
    loads = workloads.values()
    return Setup(
        python=Path(),
        model=model.absolute(),
        adapters=tuple(adapters),
        dtype=dtype,
        threads=threads(),
        streams_max=max(load.streams for load in loads),
        tokens_max=max(load.prompt_tokens + load.output_tokens for load in loads),
        scratch=here,
    )
