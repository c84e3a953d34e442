"""The experiments by name, in the order in which they are listed."""

from __future__ import annotations

from tenora_bench.tenancy import (
    bursts,
    cold_load,
    eviction_audit,
    floods,
    http_audit,
    isolation_cost,
    live_order,
    long_prompts,
    many_adapters,
    noisy,
    prefix_audit,
    ranks,
    starvation_cases,
    throughput,
)
from tenora_bench.tenancy.experiment import Experiment

_ALL = (
    noisy.EXPERIMENT,
    noisy.CHATS,
    ranks.EXPERIMENT,
    ranks.ATTENTION_ONLY,
    ranks.LLAMA,
    throughput.EXPERIMENT,
    bursts.EXPERIMENT,
    floods.EXPERIMENT,
    long_prompts.EXPERIMENT,
    long_prompts.WITH_PROMISES,
    *starvation_cases.EXPERIMENTS,
    prefix_audit.EXPERIMENT,
    http_audit.EXPERIMENT,
    eviction_audit.EXPERIMENT,
    isolation_cost.EXPERIMENT,
    many_adapters.EXPERIMENT,
    cold_load.EXPERIMENT,
    live_order.EXPERIMENT,
)
EXPERIMENTS: dict[str, Experiment] = {each.name: each for each in _ALL}
