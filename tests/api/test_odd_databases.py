"""A database that is not as the migrations left it, or is another program's: each command says so
in a sentence, and changes nothing."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from backup_places import empty_database, refused
from platform_fixtures import Servers, plain_url
from tenora_platform.settings import Settings
from whole_installation import tenora

OURS = {
    "alembic_version emptied": ("DELETE FROM alembic_version", "alembic_version was emptied"),
    "alembic_version dropped": ("DROP TABLE alembic_version", "alembic_version was emptied"),
    "identity emptied": ("DELETE FROM database_identity", "lost the row"),
    "identity dropped": ("DROP TABLE database_identity", "lost the row"),
    "read-only": ("ALTER DATABASE {} SET default_transaction_read_only = on", "takes no writes"),
}
OTHERS = {
    "with a table tenants": "CREATE TABLE tenants (id int)",
    "with other tables": "CREATE TABLE orders (id int)",
    "with a view": "CREATE VIEW orders AS SELECT 1",
}


def changed(settings: Settings, url: str, statement: str, tmp_path: Path) -> Settings:
    with psycopg.connect(plain_url(url), autocommit=True) as link:
        link.execute(statement.format(link.info.dbname))
    return settings.model_copy(update={"data_dir": tmp_path / "data", "database_url": url})


@pytest.mark.parametrize("case", OURS)
def test_what_is_missing_is_named(
    case: str, settings: Settings, servers: Servers, tmp_path: Path
) -> None:
    statement, said = OURS[case]
    own = changed(settings, servers.new_database(), statement, tmp_path)
    assert said in refused(own, "migrate")
    if case == "read-only":
        return  # it is read as ever
    for words in (("store", "status"), ("backup", str(tmp_path / "backup"))):
        assert "tenora" in refused(own, *words)
    assert not (tmp_path / "backup" / "manifest.json").exists()


@pytest.mark.parametrize("case", OTHERS)
def test_another_programs_database_is_not_taken_over(
    case: str, settings: Settings, servers: Servers, tmp_path: Path
) -> None:
    own = changed(settings, empty_database(servers), OTHERS[case], tmp_path)
    assert "another program's" in refused(own, "migrate")
    with psycopg.connect(plain_url(str(own.database_url))) as link:
        found = link.execute("SELECT count(*) FROM pg_class WHERE relname = 'alembic_version'")
        assert found.fetchone() == (0,)


def test_commands_that_look_make_no_secret(
    settings: Settings, servers: Servers, tmp_path: Path
) -> None:
    changes = {"data_dir": tmp_path / "data", "database_url": servers.new_database()}
    own = settings.model_copy(update=changes)
    for words in (("store", "status"), ("store", "trash"), ("backup", str(tmp_path / "backup"))):
        assert "TENORA_SECRET" in refused(own, *words, secret=None)
    _, text = tenora(own, "doctor", "--store", secret=None)
    assert "Traceback" not in text
    assert not (own.data_dir / "secret").exists()


@pytest.mark.parametrize("files", [(), ("PG_VERSION", "../initdb.unfinished")])
def test_commands_that_look_make_no_cluster(
    files: tuple[str, ...], machine: Settings, tmp_path: Path
) -> None:
    data = machine.data_dir / "postgres" / "data"
    data.mkdir(parents=True)
    for name in files:
        (data / name).write_text("18\n")
    for words in (("store", "status"), ("backup", str(tmp_path / "backup"))):
        assert "no Tenora installation" in refused(machine, *words)
    assert {path.name for path in data.iterdir()} <= {"PG_VERSION"}
    assert not (machine.data_dir / "secret").exists()
