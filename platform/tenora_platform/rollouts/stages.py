"""How a staged roll-out moves: on to a stage, back, or to its end, in the caller's transaction.
Also what is known of its versions. When it moves is decided elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from tenora_platform.registry.split import shares
from tenora_platform.rollouts.changes import AliasWriter, Change
from tenora_platform.rollouts.guard import Evidence
from tenora_platform.rollouts.outcomes import LOOK_BACK_S, OfAlias, Outcomes, Tally
from tenora_platform.rollouts.schemas import Guard, Stage
from tenora_platform.rollouts.tables import RolloutRow

LOOK_S = 60
LAST_STAGE_S = 60.0
"""So long the last stage is watched, unless it says how long."""


def stages_of(row: RolloutRow) -> list[Stage]:
    return [Stage.model_validate(stage) for stage in row.stages]


def is_over(row: RolloutRow, now: datetime, answered: int) -> bool:
    """Whether the stage has had its time and its requests (`answered`: ever, by this alias)."""
    stage = stages_of(row)[row.stage]
    after_s = stage.after_s if stage.has_end else LAST_STAGE_S
    if after_s is not None and (now - row.stage_began_at).total_seconds() < after_s:
        return False
    in_stage = answered - (row.requests_before or 0)
    return stage.after_requests is None or in_stage >= stage.after_requests


async def enter(
    writer: AliasWriter,
    row: RolloutRow,
    stage: int,
    change: Change,
    now: datetime,
    answered: int | None,
) -> None:
    """Give the version its share of the stage."""
    alias = await writer.row()
    before = {target["version"]: target["weight"] for target in row.before}
    weights = shares(before, row.version, stages_of(row)[stage].percent)
    await writer.put(change, _targets(weights), alias.shadow if alias else None)
    row.stage, row.stage_began_at, row.requests_before = stage, now, answered


async def leave(writer: AliasWriter, row: RolloutRow, change: Change) -> None:
    """Back to the targets before it."""
    alias = await writer.row()
    await writer.put(change, row.before, alias.shadow if alias else None)


async def evidence_of(outcomes: Outcomes, row: RolloutRow, now_s: float) -> Evidence:
    """The last minute of each side, or ten where that has too few; of the version nothing from
    before it was rolled out. Raises RedisError."""
    of = OfAlias(row.tenant_id, row.adapter_id, row.alias)
    least = Guard.model_validate(row.guard).min_requests
    began_s = row.created_at.timestamp()
    lately = await outcomes.between(of, now_s - LOOK_S, now_s)
    version, before = _sides(row, lately)
    if began_s > now_s - LOOK_S:
        version, _ = _sides(row, await outcomes.between(of, began_s, now_s))
    if min(version.requests, before.requests) >= least:
        return Evidence(version, before)
    more = await outcomes.between(of, now_s - LOOK_BACK_S, now_s)
    if before.requests < least:
        _, before = _sides(row, more)
    if version.requests < least and began_s < now_s - LOOK_S:
        if began_s > now_s - LOOK_BACK_S:
            more = await outcomes.between(of, began_s, now_s)
        version, _ = _sides(row, more)
    return Evidence(version, before)


def _sides(row: RolloutRow, tallies: Mapping[int, Tally]) -> tuple[Tally, Tally]:
    """(the version, those before it together)."""
    before = Tally()
    for target in row.before:
        if target["version"] != row.version and target["version"] in tallies:
            before.add(tallies[target["version"]])
    return tallies.get(row.version, Tally()), before


def _targets(weights: Mapping[int, int]) -> list[dict[str, int]]:
    return [{"version": version, "weight": weight} for version, weight in weights.items()]
