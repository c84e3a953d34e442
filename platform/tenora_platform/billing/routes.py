"""HTTP routes of billing: price lists (admin). Costs over them are in `usage.routes`."""

from __future__ import annotations

from dataclasses import asdict

from fastapi import APIRouter, Depends

from tenora_platform.auth import CurrentAdmin, require_role
from tenora_platform.billing import prices, repository, service
from tenora_platform.billing.rating import PriceList
from tenora_platform.billing.schemas import (
    PriceVersion,
    PriceVersionCreate,
    PriceVersionList,
)
from tenora_platform.edge import EdgeRoute
from tenora_platform.operators.roles import MONEY_READERS
from tenora_platform.schemas import Deleted
from tenora_platform.state import AdminSession, State

router = APIRouter(tags=["billing"], route_class=EdgeRoute)


@router.get("/admin/v1/prices", dependencies=[Depends(require_role(*MONEY_READERS))])
async def list_prices(session: AdminSession) -> PriceVersionList:
    """Every price list there was, is and will be, oldest first; none that was withdrawn."""
    found = await repository.price_lists(session)
    return PriceVersionList(data=[_view(price) for price in found])


@router.post("/admin/v1/prices", status_code=201, dependencies=[Depends(require_role("billing"))])
async def create_price(body: PriceVersionCreate, state: State, admin: CurrentAdmin) -> PriceVersion:
    """Add a price list. Events that waited for a price are rated at once; what has been rated
    before is never changed: 409 `price_in_rated_period` names the earliest date allowed, also as
    `error.earliest_effective_from`."""
    async with state.db.admin_session() as session:
        price = await prices.add_price_version(
            session,
            model=body.model,
            plan=body.plan,
            currency=body.currency,
            effective_from=body.effective_from,
            per_million=body.per_million.model_dump(),
        )
        await state.audit.append(
            session,
            actor=admin.actor,
            action="price_version.create",
            target=price.id,
            after=asdict(price),
        )
    await service.rate_waiting(state.db)
    return _view(price)


@router.delete("/admin/v1/prices/{version_id}", dependencies=[Depends(require_role("billing"))])
async def withdraw_price(version_id: str, state: State, admin: CurrentAdmin) -> Deleted:
    """Take back a price list that has rated nothing; 409 `price_in_use` once it has."""
    async with state.db.admin_session() as session:
        price = await prices.withdraw_price_version(session, version_id)
        await state.audit.append(
            session,
            actor=admin.actor,
            action="price_version.withdraw",
            target=price.id,
            before=asdict(price),
        )
    await service.rate_waiting(state.db)
    return Deleted(id=price.id, object="price_version")


def _view(price: PriceList) -> PriceVersion:
    return PriceVersion.model_validate(
        {
            "id": price.id,
            "model": price.model,
            "plan": price.plan,
            "currency": price.currency,
            "effective_from": price.effective_from,
            "effective_to": price.effective_to,
            "per_million": dict(price.per_million),
        }
    )
