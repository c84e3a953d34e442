"""Whatever ends a supervisor, and whenever, ends all that it has started: parts that serve, parts
that are being replaced or replace them, and the servers of its data directory."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from api_harness import SECRET

ENDS_S = 30
SUPPORT = Path(__file__).parents[1] / "support"


@contextmanager
def platform(folder: Path, stub_s: str = "0.1,0.1") -> Iterator[subprocess.Popen[str]]:
    """Its parts carry the folder's name in their environment, which is how they are found."""
    python_path = os.pathsep.join([str(SUPPORT), *filter(None, sys.path)])
    child = subprocess.Popen(
        [sys.executable, "-m", "stub_platform", str(folder)],
        env={
            **os.environ,
            "PYTHONPATH": python_path,
            "STUB_S": stub_s,
            "TENORA_SECRET": SECRET,
            "STUB_OF": str(folder),
        },
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield child
    finally:
        for pid in {child.pid, *of(folder)}:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with child:
            child.wait()


def of(folder: Path) -> set[int]:
    """The processes of this installation that live."""
    found = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with suppress(OSError):
            named = (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes()
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            if str(folder).encode() in named and state not in "ZX":
                found.add(int(entry.name))
    return found


def nothing_is_left(folder: Path) -> None:
    deadline = time.monotonic() + ENDS_S
    while left := of(folder):
        commands = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in left if alive(pid)]
        assert time.monotonic() < deadline, commands
        time.sleep(0.05)


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def runs(child: subprocess.Popen[str]) -> None:
    assert child.stdout is not None
    assert child.stdout.readline() == "running\n"


@pytest.mark.parametrize("seed", range(6))
def test_signals_in_any_order(seed: int, tmp_path: Path) -> None:
    """Hangups, and a SIGTERM somewhere among them."""
    chance = random.Random(seed)
    with platform(tmp_path / "d") as child:
        runs(child)
        kinds = [signal.SIGHUP] * chance.randint(1, 4)
        last = chance.choice([signal.SIGTERM, signal.SIGINT])
        kinds.insert(chance.randint(1, len(kinds)), last)
        for kind in kinds:
            with suppress(ProcessLookupError):
                os.kill(child.pid, kind)
            time.sleep(chance.random() * chance.choice([0.02, 0.4]))
        child.wait(timeout=ENDS_S)
        assert not of(tmp_path / "d"), "all have ended before their supervisor has"


@pytest.mark.parametrize("when", ["serving", "replacing"])
def test_a_killed_supervisor_takes_all_with_it(when: str, tmp_path: Path) -> None:
    with platform(tmp_path / "d", "1,0") as child:
        runs(child)
        assert len(of(tmp_path / "d")) > 4, "two API processes, a worker, Valkey, the supervisor"
        if when == "replacing":
            os.kill(child.pid, signal.SIGHUP)
            time.sleep(0.2)
        child.kill()
        child.wait()
        nothing_is_left(tmp_path / "d")


def test_killed_with_an_embedded_database(tmp_path: Path) -> None:
    """PostgreSQL runs as another user where we are root."""
    folder = tmp_path / "d"
    code = (
        "import sys, time; from pathlib import Path;"
        "from tenora_platform.embedded.servers import running_servers;"
        "from tenora_platform.secret import ServerSecret;"
        "from tenora_platform.settings import Settings;"
        "settings = Settings(data_dir=Path(sys.argv[1]));"
        "server = running_servers(settings, ServerSecret(b'k' * 32)); server.__enter__();"
        "print('running', flush=True); time.sleep(600)"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE, text=True
    )
    try:
        runs(child)
        postgres = int((folder / "postgres/data/postmaster.pid").read_text().split()[0])
        valkey = int((folder / "valkey/valkey.pid").read_text())
        assert alive(postgres)
        assert alive(valkey)
        child.kill()
        child.wait()
        deadline = time.monotonic() + ENDS_S
        while alive(postgres) or alive(valkey):
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        with child:
            child.kill()
        for name in ("postgres", "valkey"):
            for pid in of(folder / name):
                os.kill(pid, signal.SIGKILL)
