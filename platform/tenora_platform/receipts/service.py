"""Receipts as they are asked for: found in the books, checked by them, signed. Knows no HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from uuid import UUID

import structlog
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.errors import ApiError, BadRequestError, NotFoundError
from tenora_platform.receipts import repository
from tenora_platform.receipts.document import sign
from tenora_platform.receipts.filters import REASONS, Filters
from tenora_platform.receipts.receipt import (
    BooksDisagreeError,
    Charges,
    Facts,
    charges_of,
    content,
    status_of,
    told_status,
)
from tenora_platform.receipts.repository import Adapter, Names, Request
from tenora_platform.receipts.schemas import RequestItem, RequestPage
from tenora_platform.receipts.search import After, search
from tenora_platform.receipts.signing import SigningKeys
from tenora_platform.secret import ServerSecret
from tenora_platform.usage import series
from tenora_platform.usage.ids import event_text, request_of, x_request_id_of
from tenora_platform.usage.seal import Seals
from tenora_platform.usage.service import money

_STOPPED = "req"  # of an id that a search goes on behind
_log = structlog.get_logger(__name__)


class Receipts:
    """Works inside the caller's session, whose rows are the only ones it sees."""

    def __init__(self, keys: SigningKeys, secret: ServerSecret, issuer: str) -> None:
        self._keys = keys
        self._seals = Seals(secret)
        self._issuer = issuer

    async def receipt(
        self, session: AsyncSession, name: str, tenant_id: str | None = None
    ) -> bytes:
        """The signed receipt of a request, by the answer's id or the x-request-id. Raises
        NotFoundError; ApiError (500 `books_disagree`) rather than sign what does not hold."""
        request = await repository.find(session, name, tenant_id)
        if request is None:
            raise NotFoundError(
                f"There is no finished request {name[:80]!r}. A request that has just ended may "
                "take a second to appear."
            )
        waiting = await repository.waiting(session, request)
        facts = Facts(
            issuer=self._issuer,
            issued_at=datetime.now(UTC),
            prices=await repository.prices(session, [request]),
            adapters=await repository.adapters(session, [request]),
            waiting={sequence: row.reason for sequence, row in waiting.items()},
        )
        try:
            self._check_seals(request)
            said = content(request, facts)
        except BooksDisagreeError as error:
            _log.error(
                "no receipt: the records of the request do not agree",
                request=request.id,
                reason=str(error),
            )
            raise ApiError(
                "The stored records of this request do not agree with each other, so no receipt "
                f"can be made. Report the request {request.id} to the operator of this server.",
                code="books_disagree",
            ) from error
        signer = await self._keys.signer()
        return sign(said, signer.kid, signer.key)

    def _check_seals(self, request: Request) -> None:
        """Raises BooksDisagreeError."""
        for row, of in request.events:
            if not self._seals.holds(row) or not series.holds(self._seals, of):
                raise BooksDisagreeError(f"sequence {row.sequence}: its seal does not match")


async def request_page(
    session: AsyncSession, filters: Filters, after: str | None, limit: int
) -> RequestPage:
    """Raises BadRequestError."""
    if filters.start and filters.end and filters.start >= filters.end:
        raise BadRequestError("start must be before end.", param="start", code="invalid_value")
    found = await search(session, filters, None if after is None else _after(after), limit + 1)
    if found is None:
        raise BadRequestError(
            "after is not the id of a request in this search.",
            param="after",
            code="invalid_value",
        )
    page = await _page(session, found.requests, limit)
    if found.stopped is not None:
        stopped = event_text(_STOPPED, found.stopped.request, found.stopped.sequence or 0)
        page = page.model_copy(update={"has_more": True, "last_id": stopped, "searching": True})
    return page


def _after(name: str) -> After:
    """A request's id; or that of a usage event, at which a search stopped."""
    request_id, _, sequence = name.rpartition(":")
    if request_id and sequence.isascii() and sequence.isdigit() and len(sequence) < 10:
        return After(request_of(request_id)[1], int(sequence))
    return After(request_of(name)[1])


async def requests_named(
    session: AsyncSession, name: str, tenant_id: str | None, after: str | None, limit: int
) -> RequestPage:
    """Those whose id or x-request-id it is."""
    place = request_of(after)[1] if after is not None else None
    ids = await repository.named(session, name, tenant_id, place, limit + 1)
    return await _page(session, ids, limit)


async def _page(session: AsyncSession, ids: Sequence[UUID], limit: int) -> RequestPage:
    found = await repository.load(session, ids)
    prices = await repository.prices(session, found)
    adapters = await repository.adapters(session, found)
    names = await repository.names_of(session, found)
    items = [_item(each, adapters, names, charges_of(each, prices)) for each in found]
    return RequestPage.of(items, limit)


def _item(
    request: Request, adapters: dict[str, Adapter], names: Names, charges: Charges
) -> RequestItem:
    row, of = request.events[0]
    rows = [event.row for event in request.events]
    adapter = adapters.get(of.adapter_version_id or "")
    status = status_of(request)
    reasons = {each.finish_reason for each in rows}
    first_tokens = [each.first_token_ms for each in rows if each.first_token_ms is not None]
    return RequestItem(
        id=request.id,
        x_request_id=x_request_id_of(row.request, row.x_request_id),
        tenant_id=of.tenant_id,
        tenant_name=names.tenants.get(of.tenant_id),
        api_key_id=of.api_key_id,
        api_key_name=names.keys.get(of.api_key_id or ""),
        model=of.asked_model or of.model,
        adapter=f"{adapter.name}@{adapter.version}" if adapter else None,
        adapter_digest=of.adapter_digest,
        class_=of.class_,
        kind=of.kind,
        status=told_status(request),
        finish_reason=next(each for each in REASONS[status] if each in reasons),
        arrived_at=min(each.arrival_time for each in rows),
        finished_at=max(each.event_time for each in rows),
        queue_ms=_ms(max(each.queue_ms for each in rows)),
        adapter_load_ms=_ms(max(each.adapter_load_ms for each in rows)),
        ttft_ms=_ms(max(first_tokens)) if first_tokens else None,
        duration_ms=_ms(max(each.duration_ms for each in rows)),
        sequences=len(rows),
        prompt_tokens=sum(each.prompt_tokens for each in rows),
        cached_tokens=sum(each.cached_tokens for each in rows),
        output_tokens=sum(each.output_tokens for each in rows),
        amount=None if charges.amount is None else money(charges.amount),
        currency=charges.currency,
        waits_for_price=charges.waits,
    )


def _ms(value: float) -> float:
    return round(value, 3)
