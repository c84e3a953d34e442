"""A start that cannot be says why in one sentence, with exit code 1 and no traceback, and has
changed nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import psycopg
import pytest

from api_harness import SECRET
from platform_fixtures import Servers, plain_url
from shell import run
from small_disk import fill, small_disk
from tenora_platform.embedded.process import free_port

MIB = 1024**2


def refused(code: int, text: str) -> str:
    """The one sentence."""
    assert code == 1, text
    assert "Traceback" not in text
    assert text.count("tenora:") == 1, text
    return text


def started(command: str, data_dir: Path, **environment: str) -> tuple[int, str]:
    port = str(free_port())
    return run(command, TENORA_DATA_DIR=str(data_dir), TENORA_PORT=port, **environment)


@pytest.mark.parametrize("command", ["serve", "up"])
@pytest.mark.parametrize("name", ["", "objects", "spool", "postgres", "outbox"])
def test_a_file_in_place_of_a_folder(command: str, name: str, tmp_path: Path) -> None:
    path = tmp_path / "data" / name
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text("a file")
    text = refused(*started(command, tmp_path / "data"))
    assert f"{path} cannot be written to: a file exists in its place" in text
    assert path.read_text() == "a file"


@pytest.mark.parametrize("command", ["serve", "up", "worker", "engine"])
def test_a_mount_that_is_read_only(command: str, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", MIB) as folder:
        subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
        text = refused(*started(command, folder / "data"))
    assert "read-only file system" in text


@pytest.mark.parametrize("command", ["serve", "up"])
def test_a_full_disk(command: str, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", MIB) as folder:
        fill(folder)
        text = refused(*started(command, folder / "data"))
        assert not (folder / "data" / "secret").exists()
    assert "no space left on device" in text


def test_no_permission() -> None:
    """Where the tests run as root, as one without its right to pass over permissions."""
    plain = ["setpriv", "--bounding-set=-dac_override"] if os.geteuid() == 0 else []
    if plain and shutil.which("setpriv") is None:
        pytest.skip("no setpriv")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o555)
        named = {"TENORA_DATA_DIR": f"{folder}/data", "TENORA_PORT": str(free_port())}
        done = subprocess.run(
            [*plain, sys.executable, "-m", "tenora_platform.cli.main", "serve"],
            env={**os.environ, **named},
            capture_output=True,
            text=True,
            check=False,
        )
    assert "permission denied" in refused(done.returncode, done.stderr)


def test_an_older_program_on_a_newer_database(servers: Servers, tmp_path: Path) -> None:
    url = servers.new_database()
    with psycopg.connect(plain_url(url), autocommit=True) as link:
        link.execute("UPDATE alembic_version SET version_num = '9999'")
    named = {"TENORA_DATABASE_URL": url, "TENORA_SECRET": SECRET}
    for command in ("serve", "migrate", "worker"):
        redis = {"TENORA_REDIS_URL": servers.redis_url}
        text = refused(*started(command, tmp_path / "data", **named, **redis))
        assert "at revision 9999" in text
        assert "newer version" in text
    with psycopg.connect(plain_url(url)) as link:
        assert link.execute("SELECT version_num FROM alembic_version").fetchone() == ("9999",)
