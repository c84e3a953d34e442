"""Staged roll-outs as one tenant's caller begins, sees and ends them. What moves them is the
keeper's."""

from __future__ import annotations

from datetime import UTC, datetime

from redis.exceptions import RedisError

from tenora_platform.auth import TenantContext
from tenora_platform.errors import BadRequestError, ConflictError, NotFoundError
from tenora_platform.ids import new_id
from tenora_platform.registry import repository as registry
from tenora_platform.registry.schemas import AliasTarget
from tenora_platform.registry.split import PARTS
from tenora_platform.rollouts import repository
from tenora_platform.rollouts.aliases import (
    Aliases,
    end_rollout,
    require_serving,
    serving_versions,
    unknown_alias,
)
from tenora_platform.rollouts.changes import AliasWriter, Change
from tenora_platform.rollouts.outcomes import OfAlias
from tenora_platform.rollouts.schemas import Guard, Rollout, RolloutCreate, RolloutNumbers
from tenora_platform.rollouts.stages import enter, evidence_of, leave, stages_of
from tenora_platform.rollouts.tables import RolloutRow
from tenora_platform.state import AppState


class Rollouts:
    """The roll-outs of one tenant."""

    def __init__(self, state: AppState, tenant: TenantContext) -> None:
        self._state = state
        self._tenant = tenant
        self._aliases = Aliases(state, tenant)

    async def begin(self, name: str, alias: str, body: RolloutCreate) -> Rollout:
        """Its first stage holds at once. Raises NotFoundError, BadRequestError, ConflictError."""
        async with self._aliases.writing(name, alias) as writer:
            await self._check(writer, body)
            there = await writer.row()
            assert there is not None  # checked
            now = datetime.now(UTC)
            row = RolloutRow(
                id=new_id("rollout"),
                tenant_id=self._tenant.tenant_id,
                adapter_id=writer.adapter.id,
                alias=alias,
                version=body.version,
                before=there.targets,
                stages=[stage.model_dump() for stage in body.stages],
                guard=body.guard.model_dump(),
                state="running",
                stage=0,
                stage_began_at=now,
                created_by=self._tenant.key_id,
                created_at=now,
            )
            writer.session.add(row)
            change = Change("rollout.begin", self._tenant.actor, body.reason, row.id)
            await enter(writer, row, 0, change, now, await self._answered(row))
        return _view(name, row, None)

    async def get(self, name: str, alias: str) -> Rollout:
        """The one that runs, or the last. Raises NotFoundError."""
        async with self._state.db.tenant_session(self._tenant.tenant_id) as session:
            adapter = await registry.adapter_by_name(session, self._tenant.tenant_id, name)
            row = None
            if adapter is not None:
                row = await repository.last_rollout(session, adapter.id, alias)
        if row is None:
            raise NotFoundError(
                f"There has been no rollout of {name[:80]}@{alias[:80]}.", param="alias"
            )
        return _view(name, row, await self._numbers(row))

    async def cancel(self, name: str, alias: str, reason: str | None) -> Rollout:
        """End it and go back to the targets before it. Raises NotFoundError, ConflictError."""
        async with self._aliases.writing(name, alias) as writer:
            row = await repository.running_rollout(writer.session, writer.adapter.id, alias)
            if row is None:
                raise NotFoundError(f"No rollout of {name}@{alias[:80]} is running.", param="alias")
            versions = [target["version"] for target in row.before]
            await require_serving(writer.session, writer.adapter, versions)
            change = Change("rollout.cancel", self._tenant.actor, reason, row.id)
            await leave(writer, row, change)
            end_rollout(row, "cancelled", reason)
        return _view(name, row, None)

    async def _check(self, writer: AliasWriter, body: RolloutCreate) -> None:
        session, adapter = writer.session, writer.adapter
        there = await writer.row()
        if there is None:
            raise unknown_alias(adapter.name, writer.alias)
        if body.version not in await serving_versions(session, adapter):
            raise BadRequestError(
                f"{adapter.name} has no active version {body.version}.",
                param="version",
                code="invalid_value",
            )
        if await repository.running_rollout(session, adapter.id, writer.alias) is not None:
            raise ConflictError(
                "A rollout of this alias is already running. Cancel it first.",
                code="rollout_running",
            )
        if there.targets == [{"version": body.version, "weight": PARTS}]:
            raise ConflictError(
                f"{adapter.name}@{writer.alias} already sends all requests to version "
                f"{body.version}.",
                param="version",
            )

    async def _answered(self, row: RolloutRow) -> int | None:
        of = OfAlias(row.tenant_id, row.adapter_id, row.alias)
        try:
            return await self._state.outcomes.answered(of, row.version)
        except RedisError:
            return None  # the keeper asks again

    async def _numbers(self, row: RolloutRow) -> RolloutNumbers | None:
        if row.state != "running":
            return None if row.numbers is None else RolloutNumbers.model_validate(row.numbers)
        try:
            now_s = datetime.now(UTC).timestamp()
            return (await evidence_of(self._state.outcomes, row, now_s)).numbers()
        except RedisError:
            return None


def _view(name: str, row: RolloutRow, numbers: RolloutNumbers | None) -> Rollout:
    stages = stages_of(row)
    same = "id alias version state stage stage_began_at reason created_by created_at ended_at"
    return Rollout.model_validate(
        {
            **{field: getattr(row, field) for field in same.split()},
            "name": name,
            "stages": stages,
            "percent": stages[row.stage].percent,
            "guard": Guard.model_validate(row.guard),
            "before": [AliasTarget(**target) for target in row.before],
            "held": row.held_reason,
            "numbers": numbers,
        }
    )
