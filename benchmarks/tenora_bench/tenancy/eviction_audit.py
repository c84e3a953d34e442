"""The channel that namespaces leave open, capacity: can a tenant tell by what is left of its own
cache whether another was busy? With hard partitions (TENORA_STRICT_ISOLATION) and without."""

from __future__ import annotations

import asyncio
import random
from statistics import median
from typing import Any

from tenora_bench.tenancy.experiment import Claim, Experiment, Options, Outcome
from tenora_bench.tenancy.kolmogorov_smirnov import KSTest, ks_test
from tenora_bench.tenancy.live import live_engine, page_bytes
from tenora_bench.tenancy.prefix_audit import KNOWN, UNKNOWN, Ask, asking
from tenora_bench.trace import random_tokens

SAMPLES = 100  # with a busy victim, and as many with a quiet one
ARENA_PAGES = 24
SHARES = {"attacker": 0.34, "victim": 0.5, "bystander": 0.12}  # 8, 12 and 2 pages
PROBE_TOKENS = 96
VICTIM_PROMPTS, VICTIM_TOKENS = 2, 184  # more than the arena has beside the probe
BYSTANDER_TOKENS = 16


async def audit(ask: Ask, samples: int, seed: str) -> dict[str, list[float]]:
    """TTFT of a prompt that the attacker has sent before, by what the victim did meanwhile, in
    random order. A bystander's request comes just before, so that the caches of the processor
    tell nothing."""
    order = [(kind, number) for kind in ("busy", "quiet") for number in range(samples)]
    random.Random(seed).shuffle(order)
    found: dict[str, list[float]] = {"busy": [], "quiet": []}
    for kind, number in order:
        name = f"{seed}/{kind}/{number}"
        probe = random_tokens(PROBE_TOKENS, f"{name}/probe")
        await ask("attacker", probe)
        if kind == "busy":
            for prompt in range(VICTIM_PROMPTS):
                await ask("victim", random_tokens(VICTIM_TOKENS, f"{name}/victim/{prompt}"))
        await ask("bystander", random_tokens(BYSTANDER_TOKENS, f"{name}/bystander"))
        found[kind].append(await ask("attacker", probe))
    return found


def run(options: Options) -> Outcome:
    found = {name: asyncio.run(_run(options, name == "strict")) for name in ("shared", "strict")}
    return judge(found)


def judge(found: dict[str, dict[str, list[float]]]) -> Outcome:
    """`found` by "shared" and "strict"."""
    tests: dict[str, KSTest] = {n: ks_test(t["busy"], t["quiet"]) for n, t in found.items()}
    details: dict[str, Any] = {
        name: {"ks_distance": test.distance, "p_value": test.p_value, "ttft_ms": found[name]}
        for name, test in tests.items()
    }
    return Outcome(
        claims=[
            Claim(
                "p of a busy victim being a quiet one, strict",
                tests["strict"].p_value,
                "above",
                UNKNOWN,
            ),
            Claim("p of it where memory is shared", tests["shared"].p_value, "below", KNOWN),
        ],
        columns=("memory", "TTFT after a busy victim, ms", "a quiet one", "KS distance", "p"),
        rows=[(n, median(found[n]["busy"]), median(found[n]["quiet"]), *tests[n]) for n in found],
        details=details,
    )


async def _run(options: Options, strict: bool) -> dict[str, list[float]]:
    settings = {
        "strict_isolation": strict,
        "arena_bytes": ARENA_PAGES * page_bytes(options.model),
    }
    async with live_engine(options.model, options.scratch, **settings) as engine:
        ask = asking(engine, SHARES if strict else None)
        await audit(ask, 5, f"{options.seed}/warm-up")
        return await audit(ask, SAMPLES, str(options.seed))


EXPERIMENT = Experiment(
    "eviction-audit", "whether a tenant can tell by its own cache that another was busy", run
)
