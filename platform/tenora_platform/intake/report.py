"""ValidationReport: what the intake check found out about an upload, field by field."""

from __future__ import annotations

from pydantic import BaseModel


class Problem(BaseModel):
    """One reason for a rejection. `field` names the place: a config key, a tensor, the file."""

    field: str
    code: str
    message: str


class ModuleFacts(BaseModel):
    """One target module over all layers. Norms are Frobenius norms."""

    module: str
    layers: int
    rank_min: int
    rank_max: int
    norm_a: float
    norm_b: float


class AdapterFacts(BaseModel):
    """What was measured. `scaling` is alpha over r (over its root with rsLoRA) of the defaults."""

    tensors: int
    tensors_applied: int
    parameters: int
    weight_bytes: int
    rank: int
    modules: list[ModuleFacts]
    layers: list[int]
    dtypes: list[str]
    scaling: float


class ValidationReport(BaseModel):
    """Accepted when `problems` is empty; warnings never reject. At most 100 problems are kept."""

    problems: list[Problem]
    warnings: list[Problem] = []
    facts: AdapterFacts | None = None

    @property
    def accepted(self) -> bool:
        return not self.problems
