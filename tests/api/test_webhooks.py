"""Webhooks to a server that listens: each event reaches each endpoint that wants it, signed as the
reference library of Standard Webhooks reads it, until it is taken or a day is over."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from aiohttp import web
from standardwebhooks import Webhook, WebhookVerificationError

from adapter_files import adapter_form
from api_harness import Api, TestTenant
from tenora_platform.background import Work
from tenora_platform.registry.worker import IntakeWorker
from tenora_platform.settings import Settings
from tenora_platform.webhooks import delivery
from tenora_platform.webhooks.delivery import RETRY_S, WebhookWorker, retry_after_s
from tenora_platform.webhooks.sender import Outcome, Sender
from webhook_harness import Receiver, deliveries, endpoint, happen, pass_time, pump, receiving


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as made:
        yield made


@pytest.fixture(scope="module")
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"webhook_private_addresses": True})


@pytest.fixture(scope="module", autouse=True)
def without_the_worker() -> Iterator[None]:
    """The tests are the worker: `pump`."""
    patch = pytest.MonkeyPatch()

    async def idle(self: WebhookWorker) -> None:
        await asyncio.sleep(3600)

    patch.setattr(delivery.WebhookWorker, "run", idle)
    yield
    patch.undo()


@pytest.fixture
async def tenant(api: Api) -> TestTenant:
    return await api.new_tenant("hooked")


async def test_an_event_is_sent_signed(api: Api, tenant: TestTenant, receiver: Receiver) -> None:
    made = await endpoint(api, tenant.key, receiver.url, description="payments")
    event_id = await happen(api.state, tenant.id)
    await pump(api)
    ((headers, body),) = receiver.got
    told = Webhook(made["secret"]).verify(body, headers)
    assert told["type"] == "invoice.final"
    assert (told["id"], told["tenant_id"]) == (event_id, tenant.id)
    assert headers["webhook-id"] == event_id
    assert headers["content-type"] == "application/json"
    assert datetime.fromisoformat(told["timestamp"]).tzinfo is not None
    with pytest.raises(WebhookVerificationError):
        Webhook(made["secret"]).verify(body + b" ", headers)
    (shown,) = await deliveries(api, tenant.key, made["id"])
    assert (shown["state"], shown["attempts"], shown["last_status"]) == ("delivered", 1, 204)
    assert shown["next_at"] is None
    listed = (await api.call(tenant.key, "GET", "/v1/webhook_endpoints")).text
    assert made["secret"] not in listed
    assert "secret" not in json.loads(listed)["data"][0]


async def test_who_is_told_of_what(api: Api, tenant: TestTenant) -> None:
    other = await api.new_tenant("other")
    async with receiving() as mine, receiving() as picky, receiving() as all_of_them:
        await endpoint(api, tenant.key, mine.url)
        await endpoint(api, tenant.key, picky.url, types=["budget.soft"])
        operators = await endpoint(api, None, all_of_them.url)
        sent = [
            await happen(api.state, tenant.id),
            await happen(api.state, tenant.id, "budget.soft"),
            await happen(api.state, other.id),
        ]
        await pump(api)

        def ids(receiver: Receiver) -> list[str]:
            return sorted(headers["webhook-id"] for headers, _ in receiver.got)

        assert ids(mine) == sorted(sent[:2])
        assert ids(picky) == [sent[1]]
        assert ids(all_of_them) == sorted(sent)
        await api.admin("DELETE", f"/admin/v1/webhook_endpoints/{operators['id']}")
        await happen(api.state, other.id)
        await pump(api)
        assert len(all_of_them.got) == 3


async def test_it_is_tried_again_until_it_is_taken(
    api: Api, tenant: TestTenant, receiver: Receiver
) -> None:
    made = await endpoint(api, tenant.key, receiver.url)
    receiver.answer = lambda _: web.Response(status=503, text="x" * 5000)
    await happen(api.state, tenant.id)
    await pump(api)
    (shown,) = await deliveries(api, tenant.key, made["id"])
    assert (shown["state"], shown["last_status"]) == ("waiting", 503)
    assert shown["last_error"].startswith("status 503: xxx")
    assert len(shown["last_error"]) < 1100
    wait = datetime.fromisoformat(shown["next_at"]) - datetime.now(UTC)
    assert timedelta(seconds=1) < wait < timedelta(seconds=7)
    await pump(api)
    assert len(receiver.got) == 1  # not yet
    receiver.answer = lambda _: web.Response(status=200)
    await pass_time(api, made["id"])
    await pump(api)
    first, second = receiver.got
    assert first[1] == second[1]
    assert first[0]["webhook-id"] == second[0]["webhook-id"]
    Webhook(made["secret"]).verify(second[1], second[0])
    (shown,) = await deliveries(api, tenant.key, made["id"])
    assert (shown["state"], shown["attempts"]) == ("delivered", 2)


async def test_dead_letters_are_listed_and_sent_again(
    api: Api, tenant: TestTenant, receiver: Receiver
) -> None:
    made = await endpoint(api, tenant.key, receiver.url)
    receiver.answer = lambda _: web.Response(status=500)
    for _ in range(3):
        await happen(api.state, tenant.id)
    for _ in range(len(RETRY_S) + 1):
        await pass_time(api, made["id"])
        await pump(api)
    assert len(receiver.got) == 3 * (len(RETRY_S) + 1)
    dead = await deliveries(api, tenant.key, made["id"], state="dead")
    assert [each["attempts"] for each in dead] == [len(RETRY_S) + 1] * 3
    receiver.answer = lambda _: web.Response(status=204)
    path = f"/v1/webhook_endpoints/{made['id']}"
    one = await api.call(tenant.key, "POST", f"{path}/deliveries/{dead[0]['id']}/resend")
    assert one.json()["state"] == "waiting"
    await pump(api)
    assert len(await deliveries(api, tenant.key, made["id"], state="dead")) == 2
    rest = await api.call(tenant.key, "POST", f"{path}/resend_dead")
    assert rest.json() == {"object": "resent", "resent": 2}
    await pump(api)
    assert await deliveries(api, tenant.key, made["id"], state="dead") == []


async def test_what_comes_due_while_an_endpoint_is_disabled_is_given_up(
    api: Api, tenant: TestTenant, receiver: Receiver
) -> None:
    made = await endpoint(api, tenant.key, receiver.url)
    path = f"/v1/webhook_endpoints/{made['id']}"
    receiver.answer = lambda _: web.Response(status=500)
    await happen(api.state, tenant.id)
    await pump(api)
    await api.call(tenant.key, "PATCH", path, json={"enabled": False})
    (shown,) = await deliveries(api, tenant.key, made["id"])
    assert shown["state"] == "waiting", "enabled again before its next attempt, it loses nothing"
    await pass_time(api, made["id"])
    await pump(api)
    (shown,) = await deliveries(api, tenant.key, made["id"])
    assert (shown["state"], shown["last_error"]) == ("dead", "the endpoint is disabled")
    assert len(receiver.got) == 1
    receiver.answer = lambda _: web.Response(status=204)
    await api.call(tenant.key, "PATCH", path, json={"enabled": True})
    sent = await api.call(tenant.key, "POST", f"{path}/resend_dead")
    assert sent.json() == {"object": "resent", "resent": 1}
    await pump(api)
    (shown,) = await deliveries(api, tenant.key, made["id"])
    assert shown["state"] == "delivered"


def test_a_delivery_is_tried_for_a_day() -> None:
    failed = Outcome(500, "no")
    waits = [retry_after_s(attempt, failed) for attempt in range(1, len(RETRY_S) + 2)]
    assert waits[-1] is None
    total = sum(filter(None, waits))
    assert 20 * 3600 < total < 32 * 3600  # 25 h 40 min, each a fifth more or less
    assert (retry_after_s(1, Outcome(429, "slow down", 900.0)) or 0) == 900
    assert retry_after_s(1, Outcome(410, "gone")) is None


async def test_several_workers_send_each_once(
    api: Api, tenant: TestTenant, receiver: Receiver
) -> None:
    made = await endpoint(api, tenant.key, receiver.url)
    receiver.delay_s = 0.02
    sent = sorted([await happen(api.state, tenant.id) for _ in range(40)])
    await pump(api, workers=4)
    for _ in range(10):
        await pump(api, workers=2)
    assert sorted(headers["webhook-id"] for headers, _ in receiver.got) == sent
    states = {each["state"] for each in await deliveries(api, tenant.key, made["id"], limit="100")}
    assert states == {"delivered"}


async def test_a_worker_that_dies_loses_nothing(
    api: Api, tenant: TestTenant, receiver: Receiver
) -> None:
    made = await endpoint(api, tenant.key, receiver.url)
    receiver.delay_s = 30.0
    await happen(api.state, tenant.id)
    worker = WebhookWorker.of(api.state)
    while not receiver.got:
        await worker.step()
        await asyncio.sleep(0.01)
    for task in worker._sending:
        task.cancel()
    receiver.delay_s = 0.0
    await pump(api)
    assert len(receiver.got) == 1  # it is claimed still
    await pass_time(api, made["id"])
    await pump(api)
    (shown,) = await deliveries(api, tenant.key, made["id"])
    assert (shown["state"], shown["attempts"]) == ("delivered", 2)


async def test_a_slow_endpoint_keeps_no_other_waiting(
    api: Api, tenant: TestTenant, receiver: Receiver
) -> None:
    async with receiving() as slow:
        slow.delay_s = 3600.0
        await endpoint(api, tenant.key, slow.url, types=["budget.hard"])
        await endpoint(api, tenant.key, receiver.url, types=["budget.soft"])
        for _ in range(10):
            await happen(api.state, tenant.id, "budget.hard")
        await happen(api.state, tenant.id, "budget.soft")
        worker = WebhookWorker.of(api.state)
        async with asyncio.timeout(20):
            while not receiver.got:
                await worker.step()
                await asyncio.sleep(0.01)
        for task in worker._sending:
            task.cancel()


async def test_gone_is_gone(api: Api, tenant: TestTenant, receiver: Receiver) -> None:
    made = await endpoint(api, tenant.key, receiver.url)
    receiver.answer = lambda _: web.Response(status=410)
    await happen(api.state, tenant.id)
    await pump(api)
    await happen(api.state, tenant.id)
    await pump(api)
    assert len(receiver.got) == 1
    path = f"/v1/webhook_endpoints/{made['id']}"
    shown = (await api.call(tenant.key, "GET", path)).json()
    assert (shown["enabled"], shown["disabled_reason"]) == (False, "it answered 410 Gone")
    refused = await api.call(tenant.key, "POST", f"{path}/resend_dead")
    assert refused.json()["error"]["code"] == "endpoint_disabled"
    await api.call(tenant.key, "PATCH", path, json={"enabled": True})
    receiver.answer = lambda _: web.Response()
    await happen(api.state, tenant.id)
    await pump(api)
    assert len(receiver.got) == 2


async def test_both_secrets_sign_while_one_is_rotated(
    api: Api, tenant: TestTenant, receiver: Receiver
) -> None:
    made = await endpoint(api, tenant.key, receiver.url)
    path = f"/v1/webhook_endpoints/{made['id']}"
    rotated = (await api.call(tenant.key, "POST", f"{path}/rotate", json={})).json()
    await happen(api.state, tenant.id)
    await pump(api)
    headers, body = receiver.got[-1]
    for secret in (made["secret"], rotated["secret"]):
        Webhook(secret).verify(body, headers)
    at_once = await api.call(tenant.key, "POST", f"{path}/rotate", json={"overlap_s": 0})
    await happen(api.state, tenant.id)
    await pump(api)
    headers, body = receiver.got[-1]
    Webhook(at_once.json()["secret"]).verify(body, headers)
    with pytest.raises(WebhookVerificationError):
        Webhook(rotated["secret"]).verify(body, headers)


async def test_redirects_are_not_followed(api: Api, tenant: TestTenant, receiver: Receiver) -> None:
    made = await endpoint(api, tenant.key, receiver.url)

    def elsewhere(request: web.Request) -> web.StreamResponse:
        return web.Response(status=302, headers={"location": "/elsewhere"})

    receiver.answer = elsewhere
    await happen(api.state, tenant.id)
    await pump(api)
    assert len(receiver.got) == 1
    (shown,) = await deliveries(api, tenant.key, made["id"])
    assert (shown["state"], shown["last_status"]) == ("waiting", 302)


async def test_an_answer_without_an_end_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody reads a tenant's gigabytes, and nobody waits for its last byte."""

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 500 No\r\ncontent-type: text/plain\r\n\r\n")
        try:
            while True:
                writer.write(b"x" * 65536)
                await writer.drain()
        except ConnectionError:
            writer.close()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    sender = Sender(private=True)
    for behaviour, expected in ((endless, "status 500: xxx"), (silent, "no answer within")):
        server = await asyncio.start_server(behaviour, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        monkeypatch.setattr("tenora_platform.webhooks.sender.TIMEOUT_S", 1.0)
        outcome = await sender.send(f"http://127.0.0.1:{port}/", {}, b"{}", owner="ten")
        assert not outcome.delivered
        assert str(outcome.error).startswith(expected)
        assert len(str(outcome.error)) < 1100
        server.close()


async def test_nothing_is_sent_inside_unless_the_operator_says_so(receiver: Receiver) -> None:
    sender = Sender(private=False)
    secure = receiver.url.replace("http://", "https://")
    outcome = await sender.send(secure, {}, b"{}", owner="ten")
    assert "only sent to public addresses" in str(outcome.error)
    assert receiver.got == []


async def test_keys_and_adapters_are_told_of(
    api: Api, tenant: TestTenant, receiver: Receiver
) -> None:
    await endpoint(api, tenant.key, receiver.url)
    made = await api.call(tenant.key, "POST", "/v1/api_keys", json={"name": "ci"})
    good = adapter_form(api.engine.model, "mine")
    bad = {**adapter_form(api.engine.model, "broken"), "weights": ("w", b"not safetensors")}
    for form in (good, bad):
        answer = await api.call(tenant.key, "POST", "/v1/adapters", files=form)
        assert answer.status_code == 202, answer.text
    async with asyncio.timeout(20):
        while len(receiver.got) < 3:
            await IntakeWorker(api.state).run_once()
            await pump(api)
    told = {each["type"]: each["data"] for each in (json.loads(body) for _, body in receiver.got)}
    assert told["key.created"]["id"] == made.json()["id"]
    assert made.json()["key"] not in str(told)
    assert (told["adapter.active"]["adapter"], told["adapter.active"]["version"]) == ("mine", 1)
    assert told["adapter.rejected"]["adapter"] == "broken"
    assert told["adapter.rejected"]["problems"][0]["code"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"url": "ftp://example.com"}, "url"),
        ({"url": "https://example.com", "types": []}, "types"),
        ({"url": "https://example.com", "types": ["Not A Type"]}, "types[0]"),
        ({"types": ["budget.soft"]}, "url"),
    ],
)
async def test_bad_endpoints_are_refused(
    api: Api, tenant: TestTenant, body: dict[str, Any], param: str
) -> None:
    answer = await api.call(tenant.key, "POST", "/v1/webhook_endpoints", json=body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


async def test_a_key_needs_the_scope(api: Api) -> None:
    tenant = await api.new_tenant("narrow", scopes=["inference", "usage"])
    answer = await api.call(tenant.key, "GET", "/v1/webhook_endpoints")
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "insufficient_scope")


def test_work_is_in_the_workers_table(api: Api) -> None:
    from tenora_platform.background import worker_work

    work: Work = worker_work(api.state)
    assert {"webhooks", "invoices"} <= set(work)
