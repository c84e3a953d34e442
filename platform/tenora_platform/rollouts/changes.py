"""The one way in which an alias changes: its row, a row of its history and an entry of the audit
log, in the caller's transaction. Who may change it, and why, is the caller's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.audit.service import AuditLog
from tenora_platform.ids import new_id
from tenora_platform.registry.split import divided
from tenora_platform.registry.tables import AdapterAliasRow, AdapterRow
from tenora_platform.rollouts import repository
from tenora_platform.rollouts.schemas import Action
from tenora_platform.rollouts.tables import AliasChangeRow

Targets = Sequence[Mapping[str, int]]


@dataclass(frozen=True)
class Change:
    """What is done, by whom and why."""

    action: Action
    actor: str
    reason: str | None = None
    rollout_id: str | None = None


@dataclass(frozen=True)
class AliasWriter:
    """Works inside one session, in which the adapter's row is locked."""

    session: AsyncSession
    audit: AuditLog
    adapter: AdapterRow
    alias: str

    async def row(self) -> AdapterAliasRow | None:
        return await repository.alias_of(self.session, self.adapter.id, self.alias)

    async def put(
        self, change: Change, targets: Targets, shadow: Mapping[str, int] | None
    ) -> AdapterAliasRow:
        """Point the alias at `targets`, which add up to 100."""
        row = await self.row()
        before = _state(row)
        weights = {target["version"]: target["weight"] for target in targets}
        made = await repository.put_alias(
            self.session,
            {
                "tenant_id": self.adapter.tenant_id,
                "adapter_id": self.adapter.id,
                "alias": self.alias,
                "targets": [dict(target) for target in targets],
                "parts": divided(row.parts if row else (), weights),
                "shadow": None if shadow is None else dict(shadow),
            },
        )
        await self._note(change, before, _state(made))
        return made

    async def delete(self, change: Change, row: AdapterAliasRow) -> None:
        await repository.drop_alias(self.session, self.adapter.id, self.alias)
        await self._note(change, _state(row), None)

    async def _note(
        self, change: Change, before: dict[str, Any] | None, after: dict[str, Any] | None
    ) -> None:
        self.session.add(
            AliasChangeRow(
                id=new_id("change"),
                tenant_id=self.adapter.tenant_id,
                adapter_id=self.adapter.id,
                alias=self.alias,
                action=change.action,
                before=before,
                after=after,
                actor=change.actor,
                reason=change.reason,
                rollout_id=change.rollout_id,
            )
        )
        more = {"reason": change.reason, "rollout": change.rollout_id}
        name = change.action if "." in change.action else f"adapter_alias.{change.action}"
        await self.audit.append(
            self.session,
            actor=change.actor,
            action=name,
            target=self.adapter.id,
            tenant_id=self.adapter.tenant_id,
            before=before,
            after=after,
            details={
                "name": f"{self.adapter.name}@{self.alias}",
                **{key: value for key, value in more.items() if value is not None},
            },
        )


def _state(row: AdapterAliasRow | None) -> dict[str, Any] | None:
    return None if row is None else {"targets": row.targets, "shadow": row.shadow}
