"""Fixtures of backups: an installation to back up, empty places to restore into, a backup that a
test may damage; and the two commands, when they succeed and when they refuse."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import psycopg
import pytest

from api_harness import SECRET, running_api
from platform_fixtures import Servers, plain_url, with_database
from tenora_platform.backup.manifest import encode, read_manifest, sealed
from tenora_platform.backup.place import Place
from tenora_platform.secret import ServerSecret
from tenora_platform.settings import Settings
from whole_installation import Whole, fill, tenora


@pytest.fixture
def own(settings: Settings, servers: Servers, tmp_path: Path) -> Settings:
    """An installation of this test's own."""
    changes = {"data_dir": tmp_path / "data", "database_url": servers.new_database()}
    return settings.model_copy(update=changes)


@pytest.fixture
def machine(settings: Settings, tmp_path: Path) -> Settings:
    """One on which nothing is, not even the secret: it has servers of its own."""
    changes = {"data_dir": tmp_path / "machine", "database_url": None, "redis_url": None}
    return settings.model_copy(update={**changes, "secret": None})


@pytest.fixture
def empty(settings: Settings, servers: Servers, tmp_path: Path) -> Settings:
    """An empty place at the operator's own server."""
    return settings.model_copy(
        update={
            "data_dir": tmp_path / "empty",
            "database_url": empty_database(servers),
            "redis_url": None,
        }
    )


def empty_database(servers: Servers) -> str:
    name = f"empty_{next(servers.numbers)}"
    servers.execute("CREATE DATABASE {}", name)
    return with_database(servers.postgres_url, name)


@pytest.fixture(scope="module")
async def source(
    settings: Settings, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Whole]:
    """A backup of a small installation, with its secret."""
    folder = tmp_path_factory.mktemp("source")
    async with running_api(settings, folder) as api:
        whole = await fill(api)
    code, text = await asyncio.to_thread(
        tenora, settings, "backup", str(folder / "backup"), "--with-secret"
    )
    assert code == 0, text
    return folder / "backup", whole


@pytest.fixture
def backup(source: tuple[Path, Whole], tmp_path: Path) -> Path:
    """A copy that the test may damage."""
    return shutil.copytree(source[0], tmp_path / "backup")


async def made(settings: Settings, to: Path, *words: str) -> str:
    code, text = await asyncio.to_thread(tenora, settings, "backup", str(to), *words)
    assert code == 0, text
    return text


async def restored(settings: Settings, backup: Path) -> str:
    code, text = await asyncio.to_thread(tenora, settings, "restore", str(backup))
    assert code == 0, text
    return text


def refused(settings: Settings, *words: str, secret: str | None = SECRET) -> str:
    """The one sentence."""
    code, text = tenora(settings, *words, secret=secret)
    assert code == 1, text
    assert "Traceback" not in text
    assert text.count("tenora:") == 1, text
    return text


def untouched(settings: Settings) -> None:
    """No restore has written anything there."""
    assert not settings.data_dir.exists() or not any(settings.data_dir.rglob("?*"))
    if settings.database_url is not None:
        with psycopg.connect(plain_url(settings.database_url)) as link:
            found = link.execute("SELECT relname FROM pg_class WHERE relname = 'tenants'")
            assert found.fetchone() is None


def change_manifest(backup: Path, secret: str | None = None, **changes: object) -> None:
    """By hand; with the secret, sealed anew."""
    path = backup / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    if secret is not None:
        whole = read_manifest(Place(str(backup)))
        path.write_bytes(encode(sealed(whole, ServerSecret(secret.encode()))))
