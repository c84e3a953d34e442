"""One connection to PostgreSQL whose every wait has an end on our side: a server that hangs, or a
network that swallows what is sent, is told from a slow statement, which the server ends itself."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
from psycopg import waiting
from psycopg.abc import RV, PQGen
from psycopg.pq import TransactionStatus

CONNECT_S = 10.0
"""For which a connection may take, to log in included."""
PING_S = 3.0
"""For which a connection may be silent when it is taken from the pool."""
MARGIN_S = 2.0
"""So much later than the server we give a statement up: mostly it ends by the server's word."""
_CANCEL_S = 1.0

TCP = {
    "keepalives_idle": "15",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}
"""libpq's own options for every URL: a peer that is gone is noticed within half a minute, also by
what waits for a migration or for a month's books."""


class NoAnswerError(psycopg.OperationalError):
    """The server takes what is sent and says nothing."""


class _Slices(psycopg.AsyncServerCursor[Any]):
    """A cursor of the server's that nobody need close: it ends with its transaction."""

    def __del__(self, *_: Any) -> None:
        pass  # psycopg would warn, of one whose reader was cancelled too


class Link(psycopg.AsyncConnection[Any]):
    """`answer_s` bounds each wait for the server. A connection that was waited for in vain is
    closed, since nobody knows what it will say next."""

    answer_s: float = PING_S

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.server_cursor_factory = _Slices

    async def wait(
        self,
        gen: PQGen[RV],
        interval: float = 0.1,
        timeout: float | None = None,  # noqa: ASYNC109 - psycopg's
    ) -> RV:
        bound = self.answer_s if timeout is None else timeout
        try:
            return await waiting.wait_async(gen, self.pgconn.socket, interval, bound)
        except psycopg.errors._WaitTimeout:
            if timeout is not None:  # psycopg's own, of a wait for notifications
                raise
            self.pgconn.finish()
            raise NoAnswerError(f"the server gave no answer within {bound:g} s") from None
        except asyncio.CancelledError:
            await self._call_off(gen, interval)
            raise

    async def _call_off(self, gen: PQGen[Any], interval: float) -> None:
        """The statement ends in the server, or the connection ends."""
        if self.pgconn.transaction_status != TransactionStatus.ACTIVE:
            return
        heard = False
        try:
            async with asyncio.timeout(_CANCEL_S):
                await self.cancel_safe(timeout=_CANCEL_S)
                await waiting.wait_async(gen, self.pgconn.socket, interval, _CANCEL_S)
                heard = True
        except psycopg.errors.QueryCanceled:
            heard = True
        except (psycopg.Error, psycopg.errors._WaitTimeout, OSError):
            pass  # a timeout is an OSError
        finally:
            if not heard:
                self.pgconn.finish()


async def connect(conninfo: str = "", **options: Any) -> Link:
    """Raises psycopg.OperationalError; of several hosts all together have `CONNECT_S`."""
    try:
        async with asyncio.timeout(CONNECT_S):
            return await Link.connect(conninfo, **options)
    except TimeoutError:
        raise NoAnswerError(f"no connection within {CONNECT_S:g} s") from None
