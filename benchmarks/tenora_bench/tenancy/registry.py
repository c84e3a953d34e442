"""Every experiment of `tenora bench tenancy`, by name."""

from __future__ import annotations

from tenora_bench.tenancy import (
    bursts,
    cold_load,
    eviction_audit,
    http_audit,
    isolation_cost,
    live_order,
    many_adapters,
    noisy,
    prefix_audit,
    ranks,
    throughput,
)
from tenora_bench.tenancy.experiment import Experiment

_MODULES = (
    noisy,
    ranks,
    throughput,
    bursts,
    prefix_audit,
    http_audit,
    eviction_audit,
    isolation_cost,
    many_adapters,
    cold_load,
    live_order,
)
EXPERIMENTS: dict[str, Experiment] = {each.EXPERIMENT.name: each.EXPERIMENT for each in _MODULES}
