"""The worker of webhooks: makes deliveries of events, sends what is due, tries again for a day.
Several may run: each delivery is claimed by one, and one that dies gives it back in time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import structlog
from cryptography.fernet import InvalidToken
from sqlalchemy import func
from sqlalchemy.exc import SQLAlchemyError

from tenora_platform.db import Database, plain_reason
from tenora_platform.events.repository import told_of_erased
from tenora_platform.events.tables import EventRow
from tenora_platform.live.wakes import Wake
from tenora_platform.operations.metrics import Metrics
from tenora_platform.outages import OWN_FAULT
from tenora_platform.secret import ServerSecret
from tenora_platform.state import AppState
from tenora_platform.webhooks import repository, signing
from tenora_platform.webhooks.repository import Due
from tenora_platform.webhooks.sender import TIMEOUT_S, Outcome, Sender
from tenora_platform.webhooks.tables import WebhookDeliveryRow, WebhookEndpointRow

RETRY_S = (5, 30, 300, 1800, 7200, 18_000, 28_800, 36_000)
"""Before each attempt after the first; in all 25 hours and 40 minutes."""
JITTER = 0.2
AT_ONCE = 128  # of one process
OF_ENDPOINT, OF_TENANT = 4, 8
"""Deliveries in flight, over all processes: a receiver that hangs holds no more of the places."""
FOR_FIRST = AT_ONCE // 2
"""Places that only a tenant without any other delivery in flight gets: as many receivers of as many
tenants as that must hang before anybody waits for them."""
LEASE_S = 3 * TIMEOUT_S
EVERY_S = 1.0
QUIET_S = 10.0
"""While no delivery waits and no event came."""
_EVENTS = 200
_log = structlog.get_logger(__name__)


class WebhookWorker:
    """One runs in each worker."""

    def __init__(
        self,
        db: Database,
        secret: ServerSecret,
        metrics: Metrics,
        *,
        private: bool,
        sender: Sender | None = None,
        wake: Wake | None = None,
    ) -> None:
        """`wake`: there are events, or deliveries were asked for."""
        self._wake = wake or Wake()
        self._db = db
        self._box = signing.SecretBox(secret)
        self._metrics = metrics
        self._sender = sender or Sender(private=private)
        self._sending: set[asyncio.Task[None]] = set()
        self._waits = True  # a delivery, for its time or its turn

    @classmethod
    def of(cls, state: AppState, wake: Wake | None = None) -> WebhookWorker:
        private = state.settings.webhook_private_addresses
        return cls(state.db, state.secret, state.metrics, private=private, wake=wake)

    async def run(self) -> None:
        """Works for ever; cancel it to stop."""
        try:
            while True:
                try:
                    busy = await self.step()
                except (SQLAlchemyError, OSError) as error:
                    _log.warning(
                        "webhook deliveries are waiting",
                        reason=plain_reason(error),
                        retry_s=EVERY_S,
                    )
                    busy = False
                if not busy:
                    await self._something_ends()
        finally:
            for task in self._sending:
                task.cancel()

    async def step(self) -> bool:
        """Fan out what is new and begin to send what is due, as far as there is room; whether there
        was anything."""
        async with self._db.admin_session() as session:
            events = await repository.fan_out(session, _EVENTS)
            self._waits = await repository.any_waits(session)
        if not self._waits:
            return bool(events)
        room = AT_ONCE - len(self._sending)
        if not room:
            return bool(events)
        wanted = repository.Claim(
            of_endpoint=OF_ENDPOINT,
            of_tenant=OF_TENANT if room > FOR_FIRST else 1,
            limit=room - FOR_FIRST if room > FOR_FIRST else room,
            lease_s=LEASE_S,
        )
        async with self._db.admin_session() as session:
            ids = await repository.claim(session, wanted)
            due = await repository.to_send(session, ids) if ids else []
        for each in due:
            task = asyncio.create_task(self._deliver(each))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)
        return bool(events or due)

    async def _something_ends(self) -> None:
        """For a moment at most: where one ends, the next of its endpoint may begin. While there is
        nothing to send, until there is."""
        if self._sending:
            await asyncio.wait(self._sending, timeout=EVERY_S, return_when=asyncio.FIRST_COMPLETED)
        else:
            await self._wake.wait(EVERY_S if self._waits else QUIET_S, EVERY_S)

    async def settled(self) -> None:
        """Until nothing is being sent."""
        while self._sending:
            await asyncio.wait(self._sending)

    async def _deliver(self, due: Due) -> None:
        row = due.row
        try:
            try:
                outcome = await self._send(due)
            except OWN_FAULT as error:  # whatever is in the event: it must not be sent for ever
                _log.exception("webhook cannot be sent", delivery=row.id)
                failure = f"the server failed ({type(error).__name__})"
                outcome = Outcome(None, failure, is_final=True)
            await self._settle(row, due.endpoint, outcome)
        except (SQLAlchemyError, OSError) as error:
            # Its lease ends, and it is sent again: twice rather than never.
            _log.warning(
                "webhook delivery not recorded", delivery=row.id, reason=plain_reason(error)
            )

    async def _send(self, due: Due) -> Outcome:
        endpoint, event = due.endpoint, due.event
        data = told_of_erased(event.type, event.data) if due.is_erased else event.data
        if data is None or (due.is_erased and endpoint.tenant_id is not None):
            return Outcome(None, "the event's tenant has been erased", is_final=True)
        if endpoint.deleted_at is not None or endpoint.disabled_at is not None:
            return Outcome(None, "the endpoint is disabled", is_final=True)
        now = datetime.now(UTC)
        keys = [endpoint.secret]
        if endpoint.previous_secret and (endpoint.previous_expires_at or now) > now:
            keys.append(endpoint.previous_secret)
        try:
            opened = [self._box.opened(each) for each in keys]
        except InvalidToken:
            return Outcome(None, "its secret was created under another server secret; rotate it")
        body = body_of(event, data)
        headers = signing.headers(opened, event.id, int(now.timestamp()), body)
        owner = endpoint.tenant_id or ""
        return await self._sender.send(endpoint.url, headers, body, owner=owner)

    async def _settle(
        self, row: WebhookDeliveryRow, endpoint: WebhookEndpointRow, outcome: Outcome
    ) -> None:
        now = datetime.now(UTC)
        values: dict[str, object] = {
            "last_at": now,
            "last_status": outcome.status,
            "last_error": outcome.error,
        }
        wait_s = retry_after_s(row.attempts, outcome)
        if outcome.delivered:
            values["state"] = "delivered"
        elif wait_s is None:
            values["state"] = "dead"
        else:
            values["next_at"] = func.now() + timedelta(seconds=wait_s)  # as claims look at it
        async with self._db.admin_session() as session:
            await repository.settle(session, row, **values)
            if outcome.gone:
                await repository.disable(session, endpoint.id, now, "it answered 410 Gone")
                await repository.bury(session, endpoint.id, "the endpoint answered 410 Gone")
        became = "delivered" if outcome.delivered else "dead" if wait_s is None else "failed"
        self._metrics.webhook_attempts.labels(became).inc()
        if became != "delivered":
            _log.info(
                "webhook not delivered",
                delivery=row.id,
                endpoint=endpoint.id,
                attempt=row.attempts,
                status=outcome.status,
                again_in_s=wait_s,
            )


def retry_after_s(attempts: int, outcome: Outcome) -> float | None:
    """How long to wait after the attempt of this number (from 1); None: it is given up."""
    if outcome.delivered or outcome.gone or outcome.is_final or attempts > len(RETRY_S):
        return None
    wait_s = RETRY_S[attempts - 1] * random.uniform(1 - JITTER, 1 + JITTER)
    return max(wait_s, outcome.retry_after_s or 0.0)


def body_of(event: EventRow, data: Mapping[str, Any]) -> bytes:
    """The same bytes at each attempt: the event as it was told; of an erased tenant, less."""
    return msgspec.json.encode(
        {
            "type": event.type,
            "timestamp": event.created_at.astimezone(UTC).isoformat(),
            "id": event.id,
            "tenant_id": event.tenant_id,
            "data": data,
        }
    )
