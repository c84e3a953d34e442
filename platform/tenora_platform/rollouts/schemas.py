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
    """PUT body; what is not said stays. The weights of `targets` add up to 100; `shadow` null ends
    shadow traffic; `reason` is kept in the history."""

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
    """All of one adapter's, by name."""

    object: Literal["list"] = "list"
    data: list[Alias]
    has_more: Literal[False] = False


class AliasState(Body):
    targets: list[AliasTarget]
    shadow: Shadow | None


class AliasChange(IdItem):
    """`before` null: there was no such alias; `after` null: it was deleted. `actor` is a key, a
    person, or `rollout` where a staged roll-out went on or back by itself."""

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
    answered `after_requests` in this stage, whichever are said. The last stage is watched for as
    long, a minute if it says nothing; then the roll-out is complete."""

    percent: int = Field(ge=1, le=100)
    after_s: float | None = Field(default=None, ge=0, le=30 * 86400)
    after_requests: int | None = Field(default=None, ge=1, le=10**9)

    @property
    def has_end(self) -> bool:
        return self.after_s is not None or self.after_requests is not None


class Guard(Body):
    """When to go back by itself: the version fails by more than `error_rate` more often than those
    before it (0.05: five of a hundred requests), or its median time to the first token is more than
    `ttft_ratio` times theirs, both judged once it has answered `min_requests`; or its score is more
    than `score_drop` below the best of theirs, in the newest evaluation that asked both. Null: not
    looked at."""

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
            raise ValueError("the percents must grow from one stage to the next")
        if not all(stage.has_end for stage in stages[:-1]):
            raise ValueError("each stage but the last needs after_s or after_requests")
        return stages


class Numbers(Body):
    """Of requests that have ended: errors are answers of 5xx and sequences that failed. `ttft_ms`
    is the median, to within a tenth; null where nothing was timed."""

    requests: int
    errors: int
    error_rate: float
    ttft_ms: float | None


class RolloutNumbers(Body):
    """The version beside those before it, in the last minute, or ten where one has too few."""

    version: Numbers
    before: Numbers


class Rollout(IdItem):
    """`held`: it neither goes on nor back, and why. `numbers` are of now while it runs (null: Redis
    does not answer), and those that decided where it was rolled back."""

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
    """One side. Equal digests are equal texts. `choices` are the texts, where the tenant keeps the
    contents of its requests; null where it does not."""

    request_id: str
    version: int
    digest: str
    output_tokens: int
    finish_reasons: list[str]
    first_token_ms: float | None
    total_ms: float
    choices: list[str] | None


class ShadowAnswer(IdItem):
    """What was sent beside what the shadow answered (null: it failed, by `error`). Only of a
    `greedy` request (temperature 0) can one expect that both are `equal`."""

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
    """Of what is kept of this version: a thousand answers of an alias at the most."""

    version: int
    compared: int
    failed: int
    equal: int
    greedy: int
    greedy_equal: int
    answer: ShadowMedians
    shadow: ShadowMedians


class ShadowReport(ListPage[ShadowAnswer]):
    """`shadow` is what runs now (null: nothing); `summary` of each version that ran, newest first;
    `data` the answers, newest first."""

    name: str
    alias: str
    shadow: Shadow | None
    summary: list[ShadowSummary]
