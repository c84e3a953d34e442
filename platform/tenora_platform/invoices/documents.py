"""An invoice as a file, CSV or PDF. It knows the answer that the API gives and nothing else."""

from __future__ import annotations

import asyncio
import csv
import io
from pathlib import Path

from starlette.responses import Response

from tenora_platform.invoices.schemas import Invoice

_COLUMNS = (
    "number",
    "period",
    "line",
    "kind",
    "description",
    "month",
    "meter",
    "class",
    "price_version",
    "quantity",
    "unit",
    "exact_amount",
    "amount",
    "currency",
)
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def csv_of(invoice: Invoice) -> str:
    """A row for each line; their amounts add up to the total. Texts that a spreadsheet would take
    for a formula begin with an apostrophe."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(_COLUMNS)
    for line in invoice.lines:
        writer.writerow(
            [
                _safe(invoice.number or "draft"),
                invoice.period,
                line.no,
                line.kind,
                _safe(line.description),
                line.month,
                line.meter,
                line.class_,
                line.price_version,
                line.quantity,
                line.unit,
                line.exact_amount,
                line.amount,
                invoice.currency,
            ]
        )
    return out.getvalue()


async def pdf_response(invoice: Invoice, font: Path | None) -> Response:
    """In a thread: fonts take a fifth of a second. fpdf2 is imported once it is needed."""

    def make() -> bytes:
        from tenora_platform.invoices.pdf import pdf_of

        return pdf_of(invoice, font)

    return _file(await asyncio.to_thread(make), "pdf", "application/pdf", invoice)


def csv_response(invoice: Invoice) -> Response:
    return _file(csv_of(invoice), "csv", "text/csv; charset=utf-8", invoice)


def _file(content: bytes | str, ending: str, media_type: str, invoice: Invoice) -> Response:
    """As a download named after the invoice."""
    name = (invoice.number or invoice.id).replace("/", "_")
    return Response(
        content,
        media_type=media_type,
        headers={
            "content-disposition": f'attachment; filename="{name}.{ending}"',
            "cache-control": "private, no-store",
        },
    )


def _safe(text: str) -> str:
    return f"'{text}" if text.startswith(_FORMULA) else text
