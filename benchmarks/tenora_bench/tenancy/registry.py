"""The experiments by name, in the order in which they are listed."""

from __future__ import annotations

from tenora_bench.tenancy import noisy
from tenora_bench.tenancy.experiment import Experiment

EXPERIMENTS: dict[str, Experiment] = {each.name: each for each in (noisy.EXPERIMENT,)}
