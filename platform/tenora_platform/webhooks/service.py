"""Endpoints of webhooks, a tenant's or the operator's: made, changed, rotated, ended, each change
audited; and their dead letters. It sends nothing itself."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import func
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.audit.service import OPERATOR, AuditLog
from tenora_platform.counted import refuse_more
from tenora_platform.errors import BadRequestError, ConflictError, NotFoundError
from tenora_platform.ids import new_id
from tenora_platform.webhooks import repository
from tenora_platform.webhooks.addresses import BadAddressError, parse
from tenora_platform.webhooks.schemas import (
    EndpointChange,
    EndpointCreate,
    NewWebhookEndpoint,
    WebhookDelivery,
    WebhookDeliveryPage,
    WebhookEndpoint,
    WebhookEndpointPage,
)
from tenora_platform.webhooks.signing import SecretBox, new_secret
from tenora_platform.webhooks.tables import WebhookDeliveryRow, WebhookEndpointRow

ENDPOINTS_MAX = 20
REVIVED_MAX = 1000


@dataclass(frozen=True)
class WebhookService:
    """Works inside one session; commits nothing itself. `tenant_id` None: the operator's."""

    session: AsyncSession
    audit: AuditLog
    box: SecretBox
    actor: str
    tenant_id: str | None
    private: bool

    async def page(self, asked: str | None, after: str | None, limit: int) -> WebhookEndpointPage:
        rows = await repository.list_endpoints(
            self.session, self.tenant_id, asked=asked, after=after, limit=limit
        )
        return WebhookEndpointPage.of([_view(row) for row in rows], limit)

    async def get(self, endpoint_id: str) -> WebhookEndpoint:
        return _view(await self._row(endpoint_id))

    async def create(self, body: EndpointCreate) -> NewWebhookEndpoint:
        """Raises BadRequestError for a URL that nothing is sent to, ConflictError for too many."""
        self._check(body.url)
        await refuse_more(
            self.session,
            "webhook_endpoints",
            self.tenant_id or OPERATOR,
            repository.endpoints_there(self.tenant_id),
            ENDPOINTS_MAX,
            lambda: ConflictError(
                f"There are already {ENDPOINTS_MAX} endpoints, the maximum. Delete one first.",
                code="too_many_endpoints",
            ),
        )
        secret = new_secret()
        row = WebhookEndpointRow(
            id=new_id("webhook"),
            tenant_id=self.tenant_id,
            url=body.url,
            types=body.types,
            description=body.description,
            created_by=self.actor,
            secret=self.box.closed(secret),
        )
        self.session.add(row)
        await self.session.flush()
        await self.session.refresh(row)
        await self._note("webhook_endpoint.create", row, None, _told(row))
        return NewWebhookEndpoint(**_view(row).model_dump(), secret=secret)

    async def change(self, endpoint_id: str, body: EndpointChange) -> WebhookEndpoint:
        """Raises as `create` does, and NotFoundError."""
        row = await self._row(endpoint_id, lock=True)
        before = _told(row)
        changes = body.model_dump(exclude_unset=True)
        for name, value in changes.items():
            if value is None and name != "types":
                raise BadRequestError(f"{name} cannot be null.", param=name)
        if "url" in changes:
            self._check(changes["url"])
            row.url_by = row.url_by if changes["url"] == row.url else self.actor
        enabled = changes.pop("enabled", None)
        for name, value in changes.items():
            setattr(row, name, value)
        if enabled is True:
            row.disabled_at = row.disabled_reason = None
        if enabled is False and row.disabled_at is None:
            row.disabled_at, row.disabled_reason = datetime.now(UTC), "by its owner"
        await self._note("webhook_endpoint.update", row, before, _told(row))
        return _view(row)

    async def rotate(self, endpoint_id: str, overlap_s: int) -> NewWebhookEndpoint:
        """A new secret; for `overlap_s` both sign. Raises NotFoundError."""
        row = await self._row(endpoint_id, lock=True)
        before, secret = _told(row), new_secret()
        row.previous_secret = row.secret if overlap_s else None
        row.previous_expires_at = (
            datetime.now(UTC) + timedelta(seconds=overlap_s) if overlap_s else None
        )
        row.secret = self.box.closed(secret)
        await self._note("webhook_endpoint.rotate", row, before, _told(row))
        return NewWebhookEndpoint(**_view(row).model_dump(), secret=secret)

    async def delete(self, endpoint_id: str) -> None:
        """Nothing more is sent to it. Raises NotFoundError."""
        row = await self._row(endpoint_id, lock=True)
        before = _told(row)
        row.deleted_at = datetime.now(UTC)
        await repository.bury(self.session, row.id, "the endpoint was deleted")
        await self._note("webhook_endpoint.delete", row, before, None)

    async def deliveries(
        self,
        endpoint_id: str,
        wanted: repository.DeliveriesWanted,
        after: str | None,
        limit: int,
    ) -> WebhookDeliveryPage:
        """Raises NotFoundError."""
        row = await self._row(endpoint_id)
        found = await repository.list_deliveries(
            self.session, row.id, wanted=wanted, after=after, limit=limit
        )
        return WebhookDeliveryPage.of([delivery_view(*each) for each in found], limit)

    async def resend(self, endpoint_id: str, delivery_id: str) -> WebhookDelivery:
        """Send it again, now and for a day, whatever became of it before. Raises NotFoundError."""
        row = await self._row(endpoint_id)
        found = await repository.get_delivery(self.session, row.id, delivery_id)
        if found is None:
            raise NotFoundError(f"There is no delivery {delivery_id[:80]!r}.")
        self._demand_enabled(row)
        delivery, type_ = found
        delivery.state, delivery.attempts, delivery.next_at = "waiting", 0, func.now()
        await self.session.flush()
        await self.session.refresh(delivery)
        await self._note(
            "webhook_delivery.resend", row, None, {"delivery": delivery.id, "type": type_}
        )
        return delivery_view(delivery, type_)

    async def resend_dead(self, endpoint_id: str) -> int:
        """All of its dead letters, as many as there may be; how many. Raises NotFoundError."""
        row = await self._row(endpoint_id, lock=True)
        self._demand_enabled(row)
        count = await repository.revive(self.session, row.id, REVIVED_MAX)
        await self._note("webhook_delivery.resend_dead", row, None, {"resent": count})
        return count

    async def _row(self, endpoint_id: str, *, lock: bool = False) -> WebhookEndpointRow:
        row = await repository.get_endpoint(self.session, endpoint_id, self.tenant_id, lock=lock)
        if row is None:
            raise NotFoundError(f"There is no webhook endpoint {endpoint_id[:80]!r}.")
        return row

    def _demand_enabled(self, row: WebhookEndpointRow) -> None:
        if row.disabled_at is not None:
            raise ConflictError(
                "This endpoint is disabled. Enable it first.", code="endpoint_disabled"
            )

    def _check(self, url: str) -> None:
        try:
            parse(url, private=self.private)
        except BadAddressError as error:
            raise BadRequestError(str(error), param="url", code="invalid_value") from None

    async def _note(
        self,
        action: str,
        row: WebhookEndpointRow,
        before: dict[str, Any] | None,
        after: dict[str, Any] | None,
    ) -> None:
        await self.session.flush()
        await self.audit.append(
            self.session,
            actor=self.actor,
            action=action,
            target=row.id,
            tenant_id=self.tenant_id,
            before=before,
            after=after,
        )


async def disable_made_by(
    session: AsyncSession,
    audit: AuditLog,
    makers: Collection[str],
    *,
    tenant_id: str | None,
    actor: str,
) -> int:
    """Nothing more goes where these actors, who have lost the right, have said; an owner may enable
    it again. Returns how many endpoints it was."""
    rows = await repository.leading_where_said(session, tenant_id, makers)
    for row in rows:
        before = _told(row)
        row.disabled_at, row.disabled_reason = datetime.now(UTC), "its maker lost the right to it"
        await audit.append(
            session,
            actor=actor,
            action="webhook_endpoint.update",
            target=row.id,
            tenant_id=tenant_id,
            before=before,
            after=_told(row),
        )
    return len(rows)


def delivery_view(row: WebhookDeliveryRow, type_: str) -> WebhookDelivery:
    names = "id event_id state attempts last_at last_status last_error created_at"
    return WebhookDelivery(
        **{name: getattr(row, name) for name in names.split()},
        type=type_,
        next_at=row.next_at if row.state == "waiting" else None,
    )


def _view(row: WebhookEndpointRow) -> WebhookEndpoint:
    now = datetime.now(UTC)
    overlap = row.previous_expires_at
    return WebhookEndpoint(
        id=row.id,
        url=row.url,
        url_by=row.url_by,
        created_by=row.created_by,
        types=row.types,
        description=row.description,
        enabled=row.disabled_at is None,
        disabled_reason=row.disabled_reason,
        previous_expires_at=overlap if overlap is not None and overlap > now else None,
        created_at=row.created_at,
    )


def _told(row: WebhookEndpointRow) -> dict[str, Any]:
    """As the audit log keeps it: without secrets."""
    names = "url types description disabled_at disabled_reason previous_expires_at"
    return {name: getattr(row, name) for name in names.split()}
