"""The audit of prompt caching by its timing (Gu et al., ICML 2025): can a tenant tell by its TTFT
what another has sent?"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from tenora_bench.client import BenchError
from tenora_bench.tenancy.experiment import Claim, Experiment, Options, Outcome
from tenora_bench.tenancy.kolmogorov_smirnov import ks_test
from tenora_bench.tenancy.live import LiveEngine, LiveRequest, live_engine, tenant_of
from tenora_bench.trace import random_tokens

SAMPLES = 250  # hits, and as many misses
PREFIX_TOKENS, OWN_TOKENS = 48, 16
UNKNOWN, KNOWN = 0.05, 0.001
VICTIMS = {"across tenants": "victim", "within a tenant": "attacker"}

Ask = Callable[[str, list[int]], Awaitable[float]]
"""Who sends which prompt -> TTFT in milliseconds."""


@dataclass(frozen=True)
class Sample:
    """A victim sends a prompt, then the attacker one with the same prefix ("hit") or another."""

    between: str  # of VICTIMS
    hit: bool
    number: int


async def audit(ask: Ask, samples: int, seed: str) -> dict[str, dict[str, list[float]]]:
    """The attacker's TTFT by VICTIMS and by "hit" and "miss", sampled in random order. No prompt is
    used twice."""
    kinds = [(between, hit) for between in VICTIMS for hit in (True, False)]
    order = [Sample(*kind, number) for kind in kinds for number in range(samples)]
    random.Random(seed).shuffle(order)
    found: dict[str, dict[str, list[float]]] = {name: {"hit": [], "miss": []} for name in VICTIMS}
    for sample in order:
        name = f"{seed}/{sample}"
        known = random_tokens(PREFIX_TOKENS, f"{name}/prefix")
        prefix = known if sample.hit else random_tokens(PREFIX_TOKENS, f"{name}/another")
        await ask(VICTIMS[sample.between], known + random_tokens(OWN_TOKENS, f"{name}/victim"))
        ttft_ms = await ask("attacker", prefix + random_tokens(OWN_TOKENS, f"{name}/attacker"))
        found[sample.between]["hit" if sample.hit else "miss"].append(ttft_ms)
    return found


def judge(found: dict[str, dict[str, list[float]]]) -> Outcome:
    """The KS test between hits and misses, for each of VICTIMS."""
    tests = {name: ks_test(times["hit"], times["miss"]) for name, times in found.items()}
    across, within = (tests[name] for name in VICTIMS)
    rows: list[tuple[str | float, ...]] = [
        (name, *(median(found[name][kind]) for kind in ("hit", "miss")), *test)
        for name, test in tests.items()
    ]
    details: dict[str, Any] = {
        name: {"ks_distance": test.distance, "p_value": test.p_value, "ttft_ms": found[name]}
        for name, test in tests.items()
    }
    return Outcome(
        claims=[
            Claim("p of a hit across tenants being a miss", across.p_value, "above", UNKNOWN),
            Claim("p of a hit within a tenant being a miss", within.p_value, "below", KNOWN),
        ],
        columns=("", "TTFT of hits, ms", "of misses", "KS distance", "p"),
        rows=rows,
        details={"samples": len(found[next(iter(VICTIMS))]["hit"]), **details},
    )


def run(options: Options) -> Outcome:
    return asyncio.run(_run(options))


async def _run(options: Options) -> Outcome:
    async with live_engine(options.model, options.scratch) as engine:
        ask = asking(engine)
        await audit(ask, 5, f"{options.seed}/warm-up")
        return judge(await audit(ask, SAMPLES, str(options.seed)))


def asking(engine: LiveEngine, shares: Mapping[str, float] | None = None) -> Ask:
    """Requests for one token by tenants of these names (and memory shares), alone on the engine."""

    async def ask(who: str, prompt: list[int]) -> float:
        tenant = tenant_of(who, min_memory_share=(shares or {}).get(who, 0.0))
        (record,) = await engine.play([LiveRequest(0.0, tenant, prompt, 1)])
        if record.ttft_ms is None:
            raise BenchError(f"a request of {who} failed: {record.error}")
        return record.ttft_ms

    return ask


EXPERIMENT = Experiment(
    "prefix-audit", "whether a tenant can tell by its TTFT what another has sent (KS test)", run
)
