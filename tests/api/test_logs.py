"""What is written to a log is what we wrote: nothing that somebody else chose begins an entry, or
is obeyed by the terminal that shows it, whichever logger it comes by."""

from __future__ import annotations

import re
import subprocess
import sys
import unicodedata
from functools import cache

import pytest

HOSTILE = (
    "a\n2026-11-26 09:00:00 [error    ] forged entry\r\x1b[2J\x00\x9b31m\x85\u2028forged"
    "\u202eesrever\u200b\u2066\ufeff\x07end"
)
_PROGRAM = """
import asyncio, logging, sys, threading, warnings
import structlog
from sqlalchemy.exc import IntegrityError
from tenora_engine.printable import log_printable, write_traceback
from tenora_platform.logs import configure_logging
from tenora_platform.outages import log_failure

HOSTILE = {hostile!r}
if {as_engine}:
    log_printable(logging.INFO, "tenora-engine %(levelname)s %(message)s")
else:
    configure_logging("info")

class Named:
    def __repr__(self):
        return HOSTILE

def fail(text):
    raise ValueError(text)

def caught(log):
    try:
        try:
            fail(HOSTILE)
        except ValueError as error:
            detail = RuntimeError("DETAIL: (name)=(" + HOSTILE)
            raise IntegrityError("insert", {{}}, detail) from error
    except Exception as error:
        log(error)

if not {as_engine}:
    log = structlog.get_logger("tenora_platform.any")
    log.info("an event", name=HOSTILE, short="\\x1b[2J", many=[HOSTILE], of={{HOSTILE: HOSTILE}})
    log.warning("an event", value=Named(), error=ValueError(HOSTILE), data=HOSTILE.encode())
    log.info(HOSTILE)
    structlog.contextvars.bind_contextvars(process=HOSTILE)
    caught(lambda error: log.error("failed", exc_info=error))
    caught(lambda error: log.exception("failed"))
    caught(lambda error: log_failure(log, "background work failed", error))
    structlog.contextvars.clear_contextvars()
for name in ("tenora_engine.loop", "uvicorn.error", "uvicorn.access", "asyncio",
             "sqlalchemy.engine", "py.warnings", None):
    log = logging.getLogger(name)
    log.error(HOSTILE)
    log.error('%s - "%s %s HTTP/%s" %d', HOSTILE, "GET", HOSTILE, "1.1", 200)
    caught(lambda error: log.error("failed: %s", HOSTILE, exc_info=error))
    log.error("where", stack_info=True)
thread = threading.Thread(target=fail, args=(HOSTILE,))
thread.start(); thread.join()
try:
    fail(HOSTILE)
except ValueError:
    write_traceback()
fail(HOSTILE)
"""
_BEGINS = re.compile(
    r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d\S* (\[|[A-Z]+ )|tenora-engine [A-Z]+ |  \| )"
)


@cache
def written(as_engine: bool) -> str:
    program = _PROGRAM.format(hostile=HOSTILE, as_engine=as_engine)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, timeout=120, check=False
    )
    assert done.returncode == 1, done.stderr.decode()
    return done.stderr.decode()


@pytest.mark.parametrize("as_engine", [False, True], ids=["platform", "engine"])
def test_every_line_is_ours(as_engine: bool) -> None:
    lines = written(as_engine).removesuffix("\n").split("\n")
    assert len(lines) > 100
    assert [line for line in lines if not _BEGINS.match(line)] == []
    assert [line for line in lines if re.match(r"\S+ ?\S* \[error +\] forged", line)] == []


@pytest.mark.parametrize("as_engine", [False, True], ids=["platform", "engine"])
def test_nothing_in_it_is_obeyed_or_hidden(as_engine: bool) -> None:
    found = {
        letter
        for letter in written(as_engine).replace("\n", "")
        if unicodedata.category(letter) in ("Cc", "Cf", "Zl", "Zp", "Cs")
    }
    assert found == set()
    assert "\\u202e" in written(as_engine)
