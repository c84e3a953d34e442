"""Locks are taken in one order (docs/decisions/0055), so that nobody waits in a circle: whatever
changes run beside each other, none meets a deadlock. One that happens all the same is repeated."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest
from sqlalchemy.exc import OperationalError

from adapter_files import adapter_form
from api_harness import Api, TestTenant
from lock_recorder import recorded
from tenora_platform.registry.worker import IntakeWorker
from tenora_platform.tenants.service import TenantService

CLIENTS, EACH = 8, 16
PRICES = {"uncached_prefill": "1", "cached_prefill": "1", "output": "1", "cold_load": "1"}


@dataclass
class Mix:
    """Random changes of one tenant, by the operator and by itself. `made`: ids by kind."""

    api: Api
    tenant: TestTenant
    dice: random.Random
    made: dict[str, list[str]] = field(default_factory=dict)

    def choices(self) -> list[tuple[str, str, dict[str, Any] | None]]:
        of, word = f"/admin/v1/tenants/{self.tenant.id}", f"n{self.dice.randrange(10**9)}"
        person = {"email": f"{word}@b.example", "role": "viewer"}
        hook = {"url": f"https://8.8.8.8/{word}"}
        key, endpoint, invoice = map(self.one, ("api_key", "webhook_endpoint", "invoice"))
        alias = {"targets": [{"version": 1, "weight": 100}]}
        return [
            ("PATCH", of, {"name": word}),
            ("PATCH", of, {"trust_group": self.dice.choice(["a", "b", None])}),
            ("PATCH", of, {"plan": self.dice.choice(["premium", "standard"])}),
            ("PUT", "/admin/v1/plans/mixed", {"sla_class": "default", "limits": {}}),
            ("POST", f"{of}/credits", {"amount": "1"}),
            ("POST", f"{of}/api_keys", {"name": word}),
            ("POST", f"{of}/api_keys/{key}/rotate", {}),
            ("DELETE", f"{of}/api_keys/{key}", None),
            ("PUT", f"{of}/billing_profile", {"name": word}),
            ("POST", f"{of}/invitations", person),
            ("POST", "/admin/v1/prices", {"tenant": self.tenant.id, "per_million": PRICES}),
            ("PATCH", "/admin/v1/billing_settings", {"name": word}),
            ("POST", "/admin/v1/invoices/run", {"tenant": self.tenant.id}),
            ("POST", f"/admin/v1/invoices/{invoice}/void", {"reason": word}),
            ("PUT", "/v1/budget", {"amount": "5"}),
            ("DELETE", "/v1/budget", None),
            ("POST", "/v1/api_keys", {"name": word}),
            ("PATCH", f"/v1/api_keys/{key}", {"name": word}),
            ("POST", "/v1/webhook_endpoints", hook),
            ("PATCH", f"/v1/webhook_endpoints/{endpoint}", {"description": word}),
            ("DELETE", f"/v1/webhook_endpoints/{endpoint}", None),
            ("PATCH", "/v1/settings", {"draft_from_answers": self.dice.random() < 0.5}),
            ("PUT", "/v1/billing_profile", {"name": word}),
            ("PUT", f"/v1/adapters/bot/aliases/{self.dice.choice('ab')}", alias),
            ("DELETE", f"/v1/adapters/bot/aliases/{self.dice.choice('ab')}", None),
            ("DELETE", of, None),  # and restored at once
        ]

    def one(self, kind: str) -> str:
        return self.dice.choice(self.made.get(kind) or [f"{kind}_none"])

    async def change(self) -> tuple[str, int, str]:
        method, path, body = self.dice.choice(self.choices())
        sent: dict[str, Any] = {} if body is None else {"json": body}
        answer = (
            await self.api.admin(method, path, **sent)
            if path.startswith("/admin")
            else await self.api.call(self.tenant.key, method, path, **sent)
        )
        if (method, path) == ("DELETE", f"/admin/v1/tenants/{self.tenant.id}"):
            await self.api.admin("POST", f"{path}/restore")
        found = answer.json()
        for each in (found, *found.get("invoices", ())):
            if answer.is_success and "object" in each and "id" in each:
                self.made.setdefault(each["object"], []).append(each["id"])
        return f"{method} {path}", answer.status_code, answer.text


async def test_changes_of_one_tenant_at_once_never_meet_in_a_circle(api: Api) -> None:
    await api.put_plan("mixed", {})
    tenant = await api.new_tenant("busy", plan="premium")
    files = adapter_form(api.engine.model, "bot", seed=1)
    assert (await api.call(tenant.key, "POST", "/v1/adapters", files=files)).status_code == 202
    version = "/v1/adapters/bot/versions/1"
    while (await api.call(tenant.key, "GET", version)).json()["state"] != "active":
        await IntakeWorker(api.state).run_once()

    async def client(mix: Mix) -> list[tuple[str, int, str]]:
        return [await mix.change() for _ in range(EACH)]

    with recorded(api.state.db) as order:
        made: dict[str, list[str]] = {}
        mixes = [Mix(api, tenant, random.Random(number), made) for number in range(CLIENTS)]
        found = await asyncio.gather(*map(client, mixes))
    answers = [each for several in found for each in several]
    assert [each for each in answers if each[1] >= 500] == []
    assert len({each[0] for each in answers if each[1] < 300}) > 10, "most of them do something"
    assert order.circle() == []


class Victim:
    """A service's method that meets a deadlock the first times it is called."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, times: int, *, commits: bool) -> None:
        self.calls = 0
        change = TenantService.change_tenant

        async def fails(service: TenantService, *values: Any) -> Any:
            self.calls += 1
            changed = await change(service, *values)
            if self.calls <= times:
                if commits:
                    await service._session.commit()
                raise OperationalError("", {}, psycopg.errors.DeadlockDetected("deadlock"))
            return changed

        monkeypatch.setattr(TenantService, "change_tenant", fails)


async def renamings(api: Api, tenant: TestTenant) -> int:
    page = await api.admin("GET", "/admin/v1/audit_logs?action=tenant.update&limit=100")
    return [each["target"] for each in page.json()["data"]].count(tenant.id)


async def test_the_victim_of_a_deadlock_is_asked_again(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant = await api.new_tenant("victim")
    victim = Victim(monkeypatch, 2, commits=False)
    path = f"/admin/v1/tenants/{tenant.id}"
    answer = await api.admin("PATCH", path, json={"name": "again"})
    assert (answer.status_code, answer.json()["name"]) == (200, "again")
    assert victim.calls == 3
    assert await renamings(api, tenant) == 1


async def test_what_has_committed_something_is_not_repeated(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant = await api.new_tenant("half done")
    victim = Victim(monkeypatch, 1, commits=True)
    answer = await api.admin("PATCH", f"/admin/v1/tenants/{tenant.id}", json={"name": "once"})
    assert answer.status_code == 503
    assert victim.calls == 1
    assert await renamings(api, tenant) == 1
