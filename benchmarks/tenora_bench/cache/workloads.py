"""Seeded traces of the workloads that the literature measures with. One seed, one trace; what a
trace is like can be measured by `trace_figures`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator, default_rng

from tenora_bench.client import BenchError
from tenora_bench.trace import TraceRequest

RANKS = (8, 16, 32, 64)
"""Ranks of the adapters, in turn."""


@dataclass(frozen=True)
class Demand:
    """What every workload can be asked for; `rate` is the mean number of requests a second."""

    requests: int = 2000
    rate: float = 4.0
    seed: int = 0
    adapters: int = 200
    tenants: int = 20
    skew: float = 1.0  # s-lora: alpha, less is more skewed; elsewhere: Zipf's exponent
    cv: float = 1.0  # of the gaps between arrivals


def gamma_arrivals(draw: Generator, count: int, rate: float, cv: float) -> np.ndarray:
    """Times of arrival; gaps of shape 1 / cv^2 and scale cv^2 / rate, as in S-LoRA (section 7)."""
    return np.cumsum(draw.gamma(1.0 / cv**2, cv**2 / rate, count))


def power_choice(draw: Generator, count: int, n: int, alpha: float) -> np.ndarray:
    """S-LoRA's popularity: floor(n U^(1/alpha)); alpha = 1 is uniform."""
    return np.minimum((n * draw.random(count) ** (1.0 / alpha)).astype(np.int64), n - 1)


def zipf_choice(draw: Generator, count: int, n: int, exponent: float) -> np.ndarray:
    """True Zipf: choice k has a probability proportional to (k + 1)^-exponent."""
    weights = np.arange(1, n + 1, dtype=float) ** -exponent
    return draw.choice(n, size=count, p=weights / weights.sum())


def lognormal(draw: Generator, count: int, mean: float, sigma: float) -> np.ndarray:
    """Positive whole numbers of that mean."""
    values = draw.lognormal(math.log(mean) - sigma**2 / 2, sigma, count)
    return np.maximum(np.rint(values), 1).astype(np.int64)


def slora(demand: Demand) -> list[TraceRequest]:
    """S-LoRA's synthetic workload (section 7): nothing is shared, lengths are uniform 8-512."""
    draw = default_rng(demand.seed)
    count = demand.requests
    times = gamma_arrivals(draw, count, demand.rate, demand.cv)
    adapters = power_choice(draw, count, demand.adapters, demand.skew)
    prompts = draw.integers(8, 513, count)
    outputs = draw.integers(8, 513, count)
    return [
        _request(demand, t_s, adapter, prompt, output)
        for t_s, adapter, prompt, output in zip(times, adapters, prompts, outputs, strict=True)
    ]


DRIFT_PERIODS = 8
DRIFT_SHARE = 0.1
SYSTEM_BLOCKS = 32  # shared by all requests of one adapter


def zipf_drift(demand: Demand) -> list[TraceRequest]:
    """Zipf popularity whose ranks drift: in each eighth of the trace a tenth of the adapters change
    places. Each adapter has a system prompt of its own, before a tail that nobody shares."""
    draw = default_rng(demand.seed)
    count = demand.requests
    times = gamma_arrivals(draw, count, demand.rate, demand.cv)
    popularity = zipf_choice(draw, count, demand.adapters, demand.skew)
    tails = lognormal(draw, count, 400, 0.8)
    outputs = lognormal(draw, count, 150, 0.8)
    order = draw.permutation(demand.adapters)
    trace = []
    period = 0
    for number in range(count):
        if number * DRIFT_PERIODS // count > period:
            period += 1
            moved = max(int(demand.adapters * DRIFT_SHARE), min(demand.adapters, 2))
            places = draw.choice(demand.adapters, size=moved, replace=False)
            order[places] = order[np.roll(places, 1)]
        blocks = tuple(f"s{block}" for block in range(SYSTEM_BLOCKS))
        prompt = SYSTEM_BLOCKS * PREFIX_BLOCK_TOKENS["zipf-drift"] + tails[number]
        adapter = order[popularity[number]]
        trace.append(_request(demand, times[number], adapter, prompt, outputs[number], blocks))
    return trace


MOONCAKE_PROMPT_TOKENS = 12_035
MOONCAKE_OUTPUT_TOKENS = 343
MOONCAKE_TURN_TOKENS = 3_000  # by which a conversation grows from turn to turn
MOONCAKE_CONTINUES = 0.35  # of the turns; with the system prompts they make 36.6% hits
MOONCAKE_THINK_REQUESTS = 100  # that come, in the mean, before the next turn
MOONCAKE_PROMPT_TOKENS_MAX = 96_000


def mooncake(demand: Demand) -> list[TraceRequest]:
    """Shaped as Mooncake's conversation trace: long prompts in blocks of 512 tokens, of which an
    infinite cache hits 36.6%. A conversation's turns each hold all of the turn before; the first
    block is the system prompt of the adapter. Where every request is followed by another turn with
    probability c, c of all prompt tokens are those of a turn before."""
    draw = default_rng(demand.seed)
    size = PREFIX_BLOCK_TOKENS["mooncake"]
    going_on = MOONCAKE_CONTINUES / (1 - MOONCAKE_CONTINUES)  # later turns for each first one
    first_tokens = MOONCAKE_PROMPT_TOKENS - MOONCAKE_TURN_TOKENS * going_on
    count = demand.requests  # of conversations: more than are needed for as many requests
    begins = np.cumsum(draw.exponential((1 + going_on) / demand.rate, count))
    adapters = zipf_choice(draw, count, demand.adapters, demand.skew)
    lengths = draw.geometric(1 - MOONCAKE_CONTINUES, count)
    trace: list[TraceRequest] = []
    for conversation in range(count):
        t_s, prompt = float(begins[conversation]), 0
        for turn in range(lengths[conversation]):
            grown = first_tokens if turn == 0 else MOONCAKE_TURN_TOKENS
            prompt += int(lognormal(draw, 1, grown, 0.7)[0])
            prompt = min(prompt, MOONCAKE_PROMPT_TOKENS_MAX)
            output = int(lognormal(draw, 1, MOONCAKE_OUTPUT_TOKENS, 0.7)[0])
            own = (f"c{conversation}.{block}" for block in range(1, -(-prompt // size)))
            trace.append(_request(demand, t_s, adapters[conversation], prompt, output, ("s", *own)))
            t_s += draw.exponential(MOONCAKE_THINK_REQUESTS / demand.rate)
    trace.sort(key=lambda request: request.t_s)
    return trace[:count]


def azure_code(demand: Demand) -> list[TraceRequest]:
    """Shaped as Azure's LLM code trace of 2023: 2048 / 28 tokens, cv 13.2."""
    return _azure(demand, 2048, 28, 13.2)


def azure_conversation(demand: Demand) -> list[TraceRequest]:
    """Shaped as Azure's LLM conversation trace of 2023: 1155 / 211 tokens, cv 1.09."""
    return _azure(demand, 1155, 211, 1.09)


def _azure(demand: Demand, prompt: float, output: float, cv: float) -> list[TraceRequest]:
    """Half of a mean prompt is the adapter's system prompt."""
    draw = default_rng(demand.seed)
    count = demand.requests
    times = gamma_arrivals(draw, count, demand.rate, cv)
    adapters = zipf_choice(draw, count, demand.adapters, demand.skew)
    prompts = lognormal(draw, count, prompt, 0.8)
    outputs = lognormal(draw, count, output, 0.8)
    size = PREFIX_BLOCK_TOKENS["azure-code"]
    trace = []
    for t_s, adapter, tokens, answer in zip(times, adapters, prompts, outputs, strict=True):
        shared = min(int(prompt / 2), int(tokens)) // size
        blocks = tuple(f"s{block}" for block in range(shared))
        trace.append(_request(demand, t_s, adapter, tokens, answer, blocks))
    return trace


def _request(
    demand: Demand,
    t_s: float,
    adapter: int,
    prompt: int,
    output: int,
    blocks: tuple[str, ...] = (),
    tenant: str | None = None,
) -> TraceRequest:
    """`adapter` is a number below `demand.adapters`; its tenant and its rank follow from it."""
    number = int(adapter)
    return TraceRequest(
        t_s=float(t_s),
        tenant=tenant or f"t{number % demand.tenants}",
        adapter=f"a{number}",
        rank=RANKS[number % len(RANKS)],
        prompt_tokens=int(prompt),
        output_tokens=int(output),
        prefix_blocks=blocks,
        sla_class="interactive",
    )


NOISE = 20.0  # times the rate of each other tenant
NOISY = "noisy"


def overload(demand: Demand) -> list[TraceRequest]:
    """VTC's overload: one tenant sends 20 times what each of the others does, all the time."""
    return _beside_noise(demand, lambda share: True, 256, 256)


def on_off(demand: Demand) -> list[TraceRequest]:
    """VTC's on/off: the noisy tenant sends in every other tenth of the trace only."""
    return _beside_noise(demand, lambda share: int(share * 10) % 2 == 0, 256, 256)


def short_long(demand: Demand) -> list[TraceRequest]:
    """VTC's short and long: the noisy tenant's requests are a tenth as long as the others'."""
    return _beside_noise(demand, lambda share: True, 48, 48, others=480)


def shift(demand: Demand) -> list[TraceRequest]:
    """VTC's distribution shift: the noisy tenant is quiet, then on and off, then always there."""
    return _beside_noise(
        demand,
        lambda share: share >= 2 / 3 or (share >= 1 / 3 and int(share * 30) % 2 == 0),
        256,
        256,
    )


def _beside_noise(
    demand: Demand,
    sends: Callable[[float], bool],
    prompt: int,
    output: int,
    others: int = 256,
) -> list[TraceRequest]:
    """Tenants of one adapter each, Poisson arrivals at `rate` in all while the noisy one sends;
    `sends(share)`: whether it does after that share of the trace's time. Its requests are of
    `prompt` and `output` tokens in the mean, those of the others of `others` each."""
    draw = default_rng(demand.seed)
    quiet = max(demand.tenants - 1, 1)
    p_noisy = NOISE / (NOISE + quiet)
    candidates = gamma_arrivals(draw, 4 * demand.requests, demand.rate, 1.0)
    noisy = draw.random(len(candidates)) < p_noisy
    end_s = demand.requests / demand.rate
    trace = []
    for t_s, is_noisy in zip(candidates, noisy, strict=True):
        if t_s >= end_s:
            break
        if is_noisy and not sends(t_s / end_s):
            continue
        adapter = 0 if is_noisy else 1 + int(draw.integers(quiet))
        tokens, answer = (prompt, output) if is_noisy else (others, others)
        prompts = lognormal(draw, 1, tokens, 0.5)[0]
        outputs = lognormal(draw, 1, answer, 0.5)[0]
        tenant = NOISY if is_noisy else f"t{adapter}"
        trace.append(_request(demand, t_s, adapter, prompts, outputs, tenant=tenant))
    return trace


WORKLOADS: dict[str, Callable[[Demand], list[TraceRequest]]] = {
    "slora": slora,
    "zipf-drift": zipf_drift,
    "mooncake": mooncake,
    "azure-code": azure_code,
    "azure-conversation": azure_conversation,
    "overload": overload,
    "on-off": on_off,
    "short-long": short_long,
    "shift": shift,
}

PREFIX_BLOCK_TOKENS = dict.fromkeys(WORKLOADS, 16) | {"mooncake": 512}


def generate(name: str, demand: Demand) -> list[TraceRequest]:
    """Raises BenchError for a workload that is not known or a demand that makes no sense."""
    if name not in WORKLOADS:
        raise BenchError(f"no workload {name!r}; there are {', '.join(WORKLOADS)}")
    counts = (demand.requests, demand.adapters, demand.tenants)
    if min(counts) < 1 or min(demand.rate, demand.skew, demand.cv) <= 0:
        raise BenchError(f"a workload's numbers must be positive: {demand}")
    return WORKLOADS[name](demand)
