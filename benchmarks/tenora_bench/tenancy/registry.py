"""The experiments by name, in the order in which they are listed."""

from __future__ import annotations

from tenora_bench.tenancy import bursts, noisy, ranks, throughput
from tenora_bench.tenancy.experiment import Experiment

_MODULES = (noisy, ranks, throughput, bursts)
EXPERIMENTS: dict[str, Experiment] = {each.EXPERIMENT.name: each.EXPERIMENT for each in _MODULES}
