"""What a part is given by whoever starts it, one line of JSON on its standard input, and how the
two ends stay in touch: the input's end says that the owner is gone, a line on the output that the
part works. Knows no part."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import structlog
from pydantic import SecretStr

from tenora_engine.transport.address import EngineAddress
from tenora_platform.logs import configure_logging
from tenora_platform.settings import Settings

READY = b"ready\n"
_LAST_WORDS_S = 5.0
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Handover:
    """`metrics_dir` is where the parts of one owner count together, this one as `counts_as`;
    `listen_fd` the listening socket that an API process has inherited."""

    name: str  # of the process among its like: "api-2"
    settings: Settings
    engine: EngineAddress
    metrics_dir: Path
    counts_as: str
    listen_fd: int | None = None

    def to_line(self) -> bytes:
        """Holds secrets: for a pipe, never for a file or a command line."""
        line = {
            "name": self.name,
            "settings": _plain(self.settings),
            "engine": msgspec.to_builtins(self.engine),
            "metrics_dir": str(self.metrics_dir),
            "counts_as": self.counts_as,
            "listen_fd": self.listen_fd,
        }
        return msgspec.json.encode(line) + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Handover:
        values = msgspec.json.decode(line)
        return cls(
            values["name"],
            Settings(**values["settings"]),
            msgspec.convert(values["engine"], EngineAddress),
            Path(values["metrics_dir"]),
            values["counts_as"],
            values["listen_fd"],
        )


def _plain(settings: Settings) -> dict[str, Any]:
    values = settings.model_dump(mode="json")
    for name in Settings.model_fields:
        secret = getattr(settings, name)
        if isinstance(secret, SecretStr):
            values[name] = secret.get_secret_value()
    return values


class Owner:
    """The other end, as the part sees it."""

    def __init__(self) -> None:
        self._stop: Callable[[], None] | None = None
        self._give_up_s = 0.0
        self._report_fd = os.dup(1)
        os.dup2(2, 1)  # what libraries print is no report

    def handover(self) -> Handover:
        """Read it; from here on the process is a part: it logs as one, and Ctrl-C in the terminal
        is its owner's affair."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        line = bytearray()
        while not line.endswith(b"\n"):
            if not (byte := os.read(0, 1)):  # nothing after the line may be taken: see `when_gone`
                raise SystemExit("tenora: this process can only be started by `tenora serve`")
            line += byte
        handover = Handover.from_line(bytes(line))
        configure_logging(handover.settings.log_level)
        structlog.contextvars.bind_contextvars(process=handover.name)
        name_process(f"tenora-{handover.name}")
        threading.Thread(target=self._wait, name="tenora-owner-watch", daemon=True).start()
        return handover

    def say_ready(self) -> None:
        os.write(self._report_fd, READY)

    def when_gone(self, stop: Callable[[], None], give_up_s: float) -> None:
        """Call `stop`, from another thread, when the owner has ended, however that came; after
        `give_up_s` end this process whatever it is doing. Until it is called, the process ends at
        once."""
        self._give_up_s = give_up_s
        self._stop = stop

    def _wait(self) -> None:
        while os.read(0, 4096):
            continue
        stop = self._stop
        if stop is not None:
            _log.warning("the parent process has ended; this process ends too")
            stop()
            time.sleep(self._give_up_s + _LAST_WORDS_S)
        os._exit(1)


def name_process(name: str) -> None:
    """As `ps` and `top` show it, where the system has that (Linux, 15 characters)."""
    comm = Path("/proc/self/comm")
    if comm.exists():
        comm.write_text(name[:15])
