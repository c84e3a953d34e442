"""Backups and restores that cannot be: whatever is missing, damaged, newer or in the way is said in
one sentence, with exit code 1, and nothing is touched; what is killed goes on or is none."""

from __future__ import annotations

import asyncio
import gzip
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import obstore
import psycopg
import pytest
import redis
from obstore.store import LocalStore

from api_harness import SECRET, running_api
from backup_places import change_manifest, made, refused, restored, untouched
from platform_fixtures import Servers, plain_url
from small_disk import small_disk
from tenora_platform.backup import restoring
from tenora_platform.backup.dump import nothing_deleted
from tenora_platform.backup.manifest import read_manifest
from tenora_platform.backup.objects import listed
from tenora_platform.backup.place import Place
from tenora_platform.bootstrap import database_urls
from tenora_platform.embedded.valkey import EmbeddedValkey
from tenora_platform.installation import DEFAULT
from tenora_platform.settings import Settings
from whole_installation import Whole, fill, tables, tenora

# What a backup refuses


async def test_a_place_that_is_not_empty_or_in_the_store(
    own: Settings, tmp_path: Path, servers: Servers
) -> None:
    async with running_api(own, tmp_path / "1"):
        pass
    there = tmp_path / "there"
    there.mkdir()
    (there / "mine").write_text("precious")
    assert "is not empty" in refused(own, "backup", str(there))
    assert (there / "mine").read_text() == "precious"
    inside = own.data_dir / "objects" / "backup"
    for name in (str(inside), inside.as_uri(), f"{inside.parent}/../objects/backup"):
        assert "lies in the object store" in refused(own, "backup", name)
    assert not inside.exists()
    (tmp_path / "file").write_text("a file")
    assert "a file exists in its place" in refused(own, "backup", str(tmp_path / "file"))
    urls = database_urls(str(own.database_url), servers.secret, DEFAULT)
    with nothing_deleted(urls):
        assert "Another backup" in refused(own, "backup", str(tmp_path / "second"))
    with psycopg.connect(plain_url(str(own.database_url)), autocommit=True) as link:
        link.execute("UPDATE alembic_version SET version_num = '9999'")
    assert "newer version" in refused(own, "backup", str(tmp_path / "newer"))


async def test_a_full_disk_leaves_no_backup(own: Settings, tmp_path: Path) -> None:
    async with running_api(own, tmp_path / "1") as api:
        await obstore.put_async(api.state.objects, "uploads/x/large", os.urandom(4 * 1024**2))
    with small_disk(tmp_path / "disk", 2 * 1024**2) as folder:
        text = refused(own, "backup", str(folder / "backup"))
        assert "No space left on device" in text
        left = refused(own, "restore", str(folder / "backup"))
    assert "no complete backup" in left


@contextmanager
def command(settings: Settings, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """As a process, killed at the end of the block."""
    named = {
        "TENORA_DATABASE_URL": str(settings.database_url),
        "TENORA_DATA_DIR": str(settings.data_dir),
        "TENORA_SECRET": SECRET,
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "tenora_platform.cli.main", *words], env={**os.environ, **named}
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def wait_for(process: subprocess.Popen[bytes], condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert process.poll() is None, "it has ended"
        assert time.monotonic() < deadline
        time.sleep(0.002)


async def test_killed_commands(own: Settings, empty: Settings, tmp_path: Path) -> None:
    """A backup that was killed is none, and holds up nothing; a restore that was killed is refused
    by everything else, and goes on."""
    async with running_api(own, tmp_path / "1") as api:
        await fill(api)
        large = own.data_dir / "objects" / "uploads" / "upload_x" / "large"
        large.parent.mkdir()
        with large.open("wb") as file:
            file.truncate(1024**3)  # zeros: it takes a while to copy, not to make
    first, second = tmp_path / "first", tmp_path / "second"
    with command(own, "backup", str(first)) as process:
        wait_for(process, (first / "objects").exists)
    assert not (first / "manifest.json").exists()
    assert "no complete backup" in refused(empty, "restore", str(first))
    os.truncate(large, 64 * 1024**2)
    await made(own, second)
    with command(empty, "restore", str(second)) as process:
        wait_for(process, (empty.data_dir / "objects" / "adapters").exists)
    for words in (("migrate",), ("store", "status"), ("backup", str(tmp_path / "third"))):
        text = await asyncio.to_thread(refused, empty, *words)
        assert "has not come to its end" in text
    with command(empty, "restore", str(second)) as process:
        large = empty.data_dir / "objects" / "uploads" / "upload_x" / "large"
        large.unlink(missing_ok=True)
        wait_for(process, large.exists)
        process.send_signal(signal.SIGSTOP)
        text = await asyncio.to_thread(refused, empty, "restore", str(second))
        assert "Another restore" in text
    other = shutil.copytree(second, tmp_path / "other")
    change_manifest(other, at="2020-01-01T00:00:00Z", secret=SECRET)
    assert "another backup" in refused(empty, "restore", str(other))
    await restored(empty, second)
    assert tenora(empty, "migrate")[0] == 0


# What a restore refuses


def test_a_backup_without_a_manifest(backup: Path, empty: Settings) -> None:
    (backup / "manifest.json").unlink()
    assert "no complete backup" in refused(empty, "restore", str(backup))
    assert "is no folder" in refused(empty, "restore", str(backup / "nowhere"))
    (backup / "manifest.json").write_text("{")
    assert "cannot be read" in refused(empty, "restore", str(backup))
    untouched(empty)


@pytest.mark.parametrize(
    "pattern",
    ["secret", "database/usage_events.copy.gz", "objects.jsonl.gz", "objects/adapters/*/*.json",
     "objects/uploads/*/*"],
)  # fmt: skip
@pytest.mark.parametrize("how", ["changed", "cut", "gone"])
def test_a_damaged_file_of_a_backup(pattern: str, how: str, backup: Path, empty: Settings) -> None:
    path = next(backup.glob(pattern))
    content = path.read_bytes()
    if how == "gone":
        path.unlink()
    else:
        path.write_bytes(content[:-1] + (bytes([content[-1] ^ 1]) if how == "changed" else b""))
    text = refused(empty, "restore", str(backup))
    assert "is damaged" in text
    assert (f"{path.relative_to(backup)} is missing" in text) == (how == "gone")
    untouched(empty)


@pytest.mark.parametrize("pattern", ["database/usage_events.copy.gz", "objects/adapters/*/*.json"])
def test_a_file_that_changes_after_it_was_checked(
    pattern: str, backup: Path, empty: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No row of that table is loaded and that object is not kept; the restore goes on with the
    file as it was."""
    path = next(backup.glob(pattern))
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with monkeypatch.context() as unchecked:
        unchecked.setattr(restoring, "_read_through", lambda place, file: None)
        assert "is damaged" in refused(empty, "restore", str(backup))
    with psycopg.connect(plain_url(str(empty.database_url))) as link:
        loaded = link.execute("SELECT count(*) FROM usage_events").fetchone() != (0,)
    assert loaded == pattern.startswith("objects")
    lies = empty.data_dir / path.relative_to(backup)
    assert not lies.exists()
    assert "has not come to its end" in refused(empty, "migrate")
    path.write_bytes(content)
    code, text = tenora(empty, "restore", str(backup))
    assert code == 0, text


def test_a_backup_of_a_newer_version(backup: Path, empty: Settings) -> None:
    change_manifest(backup, SECRET, revision="9999", tenora="9.9.9")
    assert "made by a newer Tenora (9.9.9, revision 9999)" in refused(empty, "restore", str(backup))
    change_manifest(backup, format=2)
    assert "made by a newer Tenora (9.9.9)" in refused(empty, "restore", str(backup))
    untouched(empty)


def test_a_manifest_that_was_changed(backup: Path, empty: Settings) -> None:
    change_manifest(backup, tables=[])
    assert "was changed after" in refused(empty, "restore", str(backup))
    untouched(empty)


def test_another_secret(backup: Path, empty: Settings, machine: Settings) -> None:
    text = refused(empty, "restore", str(backup), secret="another" * 5)
    assert "TENORA_SECRET is another server secret" in text
    machine.data_dir.mkdir()
    (machine.data_dir / "secret").write_text(f"{'of this machine' * 3}\n")
    assert "secret is another server secret" in refused(
        machine, "restore", str(backup), secret=None
    )
    assert (machine.data_dir / "secret").read_text() == f"{'of this machine' * 3}\n"
    untouched(empty)


async def test_no_secret_at_all(own: Settings, machine: Settings, tmp_path: Path) -> None:
    async with running_api(own, tmp_path / "1"):
        pass
    text = await made(own, tmp_path / "backup")
    assert "The server secret is not in it" in text
    assert not (tmp_path / "backup" / "secret").exists()
    text = refused(machine, "restore", str(tmp_path / "backup"), secret=None)
    assert "made without the server secret" in text
    untouched(machine)


def test_another_installation(backup: Path, empty: Settings) -> None:
    named = empty.model_copy(update={"installation": "acme"})
    assert "TENORA_INSTALLATION=tenora" in refused(named, "restore", str(backup))
    untouched(empty)


def test_a_place_that_is_not_empty(
    backup: Path, empty: Settings, servers: Servers, tmp_path: Path
) -> None:
    """Database, object store, or Redis; nothing of either is touched."""
    objects = tmp_path / "filled"
    obstore.put(LocalStore(prefix=objects, mkdir=True), "adapters/5/weights", b"precious")
    filled = empty.model_copy(update={"object_store": str(objects)})
    assert "it has adapters/5/weights" in refused(filled, "restore", str(backup))
    assert (objects / "adapters/5/weights").read_bytes() == b"precious"
    assert {path.name for path in objects.iterdir()} == {"adapters"}
    url = servers.new_database()
    before = tables(url)
    filled = empty.model_copy(update={"database_url": url})
    assert "The database is not empty" in refused(filled, "restore", str(backup))
    assert tables(url) == before
    valkey = EmbeddedValkey(tmp_path / "v", servers.secret)
    valkey.start()
    try:
        with redis.Redis.from_url(valkey.url) as client:
            client.set("names", "of another")
        filled = empty.model_copy(update={"redis_url": valkey.url})
        assert "Redis database" in refused(filled, "restore", str(backup))
    finally:
        valkey.stop()


async def test_an_installation_that_serves_is_no_place(
    backup: Path, own: Settings, tmp_path: Path
) -> None:
    async with running_api(own, tmp_path / "1") as api:
        tenant = await api.new_tenant("mine")
        keys = own.data_dir / "admin_keys"
        change_manifest(backup, SECRET, admin_keys=["hash of a key"])
        text = await asyncio.to_thread(refused, own, "restore", str(backup))
        assert "The database is not empty" in text
        assert not keys.exists()
        assert (await api.call(tenant.key, "GET", "/v1/models")).status_code == 200


def test_damage_that_was_there_is_named(
    source: tuple[Path, Whole], settings: Settings, empty: Settings, tmp_path: Path
) -> None:
    """The backup is as its installation was: with a changed event and a lost adapter."""
    with psycopg.connect(plain_url(str(settings.database_url)), autocommit=True) as link:
        link.execute("SET session_replication_role = replica")
        changed = "UPDATE usage_events SET output_tokens = output_tokens + {} WHERE request = ({})"
        one = "SELECT request FROM usage_events ORDER BY 1 LIMIT 1"
        link.execute(changed.format("1", one).encode())
        objects = settings.data_dir / "objects"
        lost = next((objects / "adapters").iterdir())
        lost.rename(tmp_path / "lost")
        try:
            text = refused(settings, "backup", str(tmp_path / "damaged"))
            assert "The backup is complete" in text
            assert f"missing adapters/{lost.name}/adapter_model.safetensors (tenant_" in text
        finally:
            (tmp_path / "lost").rename(lost)
            link.execute(changed.format("-1", one).encode())
    text = refused(empty, "restore", str(tmp_path / "damaged"))
    assert "event_changed" in text or "seal" in text
    assert f"missing adapters/{lost.name}/adapter_model.safetensors (tenant_" in text
    assert "it was so when the backup was made" in text
    assert "it was not so" not in text
    assert tenora(empty, "migrate")[0] == 0, "it may be served all the same"


def test_a_changed_adapter_is_noticed_by_both(
    source: tuple[Path, Whole], settings: Settings, empty: Settings, tmp_path: Path
) -> None:
    """One bit is flipped before the backup; of another, a file is lost after it, unnoticed by the
    list of the backup's objects."""
    folders = sorted((settings.data_dir / "objects" / "adapters").iterdir())
    weights = folders[0] / "adapter_model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    try:
        text = refused(settings, "backup", str(tmp_path / "damaged"))
    finally:
        weights.write_bytes(content)
    wrong = f"damaged adapters/{folders[0].name} (tenant_"
    assert wrong in text
    assert folders[1].name not in text
    without(tmp_path / "damaged", f"adapters/{folders[1].name}/adapter_config.json")
    text = refused(empty, "restore", str(tmp_path / "damaged"))
    assert wrong in text
    assert "and it was so when the backup was made" in text
    lost = f"missing adapters/{folders[1].name}/adapter_config.json (tenant_"
    assert "and it was not so when the backup was made" in text.partition(lost)[2]


def without(backup: Path, path: str) -> None:
    """The backup as if the object had not been listed, sealed under the secret."""
    place = Place(str(backup))
    manifest = read_manifest(place)
    lines = [each for each in listed(place, manifest.objects) if each.path != path]
    (backup / "objects.jsonl.gz").unlink()
    text = b"".join(msgspec.json.encode(each) + b"\n" for each in lines)
    file = place.write("objects.jsonl.gz", [gzip.compress(text)])
    count, size = len(lines), sum(each.bytes for each in lines)
    objects = {"count": count, "bytes": size, "file": msgspec.to_builtins(file)}
    change_manifest(backup, SECRET, objects=objects)
