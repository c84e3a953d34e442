"""What can be done to plans and tenants, each change audited in its own transaction. It knows rows
and rules; who may call it is the routes' matter, as is forgetting remembered keys."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.audit.service import AuditLog
from tenora_platform.errors import BadRequestError, ConflictError, NotFoundError
from tenora_platform.ids import new_id
from tenora_platform.tenants import listing, repository
from tenora_platform.tenants.schemas import (
    PlanBody,
    TenantChange,
    TenantCreate,
)
from tenora_platform.tenants.tables import PlanRow, TenantRow

# A class may be served as itself or worse, never better.
_TIERS = {
    "priority": ["priority", "default", "flex"],
    "default": ["default", "flex"],
    "flex": ["flex"],
}


class TenantService:
    """Works inside one session; commits nothing itself."""

    def __init__(self, session: AsyncSession, *, audit: AuditLog, actor: str) -> None:
        self._session = session
        self._audit = audit
        self._actor = actor

    async def put_plan(self, name: str, body: PlanBody) -> PlanRow:
        values = body.model_dump(exclude={"limits", "tiers"}) | body.limits.model_dump()
        values["tiers"] = body.tiers if body.tiers is not None else _TIERS[body.sla_class]
        await repository.lock_plan(self._session, name)
        existing = await repository.get_plan(self._session, name)
        before = _told(existing) if existing is not None else None
        row = await repository.put_plan(self._session, name, values)
        await self._audit.append(
            self._session,
            actor=self._actor,
            action="plan.put",
            target=name,
            before=before,
            after=_told(row),
        )
        return row

    async def create_tenant(self, body: TenantCreate, *, internal: bool = False) -> TenantRow:
        """`internal`: for the platform's own checks. Raises BadRequestError for an unknown plan;
        ConflictError for a name that is taken, if the body wants that refused."""
        await self._require_plan(body.plan)
        await repository.lock_tenant_name(self._session, body.name)
        same = await self.namesakes(body.name)
        if same and body.if_name_exists == "refuse":
            raise ConflictError(
                f"A tenant named {body.name!r} already exists: {', '.join(same)}. Choose "
                'another name, or send if_name_exists: "allow" to create a second one with '
                "this name.",
                param="name",
                code="tenant_name_exists",
                details={"tenants": ",".join(same)},
            )
        row = TenantRow(
            id=new_id("tenant"),
            name=body.name,
            plan=body.plan,
            trust_group=body.trust_group,
            internal=internal,
        )
        self._session.add(row)
        await self._session.flush()
        await self._session.refresh(row)
        await self._audit.append(
            self._session,
            actor=self._actor,
            action="tenant.create",
            target=row.id,
            tenant_id=row.id,
            after=_told(row),
        )
        return row

    async def namesakes(self, name: str, *, but: str | None = None) -> list[str]:
        """The ids of those that have this name, in any case, the oldest first."""
        return [each for each in await listing.named(self._session, name) if each != but]

    async def tenant(self, tenant_id: str, *, lock: bool = False) -> TenantRow:
        """Raises NotFoundError."""
        row = await repository.get_tenant(self._session, tenant_id, lock=lock)
        if row is None:
            raise NotFoundError(f"There is no tenant with the id {tenant_id!r}.")
        return row

    async def change_tenant(self, tenant_id: str, body: TenantChange) -> TenantRow:
        """Raises NotFoundError; BadRequestError for an unknown plan or a null that may not be;
        ConflictError for one that has been deleted."""
        row = await self.tenant(tenant_id, lock=True)
        if row.deleted_at is not None:
            raise ConflictError(
                "This tenant has been deleted; restore it first.", code="tenant_deleted"
            )
        changes = body.model_dump(exclude_unset=True)
        for name, value in changes.items():
            if value is None and name != "trust_group":
                raise BadRequestError(f"{name} cannot be null.", param=name)
        if "plan" in changes:
            await self._require_plan(changes["plan"])
        before = _told(row)
        for name, value in changes.items():
            setattr(row, name, value)
        row.updated_at = datetime.now(UTC)
        await self._audit.append(
            self._session,
            actor=self._actor,
            action="tenant.update",
            target=row.id,
            tenant_id=row.id,
            before=before,
            after=_told(row),
        )
        return row

    async def _require_plan(self, name: str) -> None:
        if await repository.get_plan(self._session, name) is None:
            plans = ", ".join(plan.name for plan in await repository.list_plans(self._session))
            raise BadRequestError(
                f"There is no plan {name!r}. Plans: {plans}.", param="plan", code="unknown_plan"
            )


def _told(row: PlanRow | TenantRow) -> dict[str, object]:
    """The row as the audit log keeps it."""
    columns = (column.key for column in row.__table__.columns)
    return {name: getattr(row, name) for name in columns if name not in _UNTOLD}


_UNTOLD = (
    "created_at",
    "updated_at",
    "deleted_at",
    "erase_after",
    "erased_at",
    "status_before",
    "namespace",  # follows from the others
)
