"""Arrivals and load for the live experiments: Poisson requests of a tenant, the engine's capacity
for them, and the figures of what came back."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tenora_bench.metrics import RequestRecord, percentile
from tenora_bench.tenancy.live import LiveEngine, LiveRequest
from tenora_bench.trace import random_tokens
from tenora_engine.request import AdapterRef, Tenant


@dataclass(frozen=True)
class Kind:
    """One kind of request."""

    prompt_tokens: int
    output_tokens: int
    adapter: AdapterRef | None = None

    def request(self, at_s: float, tenant: Tenant, name: str) -> LiveRequest:
        """`name` seeds a prompt that shares nothing with those of other names."""
        prompt = random_tokens(self.prompt_tokens, name)
        return LiveRequest(at_s, tenant, prompt, self.output_tokens, self.adapter)


def poisson(
    kind: Kind, tenant: Tenant, rate: float, seconds: float, seed: str, prompts: str = ""
) -> list[LiveRequest]:
    """`rate` requests a second in the mean, for so long; `seed` and `prompts` together seed their
    prompts, `seed` alone the times."""
    draw = random.Random(f"{seed}/{tenant.key}")
    times = []
    at_s = draw.expovariate(rate)
    while at_s < seconds:
        times.append(at_s)
        at_s += draw.expovariate(rate)
    name = f"{seed}/{prompts}/{tenant.key}"
    return [kind.request(t, tenant, f"{name}/{n}") for n, t in enumerate(times)]


async def capacity(
    engine: LiveEngine, kinds: Sequence[Kind], tenant: Tenant, requests: int, seed: str
) -> float:
    """Requests a second that the engine finishes of `kinds` in turn when all of them are there at
    once. Also loads their adapters; run it twice and the second is warm."""
    burst = [kinds[n % len(kinds)].request(0.0, tenant, f"{seed}/{n}") for n in range(requests)]
    records = await engine.play(burst)
    ends = [record.finished_s for record in records if record.finished_s is not None]
    return len(ends) / (max(ends) - min(record.sent_s for record in records))


def ttfts_ms(records: Iterable[RequestRecord]) -> list[float]:
    """Of the requests that were answered."""
    return [r.ttft_ms for r in records if r.error is None and r.ttft_ms is not None]


def answers_ms(records: Iterable[RequestRecord]) -> list[float]:
    """From the request to the last token, of the requests that were answered."""
    return [1e3 * (r.finished_s - r.sent_s) for r in records if r.finished_s and not r.error]


def quantile(values: Sequence[float], share: float) -> float:
    """Nearest rank; NaN of nothing."""
    found = percentile(values, share)
    return float("nan") if found is None else found
