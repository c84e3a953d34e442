"""The keys that sign receipts: published to anybody, before they sign and after; rotated, revoked,
kept under the server secret."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest

from api_harness import ADMIN_KEY, Api
from platform_fixtures import Connection, MakeApi
from shell import Listening, run
from tenora_platform.errors import UnavailableError
from tenora_platform.receipts.document import UnknownKeyError, sign, verify
from tenora_platform.receipts.keys import read_key_set
from tenora_platform.receipts.signing import forget_private

KEYS = "/.well-known/tenora-keys.json"


async def published(api: Api) -> list[str]:
    answer = await api.http.get(KEYS)
    assert answer.status_code == 200, answer.text
    return [key["kid"] for key in answer.json()["keys"]]


async def test_keys_are_there_without_a_key(api: Api) -> None:
    answer = await api.http.get(KEYS)
    assert answer.headers["cache-control"] == "public, max-age=30"
    assert answer.headers["access-control-allow-origin"] == "*"
    assert "x-request-id" in answer.headers
    (key,) = answer.json()["keys"]
    assert (key["kty"], key["crv"], key["alg"], key["use"]) == ("OKP", "Ed25519", "EdDSA", "sig")
    assert set(key) == {"kty", "crv", "x", "kid", "use", "alg"}, "no private part"
    assert await published(api) == [key["kid"]]
    wrong = await api.http.get(KEYS, headers={"authorization": "Bearer nonsense"})
    assert wrong.status_code == 200


async def test_a_key_is_published_before_it_signs_and_after(api: Api, owner: Connection) -> None:
    before = await api.state.signing_keys.signer()
    answer = await api.admin("POST", "/admin/v1/signing_keys/rotate")
    assert answer.status_code == 201, answer.text
    new = answer.json()
    assert datetime.fromisoformat(new["signs_from"]) > datetime.now(UTC) + timedelta(seconds=50)
    assert set(await published(api)) == {before.kid, new["kid"]}
    assert (await api.state.signing_keys.signer()).kid == before.kid
    old_receipt = sign({"id": "x"}, before.kid, before.key)

    owner.execute("update signing_keys set signs_from = signs_from - interval '2 hours'")
    api.state.signing_keys.forget()
    now = await api.state.signing_keys.signer()
    assert now.kid == new["kid"]
    async with api.state.db.admin_session() as session:
        await forget_private(session)
    listed = (await api.admin("GET", "/admin/v1/signing_keys")).json()["data"]
    assert [(key["kid"], key["can_sign"]) for key in listed] == [
        (now.kid, True),
        (before.kid, False),
    ]
    known = read_key_set((await api.http.get(KEYS)).json())
    for text in (old_receipt, sign({"id": "x"}, now.kid, now.key)):
        assert verify(text, known)["id"] == "x"


async def test_a_revoked_key_is_gone(api: Api) -> None:
    stolen = await api.state.signing_keys.signer()
    path = f"/admin/v1/signing_keys/{stolen.kid}"
    refused = await api.admin("DELETE", path)
    assert refused.status_code == 409
    assert refused.json()["error"]["code"] == "last_signing_key"
    await api.admin("POST", "/admin/v1/signing_keys/rotate")
    assert (await api.admin("DELETE", path)).status_code == 200
    assert stolen.kid not in await published(api)
    other = await api.state.signing_keys.signer()  # at once: no other can
    assert other.kid != stolen.kid
    known = read_key_set((await api.http.get(KEYS)).json())
    receipt = sign({"id": "x"}, stolen.kid, stolen.key)
    with pytest.raises(UnknownKeyError):
        verify(receipt, known)
    assert (await api.admin("DELETE", path)).status_code == 404
    actions = [
        entry["action"]
        for entry in (await api.admin("GET", "/admin/v1/audit_logs?limit=5")).json()["data"]
    ]
    assert "signing_key.revoke" in actions
    assert "signing_key.rotate" in actions


def test_the_command_asks_the_server_for_its_keys(listening: Listening, tmp_path: Path) -> None:
    keys = httpx.get(listening.url + KEYS).json()
    file = tmp_path / "receipt.json"
    file.write_text(json.dumps({"object": "receipt", "version": 1}))
    code, said = run("receipt", "verify", str(file), TENORA_URL=listening.url)
    assert (code, "signature is missing" in said) == (4, True)
    assert len(keys["keys"]) >= 1
    path = f"{listening.url}/admin/v1/tenants"
    admin = {"authorization": f"Bearer {ADMIN_KEY}"}
    made = httpx.post(path, headers=admin, json={"name": "x", "plan": "standard"}).json()
    tenant = httpx.post(f"{path}/{made['id']}/api_keys", headers=admin, json={}).json()
    server = {"TENORA_URL": listening.url, "TENORA_API_KEY": tenant["key"]}
    body = {"model": "fake-base", "messages": [{"role": "user", "content": "x"}]}
    asked = httpx.post(
        f"{listening.url}/v1/chat/completions",
        headers={"authorization": f"Bearer {tenant['key']}"},
        json=body,
    )
    deadline = time.monotonic() + 30
    while (told := run("receipt", "get", asked.json()["id"], "--out", str(file), **server))[0]:
        assert time.monotonic() < deadline, told
        time.sleep(0.1)
    code, said = run("receipt", "verify", str(file), **server)
    assert (code, asked.json()["id"] in said) == (0, True), said
    code, said = run("receipt", "get", "no-such", **server)
    assert code == 1
    assert "There is no finished request" in said


async def test_another_secret_cannot_sign(api: Api, make_api: MakeApi, owner: Connection) -> None:
    """What is in the database is of no use without the server secret; a rotation mends it."""
    signer = await api.state.signing_keys.signer()
    raw = signer.key.private_bytes_raw()
    for (sealed,) in owner.execute("select sealed from signing_keys where sealed is not null"):
        assert raw not in bytes(sealed)
    known = {signer.kid, *await published(api)}
    stranger = api.state.signing_keys.__class__(
        api.state.db, api.state.secret.__class__(b"another secret")
    )
    with pytest.raises(UnavailableError, match="rotate"):
        await stranger.signer()
    async with api.state.db.admin_session() as session:
        row = await stranger.rotate(session)
    assert (await stranger.signer()).kid == row.kid
    api.state.signing_keys.forget()
    assert set(await published(api)) == {*known, row.kid}
