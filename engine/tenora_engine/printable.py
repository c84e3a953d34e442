"""Text that others wrote, made fit to be shown: no character in it moves a cursor, turns the
direction of a line, hides, or begins a line of its own. Of an error's words, what a URL keeps
secret is left out as well. It knows neither logs nor terminals."""

from __future__ import annotations

import logging
import re
import sys
import threading
import traceback
import unicodedata
from types import TracebackType

_log = logging.getLogger(__name__)

BRIEF_MAX = 300
"""Characters of somebody else's words in a message of ours."""
MESSAGE_MAX = 500
"""Characters of a whole message."""
CONTINUED = "  | "
"""The beginning of every line of a log entry but its first, so that nothing in a traceback can look
like the next entry."""

_OF_USER = re.compile(
    r"(?<=://)(?:"
    r"[^\s/?#'\"]{0,256}@"  # user:password@
    # The same with a slash or another character in the password that belongs escaped; after a
    # host, :8000/ is its port.
    r"|[^\s/@:\[]{0,256}:(?!\d+(?:[/?#\s'\"]|$))[^\s]{0,256}@"
    r")"
)
_NAMED = re.compile(
    r"((?:password|passwd|pwd|secret|token|signature|credential"
    r"|(?:api|access|account|secret|shared)[_-]?key|(?<=[?&])sig))"
    r"(=|: Some\(|%3[dD])('[^']*'|\"[^\"]*\"|[^\s&;,'\"<>)]+)",
    re.IGNORECASE,
)
# Each bound keeps the time in line with the length, whoever wrote the text.
HIDDEN = "***"
_SEEN_BEYOND = 1000  # characters, for a secret that is cut off is not known as one


def hide_secrets(text: str) -> str:
    """The same without what URLs and connection strings in it keep secret: user and password,
    parameters such as `?sslpassword=` and signatures. Names of hosts and databases stay."""
    if "://" in text:
        text = _OF_USER.sub(f"{HIDDEN}@", text)
    if "=" in text or "Some(" in text or "%3" in text:
        text = _NAMED.sub(rf"\1\2{HIDDEN}", text)
    return text


def printable(text: str) -> str:
    """One line: control, format and unassigned characters and line ends become escapes such as
    `\\x1b` and `\\u202e`."""
    return text if text.isprintable() else "".join(map(_shown, text))


def brief(words: object, most: int = BRIEF_MAX) -> str:
    """At most `most` characters in one line, for a message or a row: a space takes the place of
    what cannot be printed, and no URL in it has a secret."""
    text = str(words)
    if len(text) > most + _SEEN_BEYOND:
        text = text[: most + _SEEN_BEYOND]
    text = hide_secrets(text)
    shown = text[:most]
    if not shown.isprintable():
        shown = "".join(each if each.isprintable() else " " for each in shown)
    return shown if len(text) <= most else f"{shown[: most - 3]}..."


def printable_lines(text: str, before: str = "") -> str:
    """As many lines as it has by "\\n", each as `printable` has it; all but the first begin with
    `before`."""
    first, *more = text.rstrip("\n").split("\n")
    return "\n".join([printable(first), *(before + printable(line) for line in more)])


class PrintableFormatter(logging.Formatter):
    """An entry of the standard library's loggers, tracebacks included, as `printable_lines` and
    without URLs' secrets."""

    def format(self, record: logging.LogRecord) -> str:
        return printable_lines(hide_secrets(super().format(record)), CONTINUED)


def log_printable(level: int, format_: str) -> None:
    """Let this process's standard loggers write so, on standard error, and what ends a thread or
    the process be one of their entries."""
    handler = logging.StreamHandler()
    handler.setFormatter(PrintableFormatter(format_))
    logging.basicConfig(level=level, handlers=[handler])
    sys.excepthook = _ended
    threading.excepthook = lambda ended: _ended(
        ended.exc_type, ended.exc_value or ended.exc_type(), ended.exc_traceback
    )


def write_traceback() -> None:
    """Write the traceback of the error being handled to standard error, where a process has no
    loggers."""
    text = printable_lines(hide_secrets(traceback.format_exc()), CONTINUED)
    sys.stderr.write(f"{CONTINUED}{text}\n")
    sys.stderr.flush()


def _ended(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
    elif not issubclass(kind, SystemExit):
        _log.critical("ended by an error of its own", exc_info=(kind, error, trace))


def _shown(letter: str) -> str:
    if letter.isprintable() or unicodedata.category(letter) == "Zs":
        return letter
    return letter.encode("unicode_escape").decode()
