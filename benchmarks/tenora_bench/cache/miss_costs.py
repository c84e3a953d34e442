"""Miss costs: the seconds of prefill and of adapter loads that a cache did not save; what a replay
paid, and the least that any policy could have paid with the whole trace known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import count

from tenora_bench.cache.belady import Access, least_miss_cost
from tenora_bench.cache.simulator import Prompts, Replay, Setup, adapter_of
from tenora_bench.cache.timing import TimingModel
from tenora_bench.trace import TraceRequest
from tenora_engine.memory.prefix import TOKEN_BYTES, encode_tokens


def replay_miss_cost_s(setup: Setup, trace: Sequence[TraceRequest], replay: Replay) -> float:
    """What the replay paid: uncached prompt tokens at their depth, KV fetched from host memory, and
    adapters from there for each load; from the object store for those that came from it again."""
    timing, counters = setup.timing, replay.counters
    loads = counters.get("loader_host_loads", 0) + counters.get("loader_store_loads", 0)
    loads_s = loads * timing.host.latency_s
    loads_s += counters.get("loader_loaded_bytes", 0) / timing.host.bytes_per_s
    loads_s += counters.get("loader_store_reloads", 0) * timing.store.latency_s
    loads_s += counters.get("loader_store_reloaded_bytes", 0) / timing.store.bytes_per_s
    loads_s += counters.get("kv_pages_fetched", 0) * _fetch_s(timing)
    return loads_s + sum(
        prefill_s(timing, record.cached_tokens, request.prompt_tokens)
        for request, record in zip(trace, replay.records, strict=True)
    )


def least_miss_cost_s(setup: Setup, trace: Sequence[TraceRequest]) -> float:
    """A lower bound for any policy on this device, by `belady.least_miss_cost` over the accesses in
    the order of arrival. KV of running sequences, which takes memory as well, is left out."""
    accesses = list(accesses_of(setup, trace))
    return least_miss_cost(accesses, setup.device_bytes)


def uncached_cost_s(setup: Setup, trace: Sequence[TraceRequest]) -> float:
    """What the trace costs where nothing is ever kept."""
    return sum(access.cost_s for access in accesses_of(setup, trace))


def accesses_of(setup: Setup, trace: Sequence[TraceRequest]) -> Iterator[Access]:
    """Each request's adapter, then its prompt's blocks; a block is what it is by all before it.
    The last, unfinished block and its tokens are accesses that nothing repeats. Where host memory
    keeps KV, it is taken to have all that was ever computed."""
    timing, prompts = setup.timing, Prompts(setup.prefix_block_tokens)
    size = timing.block_tokens
    blocks: dict[tuple[object, bytes], int] = {}
    numbers = count()
    adapter_bytes = cache(timing.adapter_bytes)
    for number, request in enumerate(trace):
        ref = adapter_of(request)
        if ref is not None:
            num_bytes = adapter_bytes(ref.rank)
            yield Access(ref.digest, num_bytes, timing.host.load_s(num_bytes))
        parent: object = (request.tenant, request.adapter)
        encoded = encode_tokens(prompts.make(request))
        usable = (request.prompt_tokens - 1) // size
        for depth in range(usable):
            key = (parent, encoded[depth * size * TOKEN_BYTES : (depth + 1) * size * TOKEN_BYTES])
            block = blocks.get(key)
            cost_s = prefill_s(timing, depth * size, (depth + 1) * size)
            if block is None:
                block = blocks[key] = next(numbers)
            elif setup.host_kv_share:
                cost_s = min(cost_s, _fetch_s(timing))
            yield Access(block, timing.page_bytes, cost_s)
            parent = block
        rest_s = prefill_s(timing, usable * size, request.prompt_tokens)
        yield Access(("rest", number), timing.page_bytes, rest_s)


def _fetch_s(timing: TimingModel) -> float:
    """A page of KV over the link from host memory."""
    return timing.page_bytes / timing.host.bytes_per_s


def prefill_s(timing: TimingModel, first: int, last: int) -> float:
    """Seconds that the tokens `first` to `last` of a prompt add to a step."""
    tokens = last - first
    pairs = tokens * (first + last) / 2
    return timing.step.prefill_token_s * tokens + timing.step.prefill_pair_s * pairs
