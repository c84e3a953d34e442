"""What older versions left is taken over: a database with data that another version has made, and
its backups. `installations/57d6134.tar.xz` is an installation as that commit's program wrote it."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from api_harness import running_api, stored_objects
from backup_places import empty_database
from books import reconcile, record, store
from platform_fixtures import Servers, plain_url
from tenora_platform import bootstrap, secret
from tenora_platform.backup import restoring
from tenora_platform.backup.place import BackupError
from tenora_platform.embedded.postgres import EmbeddedPostgres, find_binaries
from tenora_platform.installation import DEFAULT
from tenora_platform.receipts.document import verify
from tenora_platform.receipts.keys import read_key_set
from tenora_platform.resources import migrations_folder
from tenora_platform.settings import Settings
from verification import problems_of
from whole_installation import noon, tables, tenora

OLD_SECRET = "server-secret-of-the-tests"
ARCHIVE = Path(__file__).parents[1] / "support" / "installations" / "57d6134.tar.xz"


@dataclass(frozen=True)
class Old:
    settings: Settings
    known: dict[str, Any]  # of the tenant's: key, id, receipt


@pytest.fixture
def old_servers(servers: Servers, tmp_path: Path) -> Iterator[Servers]:
    """A PostgreSQL of its own: the passwords of an installation's roles follow from its secret."""
    own = secret.ServerSecret(OLD_SECRET.encode())
    postgres = EmbeddedPostgres(tmp_path / "postgres", own)
    postgres.start()
    bootstrap.prepare_database(bootstrap.database_urls(postgres.url, own, DEFAULT))  # the roles
    yield replace(servers, postgres_url=postgres.url, secret=own)
    postgres.stop()


@pytest.fixture
def old(
    settings: Settings, old_servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Old:
    """The installation of 57d6134, at revision 0038: 31 events, two invoices, an adapter. Its
    secret is shorter than one may be now."""
    monkeypatch.setattr(secret, "SECRET_MIN", len(OLD_SECRET))
    data = tmp_path / "data"
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(data, filter="data")
    known = json.loads((data / "keys.json").read_text())
    url = empty_database(old_servers)
    command = [str(find_binaries() / "psql"), "-qX", "-v", "ON_ERROR_STOP=1", "-d", plain_url(url)]
    subprocess.run([*command, "-f", str(data / "database.sql")], check=True, capture_output=True)
    secret.keep_secret(data, secret.ServerSecret(OLD_SECRET.encode()))
    changes = {"data_dir": data, "database_url": url, "secret": None}
    return Old(settings.model_copy(update=changes), known)


def revision(url: str) -> str:
    with psycopg.connect(plain_url(url)) as link:
        row = link.execute("SELECT version_num FROM alembic_version").fetchone()
    assert row is not None
    return str(row[0])


async def test_the_version_before_is_upgraded_with_its_data(
    old: Old, old_servers: Servers, settings: Settings, tmp_path: Path
) -> None:
    url = str(old.settings.database_url)
    assert revision(url) == "0038"
    before = tables(url)
    code, text = await asyncio.to_thread(tenora, old.settings, "migrate", secret="")
    assert code == 0, text
    for name in ("usage_events", "ledger_entries", "invoices", "audit_logs", "signing_keys"):
        assert len(before[name]) > 0
        assert len(tables(url)[name]) == len(before[name])
    async with running_api(old.settings, tmp_path / "1") as api:
        key, tenant = old.known["key"], old.known["tenant"]
        listed = (await api.call(key, "GET", "/v1/adapters")).json()["data"]
        assert [each["state"] for each in listed] == ["active"]
        keys = (await api.http.get("/.well-known/tenora-keys.json")).json()
        receipt = verify(old.known["receipt"].encode(), read_key_set(keys))
        assert receipt["tenant_id"] == tenant
        await store(api, [record(tenant, noon(0))])
        run = await reconcile(api)
        assert run["agrees"], run["named"]
        assert run["looked"]["events"] == 32
        assert await problems_of(api.state) == []
        await api.state.store.problem()
        assert api.state.store.told is not None
        assert api.state.store.told.problem is None, "its store is adopted"
        kept = stored_objects(api)
    backup = str(tmp_path / "backup")
    code, text = await asyncio.to_thread(tenora, old.settings, "backup", backup, secret="")
    assert code == 0, text
    changes = {"data_dir": tmp_path / "new", "database_url": empty_database(old_servers)}
    new = settings.model_copy(update={**changes, "redis_url": None, "secret": None})
    secret.keep_secret(new.data_dir, secret.ServerSecret(OLD_SECRET.encode()))
    code, text = await asyncio.to_thread(tenora, new, "restore", backup, secret="")
    assert code == 0, text
    lie = {str(path.relative_to(new.data_dir / "objects")) for path in files(new)}
    assert kept <= lie


async def test_an_upgrade_under_a_lost_secret_changes_nothing(old: Old) -> None:
    """The version before kept no check value of its secret: the audit log tells it. A new secret is
    what a new data directory has."""
    url = str(old.settings.database_url)
    before = passwords(url)
    code, text = await asyncio.to_thread(tenora, old.settings, "migrate", secret="another" * 5)
    assert code == 1
    assert "another server secret" in text
    assert "Traceback" not in text
    assert revision(url) == "0038"
    assert passwords(url) == before
    code, text = await asyncio.to_thread(tenora, old.settings, "migrate", secret="")
    assert code == 0, text
    code, text = await asyncio.to_thread(tenora, old.settings, "migrate", secret="another" * 5)
    assert code == 1
    assert passwords(url) == before


def passwords(url: str) -> list[Any]:
    with psycopg.connect(plain_url(url)) as link:
        query = "SELECT rolname, rolpassword FROM pg_authid WHERE rolname LIKE 'tenora%' ORDER BY 1"
        return link.execute(query).fetchall()


def files(settings: Settings) -> list[Path]:
    return [path for path in (settings.data_dir / "objects").rglob("*") if path.is_file()]


_LATER = '''
"""Revision: 9999, after {head}"""
from alembic import op
revision, down_revision, branch_labels, depends_on = "9999", "{head}", None, None
def upgrade():
    op.execute("ALTER TABLE plans ADD COLUMN later text NOT NULL DEFAULT 'of before'")
'''


def _interrupt(*_: object) -> None:
    raise BackupError("it was interrupted here")


def test_a_backup_of_the_version_before_is_restored(
    servers: Servers, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the revision that it was made at, and then migrated, with its rows; where that was
    interrupted, it goes on. The other way about it is refused."""
    own = settings.model_copy(
        update={"data_dir": tmp_path / "data", "database_url": servers.new_database()}
    )
    with psycopg.connect(plain_url(str(own.database_url)), autocommit=True) as link:
        link.execute("UPDATE plans SET weight = 7 WHERE name = 'free'")
    assert tenora(own, "backup", str(tmp_path / "backup"))[0] == 0
    folder = tmp_path / "migrations"
    shutil.copytree(migrations_folder(), folder)
    head = revision(str(own.database_url))
    (folder / "versions" / "9999_later.py").write_text(_LATER.format(head=head))
    with monkeypatch.context() as later:
        for module in (bootstrap, restoring):
            later.setattr(module, "migrations_folder", lambda: folder)
        changes = {"data_dir": tmp_path / "new", "database_url": empty_database(servers)}
        new = settings.model_copy(update={**changes, "redis_url": None})
        with monkeypatch.context() as interrupted:
            interrupted.setattr(restoring, "copy_in", _interrupt)
            assert tenora(new, "restore", str(tmp_path / "backup"))[0] != 0
        code, text = tenora(new, "restore", str(tmp_path / "backup"))
        assert code == 0, text
        assert revision(str(new.database_url)) == "9999"
        with psycopg.connect(plain_url(str(new.database_url))) as link:
            rows = link.execute("SELECT weight, later FROM plans WHERE name = 'free'").fetchall()
        assert rows == [(7, "of before")]
    code, text = tenora(new, "migrate")
    assert code == 1
    assert "newer version has migrated it" in text
