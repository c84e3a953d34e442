"""Aliases, their history and staged roll-outs as the HTTP API shows them."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, Field, field_validator

from tenora_platform.registry.schemas import Alias, AliasTarget, Shadow
from tenora_platform.schemas import Body, IdItem, Item, ListPage, Reason

Action = Literal[
    "put",
    "delete",
    "rollback",
    "rollout.begin",
    "rollout.advance",
    "rollout.roll_back",
    "rollout.cancel",
]


class AliasUpdate(Body):
    """PUT body; absent fields stay as they are. The weights of `targets` add up to 100; `shadow`
    null ends shadow traffic; `reason` is kept in the history."""

    targets: list[AliasTarget] | None = Field(default=None, min_length=1, max_length=16)
    shadow: Shadow | None = None
    reason: Reason | None = None

    @property
    def says_shadow(self) -> bool:
        return "shadow" in self.model_fields_set


class Because(Body):
    """`reason` is kept in the history."""

    reason: Reason | None = None


class AliasList(BaseModel):
    """All aliases of one adapter, by name."""

    object: Literal["list"] = "list"
    data: list[Alias]
    has_more: Literal[False] = False


class AliasState(Body):
    targets: list[AliasTarget]
    shadow: Shadow | None


class AliasChange(IdItem):
    """`before` null: the alias was created; `after` null: it was deleted. `actor` is a key, a
    person, or `rollout` if a staged rollout advanced or was rolled back automatically."""

    object: Literal["alias_change"] = "alias_change"
    action: Action
    before: AliasState | None
    after: AliasState | None
    actor: str
    reason: str | None
    rollout_id: str | None
    at: datetime


class AliasHistory(ListPage[AliasChange]):
    pass


class Stage(Body):
    """`percent` of the requests go to the version until `after_s` seconds have passed and it has
    answered `after_requests` in this stage (each if set). The last stage is watched in the same way
    (for a minute if neither is set); then the rollout is complete."""

    percent: int = Field(ge=1, le=100)
    after_s: float | None = Field(default=None, ge=0, le=30 * 86400)
    after_requests: int | None = Field(default=None, ge=1, le=10**9)

    @property
    def has_end(self) -> bool:
        return self.after_s is not None or self.after_requests is not None


class Guard(Body):
    """When to roll back automatically: the version's error rate exceeds that of the earlier
    versions by more than `error_rate` (0.05 is five in a hundred requests), or its median time to
    the first token is more than `ttft_ratio` times theirs, both judged once it has answered
    `min_requests`; or its score is more than `score_drop` below their best one, in the newest
    evaluation that includes both. Null: not checked."""

    error_rate: float | None = Field(default=0.05, ge=0, le=1)
    ttft_ratio: float | None = Field(default=1.5, gt=1, le=1000)
    score_drop: float | None = Field(default=None, ge=0)
    min_requests: int = Field(default=20, ge=1, le=10**6)


class RolloutCreate(Body):
    version: int = Field(ge=1, lt=2**31)
    stages: list[Stage] = Field(min_length=1, max_length=20)
    guard: Guard = Guard()
    reason: Reason | None = None

    @field_validator("stages")
    @classmethod
    def _grow(cls, stages: list[Stage]) -> list[Stage]:
        percents = [stage.percent for stage in stages]
        if percents != sorted(set(percents)):
            raise ValueError("percent must increase from one stage to the next")
        if not all(stage.has_end for stage in stages[:-1]):
            raise ValueError("each stage except the last needs after_s or after_requests")
        return stages


class Numbers(Body):
    """Finished requests: errors are 5xx answers and sequences that failed. `ttft_ms` is the median,
    accurate to a tenth; null if nothing was timed."""

    requests: int
    errors: int
    error_rate: float
    ttft_ms: float | None


class RolloutNumbers(Body):
    """The version beside the earlier versions, over the last minute, or the last ten if one has too
    few requests."""

    version: Numbers
    before: Numbers


class Rollout(IdItem):
    """`held`: the rollout is paused, neither advancing nor rolling back, and why. `numbers` are
    current while it runs (null: Redis does not answer); after an automatic rollback they are those
    that caused it."""

    object: Literal["rollout"] = "rollout"
    name: str
    alias: str
    version: int
    state: Literal["running", "completed", "rolled_back", "cancelled"]
    stages: list[Stage]
    stage: int
    percent: int
    stage_began_at: datetime
    guard: Guard
    before: list[AliasTarget]
    held: str | None
    numbers: RolloutNumbers | None
    reason: str | None
    created_by: str
    created_at: datetime
    ended_at: datetime | None


class ComparedAnswer(Item):
    """One side of the comparison. Equal digests mean equal texts. `choices` are the texts; null if
    the tenant does not keep the contents of its requests."""

    request_id: str
    version: int
    digest: str
    output_tokens: int
    finish_reasons: list[str]
    first_token_ms: float | None
    total_ms: float
    choices: list[str] | None


class ShadowAnswer(IdItem):
    """The answer that was sent, beside the shadow's (null: it failed with `error`). Only for a
    `greedy` request (temperature 0) can both be expected to be `equal`."""

    object: Literal["shadow_answer"] = "shadow_answer"
    greedy: bool
    equal: bool | None
    answer: ComparedAnswer
    shadow: ComparedAnswer | None
    error: str | None
    at: datetime


class ShadowMedians(Item):
    first_token_ms: float | None
    total_ms: float | None


class ShadowSummary(Item):
    """Over the stored answers of this version: at most a thousand answers per alias."""

    version: int
    compared: int
    failed: int
    equal: int
    greedy: int
    greedy_equal: int
    answer: ShadowMedians
    shadow: ShadowMedians


class ShadowReport(ListPage[ShadowAnswer]):
    """`shadow` is the current shadow traffic (null: none); `summary` has each version that ran,
    newest first; `data` has the answers, newest first."""

    name: str
    alias: str
    shadow: Shadow | None
    summary: list[ShadowSummary]
