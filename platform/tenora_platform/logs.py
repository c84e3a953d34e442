"""How the platform logs: one line an event on standard error, no local variables (they may hold
keys or prompts)."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import MutableMapping
from typing import Any, TextIO, cast

import structlog

from tenora_platform.keys import hide_keys


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


def _without_keys(
    logger: object, method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Of what a client sent (a path, a name), a line has no key."""
    for name, value in event.items():
        if isinstance(value, str):
            event[name] = hide_keys(value)
    return event


def configure_logging(level: str) -> None:
    """For this process; other libraries' warnings go the same way."""
    number = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            _without_keys,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
            ),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=lambda *_: structlog.PrintLogger(cast(TextIO, _StandardError())),
    )
    logging.basicConfig(
        level=max(number, logging.WARNING),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
