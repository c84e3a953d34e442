"""How the platform logs: one entry on standard error an event, no local variables (they may hold
keys or prompts), and no character in it that somebody else chose and a terminal obeys. Lines after
an entry's first, those of a traceback, are indented."""

from __future__ import annotations

import contextlib
import logging
import sys
from typing import TextIO, cast

import structlog
from structlog.typing import EventDict, WrappedLogger

from tenora_engine.printable import (
    CONTINUED,
    hide_secrets,
    log_printable,
    printable,
    printable_lines,
)
from tenora_platform.keys import hide_keys

_OF_SEVERAL_LINES = ("exception", "stack")


class _StandardError:
    """Whatever is standard error now. A terminal that has gone away must not fail a request, and
    there is nowhere left to say so."""

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()


def configure_logging(level: str) -> None:
    """For this process; other libraries' warnings go the same way."""
    number = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _made_printable,
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
            ),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=lambda *_: structlog.PrintLogger(cast(TextIO, _StandardError())),
    )
    log_printable(max(number, logging.WARNING), "%(asctime)s %(levelname)s %(name)s: %(message)s")


def _made_printable(_: WrappedLogger, __: str, entry: EventDict) -> EventDict:
    """The last before an entry becomes text. Of what a client sent (a path, a name) it has no
    key, and of a server's URL no password."""
    for name, value in entry.items():
        if name in _OF_SEVERAL_LINES:
            entry[name] = CONTINUED + printable_lines(_hidden(str(value)), CONTINUED)
        elif not isinstance(value, bool | int | float | None):
            shown = value if isinstance(value, str) else repr(value)
            entry[name] = printable(_hidden(shown))
    return entry


def _hidden(text: str) -> str:
    return hide_secrets(hide_keys(text))
