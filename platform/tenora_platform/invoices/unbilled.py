"""What no invoice has had yet: the sums of usage by day less what invoices that hold have had of
them. So what is late, or was on an invoice that is void, comes with the next one."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.invoices.lines import Used
from tenora_platform.invoices.tables import InvoiceRow

_PRICED = [
    "uncached_prefill",
    "cached_prefill",
    "output",
    "cold_load",
    "device_residency",
    "host_residency",
    "stored",
]
"""Sums of other meters are counts of what these charge."""

_TAKE = text(
    """
    INSERT INTO invoice_usage
      (invoice_id, tenant_id, day, series_id, meter, price_version_no, quantity, amount)
    SELECT :invoice, :tenant, day, series_id, meter, price_version_no, sum(quantity), sum(amount)
      FROM (SELECT day, series_id, meter, price_version_no, quantity, amount
              FROM usage_days
             WHERE tenant_id = :tenant AND day < :end AND meter = any(:meters)
               AND price_version_no = any(:prices)
             UNION ALL
            SELECT u.day, u.series_id, u.meter, u.price_version_no, -u.quantity, -u.amount
              FROM invoice_usage u JOIN invoices i ON i.id = u.invoice_id
             WHERE u.tenant_id = :tenant AND u.day < :end AND i.status = 'final'
               AND u.price_version_no = any(:prices)) AS due
     GROUP BY day, series_id, meter, price_version_no
    HAVING sum(quantity) <> 0 OR sum(amount) <> 0
    """
)
_SUMS = text(
    """
    SELECT date_trunc('month', u.day)::date, u.meter, s.class, u.price_version_no,
           sum(u.quantity), sum(u.amount)
      FROM invoice_usage u JOIN usage_series s ON s.id = u.series_id
     WHERE u.invoice_id = :invoice
     GROUP BY 1, 2, 3, 4
    """
)


async def take_usage(
    session: AsyncSession, invoice: InvoiceRow, end: date, prices: Sequence[int]
) -> list[Used]:
    """Give the invoice all usage before `end` that no invoice has had, at these price versions (its
    currency's), and return it by month, meter, class and version. One statement: what is stored
    meanwhile is in it as a whole or not at all."""
    values = {"invoice": invoice.id, "tenant": invoice.tenant_id, "end": end}
    await session.execute(_TAKE, {**values, "meters": _PRICED, "prices": list(prices)})
    found = await session.execute(_SUMS, {"invoice": invoice.id})
    return [
        Used(month, meter, class_, no, int(quantity), amount)
        for month, meter, class_, no, quantity, amount in found
    ]
