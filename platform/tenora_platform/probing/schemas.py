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
    """PUT body: what versions of this adapter are asked. An empty list: what every adapter is."""

    prompts: list[ProbePrompt] = Field(max_length=PROMPTS_MAX)


class ProbePromptsView(BaseModel):
    object: Literal["adapter.probe_prompts"] = "adapter.probe_prompts"
    name: str
    source: Literal["built_in", "tenant"]
    prompts: list[str]


class Sample(BaseModel):
    """One prompt, what the base model and the version answer to it (greedy), and how far their
    next-token distributions are apart at each of the first tokens of the base's answer: a lower
    bound in nats of KL(base || version)."""

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
    """Milliseconds of a load from the tier. `measured`: this version's own, `at` then. `predicted`:
    the mean of the `loads` of adapters of any size that this engine has had from there; null where
    it has had none."""

    tier: Tier
    ms: float | None
    how: Literal["measured", "predicted"]
    loads: int = 1


class Footprint(BaseModel):
    """What it takes of the page arena while it is on the device."""

    pages: int
    page_bytes: int

    @property
    def bytes(self) -> int:
        return self.pages * self.page_bytes


class Findings(BaseModel):
    """What a version was found to do when it was asked, and what its loading took."""

    base_model: str
    source: Literal["built_in", "tenant"]
    samples: list[Sample]
    kl_max: float
    differs: bool
    footprint: Footprint | None
    loads: list[Load]


class StorageCost(BaseModel):
    """Of 30 days in the object store, by the list in force now for this adapter: bytes x 720 h,
    from the first unit of the month on where the list has tiers."""

    bytes: int
    kb_hours: int
    amount: Annotated[Decimal, PlainSerializer(plain, return_type=str)]
    currency: str
    price_version: str


class AdapterReport(BaseModel):
    """What one version is and does. `probe` says how far the asking has come; `findings` are null
    until it has been asked once, `storage` where no list has a price for it."""

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
    """How far the probes of adapters are, and what they take. `share` is of one core's time in the
    last minutes; `most_share` its limit, null while nobody else is served. `done_in_s` is a guess
    from the versions that were asked, null before the first. `summary` says it in a line."""

    object: Literal["probing"] = "probing"
    enabled: bool
    waiting: int
    version_id: str | None
    share: float
    most_share: float | None
    done_in_s: float | None
    summary: str
