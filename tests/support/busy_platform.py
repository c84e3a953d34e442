"""A platform on which something has happened: tenants, adapters that serve and one that was
rejected, requests, prices in two currencies, final invoices and a draft, keys, webhooks. All
through the API of a real one, but for last month's usage, which is booked as its worker would."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx

from last_month import Asked, book_last_month, last_month
from portal_under_test import REPOSITORY, PortalUnderTest
from tenora_platform.invoices.period import midnight, name_of

ADAPTERS = REPOSITORY / "examples" / "adapters"
_SOON_S = 60.0


METERS = {"uncached_prefill": "0.20", "cached_prefill": "0.05", "output": "0.60"}


@dataclass(frozen=True)
class Busy:
    """What there is, to fill the parameters of pages' addresses with."""

    tenant: str
    key: str
    ids: dict[str, str]

    def address(self, path: str) -> str:
        """Of a page of the table. Raises KeyError for a parameter without an example."""
        return re.sub(r":(\w+)", lambda found: self.ids[found.group(1)], path)


def make_busy(portal: PortalUnderTest) -> Busy:
    """Two tenants, of which one has something on every page. `set_prices` comes first, before any
    request on that platform: what has been rated keeps its price."""
    tenant, key = portal.new_tenant("Acme")
    _, other_key = portal.new_tenant("Umbrella, a tenant with a name that is rather long")
    add_adapter(portal, key, "support", ADAPTERS / "acme-support")
    add_adapter(portal, key, "json", ADAPTERS / "acme-json")
    _rejected(portal, key, "json", ADAPTERS / "acme-json")
    add_adapter(portal, other_key, "pirate", ADAPTERS / "globex-pirate")
    _in_euros(portal, key, "support")
    _last_month(portal, tenant, key, "support")
    request = _ask(portal, key, "support")
    for each, model in ((key, "support"), (key, "json"), (key, None), (other_key, "pirate")):
        _ask(portal, each, model)
    portal.call(key, "POST", "/v1/api_keys", json={"name": "robot", "scopes": ["inference"]})
    _until(lambda: portal.call(key, "GET", "/v1/requests")["data"])
    # Passed already: its alert is on every page.
    budget = {"amount": "0.000001", "currency": "USD"}
    portal.call(key, "PUT", "/v1/budget", json=budget)
    evaluation = _evaluation(portal, key, "support")
    period = f"{datetime.now(UTC):%Y-%m}"
    portal.admin(
        "POST", "/admin/v1/invoices/run", json={"tenant": tenant, "period": period, "draft": True}
    )
    invoice = portal.call(key, "GET", "/v1/invoices")["data"][0]["id"]
    hook = {"url": "https://hooks.invalid/tenora", "description": "Tells the team"}
    endpoint = portal.call(key, "POST", "/v1/webhook_endpoints", json=hook)["id"]
    operators = portal.admin("POST", "/admin/v1/webhook_endpoints", json=hook)["id"]
    portal.call(key, "POST", "/v1/api_keys", json={"name": "told of", "scopes": ["usage"]})
    ids = {
        "endpoint": endpoint,
        "operator_endpoint": operators,
        "name": "support",
        "adapter": "support",
        "request": request,
        "request_id": request,
        "invoice": invoice,
        "invoice_id": invoice,
        "tenant": tenant,
        "tenant_id": tenant,
        "version": "1",
        "evaluation": evaluation,
        "id": "",
    }
    return Busy(tenant, key, ids)


def set_prices(portal: PortalUnderTest) -> None:
    """Everybody's prices since last month. A fresh installation charges nothing."""
    body = {
        "currency": "USD",
        "per_million": METERS,
        "effective_from": midnight(last_month()).isoformat(),
    }
    portal.admin("POST", "/admin/v1/prices", json=body)


def _in_euros(portal: PortalUnderTest, key: str, adapter: str) -> None:
    """A price list of that adapter alone, since last month."""
    body = {
        "adapter": portal.call(key, "GET", f"/v1/adapters/{adapter}")["id"],
        "currency": "EUR",
        "per_million": METERS,
        "effective_from": midnight(last_month()).isoformat(),
    }
    portal.admin("POST", "/admin/v1/prices", json=body)


def _last_month(portal: PortalUnderTest, tenant: str, key: str, adapter: str) -> None:
    """Usage of an adapter and of the base model, and the month's final invoices."""
    api_key = portal.call(key, "GET", "/v1/me")["key"]["id"]
    base = portal.call(key, "GET", "/v1/models")["data"][0]["id"]
    found = portal.call(key, "GET", f"/v1/adapters/{adapter}")
    version = found["versions"][-1]
    of_adapter = Asked(tenant, api_key, base, found["id"], version["id"], version["digest"])
    book_last_month(portal.data, [Asked(tenant, api_key, base), of_adapter])
    body = {"tenant": tenant, "period": name_of(last_month()), "draft": False}
    report = portal.admin("POST", "/admin/v1/invoices/run", json=body)
    assert (report["made"], report["failed"]) == (2, []), report


def add_adapter(portal: PortalUnderTest, key: str, name: str, folder: Path) -> None:
    sent = _upload(portal, key, name, (folder / "adapter_config.json").read_bytes(), folder)
    path = f"/v1/adapters/{name}/versions/{sent['version']}"
    _until(lambda: portal.call(key, "GET", path)["state"] == "active")


def _rejected(portal: PortalUnderTest, key: str, name: str, folder: Path) -> None:
    """A newer version that contradicts itself; the one before serves on."""
    config = json.loads((folder / "adapter_config.json").read_text())
    config["r"] += 1
    sent = _upload(portal, key, name, json.dumps(config).encode(), folder)
    path = f"/v1/adapters/{name}/versions/{sent['version']}"
    _until(lambda: portal.call(key, "GET", path)["state"] == "rejected")


def _upload(portal: PortalUnderTest, key: str, name: str, config: bytes, folder: Path) -> Any:
    files = {
        "adapter_config": ("adapter_config.json", config),
        "weights": (
            "adapter_model.safetensors",
            (folder / "adapter_model.safetensors").read_bytes(),
        ),
    }
    return portal.call(key, "POST", "/v1/adapters", data={"name": name}, files=files)


def _ask(portal: PortalUnderTest, key: str, model: str | None) -> str:
    """One short chat; its request id."""
    base = portal.call(key, "GET", "/v1/models")["data"][0]["id"]
    body = {
        "model": model or base,
        "messages": [{"role": "user", "content": "My parcel is late. What now?"}],
        "max_tokens": 12,
    }
    headers = {"authorization": f"Bearer {key}"}
    url = f"{portal.url}/v1/chat/completions"
    answer = httpx.post(url, json=body, headers=headers, timeout=60).raise_for_status()
    return answer.headers["x-request-id"]


def _evaluation(portal: PortalUnderTest, key: str, adapter: str) -> str:
    """Of one version and the base model; it has ended."""
    body = {
        "adapter": adapter,
        "versions": [1, "base"],
        "scoring": "contains",
        "max_tokens": 8,
        "items": [
            {"messages": [{"role": "user", "content": "My parcel is late."}], "expected": "parcel"}
        ],
    }
    made = portal.call(key, "POST", "/v1/evaluations", json=body)
    path = f"/v1/evaluations/{made['id']}"
    _until(lambda: portal.call(key, "GET", path)["state"] == "completed")
    return str(made["id"])


def _until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + _SOON_S
    while not holds():
        if time.monotonic() > deadline:
            raise AssertionError("the platform did not come to where the pages have something")
        time.sleep(0.1)
