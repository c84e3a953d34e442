"""What both embedded servers need: a user to run as, free ports, sockets whose path fits, and a
clean end for a process that a killed run has left behind."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

_TETHER = Path(__file__).with_name("tether.py")
_SOCKET_PATH_MAX = 100  # sun_path holds 104 (macOS) or 108 (Linux) bytes with its final zero


class EmbeddedServerError(Exception):
    """A server of our own could not run; says why and what to do."""


def socket_fits(path: Path) -> bool:
    """Whether a unix socket may lie here; else a port on the loopback is used."""
    return len(os.fsencode(path)) <= _SOCKET_PATH_MAX


def free_port() -> int:
    """A port on 127.0.0.1 that nobody listens on now. For a minute it is given to nobody else: it
    is in TIME_WAIT, and only who asks for it by its number, with SO_REUSEADDR, gets it."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", 0))
        probe.listen(1)
        with socket.create_connection(probe.getsockname()):
            probe.accept()[0].close()  # first, so that TIME_WAIT is this side's
        return int(probe.getsockname()[1])


def server_user() -> pwd.struct_passwd | None:
    """PostgreSQL refuses to run as root: then it runs as `postgres` if there is such a user, else
    as `nobody`. None: as ourselves."""
    if os.geteuid() != 0:
        _require_name(os.geteuid())
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise EmbeddedServerError(
        "PostgreSQL does not run as root, and there is neither a user 'postgres' nor 'nobody' "
        "to run it as. Run Tenora as an ordinary user, or set TENORA_DATABASE_URL to a server."
    )


def _require_name(uid: int) -> None:
    """Raises EmbeddedServerError for a user id without a name, as containers are given."""
    try:
        pwd.getpwuid(uid)
    except KeyError as error:
        raise EmbeddedServerError(
            f"PostgreSQL needs a name for its user, and the user id {uid} has none in /etc/passwd. "
            f"Add a line such as tenora:x:{uid}:0::/tmp:/sbin/nologin, or set TENORA_DATABASE_URL "
            "to a server."
        ) from error


def as_user(
    user: pwd.struct_passwd | None,
    command: Sequence[str | Path],
    reach: Sequence[Path],
    *,
    last: signal.Signals | None = None,
) -> list[str]:
    """`command`, to be run as `user`. If a folder on the way to one of `reach` is closed to others
    (a checkout under /root), the server keeps the one right to pass through it. It is sent `last`
    when its parent has died: what `tether` asked for is forgotten by a change of user."""
    words = [str(word) for word in command]
    if user is None:
        return words
    switch = [
        "setpriv",
        f"--reuid={user.pw_uid}",
        f"--regid={user.pw_gid}",
        "--clear-groups",
    ]
    if shutil.which("setpriv") is None:
        raise EmbeddedServerError(
            "Running as root needs setpriv (package util-linux) to start PostgreSQL as "
            f"'{user.pw_name}'. Install it, run Tenora as an ordinary user, or set "
            "TENORA_DATABASE_URL to a server."
        )
    if last is not None:
        switch.append(f"--pdeathsig={last.name.removeprefix('SIG')}")
    if not all(_open_to_others(path) for path in reach):
        # Reading and searching only, and not for a changed binary: see capabilities(7), ambient.
        switch += ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
    return [*switch, "--", *words]


def _open_to_others(path: Path) -> bool:
    return all(parent.stat().st_mode & 0o001 for parent in path.resolve().parents)


def run(command: Sequence[str], *, what: str, timeout_s: float = 60, **env: str) -> str:
    """Run to its end; its output. Raises EmbeddedServerError with the command's last words."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            cwd="/",
            env=_environment(**env),
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EmbeddedServerError(f"{what} failed: {error}") from error
    if done.returncode != 0:
        words = (done.stderr or done.stdout).strip()[-2000:]
        raise EmbeddedServerError(f"{what} failed (exit {done.returncode}): {words}")
    return done.stdout


def spawn(command: Sequence[str], log: Path, *, last: signal.Signals) -> subprocess.Popen[bytes]:
    """Start a server in a session of its own, so that Ctrl-C reaches the platform alone, which
    stops it in order. Should the platform die without that, the system sends it `last` (on Linux;
    elsewhere the next start ends it). Its output goes to `log`."""
    tied = [sys.executable, "-I", str(_TETHER), str(os.getpid()), str(int(last))]
    with log.open("ab") as output:
        return subprocess.Popen(
            [*(tied if sys.platform == "linux" else ()), *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd="/",
            env=_environment(),
        )


def stop_process(pid: int, first: signal.Signals, *, grace_s: float = 20) -> None:
    """Ask with `first`, wait, then SIGKILL. Works for our own children and for those that a killed
    run has left."""
    if not _signal(pid, first):
        return
    deadline = time.monotonic() + grace_s
    while time.monotonic() < deadline:
        if not is_alive(pid):
            return
        time.sleep(0.02)
    _signal(pid, signal.SIGKILL)
    while is_alive(pid) and time.monotonic() < deadline + 5:
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    """Whether the process runs; one of our own children that has ended is reaped on the way."""
    try:
        if os.waitpid(pid, os.WNOHANG)[0] == pid:
            return False
    except ChildProcessError:
        pass  # not ours, or reaped already
    return _signal(pid, 0)


def how_ended(process: subprocess.Popen[bytes] | None) -> str | None:
    """How a child of ours has ended, None while it runs."""
    if process is None:
        return "it was not started"
    status = process.poll()
    if status is None:
        return None
    return f"exit status {status}" if status >= 0 else f"signal {signal.Signals(-status).name}"


def is_server(pid: int, program: str, folder: Path) -> bool:
    """Whether this process is that program, run on that folder: its number may have been given to
    another since the pid file was written."""
    command = command_of(pid)
    return f"/{program} " in command and str(folder) in command


def command_of(pid: int) -> str:
    """The command line of a process, '' if there is none or it may not be seen."""
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        shown = subprocess.run(
            ["ps", "-o", "command=", "-p", str(pid)], capture_output=True, text=True, check=False
        )
        return shown.stdout.strip()
    return raw.replace(b"\0", b" ").decode(errors="replace").strip()


_MARKS = ("FATAL", "PANIC", "HINT", "# ")  # of PostgreSQL and of Valkey


def last_words(log: Path, size: int = 1500, lines: int = 3) -> str:
    """The last lines of a server's log, those of errors where it marks them: for an error message
    of one paragraph."""
    if not log.exists():
        return "(no log)"
    said = [line.strip() for line in log.read_text(errors="replace")[-size:].splitlines()]
    said = [line for line in said if "the database system is starting up" not in line]
    marked = [line for line in said if any(mark in line for mark in _MARKS)]
    return " / ".join((marked or [line for line in said if line])[-lines:])


def _signal(pid: int, number: int) -> bool:
    """Whether there is such a process that may be ours: the number of one that has ended may belong
    to another user's by now."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _environment(**more: str) -> dict[str, str]:
    # Names of the caller's own PostgreSQL (PGPORT, PGDATA, ...) must not reach ours.
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    return kept | {"LC_ALL": "C", "TZ": "UTC"} | more
