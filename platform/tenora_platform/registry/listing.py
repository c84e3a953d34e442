"""A tenant's adapters as it sees them: what each name serves now, what came and what it cost, where
its bytes are. Reads rows, sums and the engine; changes nothing."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from decimal import Decimal
from typing import Literal

import structlog
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_engine.client import RESIDENCIES_MAX
from tenora_engine.errors import EngineError
from tenora_engine.events import Residency
from tenora_platform.auth import TenantContext
from tenora_platform.errors import BadRequestError, NotFoundError
from tenora_platform.outages import first_line
from tenora_platform.people.rights import role_may
from tenora_platform.registry import repository
from tenora_platform.registry import traffic as sums
from tenora_platform.registry.pages import AdapterOrder, adapters_page, count_adapters
from tenora_platform.registry.repository import SERVABLE
from tenora_platform.registry.schemas import Adapter, AdapterCost, AdapterPage, AdapterTraffic
from tenora_platform.registry.tables import AdapterAliasRow, AdapterRow, AdapterVersionRow
from tenora_platform.registry.views import adapter_view
from tenora_platform.state import AppState
from tenora_platform.usage.service import money

RESIDENCY_S = 0.25
"""The engine answers between two steps, which are long while it reads somebody's long prompt."""
_log = structlog.get_logger(__name__)


class Listing:
    """The adapters of one tenant, for one caller."""

    def __init__(self, state: AppState, tenant: TenantContext) -> None:
        self._state = state
        self._tenant = tenant

    @property
    def may_see_usage(self) -> bool:
        """What was used and what it cost is for who may see the tenant's usage."""
        role = self._tenant.role
        if role is not None:
            return role_may(role, "usage", reads=True)
        return "usage" in self._tenant.scopes

    async def page(
        self, *, q: str | None, order: AdapterOrder, after: str | None, limit: int
    ) -> AdapterPage:
        """Raises BadRequestError for an order that the caller may not see."""
        now = datetime.now(UTC)
        tenant_id = self._tenant.tenant_id
        values = None
        if order.by in ("requests", "cost"):
            if not self.may_see_usage:
                reason = f"Sorting by {order.by} needs the scope 'usage'."
                raise BadRequestError(reason, param="sort")
            values = await self._state.adapter_ranks.values(tenant_id, order.by, now)
        async with self._session() as session:
            rows = await adapters_page(
                session,
                tenant_id,
                q=q,
                order=order,
                values=values,
                after=after,
                limit=limit,
            )
            total = await count_adapters(session, tenant_id, q)
            views = await self._views(session, rows[:limit], now)
        return AdapterPage(
            data=views,
            first_id=views[0].id if views else None,
            last_id=views[-1].id if views else None,
            has_more=len(rows) > limit,
            total=total,
        )

    async def get(self, name: str) -> Adapter:
        """Raises NotFoundError."""
        async with self._session() as session:
            row = await repository.adapter_by_name(session, self._tenant.tenant_id, name)
            if row is None:
                raise NotFoundError(f"There is no adapter named {name[:80]!r}.", param="name")
            return (await self._views(session, [row], datetime.now(UTC)))[0]

    async def _views(
        self, session: AsyncSession, rows: Sequence[AdapterRow], now: datetime
    ) -> list[Adapter]:
        ids = [row.id for row in rows]
        versions: dict[str, list[AdapterVersionRow]] = defaultdict(list)
        for version in await repository.versions_of(session, ids, with_reports=False):
            versions[version.adapter_id].append(version)
        aliases: dict[str, list[AdapterAliasRow]] = defaultdict(list)
        for alias in await repository.aliases_of(session, ids):
            aliases[alias.adapter_id].append(alias)
        reports = await repository.short_reports(session, ids)
        where = await self._residencies([each for of in versions.values() for each in of])
        views = [
            adapter_view(row, versions[row.id], aliases[row.id], reports, where) for row in rows
        ]
        if self.may_see_usage:
            adapter_of = {each.id: each.adapter_id for of in versions.values() for each in of}
            await self._add_usage(session, views, adapter_of, now)
        return views

    async def _add_usage(
        self,
        session: AsyncSession,
        views: Sequence[Adapter],
        adapter_of: Mapping[str, str],  # by version
        now: datetime,
    ) -> None:
        tenant_id, since = self._tenant.tenant_id, sums.traffic_since(now)
        series = await sums.series_of(session, tenant_id, adapter_of)
        came = await sums.traffic(session, tenant_id, series, since)
        cost = await sums.costs(session, tenant_id, series, now)
        for view in views:
            view.traffic = _traffic(came.get(view.id, sums.Traffic()), since)
            view.month_costs = _costs(cost.get(view.id, {}))

    async def _residencies(self, versions: Sequence[AdapterVersionRow]) -> Mapping[str, Residency]:
        """By digest. Empty while the engine does not answer: nothing else depends on it, and a
        database connection waits with it."""
        served = {row.digest: None for row in versions if row.state in SERVABLE and row.digest}
        if not served or not self._state.engine.ready:
            return {}
        try:
            async with asyncio.timeout(RESIDENCY_S):
                return await self._state.engine.residencies(list(served)[:RESIDENCIES_MAX])
        except TimeoutError:
            return {}
        except EngineError as error:
            _log.warning("adapter residency unknown", reason=first_line(error))
            return {}

    def _session(self) -> AbstractAsyncContextManager[AsyncSession]:
        return self._state.db.tenant_session(self._tenant.tenant_id)


def _traffic(came: sums.Traffic, since: datetime) -> AdapterTraffic:
    return AdapterTraffic(
        start=since,
        requests=sum(came.by_hour),
        requests_by_hour=came.by_hour,
        prompt_tokens=came.prompt_tokens,
        cached_tokens=came.cached_tokens,
        output_tokens=came.output_tokens,
        total_tokens=came.prompt_tokens + came.output_tokens,
    )


def _costs(by_currency: Mapping[str, Decimal]) -> list[AdapterCost]:
    return [
        AdapterCost(amount=money(amount), currency=currency)
        for currency, amount in sorted(by_currency.items())
    ]


def order_of(sort: str | None, order: Literal["asc", "desc"]) -> AdapterOrder:
    """`sort` outranks `order`, which is by time. Raises BadRequestError."""
    if sort is None:
        return AdapterOrder("created", descending=order == "desc")
    by = sort.removeprefix("-")
    if by not in ("created", "name", "requests", "cost"):
        raise BadRequestError(
            "sort must be created, name, requests or cost, with '-' in front for descending "
            f"order, not {sort[:40]!r}.",
            param="sort",
            code="invalid_value",
        )
    return AdapterOrder(by, descending=sort.startswith("-"))  # type: ignore[arg-type]
