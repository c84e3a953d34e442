"""The experiments by name, in the order in which they are listed."""

from __future__ import annotations

from tenora_bench.tenancy import (
    cold_load,
    eviction_audit,
    http_audit,
    isolation_cost,
    live_order,
    many_adapters,
    noisy,
    prefix_audit,
)
from tenora_bench.tenancy.experiment import Experiment

EXPERIMENTS: dict[str, Experiment] = {
    module.EXPERIMENT.name: module.EXPERIMENT
    for module in (
        noisy,
        prefix_audit,
        http_audit,
        eviction_audit,
        isolation_cost,
        many_adapters,
        cold_load,
        live_order,
    )
}
