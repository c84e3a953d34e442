"""Keeps an embedded server up: starts it, and starts it again at the same address when it has died.
Knows neither server; what a dead one left behind is each server's own to clear away."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import structlog

from tenora_engine.backoff import Backoff
from tenora_platform.embedded.process import EmbeddedServerError

_LOOK_S = 0.1
_log = structlog.get_logger(__name__)


class Server(Protocol):
    """A server of ours. One thread at a time has it."""

    name: str

    def start(self) -> None:
        """Clear away what the last run left, start, wait until it answers; always at the same
        address. Raises EmbeddedServerError."""

    def stop(self) -> None: ...

    def ended(self) -> str | None:
        """How its process has ended; None while it runs."""


@contextmanager
def upheld(server: Server) -> Iterator[None]:
    """`server` runs for as long as the block does, whoever kills it. Raises EmbeddedServerError
    when it cannot be started the first time."""
    stopping = threading.Event()
    keeper = threading.Thread(
        target=_keep, args=(server, stopping), name=f"keep-{server.name}", daemon=True
    )
    try:
        server.start()
        keeper.start()
        yield
    finally:
        stopping.set()
        if keeper.ident is not None:
            keeper.join()
        server.stop()


def _keep(server: Server, stopping: threading.Event) -> None:
    backoff = Backoff()
    started_s = time.monotonic()
    while not stopping.wait(_LOOK_S):
        how = server.ended()
        if how is None:
            continue
        died_s = time.monotonic()
        _log.error("embedded server died and is being restarted", server=server.name, how=how)
        while not stopping.wait(backoff.after(time.monotonic() - started_s)):
            started_s = time.monotonic()
            try:
                server.start()
            except (EmbeddedServerError, OSError) as error:
                _log.error(
                    "embedded server cannot be started", server=server.name, reason=str(error)
                )
            else:
                away_s = round(time.monotonic() - died_s, 2)
                _log.warning("embedded server is running again", server=server.name, away_s=away_s)
                break
