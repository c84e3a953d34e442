"""What a request is told while PostgreSQL or Redis is away: 503 with a code, for it may be sent
again; and 409 where another did the same at that moment. It knows their drivers' errors, not who
starts the servers again."""

from __future__ import annotations

import msgspec
import structlog
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from redis.exceptions import RedisError
from sqlalchemy.exc import (
    DataError,
    DBAPIError,
    IntegrityError,
    InterfaceError,
    OperationalError,
    StatementError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from structlog.stdlib import BoundLogger

from tenora_platform.errors import ConflictError, UnavailableError, response_of
from tenora_platform.marks import TakenError

_log = structlog.get_logger(__name__)


_UNIQUE_VIOLATION = "23505"
_OVERDUE = {
    "57014": "The database did not finish this in time. Ask for less at once, or try again later.",
    "55P03": "Somebody else is changing the same thing at this moment. Please try again.",
    "25P03": "This took too long and was rolled back. Please try again.",
    "40P01": "Somebody else is changing the same thing at this moment. Please try again.",
    "40001": "Somebody else is changing the same thing at this moment. Please try again.",
}
"""What `db.Database` lets PostgreSQL end: query_canceled, lock_not_available,
idle_in_transaction_session_timeout, and deadlock_detected and serialization_failure."""


OWN_FAULT = (
    DataError,
    IntegrityError,
    msgspec.MsgspecError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    AssertionError,
    RecursionError,
)
"""What can only be about the row at hand. Everything else (a server that is away, a schema that is
being migrated) is waited for."""


def is_own_fault(error: BaseException) -> bool:
    """Whether work on one row failed by what is in the row: it counts as an attempt, keeps no other
    row waiting, and is given up in the end."""
    # Not a subclass: those are what the database said, of which OWN_FAULT has some.
    return isinstance(error, OWN_FAULT) or type(error) is StatementError


def outage_of(error: Exception) -> UnavailableError | None:
    """The answer if the error means that a server is away or cannot take this request now; None if
    the mistake is ours."""
    state = _sqlstate(error)
    if state in _OVERDUE:
        return UnavailableError(_OVERDUE[state], code="database_timeout")
    if isinstance(error, RedisError):
        return UnavailableError(
            "Redis does not answer right now. Please try again.", code="redis_unavailable"
        )
    is_away = isinstance(error, OperationalError | InterfaceError | PoolTimeoutError)
    if is_away or (isinstance(error, DBAPIError) and error.connection_invalidated):
        return UnavailableError(
            "The database does not answer right now. Please try again.",
            code="database_unavailable",
        )
    return None


def _sqlstate(error: Exception) -> str:
    return str(getattr(getattr(error, "orig", None), "sqlstate", None) or "")


def install_outage_handlers(app: FastAPI) -> None:
    """Beside `errors.install_error_handlers`, for what no route foresees."""

    async def on_server_error(request: Request, error: Exception) -> JSONResponse:
        if _sqlstate(error) == _UNIQUE_VIOLATION:
            _log.warning("two requests at once made the same", reason=first_line(error))
            return response_of(
                ConflictError(
                    "Another request did the same at this moment. Look at what is there now, and "
                    "try again if it is still needed.",
                    code="done_at_once",
                    retry=True,
                )
            )
        outage = outage_of(error)
        if outage is None:
            raise error
        _log.warning(
            "Redis or the database did not answer", code=outage.code, reason=first_line(error)
        )
        return response_of(outage)

    for kind in (DBAPIError, PoolTimeoutError, RedisError):
        app.add_exception_handler(kind, on_server_error)


def log_failure(log: BoundLogger, event: str, error: Exception, **more: object) -> None:
    """Background work has failed: in one line where a server is away or another's, which says so
    itself, with a traceback where the mistake may be ours."""
    if outage_of(error) is not None or isinstance(error, TakenError):
        log.warning(event, reason=first_line(error), **more)
    else:
        log.error(event, exc_info=error, **more)


def kind_of(error: Exception) -> str:
    """An error as `/readyz` tells it, without a key: its words may be paths and addresses, which
    are for the log. Our own say what to do."""
    if isinstance(error, TakenError):
        return f"{type(error).__name__}: {first_line(error)}"
    return f"{type(error).__name__}, see the log"


def first_line(error: Exception) -> str:
    """An error in one line, also where it has no words."""
    return str(error).partition("\n")[0] or type(error).__name__
