"""The engine process: builds an engine and lets `serving` serve it. Run as `python -m
tenora_engine.transport.server` by `engine_process`, whose end ends it; or alone, by a call."""

from __future__ import annotations

import importlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, cast

import msgspec
import zmq

from tenora_engine.config import EngineConfig
from tenora_engine.errors import EngineError, ModelLoadError
from tenora_engine.garbage import collect_nothing_yet, seldom_collect
from tenora_engine.machine import raise_open_files, usable_cpus
from tenora_engine.printable import log_printable
from tenora_engine.threads import call_in_ending_thread, set_compute_threads
from tenora_engine.transport import messages as m
from tenora_engine.transport.address import EngineAddress
from tenora_engine.transport.engine_process import BUILD_ENGINE
from tenora_engine.transport.outbox import UsageOutbox
from tenora_engine.transport.serving import EngineServer

if TYPE_CHECKING:  # torch comes with it
    from tenora_engine.engine import Engine

_EXIT_S = 10.0  # after which a process whose owner is gone ends, whatever it is doing

_log = logging.getLogger("tenora_engine")


class _OwnerWatch:
    """Ends this process when its owner has: the owner holds the other end of standard input."""

    def __init__(self) -> None:
        self._server: EngineServer | None = None
        threading.Thread(target=self._wait, name="tenora-owner-watch", daemon=True).start()

    def serving(self, server: EngineServer) -> None:
        self._server = server

    def _wait(self) -> None:
        while os.read(0, 4096):
            continue
        if self._server is not None:
            self._server.stop()
            time.sleep(_EXIT_S)
        os._exit(1)


def serve_engine(
    config: EngineConfig,
    address: EngineAddress,
    factory: str = BUILD_ENGINE,
    report: Callable[[m.Listening | m.Loaded], None] = lambda report: None,
) -> BaseException | None:
    """Run an engine that nobody owns, on the main thread, until SIGTERM or SIGINT: then what runs
    is aborted and metered. `report` is told when it listens and when it serves.

    Returns what the engine failed with; its threads may then hang, so that the process should
    leave by `os._exit`. Raises ModelLoadError, MemoryBudgetError, InsecureEndpointError, and
    EngineUnavailableError when its address or its outbox is another engine's.
    """

    def until_signalled(server: EngineServer) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: server.stop())

    return _serve(m.Boot(config, address, factory), report, until_signalled)


def main() -> int:
    """The engine as a child. Exit status 0 after a clean stop, 1 when it could not be built or has
    failed."""
    collect_nothing_yet()
    report_fd = os.dup(1)
    os.dup2(2, 1)  # what libraries print must not get between the report's lines
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the owner's affair
    log_printable(logging.INFO, "tenora-engine %(levelname)s %(message)s")
    boot = msgspec.json.decode(_read_line(0), type=m.Boot)
    watch = _OwnerWatch()

    def until_told(server: EngineServer) -> None:
        signal.signal(signal.SIGTERM, lambda *_: server.stop())
        watch.serving(server)

    try:
        failure = _serve(boot, lambda report: _report(report_fd, report), until_told)
    except Exception as error:
        if not isinstance(error, EngineError):
            _log.exception("the engine could not be built")
        _report(report_fd, m.LoadFailed(m.error_info(error)))
        return 1
    return 0 if failure is None else 1


def _serve(
    boot: m.Boot,
    report: Callable[[m.Listening | m.Loaded], None],
    begins: Callable[[EngineServer], None],
) -> BaseException | None:
    """Raises what keeps the engine from serving; returns what ended it, None after `stop`."""
    comm = Path("/proc/self/comm")
    if comm.exists():
        comm.write_text("tenora-engine")
    raise_open_files()
    with boot.address.listening() as socket:
        report(m.Listening(socket.getsockopt_string(zmq.LAST_ENDPOINT)))
        engine = _build(boot)
        directory = boot.config.outbox_dir
        outbox = UsageOutbox(Path(directory) if directory is not None else None)
        server = EngineServer(socket, boot.address.token, outbox)
        begins(server)
        seldom_collect()
        report(m.Loaded())
        failure = server.serve(engine)
    if failure is not None:
        _log.error("the engine failed and its process exits: %s", failure, exc_info=failure)
    return failure


def _build(boot: m.Boot) -> Engine:
    """Raises what the factory raises: ModelLoadError, MemoryBudgetError."""
    module, _, name = boot.factory.partition(":")
    factory = cast(
        "Callable[[EngineConfig], Engine]", getattr(importlib.import_module(module), name)
    )
    set_compute_threads(boot.config.threads)
    if boot.config.kernels_dir is not None and boot.config.device == "cpu":
        from tenora_kernels.compiled.build import build_where_missing

        build_where_missing(Path(boot.config.kernels_dir), usable_cpus())
    try:
        return call_in_ending_thread(lambda: factory(boot.config))
    except MemoryError as error:
        raise ModelLoadError("this machine has too little memory for the model") from error


def _read_line(descriptor: int) -> bytes:
    """One line, byte by byte is fine: nothing after it must be taken from the owner watch."""
    line = bytearray()
    while not line.endswith(b"\n"):
        byte = os.read(descriptor, 1)
        if not byte:
            break
        line += byte
    return bytes(line)


def _report(descriptor: int, report: m.Report) -> None:
    os.write(descriptor, msgspec.json.encode(report) + b"\n")


if __name__ == "__main__":
    status = main()
    if status:  # threads that hang on a lost device or a slow store would keep the process
        logging.shutdown()
        os._exit(status)
