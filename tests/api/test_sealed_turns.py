"""Contents are sealed and opened in threads, one piece of a tenant's at a time, and no database
session is held meanwhile."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy.pool import QueuePool

from api_harness import Api, TestTenant
from served_api import reset, until
from stored_harness import allow, call, choose, storing
from tenora_platform.assembly import OPENING_WAITING_MAX
from tenora_platform.receipts import stored_responses
from tenora_platform.receipts.contents import Seal


@pytest.fixture(scope="module")
async def plans(api: Api) -> None:
    await allow(api)


@pytest.fixture(autouse=True)
def fresh_engine(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    reset(api.engine)
    monkeypatch.setattr(api.engine, "model", replace(api.engine.model, context_tokens=4096))


@pytest.fixture
async def tenant(api: Api, plans: None) -> TestTenant:
    return await storing(api)


class Held:
    """Calls of one method of the seal, by their tenants, held back in their threads."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self.running: list[str] = []
        self.threads: set[int] = set()
        self.go_on = threading.Event()
        really = getattr(Seal, name)

        def held(seal: Seal, tenant_id: str, *given: Any) -> Any:
            self.running.append(tenant_id)
            self.threads.add(threading.get_ident())
            if threading.current_thread() is not threading.main_thread():
                assert self.go_on.wait(20)
            return really(seal, tenant_id, *given)

        monkeypatch.setattr(Seal, name, held)


@pytest.fixture
async def made(api: Api, tenant: TestTenant) -> list[str]:
    """The paths of all that is sealed of a request."""
    await choose(api, tenant, keep_contents_days=7)
    id_ = (await call(api, tenant.key)).json()["id"]
    await api.state.contents.finish()
    stored = f"/v1/responses/{id_}"
    return [stored, f"{stored}/input_items", f"/v1/requests/{id_}/contents"]


async def test_a_tenant_opens_one_at_a_time_and_holds_no_session(
    api: Api, tenant: TestTenant, made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenora_platform.request_places.PLACES", 2 * OPENING_WAITING_MAX)
    monkeypatch.setattr(api.state.places, "_free", 2 * OPENING_WAITING_MAX)
    stranger = await storing(api)
    theirs = (await call(api, stranger.key)).json()["id"]
    opening = Held(monkeypatch, "open_text")
    paths = (made * OPENING_WAITING_MAX)[:OPENING_WAITING_MAX]
    reading = [asyncio.create_task(api.call(tenant.key, "GET", path)) for path in paths]
    lines = api.state.opening._waiting
    await until(lambda: lines.get(tenant.id) == OPENING_WAITING_MAX and bool(opening.running))
    for path in made:
        answer = await api.call(tenant.key, "GET", path)
        assert (answer.status_code, answer.json()["error"]["code"]) == (429, "too_many_reads")
        assert answer.headers["retry-after"] == "1"
    other = asyncio.create_task(api.call(stranger.key, "GET", f"/v1/responses/{theirs}"))
    await until(lambda: len(opening.running) == 2)
    assert opening.running == [tenant.id, stranger.id]
    pool = api.state.db._app.pool
    assert isinstance(pool, QueuePool)
    await until(lambda: pool.checkedout() == 0)
    opening.go_on.set()
    answers = await asyncio.gather(*reading, other)
    assert {each.status_code for each in answers} == {200}
    assert threading.get_ident() not in opening.threads
    assert not lines


async def test_a_tenant_seals_one_at_a_time_and_waiting_for_it_is_no_failure(
    api: Api, tenant: TestTenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another's is sealed meanwhile, and threads that all share are free."""
    stranger = await storing(api)
    monkeypatch.setattr(stored_responses, "STORE_S", 0.0)  # of those that wait for a seal
    sealing = Held(monkeypatch, "close_text")
    mine = [asyncio.create_task(call(api, tenant.key)) for _ in range(8)]
    await until(lambda: api.state.responses._sealing._waiting.get(tenant.id) == len(mine))
    theirs = asyncio.create_task(call(api, stranger.key))
    await until(lambda: len(sealing.running) == 2)
    assert sealing.running == [tenant.id, stranger.id]
    names = [each.name for each in threading.enumerate() if each.ident in sealing.threads]
    assert all(name.startswith("turns") for name in names)
    monkeypatch.undo()
    sealing.go_on.set()
    answers = await asyncio.gather(*mine, theirs)
    assert [each.json()["store_error"] for each in answers] == [None] * 9


async def test_of_the_input_only_what_the_model_was_shown_is_stored(
    api: Api, tenant: TestTenant
) -> None:
    dropped = {
        "annotations": [{"a": 1}],
        "logprobs": [{"token": "x"}],
        "detail": "high",
        "image_url": "x",
        "file_id": "x",
        "file_data": "x",
        "file_url": "x",
        "filename": "x",
    }
    parts = [
        {"type": kind, "text": text, **dropped}
        for kind, text in (("input_text", "Hi"), ("input_text", ""), ("output_text", "there"))
    ]
    items: list[Any] = [
        {"role": "user", "content": parts, "phase": "x", "action": {"a": 1}, "arguments": "{}"},
        {"role": "user", "content": [{"type": "input_text", "text": ""}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "output": "x"},
        {"type": "function_call_output", "call_id": "c", "output": parts},
    ]
    made = (await call(api, tenant.key, input=items)).json()["id"]
    path = f"/v1/responses/{made}/input_items?order=asc"
    shown = (await api.call(tenant.key, "GET", path)).json()["data"]
    assert all(item.pop("id") and item.pop("status") == "completed" for item in shown)
    text = {"type": "input_text", "text": "Hi"}
    said = {"type": "output_text", "text": "there", "annotations": []}
    assert shown == [
        {"type": "message", "role": "user", "content": [text, said]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": ""}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": [text, said]},
    ]
    assert (await call(api, tenant.key, previous_response_id=made)).status_code == 200
