"""The `tenora` command as a test runs it, and a server on a port for it to speak to."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from typer.testing import CliRunner

from fake_engine import FakeEngine
from tenora_platform.app import create_app
from tenora_platform.cli.main import app as cli
from tenora_platform.embedded.process import free_port
from tenora_platform.settings import Settings


def run(*words: str, **environment: str) -> tuple[int, str]:
    """Exit code, and everything printed with whitespace made single."""
    result = CliRunner().invoke(cli, list(words), env={"COLUMNS": "200", **environment})
    return result.exit_code, re.sub(r"\s+", " ", result.output)


@dataclass(frozen=True)
class Listening:
    url: str
    engine: FakeEngine


@contextmanager
def served_in_a_thread(
    settings: Settings, folder: Path, port: int | None = None
) -> Iterator[Listening]:
    """A server on a port, in a thread of its own."""
    engine = FakeEngine(folder / "model")
    port = port or free_port()
    app = create_app(settings, engine=engine)
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_config=None, lifespan="on"))
    thread = threading.Thread(target=server.run)
    thread.start()
    deadline = time.monotonic() + 20
    while not server.started and time.monotonic() < deadline:
        time.sleep(0.01)
    yield Listening(f"http://127.0.0.1:{port}", engine)
    server.should_exit = True
    thread.join()
