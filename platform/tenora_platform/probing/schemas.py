"""What is known of an adapter's effect, as it is kept and as the HTTP API shows it."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Annotated, Literal

from pydantic import BaseModel, Field, PlainSerializer, StringConstraints

from tenora_platform.intake.report import LayerPicture, Problem
from tenora_platform.probing.prompts import PROMPT_CHARACTERS_MAX, PROMPTS_MAX
from tenora_platform.schemas import Body

Tier = Literal["device", "host", "shared", "store"]
TIERS: tuple[Tier, ...] = ("device", "host", "shared", "store")

ProbePrompt = Annotated[
    str, StringConstraints(min_length=1, max_length=PROMPT_CHARACTERS_MAX, pattern=r"^[^\x00]*$")
]


class ProbePrompts(Body):
    """PUT body: the probe prompts for versions of this adapter. An empty list: the default
    prompts."""

    prompts: list[ProbePrompt] = Field(max_length=PROMPTS_MAX)


class ProbePromptsView(BaseModel):
    object: Literal["adapter.probe_prompts"] = "adapter.probe_prompts"
    name: str
    source: Literal["built_in", "tenant"]
    prompts: list[str]


class Sample(BaseModel):
    """One prompt, the greedy answers of the base model and of the version, and how far their
    next-token distributions are apart at each of the first tokens of the base model's answer: a
    lower bound in nats of KL(base || version)."""

    prompt: str
    base_answer: str
    answer: str
    kl: list[float]

    @property
    def same(self) -> bool:
        return self.base_answer == self.answer


def plain(amount: Decimal) -> str:
    """As amounts are written everywhere: all twelve decimals, no exponent."""
    return f"{amount:.12f}"


class Load(BaseModel):
    """Load time from a tier, in milliseconds. `measured`: this version's own, taken at `at`.
    `predicted`: the mean over the `loads` of adapters of any size that this engine has loaded from
    there; null if there were none."""

    tier: Tier
    ms: float | None
    how: Literal["measured", "predicted"]
    loads: int = 1


class Footprint(BaseModel):
    """The part of the page arena that it uses while it is on the device."""

    pages: int
    page_bytes: int

    @property
    def bytes(self) -> int:
        return self.pages * self.page_bytes


class Findings(BaseModel):
    """What the probe of a version found, and what loading it took."""

    base_model: str
    source: Literal["built_in", "tenant"]
    samples: list[Sample]
    kl_max: float
    differs: bool
    footprint: Footprint | None
    loads: list[Load]


class StorageCost(BaseModel):
    """The cost of 30 days in the object store, by the price list in force now for this adapter:
    bytes x 720 h, starting in the first tier of the month."""

    bytes: int
    kb_hours: int
    amount: Annotated[Decimal, PlainSerializer(plain, return_type=str)]
    currency: str
    price_version: str


class AdapterReport(BaseModel):
    """What one version is and does. `probe` is the progress of its probe; `findings` is null until
    it has been probed once, `storage` if no price list has a price for it."""

    object: Literal["adapter.report"] = "adapter.report"
    name: str
    version: int
    state: str
    probe: Literal["waiting", "done", "failed", "off"]
    probe_error: str | None
    probed_at: datetime | None
    warnings: list[Problem]
    picture: LayerPicture | None
    findings: Findings | None
    storage: StorageCost | None


class ProbingView(BaseModel):
    """Progress of the probes of adapters, and what they use. `share` is the fraction of one CPU
    core used in the last minutes; `most_share` its limit, null while no requests are served.
    `done_in_s` is an estimate from the versions probed so far, null before the first. `summary` is
    one line of text."""

    object: Literal["probing"] = "probing"
    enabled: bool
    waiting: int
    version_id: str | None
    share: float
    most_share: float | None
    done_in_s: float | None
    summary: str
