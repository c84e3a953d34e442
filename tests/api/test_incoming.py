"""Bodies of uploads on their way: into the store as they come, hashed in threads, through no file
of ours; what is refused or broken off leaves nothing, and quota is met while it comes."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator
from pathlib import Path

import obstore
import psycopg
import pytest
from starlette.types import Message

from adapter_files import adapter_config, adapter_form
from api_harness import Api, TestTenant
from platform_fixtures import MakeApi, plain_url
from tenora_platform.bodies import LINGER_BYTES
from tenora_platform.errors import TooLargeError
from tenora_platform.registry.incoming import incoming
from tenora_platform.registry.pace import Pace
from tenora_platform.registry.quota import Room
from tenora_platform.registry.spool import Spool
from tenora_platform.registry.storage import AdapterStorage
from tenora_platform.registry.store_identity import OBJECT

MB = 1_000_000
CONFIG = str(adapter_config()).encode()
NO = TooLargeError("no")


def files(folder: Path) -> list[Path]:
    """All there is, unfinished objects too, but for the store's record of its database."""
    paths = (path for path in folder.rglob("*") if not path.name.startswith(OBJECT))
    return [path for path in paths if path.is_file()]


def field(name: str, value: bytes) -> bytes:
    return (
        f'--b\r\ncontent-disposition: form-data; name="{name}"\r\n\r\n'.encode() + value + b"\r\n"
    )


def file(name: str) -> bytes:
    """Its beginning."""
    return field(f'{name}"; filename="{name}', b"").removesuffix(b"\r\n")


def opening(name: str) -> bytes:
    return field("name", name.encode()) + field("adapter_config", CONFIG) + file("weights")


class Sending:
    """An upload whose body comes piece by piece: `ask` runs, `more` gives it what comes next."""

    def __init__(self, api: Api, key: str, path: str = "/v1/adapters") -> None:
        self._api = api
        self._pieces: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.read = 0
        self.status = 0
        headers = [
            (b"authorization", f"Bearer {key}".encode()),
            (b"content-type", b"multipart/form-data; boundary=b"),
            (b"transfer-encoding", b"chunked"),
        ]
        self._scope = {
            "type": "http",
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": headers,
            "http_version": "1.1",
        }
        self.task = asyncio.create_task(self._ask())

    async def _ask(self) -> None:
        async def receive() -> Message:
            piece = await self._pieces.get()
            if piece is None:
                return {"type": "http.disconnect"}
            self.read += len(piece)
            return {"type": "http.request", "body": piece, "more_body": True}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.status = int(str(message["status"]))

        await self._api.app(self._scope, receive, send)

    def more(self, data: bytes) -> None:
        for start in range(0, len(data), 65_536):
            self._pieces.put_nowait(data[start : start + 65_536])

    def leave(self) -> None:
        self._pieces.put_nowait(None)

    async def taken(self) -> None:
        async with asyncio.timeout(20):
            while not self._pieces.empty():  # noqa: ASYNC110 - what reads it sets no event
                await asyncio.sleep(0.01)


@pytest.fixture
async def apart(
    make_api: MakeApi, database_url: str, tmp_path: Path
) -> AsyncIterator[tuple[Api, Path, Path]]:
    """An application whose store lies elsewhere than its data, as on another disk. The database
    knows no earlier store: from another test's store nothing would be deleted."""
    with psycopg.connect(plain_url(database_url), autocommit=True) as connection:
        connection.execute("UPDATE database_identity SET generation = 0")
    data, store = tmp_path / "data", tmp_path / "store"
    async with make_api(data_dir=data, object_store=str(store), spool_dir=tmp_path / "x") as api:
        yield api, data, store


async def test_a_body_goes_to_the_store_and_nowhere_else(
    apart: tuple[Api, Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looked at while half of it has come; after the client has gone nothing is left."""
    api, data, store = apart
    tenant = await api.new_tenant("flowing", plan="premium")
    before = {path: path.stat().st_size for path in files(data)}
    sending = Sending(api, tenant.key)
    sending.more(opening("flowing") + bytes(12 * MB))
    await sending.taken()
    async with asyncio.timeout(20):
        while sum(path.stat().st_size for path in files(store)) < 5 * MB:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    grown = [path for path in files(data) if path.stat().st_size > before.get(path, 0) + MB]
    assert not grown
    sending.leave()
    await sending.task
    assert files(store) == []
    assert not files(Path(str(api.state.settings.spool_dir)))


async def test_a_check_uses_the_folder_that_the_operator_names(
    apart: tuple[Api, Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    api, data, _ = apart
    used: list[Path] = []
    place = Spool.file

    def noted(spool: Spool) -> object:
        used.append(spool._folder)
        return place(spool)

    monkeypatch.setattr(Spool, "file", noted)
    tenant = await api.new_tenant("spooled", plan="premium")
    form = adapter_form(api.engine.model, "spooled", seed=3)
    assert (await api.call(tenant.key, "POST", "/v1/adapters", files=form)).status_code == 202
    async with asyncio.timeout(20):
        while not used:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert used == [api.state.settings.spool_dir]
    assert not (data / "spool").exists()


async def test_storage_is_met_while_a_body_of_unknown_length_comes(
    apart: tuple[Api, Path, Path],
) -> None:
    api, _, store = apart
    await api.put_plan("little", {"adapter_bytes": 2 * MB})
    tenant = await api.new_tenant("little", plan="little")
    sending = Sending(api, tenant.key)
    sending.more(opening("little") + bytes(40 * MB))
    async with asyncio.timeout(20):
        await sending.task
    assert sending.status == 413
    assert sending.read < 2 * MB + LINGER_BYTES + 2 * 65_536, "and what is thrown away"
    assert files(store) == []


@pytest.mark.parametrize(
    ("name", "ending"),
    [
        ("has space", b""),
        ("again", field("name", b"x")),
        ("odd", field("odd", b"x")),
        ("both", field("upload_id", b"u")),
    ],
)
async def test_what_is_refused_at_its_end_leaves_nothing(
    apart: tuple[Api, Path, Path], name: str, ending: bytes
) -> None:
    api, _, store = apart
    tenant = await api.new_tenant("refused", plan="premium")
    content = opening(name) + bytes(7 * MB) + b"\r\n" + ending + b"--b--\r\n"
    headers = {"content-type": "multipart/form-data; boundary=b"}
    answer = await api.call(tenant.key, "POST", "/v1/adapters", content=content, headers=headers)
    assert answer.status_code == 400, answer.text
    assert files(store) == []


async def test_a_part_that_is_refused_leaves_nothing(
    apart: tuple[Api, Path, Path],
) -> None:
    api, _, store = apart
    tenant: TestTenant = await api.new_tenant("parts", plan="premium")
    made = await api.call(tenant.key, "POST", "/v1/uploads", json={"bytes": 8 * MB})
    path = f"/v1/uploads/{made.json()['id']}/parts"
    data = bytes(7 * MB)
    wrong = {"data": data, "sha256": (None, "0" * 64)}
    answer = await api.call(tenant.key, "POST", path, files=wrong)
    assert answer.json()["error"]["code"] == "checksum_mismatch"
    assert files(store) == []
    sending = Sending(api, tenant.key, path)
    sending.more(file("data") + data)
    await sending.taken()
    sending.leave()
    await sending.task
    assert files(store) == []
    right = {"data": data, "sha256": (None, hashlib.sha256(data).hexdigest())}
    assert (await api.call(tenant.key, "POST", path, files=right)).status_code == 200
    assert [path.stat().st_size for path in files(store)] == [7 * MB]


@pytest.mark.parametrize("size", [0, 1, MB, 11 * MB])
async def test_what_arrives_is_what_was_sent(api: Api, size: int) -> None:
    storage = AdapterStorage(api.state.objects, deleting=api.state.store.deleting)
    sent = hashlib.shake_128(str(size).encode()).digest(size)
    async with incoming(storage, f"test/{size}", Room(size, NO), Pace(1)) as arriving:
        for start in range(0, size, 300_000):
            arriving.write(sent[start : start + 300_000])
            await arriving.settle()
        await arriving.finish()
    assert (arriving.bytes, arriving.sha256) == (size, hashlib.sha256(sent).hexdigest())
    kept = await obstore.get_async(api.state.objects, f"test/{size}")
    assert bytes(await kept.bytes_async()) == sent
    await storage.discard([f"test/{size}"])


async def test_a_store_that_fails_is_not_waited_for(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The body is behind it still; whoever sends it is told at once."""

    async def fails(*_: object, **__: object) -> None:
        raise PermissionError("no access to the bucket")

    monkeypatch.setattr(obstore, "put_async", fails)

    async def send_all() -> None:
        async with incoming(
            AdapterStorage(api.state.objects, deleting=api.state.store.deleting),
            "test/x",
            Room(99 * MB, NO),
            Pace(1),
        ) as it:
            for _ in range(20):
                it.write(bytes(2 * MB))
                await it.settle()

    with pytest.raises(PermissionError):
        await asyncio.wait_for(send_all(), 10)


def work(seconds: float) -> None:
    """Of the processor."""
    until_s = time.thread_time() + seconds
    while time.thread_time() < until_s:
        pass


@pytest.mark.parametrize("uploads", [1, 3])
async def test_uploads_take_their_share_of_a_core_together(uploads: int) -> None:
    pace = Pace(0.25)
    await pace.keep()  # what the process did before counts once, a little

    async def receive() -> None:
        for _ in range(12 // uploads):
            work(0.004)
            await pace.keep()

    began_s, began_cpu_s = time.monotonic(), time.thread_time()
    await asyncio.gather(*(receive() for _ in range(uploads)))
    share = (time.thread_time() - began_cpu_s) / (time.monotonic() - began_s)
    assert share < 0.28  # a busy machine makes it less
