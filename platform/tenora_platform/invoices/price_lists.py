"""Price versions as an invoice needs them: the currency and the prices behind a line, and the terms
of a plan at a month's end. Read once for many invoices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.billing.tables import PriceRow, PriceVersionRow
from tenora_platform.invoices.currency import plain
from tenora_platform.invoices.lines import Line, Terms


@dataclass(frozen=True)
class PriceVersions:
    """Every version there is, withdrawn ones too: by number and, below, (meter, class) -> tiers."""

    by_no: Mapping[int, PriceVersionRow] = field(default_factory=dict)
    tiers: Mapping[str, Mapping[tuple[str, str], Sequence[PriceRow]]] = field(default_factory=dict)

    def currencies(self) -> list[str]:
        return sorted({each.currency for each in self.by_no.values()})

    def numbers(self, currency: str) -> list[int]:
        return [no for no, each in self.by_no.items() if each.currency == currency]

    def terms(self, tenant_id: str, plan: str, at: datetime) -> tuple[str, Terms] | None:
        """(currency, minimum and included) of the list in force until `at`, a month's end: the
        tenant's own before the plan's before the general one. None where there is no list."""
        fitting = [each for each in self.by_no.values() if _is_for(each, tenant_id, plan, at)]
        if not fitting:
            return None
        best = max(
            fitting,
            key=lambda each: (
                each.tenant_id is not None,
                each.plan is not None,
                each.effective_from,
            ),
        )
        return best.currency, Terms(minimum=best.minimum, included=best.included)

    def prices_of(self, line: Line) -> list[dict[str, Any]] | None:
        """As the line shows them: `[{"from": 0, "per_million": "0.10"}]`."""
        if line.price_version_no is None:
            return None
        version = self.by_no[line.price_version_no]
        lists = self.tiers.get(version.id, {})
        meter, class_ = line.meter or "", line.class_ or ""
        tiers = lists.get((meter, class_)) or lists.get((meter, "")) or ()
        return [
            {"from": each.from_quantity, "per_million": plain(each.per_million)} for each in tiers
        ]


def _is_for(each: PriceVersionRow, tenant_id: str, plan: str, at: datetime) -> bool:
    """Whether its terms hold for this tenant just before `at`."""
    return (
        each.withdrawn_at is None
        and each.model is None
        and each.adapter_id is None
        and each.tenant_id in (None, tenant_id)
        and each.plan in (None, plan)
        and each.effective_from < at
        and (each.effective_to is None or each.effective_to >= at)
    )


async def read_price_versions(session: AsyncSession) -> PriceVersions:
    versions = (await session.scalars(select(PriceVersionRow))).all()
    tiers: dict[str, dict[tuple[str, str], list[PriceRow]]] = {}
    for row in await session.scalars(select(PriceRow).order_by(PriceRow.from_quantity)):
        of = tiers.setdefault(row.price_version_id, {})
        of.setdefault((row.meter, row.class_), []).append(row)
    return PriceVersions({each.no: each for each in versions}, tiers)
