"""Uploads that mean harm: each is refused for its own reason, in words, by the same process that
checks the next one, and not a byte of it stays in the store or the spool."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from adapter_files import adapter_config, adapter_tensors, safetensors
from api_harness import Api, TestTenant, stored_objects
from hostile_uploads import HOSTILE, Hostile
from tenora_platform.registry.worker import IntakeWorker
from tenora_platform.state import EngineLife

CONFIG = json.dumps(adapter_config()).encode()
PLAN_BYTES = 10_000_000


@pytest.fixture(scope="module")
async def resting(api: Api) -> AsyncIterator[IntakeWorker]:
    """The only worker; the application's own checks nothing."""
    api.state.engine_life.started = False
    yield IntakeWorker(dataclasses.replace(api.state, engine_life=EngineLife(started=True)))
    api.state.engine_life.started = True


@pytest.fixture(scope="module")
async def tenant(api: Api) -> TestTenant:
    await api.put_plan("hostile", {"adapter_bytes": PLAN_BYTES})
    return await api.new_tenant("hostile", plan="hostile")


def files_of(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file())


async def nothing_is_left(api: Api) -> None:
    assert stored_objects(api) == set()
    assert list(files_of(api.state.settings.spool_folder)) == []
    async with api.state.db.admin_session() as session:
        held = "select count(*) from uploads where status in ('receiving', 'pending', 'completed')"
        assert await session.scalar(text(held)) == 0


def test_they_are_as_many_as_promised_and_none_twice() -> None:
    assert len(HOSTILE) + len(FORMS) >= 60
    names = [str(each) for each in (*HOSTILE, *FORMS)]
    assert len(names) == len(set(names))
    assert all(each.words for each in HOSTILE)
    assert all(each.words for each in FORMS)


@pytest.mark.parametrize("hostile", HOSTILE, ids=str)
async def test_refused_by_the_check(
    api: Api, tenant: TestTenant, resting: IntakeWorker, hostile: Hostile
) -> None:
    config, weights = hostile.files(api.engine.model)
    files = {
        "name": (None, "hostile"),
        "adapter_config": ("adapter_config.json", config),
        "weights": ("adapter_model.safetensors", weights),
    }
    made = await api.call(tenant.key, "POST", "/v1/adapters", files=files)
    assert made.status_code == 202, made.text
    await resting.run_once()
    path = f"/v1/adapters/hostile/versions/{made.json()['version']}"
    found = (await api.call(tenant.key, "GET", path)).json()
    assert found["state"] == "rejected"
    problems = found["validation"]["problems"]
    said = [f"{problem['field']}: {problem['message']}" for problem in problems]
    codes = [problem["code"] for problem in problems]
    assert any(
        code == hostile.code and hostile.words in words
        for code, words in zip(codes, said, strict=True)
    ), problems
    assert all(len(words) < 700 for words in said), "whatever the file says"
    await nothing_is_left(api)


def part(name: bytes, value: bytes, more: bytes = b"") -> bytes:
    return b'--b\r\ncontent-disposition: form-data; name="%s"%s\r\n\r\n%s\r\n' % (name, more, value)


def form(**parts: bytes) -> bytes:
    good = {"name": b"hostile", "adapter_config": CONFIG, "weights": bytes(100)} | parts
    return b"".join(part(name.encode(), value) for name, value in good.items()) + b"--b--\r\n"


def by_id(upload_id: bytes) -> bytes:
    return (
        part(b"name", b"a")
        + part(b"adapter_config", CONFIG)
        + part(b"upload_id", upload_id)
        + b"--b--\r\n"
    )


@dataclass(frozen=True)
class Form:
    """A body that is refused as it comes."""

    name: str
    body: bytes
    status: int
    words: str
    kind: str = "multipart/form-data; boundary=b"
    chunked: bool = False
    path: str = "/v1/adapters"

    def __str__(self) -> str:
        return self.name


FORMS = [
    Form("no form", b"{}", 400, "must be multipart/form-data", "application/json"),
    Form("no boundary", form(), 400, "must be multipart/form-data", "multipart/form-data"),
    Form("another boundary", form(), 400, "is not valid", "multipart/form-data; boundary=c"),
    Form("no end", form()[:-9], 400, "is incomplete"),
    Form("cut off in the weights", form(weights=bytes(3_000_000))[:-500], 400, "is incomplete"),
    Form("weights twice", part(b"weights", b"x") + form(), 400, "contains weights twice"),
    Form("a part of its own", part(b"../../etc", b"x") + form(), 400, "'../../etc'"),
    Form("large heads", part(b"name", b"x", b"; a=" + b"x" * 9000) + form(), 400, "Maximum header"),
    Form("adapter upwards", form(name=b"../../etc/passwd"), 400, "name must have"),
    Form("adapter with NUL", form(name=b"a\0b"), 400, "name must have"),
    Form("name of the base model", form(name=b"fake-base"), 400, "is the base model's id"),
    Form("name no UTF-8", form(name=b"\xff\xfe"), 400, "name must have"),
    Form("name without end", form(name=b"a" * 5000), 400, "maximum of 256 bytes"),
    Form("config without end", form(adapter_config=b" " * 300_000), 400, "adapter_config is large"),
    Form("no config", part(b"name", b"a") + part(b"weights", b"x") + b"--b--\r\n", 400, "config"),
    Form("no weights", part(b"name", b"a") + part(b"adapter_config", b"x") + b"--b--\r\n", 400,
         "weights"),
    Form("larger than the plan", form(weights=bytes(PLAN_BYTES + 500_000)), 413, "are left"),
    Form("larger than the plan, unsaid", form(weights=bytes(PLAN_BYTES + 1)), 413, "are left",
         chunked=True),
    Form("an upload of nobody", by_id(b"upload_01"), 404, "There is no upload"),
    Form("an upload of markup", by_id(b"<script>"), 404, "There is no upload"),
    Form("more than can be", b'{"bytes": 9223372036854775808}', 400, "must be less than",
         "application/json", path="/v1/uploads"),
    Form("less than nothing", b'{"bytes": -1}', 400, "bytes", "application/json",
         path="/v1/uploads"),
    Form("no number", b'{"bytes": 1e400}', 400, "bytes", "application/json", path="/v1/uploads"),
]  # fmt: skip


@pytest.mark.parametrize("hostile", FORMS, ids=str)
@pytest.mark.usefixtures("resting")
async def test_refused_as_it_comes(api: Api, tenant: TestTenant, hostile: Form) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(hostile.body), 65_536):
            yield hostile.body[start : start + 65_536]

    api.state.engine_life.started = hostile.name == "name of the base model"
    try:
        answer = await api.call(
            tenant.key,
            "POST",
            hostile.path,
            content=pieces() if hostile.chunked else hostile.body,
            headers={"content-type": hostile.kind},
        )
    finally:
        api.state.engine_life.started = False
    assert answer.status_code == hostile.status, answer.text
    assert hostile.words in answer.text
    await nothing_is_left(api)


@pytest.mark.usefixtures("resting")
async def test_parts_that_mean_harm(api: Api, tenant: TestTenant) -> None:
    """Each refused for its own reason; cancelled, nothing is left."""
    weights = safetensors(adapter_tensors(api.engine.model))
    upload = (await api.call(tenant.key, "POST", "/v1/uploads", json={"bytes": 100})).json()
    other = (await api.call(tenant.key, "POST", "/v1/uploads", json={"bytes": 100})).json()
    path = f"/v1/uploads/{upload['id']}"

    async def send(path: str, **files: Any) -> tuple[int, str]:
        answer = await api.call(tenant.key, "POST", f"{path}/parts", files=files)
        return answer.status_code, answer.text

    async def complete(**body: Any) -> tuple[int, str]:
        answer = await api.call(tenant.key, "POST", f"{path}/complete", json=body)
        return answer.status_code, answer.text

    status, said = await send(path, data=b"")
    assert (status, "The part is empty" in said) == (400, True)
    status, said = await send(path, data=weights)
    assert (status, "is larger than allowed (100 bytes)" in said) == (413, True)
    status, said = await send(path, data=b"x" * 60, sha256=(None, "0" * 64))
    assert (status, "Send the part again" in said) == (400, True)
    _, said = await send(path, data=b"x" * 60)
    part_id = json.loads(said)["id"]
    status, said = await send(path, data=b"y" * 60)
    assert (status, "60 bytes have arrived" in said) == (413, True)
    _, theirs = await send(f"/v1/uploads/{other['id']}", data=b"z" * 40)
    status, said = await complete(part_ids=[part_id, json.loads(theirs)["id"]])
    assert (status, "must list parts of this upload" in said) == (400, True)
    status, said = await complete(part_ids=[part_id, part_id])
    assert (status, "The parts have 120 bytes" in said) == (400, True)
    status, said = await complete(part_ids=[part_id])
    assert (status, "100 were declared" in said) == (400, True)
    files = {"name": "hostile", "adapter_config": CONFIG, "upload_id": upload["id"]}
    files = {name: (None, value) for name, value in files.items()}
    answer = await api.call(tenant.key, "POST", "/v1/adapters", files=files)
    assert (answer.status_code, "not completed" in answer.text) == (409, True)
    for each in (upload, other):
        await api.call(tenant.key, "POST", f"/v1/uploads/{each['id']}/cancel")
    status, said = await send(path, data=b"x" * 60)
    assert (status, "The upload is cancelled" in said) == (409, True)
    await nothing_is_left(api)
