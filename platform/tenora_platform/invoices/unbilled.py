"""What no invoice has had yet: the sums of usage by day less what invoices that hold have had of
them. So what is late, or was on an invoice that is void, comes with the next one."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.billing.price_lists import METERS
from tenora_platform.invoices.lines import Used
from tenora_platform.invoices.tables import InvoiceRow
from tenora_platform.usage.booking import begin_taking
from tenora_platform.usage.sums import AMOUNTS

_COLUMNS = (*METERS, *AMOUNTS.values())
_TAKE = text(
    f"""
    INSERT INTO invoice_usage
      (invoice_id, tenant_id, day, series_id, price_version_no, {", ".join(_COLUMNS)})
    SELECT :invoice, :tenant, day, series_id, price_version_no,
           {", ".join(f"sum({column})" for column in _COLUMNS)}
      FROM (SELECT day, series_id, price_version_no, {", ".join(_COLUMNS)}
              FROM usage_days
             WHERE tenant_id = :tenant AND day < :end AND price_version_no = any(:prices)
             UNION ALL
            SELECT u.day, u.series_id, u.price_version_no,
                   {", ".join(f"-u.{column}" for column in _COLUMNS)}
              FROM invoice_usage u JOIN invoices i ON i.id = u.invoice_id
             WHERE u.tenant_id = :tenant AND u.day < :end AND i.status = 'final'
               AND u.price_version_no = any(:prices)) AS due
     GROUP BY day, series_id, price_version_no
    HAVING {" OR ".join(f"sum({column}) <> 0" for column in _COLUMNS)}
    """
)
_SUMS = text(
    f"""
    SELECT date_trunc('month', u.day)::date, s.class, u.price_version_no,
           {", ".join(f"sum(u.{column})" for column in _COLUMNS)}
      FROM invoice_usage u JOIN usage_series s ON s.id = u.series_id
     WHERE u.invoice_id = :invoice
     GROUP BY 1, 2, 3
    """
)


async def take_usage(
    session: AsyncSession, invoice: InvoiceRow, end: date, prices: Sequence[int]
) -> list[Used]:
    """Give the invoice all usage before `end` that no invoice has had, at these price versions (its
    currency's), and return it by month, meter, class and version. One statement: what is stored
    meanwhile is in it as a whole or not at all."""
    invoice.taken_at = await begin_taking(session, invoice.tenant_id)
    values = {"invoice": invoice.id, "tenant": invoice.tenant_id, "end": end}
    await session.execute(_TAKE, {**values, "prices": list(prices)})
    found = await session.execute(_SUMS, {"invoice": invoice.id})
    used: list[Used] = []
    for month, class_, no, *sums in found:
        quantities, amounts = sums[: len(METERS)], sums[len(METERS) :]
        used += [
            Used(month, meter, class_, no, int(quantity), amount)
            for meter, quantity, amount in zip(METERS, quantities, amounts, strict=True)
            if quantity or amount
        ]
    return used
