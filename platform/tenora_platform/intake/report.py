"""ValidationReport: what the intake check found out about an upload, field by field."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from pydantic import AfterValidator, BaseModel

from tenora_engine.printable import MESSAGE_MAX, brief

Words = Annotated[str, AfterValidator(partial(brief, most=MESSAGE_MAX))]
"""Short and printable, whatever they quote."""


class Problem(BaseModel):
    """One reason for a rejection. `field` says where: a config key, a tensor, or the file."""

    field: Words
    code: str
    message: Words


class ModuleFacts(BaseModel):
    """One target module, over all layers. Norms are Frobenius norms."""

    module: str
    layers: int
    rank_min: int
    rank_max: int
    norm_a: float
    norm_b: float


class LayerPicture(BaseModel):
    """Rank and Frobenius norms of each adapted module in each layer: one list per entry of
    `modules`, with one value per entry of `layers`, null where the layer does not have the module.
    `product` is the norm of what is added to the base model's weight: scale x B x A. Norms have
    four significant digits."""

    modules: list[str]
    layers: list[int]
    rank: list[list[int | None]]
    norm_a: list[list[float | None]]
    norm_b: list[list[float | None]]
    product: list[list[float | None]]


class AdapterFacts(BaseModel):
    """What was measured. `scaling` is lora_alpha / r (with rsLoRA: lora_alpha / sqrt(r)) of the
    defaults."""

    tensors: int
    tensors_applied: int
    parameters: int
    weight_bytes: int
    rank: int
    modules: list[ModuleFacts]
    layers: list[int]
    dtypes: list[str]
    scaling: float
    picture: LayerPicture | None = None  # lists of adapters leave it out


class ValidationReport(BaseModel):
    """Accepted if `problems` is empty; `warnings` never reject. At most 100 problems are kept."""

    problems: list[Problem]
    warnings: list[Problem] = []
    facts: AdapterFacts | None = None

    @property
    def accepted(self) -> bool:
        return not self.problems
