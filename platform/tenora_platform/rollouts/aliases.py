"""Aliases as one tenant's caller sees them: list, point, take back, delete. Each change is one
transaction (see `changes`), then the hot-adapter cache is told."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime

from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.auth import TenantContext
from tenora_platform.errors import BadRequestError, ConflictError, NotFoundError
from tenora_platform.registry import repository as registry
from tenora_platform.registry.repository import SERVABLE
from tenora_platform.registry.schemas import ALIAS_NAME, Alias, AliasTarget
from tenora_platform.registry.serving import DEFAULT_ALIAS
from tenora_platform.registry.split import PARTS
from tenora_platform.registry.tables import AdapterAliasRow, AdapterRow
from tenora_platform.rollouts import repository
from tenora_platform.rollouts.changes import AliasWriter, Change, Targets
from tenora_platform.rollouts.schemas import AliasChange, AliasHistory, AliasUpdate
from tenora_platform.rollouts.tables import AliasChangeRow, RolloutRow
from tenora_platform.state import AppState

ALIASES_MAX = 64


class Aliases:
    """The aliases of one tenant."""

    def __init__(self, state: AppState, tenant: TenantContext) -> None:
        self._state = state
        self._tenant = tenant

    async def all(self, name: str) -> list[Alias]:
        """By name. Raises NotFoundError."""
        async with self._state.db.tenant_session(self._tenant.tenant_id) as session:
            adapter = await self._adapter(session, name)
            return [Alias.of(name, row) for row in await registry.aliases_of(session, [adapter.id])]

    async def put(self, name: str, alias: str, update: AliasUpdate) -> Alias:
        """Point an alias, at once for every new request; what runs finishes. Raises NotFoundError,
        BadRequestError, ConflictError (a roll-out has its targets; too many aliases)."""
        _check_name(alias)
        async with self.writing(name, alias) as writer:
            row = await writer.row()
            targets = await self._targets(writer, row, update.targets)
            shadow = row.shadow if row else None
            if update.says_shadow:
                shadow = update.shadow.model_dump() if update.shadow else None
            if update.says_shadow and update.shadow is not None:
                await self._check_serves(writer, {"shadow.version": update.shadow.version})
            change = Change("put", self._tenant.actor, update.reason)
            return Alias.of(name, await writer.put(change, targets, shadow))

    async def delete(self, name: str, alias: str, reason: str | None = None) -> None:
        """Its name is unknown from here on; a roll-out of it ends. Raises NotFoundError."""
        async with self.writing(name, alias) as writer:
            row = await self._require(writer)
            rollout = await repository.running_rollout(writer.session, writer.adapter.id, alias)
            if rollout is not None:
                end_rollout(rollout, "cancelled", "the alias was deleted")
            await writer.delete(Change("delete", self._tenant.actor, reason), row)

    async def history(
        self, name: str, alias: str, *, after: str | None, limit: int
    ) -> AliasHistory:
        """Newest first, also of an alias that was deleted. Raises NotFoundError."""
        async with self._state.db.tenant_session(self._tenant.tenant_id) as session:
            adapter = await self._adapter(session, name)
            rows = await repository.changes_of(session, adapter.id, alias, after=after, limit=limit)
            there = await repository.alias_of(session, adapter.id, alias)
        if not rows and there is None and after is None:
            raise unknown_alias(name, alias)
        return AliasHistory.of([AliasChange.model_validate(row) for row in rows], limit)

    async def rollback(self, name: str, alias: str, reason: str | None = None) -> Alias:
        """Back to the targets before the last change of them, at once; of a roll-out, to those
        before it began, and it ends if it runs. Of `prod` where there was none yet: to the active
        version before the newest, which the name has meant so far. Raises NotFoundError,
        ConflictError."""
        async with self.writing(name, alias) as writer:
            session, adapter = writer.session, writer.adapter
            last = await repository.last_move(session, adapter.id, alias)
            row = await writer.row()
            if alias == DEFAULT_ALIAS and (last is None or _made_it(last)):
                back = await self._without_alias(writer, forward=last is not None)
                change = Change("rollback", self._tenant.actor, reason)
                return Alias.of(name, await writer.put(change, back, row.shadow if row else None))
            if last is None or last.action in ("rollout.roll_back", "rollout.cancel"):
                # Of a roll-out that has gone back just now, before whoever saw the same could say
                # so: what was before that is what it went back from.
                raise self._nothing_before(row, name, alias)
            targets: Targets | None = last.before["targets"] if last.before else None
            rollout = await repository.running_rollout(session, adapter.id, alias)
            if rollout is not None:
                end_rollout(rollout, "cancelled", reason or "rolled back manually")
            if last.rollout_id is not None and last.action in ("rollout.begin", "rollout.advance"):
                of = await repository.rollout_by_id(session, last.rollout_id)
                targets = of.before if of is not None else targets
            if targets is None:
                raise self._nothing_before(row, name, alias)
            await require_serving(session, adapter, [target["version"] for target in targets])
            change = Change("rollback", self._tenant.actor, reason, last.rollout_id)
            return Alias.of(name, await writer.put(change, targets, row.shadow if row else None))

    @asynccontextmanager
    async def writing(self, name: str, alias: str) -> AsyncIterator[AliasWriter]:
        """One change of the alias at a time; the cache is told once it is committed. Raises
        NotFoundError."""
        tenant_id = self._tenant.tenant_id
        async with self._state.db.tenant_session(tenant_id) as session:
            adapter = await self._adapter(session, name, for_update=True)
            yield AliasWriter(session, self._state.audit, adapter, alias)
        await self._state.resolver.invalidate(tenant_id)

    async def _adapter(
        self, session: AsyncSession, name: str, *, for_update: bool = False
    ) -> AdapterRow:
        row = await registry.adapter_by_name(
            session, self._tenant.tenant_id, name, for_update=for_update
        )
        if row is None:
            raise NotFoundError(f"There is no adapter named {name[:80]!r}.", param="name")
        return row

    async def _require(self, writer: AliasWriter) -> AdapterAliasRow:
        row = await writer.row()
        if row is None:
            raise unknown_alias(writer.adapter.name, writer.alias)
        return row

    async def _targets(
        self, writer: AliasWriter, row: AdapterAliasRow | None, wanted: Sequence[AliasTarget] | None
    ) -> Targets:
        """Those that the alias will have."""
        session, adapter = writer.session, writer.adapter
        if wanted is None:
            if row is None:
                raise BadRequestError(
                    "targets is required for a new alias.",
                    param="targets",
                    code="missing_required_parameter",
                )
            return row.targets
        _check_weights(wanted)
        numbers = {f"targets[{at}].version": each.version for at, each in enumerate(wanted)}
        await self._check_serves(writer, numbers)
        if await repository.running_rollout(session, adapter.id, writer.alias) is not None:
            raise ConflictError(
                "A rollout is changing the targets of this alias. Cancel it first, or roll back.",
                code="rollout_running",
            )
        if row is None and len(await registry.aliases_of(session, [adapter.id])) >= ALIASES_MAX:
            raise ConflictError(
                f"{adapter.name} already has {ALIASES_MAX} aliases, the maximum. Delete one first.",
                param="alias",
            )
        return [target.model_dump() for target in wanted]

    async def _check_serves(self, writer: AliasWriter, versions: Mapping[str, int]) -> None:
        """`versions` by the parameter that names each. Raises BadRequestError."""
        serving = await serving_versions(writer.session, writer.adapter)
        for param, number in versions.items():
            if number not in serving:
                raise BadRequestError(
                    f"{writer.adapter.name} has no active version {number}.",
                    param=param,
                    code="invalid_value",
                )

    async def _without_alias(self, writer: AliasWriter, *, forward: bool) -> Targets:
        """Of a name that its newest active version has served: the one before it, or (`forward`)
        the newest again. Raises ConflictError."""
        rows = await registry.versions_of(writer.session, [writer.adapter.id])
        active = sorted((row.number for row in rows if row.state == "active"), reverse=True)
        found = active[:1] if forward else active[1:2]
        if not found:
            raise ConflictError(
                f"{writer.adapter.name} has no active version before the newest.",
                code="nothing_to_roll_back",
            )
        return [{"version": found[0], "weight": 100}]

    def _nothing_before(self, row: AdapterAliasRow | None, name: str, alias: str) -> Exception:
        if row is None:
            return unknown_alias(name, alias)
        return ConflictError(
            f"{name}@{alias} has no earlier targets to roll back to, or a rollout has already "
            "rolled back to them.",
            code="nothing_to_roll_back",
        )


def _made_it(last: AliasChangeRow) -> bool:
    """Whether a roll-back has made the alias, and nothing was changed since."""
    return last.action == "rollback" and last.before is None


def unknown_alias(name: str, alias: str) -> NotFoundError:
    return NotFoundError(f"{name} has no alias {alias[:80]!r}.", param="alias")


async def serving_versions(session: AsyncSession, adapter: AdapterRow) -> set[int]:
    rows = await registry.versions_of(session, [adapter.id])
    return {row.number for row in rows if row.state in SERVABLE}


async def require_serving(
    session: AsyncSession, adapter: AdapterRow, versions: Sequence[int]
) -> None:
    """Raises ConflictError if none of them serves any more: all requests would be 404."""
    if not set(versions) & await serving_versions(session, adapter):
        named = ", ".join(str(number) for number in versions)
        raise ConflictError(
            f"The earlier targets (version {named} of {adapter.name}) are no longer active.",
            code="version_not_serving",
        )


def end_rollout(row: RolloutRow, state: str, reason: str | None) -> None:
    row.state, row.reason, row.ended_at = state, reason, datetime.now(UTC)
    row.held_since = row.held_reason = None


def _check_name(alias: str) -> None:
    if re.fullmatch(ALIAS_NAME[1:-1], alias) is None:
        raise BadRequestError(
            "An alias must start with a letter and have 1 to 63 letters, digits, '.', '_' or '-'.",
            param="alias",
            code="invalid_value",
        )


def _check_weights(targets: Sequence[AliasTarget]) -> None:
    if sum(target.weight for target in targets) != PARTS:
        raise BadRequestError(
            "The weights of the targets must add up to 100, not {sum((target.weight for "
            "target in targets))}.",
            param="targets",
            code="invalid_value",
        )
    if len({target.version for target in targets}) != len(targets):
        raise BadRequestError(
            "targets lists a version twice.", param="targets", code="invalid_value"
        )
