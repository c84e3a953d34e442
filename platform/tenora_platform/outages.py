"""What a request is told while PostgreSQL, Redis or the object store cannot be used: 503 with a
code, for it may be sent again; and 409 where another did the same at that moment. It knows their
drivers' errors, not who starts the servers again."""

from __future__ import annotations

import re
from typing import Literal

import msgspec
import structlog
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from obstore.exceptions import (
    BaseError,
    GenericError,
    PermissionDeniedError,
    UnauthenticatedError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError
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

from tenora_platform.db import ReadOnlyError
from tenora_platform.db_link import NoAnswerError
from tenora_platform.errors import ConflictError, UnavailableError, response_of
from tenora_platform.marks import TakenError

_log = structlog.get_logger(__name__)

Trouble = Literal["refused", "timeout", "read-only", "full", "failed"]
"""In what way a server cannot be used, in a word that says nothing of where it is: it takes no
connection or no credentials, gives no answer, takes no writes, has no room; or anything else."""

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


def is_awaited(error: BaseException) -> bool:
    """Whether work failed by a server that is away, or by a schema that is being migrated, whatever
    the work is about: it is waited for. Not by an object store that answers: it may be one object
    that cannot be read."""
    if is_own_fault(error):
        return False
    if isinstance(error, BaseError):
        words = str(error)
        return any(each.search(words) for each in (_NO_CONNECTION, _TIMEOUT, _FULL_DISK))
    away = (DBAPIError, PoolTimeoutError, RedisError, UnavailableError)
    return isinstance(error, (*away, ConnectionError, TimeoutError))


_STATES: dict[str, Trouble] = {"25006": "read-only", "53100": "full"}
_READ_ONLY_MS, _FULL_MS = 5000, 10_000
_REDIS: dict[str, Trouble] = {"READONLY": "read-only", "OOM": "full", "MISCONF": "full"}
_FULL_DISK = re.compile(r"os error (28|122)\b")  # ENOSPC, EDQUOT, as obstore says it
_READ_ONLY_DISK = re.compile(r"os error (1|13|30)\b")  # EPERM, EACCES, EROFS
_STORE = (GenericError, PermissionDeniedError, UnauthenticatedError)  # others are about one object
_TIMEOUT = re.compile(r"kind: Timeout\b|\bTimedOut\b|timed out")
_NO_CONNECTION = re.compile(r"kind: Connect\b|ConnectionRefused|dns error")


def trouble_of(error: Exception) -> Trouble:
    """Of an error of a server's driver."""
    state = getattr(getattr(error, "orig", None), "sqlstate", None)
    if state in _STATES:
        return _STATES[state]
    if isinstance(error, BaseError):
        return _of_store(error)
    if isinstance(error, ReadOnlyError):
        return "read-only"
    if isinstance(error, ResponseError):
        return _REDIS.get(str(error).partition(" ")[0], _of_refusal(str(error)))
    timeouts = (RedisTimeoutError, PoolTimeoutError, TimeoutError)
    if isinstance(error, timeouts) or isinstance(getattr(error, "orig", None), NoAnswerError):
        return "timeout"
    away = (RedisConnectionError, OperationalError, InterfaceError, OSError)
    return "refused" if isinstance(error, away) else "failed"


def _of_refusal(words: str) -> Trouble:
    return "refused" if words.startswith(("NOPERM", "NOAUTH", "WRONGPASS")) else "failed"


def _of_store(error: BaseError) -> Trouble:
    words = str(error)
    if isinstance(error, PermissionDeniedError | UnauthenticatedError):
        return "read-only" if _READ_ONLY_DISK.search(words) else "refused"
    if _FULL_DISK.search(words):
        return "full"
    if _READ_ONLY_DISK.search(words):
        return "read-only"
    if _TIMEOUT.search(words):
        return "timeout"
    return "refused" if _NO_CONNECTION.search(words) else "failed"


def outage_of(error: Exception) -> UnavailableError | None:
    """The answer if the error means that a server is away or cannot take this request now; None if
    the mistake is ours."""
    state = _sqlstate(error)
    if state in _OVERDUE:
        return UnavailableError(_OVERDUE[state], code="database_timeout")
    trouble = trouble_of(error)
    if isinstance(error, RedisError):
        says = "takes no writes" if trouble in ("read-only", "full") else "does not answer"
        return UnavailableError(
            f"Redis {says} right now. Please try again.", code="redis_unavailable"
        )
    if isinstance(error, _STORE):
        return UnavailableError(
            f"The object store cannot be used right now ({trouble}). Please try again.",
            code="object_store_unavailable",
        )
    return _of_database(error, trouble)


def _of_database(error: Exception, trouble: Trouble) -> UnavailableError | None:
    if trouble == "read-only":
        return UnavailableError(
            "The database is read-only right now, and nothing was changed. Please try again later.",
            code="database_read_only",
            retry_after_ms=_READ_ONLY_MS,
        )
    if trouble == "full":
        return UnavailableError(
            "The database has no room left, and nothing was changed. Please try again later.",
            code="database_full",
            retry_after_ms=_FULL_MS,
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
        _log.warning("a server could not be used", code=outage.code, reason=first_line(error))
        return response_of(outage)

    for kind in (DBAPIError, PoolTimeoutError, RedisError, *_STORE):
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
