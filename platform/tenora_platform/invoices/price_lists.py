"""Price versions as an invoice needs them: the currency and the prices behind a line. Read once for
many invoices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.billing.tables import PriceRow, PriceVersionRow
from tenora_platform.invoices.currency import plain
from tenora_platform.invoices.lines import Line


@dataclass(frozen=True)
class PriceVersions:
    """Every version there is, withdrawn ones too: by number and, below, (meter, class) -> tiers."""

    by_no: Mapping[int, PriceVersionRow] = field(default_factory=dict)
    tiers: Mapping[str, Mapping[tuple[str, str], Sequence[PriceRow]]] = field(default_factory=dict)

    def currencies(self) -> list[str]:
        return sorted({each.currency for each in self.by_no.values()})

    def numbers(self, currency: str) -> list[int]:
        return [no for no, each in self.by_no.items() if each.currency == currency]

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


async def read_price_versions(session: AsyncSession) -> PriceVersions:
    versions = (await session.scalars(select(PriceVersionRow))).all()
    tiers: dict[str, dict[tuple[str, str], list[PriceRow]]] = {}
    for row in await session.scalars(select(PriceRow).order_by(PriceRow.from_quantity)):
        of = tiers.setdefault(row.price_version_id, {})
        of.setdefault((row.meter, row.class_), []).append(row)
    return PriceVersions({each.no: each for each in versions}, tiers)
