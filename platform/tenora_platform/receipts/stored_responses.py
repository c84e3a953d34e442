"""Responses that their clients may come back to: written before a client is told that they are
stored, read one by one or as the conversation that ends with one. It knows JSON, not what it says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal
from weakref import WeakValueDictionary

import structlog
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.contexts import TenantContext
from tenora_platform.db import Database, plain_reason
from tenora_platform.errors import BadRequestError, NotFoundError, UnavailableError
from tenora_platform.operations.metrics import Metrics
from tenora_platform.receipts import stored_repository as repository
from tenora_platform.receipts.contents import Seal
from tenora_platform.secret import ServerSecret
from tenora_platform.turns import Turns

BYTES_MAX = 4 * 1024**2
"""Of one response and its input, as JSON."""
TURNS_MAX = 1000
"""Of a conversation."""
STORE_S = 5.0
"""So long a client waits for the database to store its response."""
READING_WAITING_MAX = 32
"""Requests of one tenant that read a conversation in one process, or wait for those before them."""
READ_S = 20.0
"""So long a request waits for its conversation, for those before it too."""
PLACES = 2
"""Responses sealed at once in one process."""
_RETRY_S = 0.25
_log = structlog.get_logger(__name__)

NotStored = Literal["off", "full", "too_large", "unavailable"]
"""Why a response that was to be stored is not."""


@dataclass(frozen=True)
class NewResponse:
    """Input and response are JSON."""

    id: str
    previous_id: str | None
    input: bytes
    response: bytes


@dataclass(frozen=True)
class Turn:
    """What was said of a conversation in one response, as JSON."""

    input: bytes
    response: bytes


class ResponseStore:
    """One in each process. Of a tenant it seals and writes one response at a time, opens one, and
    reads one conversation, so that a tenant has no more of the connections, of memory and of the
    threads than that. `opening`: the turns of what is opened, kept contents too."""

    def __init__(
        self,
        db: Database,
        secret: ServerSecret,
        metrics: Metrics,
        opening: Turns,
        *,
        most: int,
        most_bytes: int,
    ) -> None:
        self._db = db
        self._seal = Seal(secret)
        self._metrics = metrics
        self._most = repository.Most(most, most_bytes)
        self._opening = opening
        self._sealing = Turns(PLACES)
        self._writing: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._reading = Turns(
            1,
            tenant_waiting_max=READING_WAITING_MAX,
            what="requests that wait for the conversation of their previous_response_id",
            too_many="too_many_conversations",
            own_threads=False,
        )

    async def store(
        self, tenant: TenantContext, make: Callable[[], NewResponse]
    ) -> NotStored | None:
        """None once it is there for every process. `make` is called in a thread. Never raises what
        the database does: the answer was generated, and is charged."""
        row = await self._sealing.run(tenant.tenant_id, partial(self._sealed, tenant, make))
        if row is None:
            return self._not_stored("too_large")
        try:
            async with (
                asyncio.timeout(STORE_S),  # begins behind the seal, which may wait for others'
                self._writing.setdefault(tenant.tenant_id, asyncio.Lock()),
            ):
                outcome = await self._written(row)
        except TimeoutError:
            outcome = "unavailable"
        return None if outcome is None else self._not_stored(outcome)

    async def response(self, tenant: TenantContext, response_id: str) -> bytes:
        """As the client was sent it. Raises NotFoundError, RateLimitedError."""
        return await self._opened(tenant, response_id, "response", repository.response, _as_it_is)

    async def input(
        self, tenant: TenantContext, response_id: str, made: Callable[[bytes], bytes]
    ) -> bytes:
        """What is `made`, in a thread, of its own input's items, without those of the responses
        before it. Raises NotFoundError, RateLimitedError."""
        return await self._opened(tenant, response_id, "input", repository.input_of, made)

    async def delete(self, tenant: TenantContext, response_id: str) -> None:
        """Raises NotFoundError."""
        async with self._db.tenant_session(tenant.tenant_id) as session:
            if not await repository.forget(session, response_id, _only_by(tenant)):
                raise not_found(response_id)

    async def conversation(
        self, tenant: TenantContext, response_id: str, bytes_max: int
    ) -> list[Turn]:
        """What was said up to the end of that response, oldest first. Raises BadRequestError for
        one of which a part is not there, and one that is longer than `bytes_max` or TURNS_MAX;
        RateLimitedError where too many of the tenant's wait, UnavailableError after READ_S."""
        try:
            async with asyncio.timeout(READ_S), self._reading.turn(tenant.tenant_id):
                return await self._conversation(tenant, response_id, bytes_max)
        except TimeoutError as error:
            raise UnavailableError(
                "The conversation of previous_response_id could not be read in time. Send the "
                "request again, or the whole conversation in its input.",
                retry_after_ms=5000,
                param="previous_response_id",
                code="previous_response_unavailable",
            ) from error

    async def _conversation(
        self, tenant: TenantContext, response_id: str, bytes_max: int
    ) -> list[Turn]:
        async with self._db.tenant_session(tenant.tenant_id) as session:
            links = await repository.chain(session, response_id, TURNS_MAX, bytes_max)
            ids = _whole(links, response_id, _only_by(tenant), bytes_max)
            rows = await repository.contents(session, ids)
        return await self._opening.work(partial(self._turns, tenant.tenant_id, ids, rows))

    def _sealed(
        self, tenant: TenantContext, make: Callable[[], NewResponse]
    ) -> repository.Row | None:
        """None for what is too large."""
        new = make()
        size = len(new.input) + len(new.response)
        if size > BYTES_MAX:
            return None
        return repository.Row(
            tenant_id=tenant.tenant_id,
            id=new.id,
            made_by=tenant.key_id,
            previous_id=new.previous_id,
            input=self._seal.close_text(tenant.tenant_id, f"{new.id}/input", new.input),
            response=self._seal.close_text(tenant.tenant_id, f"{new.id}/response", new.response),
            bytes=size,
        )

    async def _written(self, row: repository.Row) -> NotStored | None:
        while True:
            try:
                async with self._db.tenant_session(row.tenant_id) as session:
                    return await repository.store(session, row, self._most)
            except repository.FullError:
                return "full"
            except (SQLAlchemyError, OSError) as error:
                _log.warning("response not stored yet", reason=plain_reason(error))
                await asyncio.sleep(_RETRY_S)

    def _not_stored(self, reason: NotStored) -> NotStored:
        self._metrics.responses_not_stored.labels(reason).inc()
        return reason

    async def _opened(
        self,
        tenant: TenantContext,
        response_id: str,
        part: str,
        find: Callable[[AsyncSession, str, str | None], Awaitable[bytes | None]],
        made: Callable[[bytes], bytes],
    ) -> bytes:
        def opened(sealed: bytes) -> bytes:
            text = self._seal.open_text(tenant.tenant_id, f"{response_id}/{part}", sealed)
            if text is None:
                raise NotFoundError(_UNREADABLE, code="contents_unreadable")
            return made(text)

        async with self._opening.turn(tenant.tenant_id):
            async with self._db.tenant_session(tenant.tenant_id) as session:
                sealed = await find(session, response_id, _only_by(tenant))
            if sealed is None:
                raise not_found(response_id)
            return await self._opening.work(partial(opened, sealed))

    def _turns(
        self, tenant_id: str, ids: Sequence[str], rows: dict[str, tuple[bytes, bytes]]
    ) -> list[Turn]:
        turns: list[Turn] = []
        for each in ids:
            if each not in rows:  # deleted since
                raise previous_not_found(each)
            sealed_input, sealed_response = rows[each]
            said = self._seal.open_text(tenant_id, f"{each}/input", sealed_input)
            response = self._seal.open_text(tenant_id, f"{each}/response", sealed_response)
            if said is None or response is None:
                raise BadRequestError(
                    _UNREADABLE, param="previous_response_id", code="contents_unreadable"
                )
            turns.append(Turn(said, response))
        return turns


def _as_it_is(text: bytes) -> bytes:
    return text


_UNREADABLE = "This response can no longer be read, because the server's secret has changed."


def not_found(response_id: str) -> NotFoundError:
    return NotFoundError(f"Response with id {response_id[:80]!r} not found.")


def previous_not_found(response_id: str) -> BadRequestError:
    return BadRequestError(
        f"Previous response with id {response_id[:80]!r} not found. It was not stored, or it was "
        "deleted or has expired. Send the conversation in the input.",
        param="previous_response_id",
        code="previous_response_not_found",
    )


def _only_by(tenant: TenantContext) -> str | None:
    """Whose responses these may be, by key or person; None: all of the tenant's, for who may read
    kept contents too."""
    return None if "keys" in tenant.scopes else tenant.key_id


def _whole(
    links: Sequence[repository.Link], response_id: str, only_by: str | None, bytes_max: int
) -> list[str]:
    """The ids of a whole conversation, oldest first, from its links, newest first."""
    missing: str | None = response_id
    for link in links:
        if only_by not in (None, link.made_by):
            raise previous_not_found(link.id)
        missing = link.previous_id
    if links and (
        links[-1].bytes_so_far > bytes_max or (missing is not None and len(links) == TURNS_MAX)
    ):
        raise BadRequestError(
            f"The conversation before this response is larger than {bytes_max} bytes or longer "
            f"than {TURNS_MAX} responses. Begin a new one.",
            param="previous_response_id",
            code="context_length_exceeded",
        )
    if missing is not None:
        raise previous_not_found(missing)
    return [link.id for link in reversed(links)]
