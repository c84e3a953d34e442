"""What `tenora up` adds to `tenora serve`: two demo tenants with the trained adapters of
`examples/`, made once through the HTTP API like anybody's, and their keys shown at every start."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import msgspec
from pydantic import SecretStr

from tenora_platform.cli.errors import CliError
from tenora_platform.cli.output import terminal
from tenora_platform.cli.run import base_url
from tenora_platform.resources import examples_folder
from tenora_platform.secret import write_private
from tenora_platform.settings import Settings

_CHECK_S = 120
_PRICES = {"uncached_prefill": "0.10", "cached_prefill": "0.02", "output": "0.40"}
_PLANS = {"acme": "premium", "globex": "standard"}


@dataclass(frozen=True, slots=True)
class DemoAdapter:
    """One trained adapter and whose it is."""

    tenant: str
    name: str
    folder: Path


def kept_admin_key(settings: Settings, made: Callable[[], str]) -> Settings:
    """Settings with an admin key that this start can use and show, kept in the data directory
    (`admin_key`, readable by its owner only). `made` makes one where there is none."""
    if settings.admin_key is not None:
        return settings
    kept = settings.data_dir / "admin_key"
    # One that is not text can be replaced: its hash is all that is kept of it elsewhere.
    key = kept.read_text(errors="ignore").strip() if kept.exists() else ""
    if not key:
        key = made()
        write_private(kept, key + "\n")
    return settings.model_copy(update={"admin_key": SecretStr(key)})


def read_manifest(folder: Path | None = None) -> list[DemoAdapter]:
    """The adapters of `manifest.json`, empty when there are none. Raises CliError for one that
    names what is not there."""
    folder = folder or examples_folder()
    manifest = folder / "manifest.json"
    if not manifest.is_file():
        return []
    found = [
        DemoAdapter(entry["tenant"], entry["name"], folder / entry["folder"])
        for entry in json.loads(manifest.read_text())
    ]
    for adapter in found:
        if not (adapter.folder / "adapter_model.safetensors").is_file():
            raise CliError(f"{manifest} names {adapter.folder}, which contains no adapter.")
    return found


async def show_demo(settings: Settings) -> None:
    """Make the demo if it is not there, then print its keys. A failure is printed, and the
    platform runs on."""
    console = terminal()
    assert settings.admin_key is not None
    admin_key = settings.admin_key.get_secret_value()
    console.print(f"  admin key  {admin_key}")
    try:
        async with httpx.AsyncClient(
            base_url=base_url(settings), timeout=120, trust_env=False
        ) as http:
            tenants = await Demo(http, admin_key, settings.data_dir).ensure(read_manifest())
    except (CliError, httpx.HTTPError) as error:
        console.print(f"tenora: the demo could not be set up: {error}")
        return
    for name, tenant in tenants.items():
        adapters = ", ".join(tenant["adapters"]) or "none"
        console.print(f"  {name:<10} {tenant['key']}  adapters: {adapters}")
    console.print("tenora: press Ctrl-C to stop")


class Demo:
    """Makes the demo step by step and notes each step in `demo.partial.json`, so that a start that
    was broken off is gone on with; the whole becomes `demo.json`."""

    def __init__(self, http: httpx.AsyncClient, admin_key: str, data_dir: Path) -> None:
        self._http = http
        self._admin_key = admin_key
        self._done = data_dir / "demo.json"
        self._partial = data_dir / "demo.partial.json"

    async def ensure(self, adapters: list[DemoAdapter]) -> dict[str, dict[str, Any]]:
        """Tenant name -> {id, key, adapters}. Raises CliError or httpx.HTTPError."""
        tenants = self._remembered()
        if self._done.exists() and await self._all_known(tenants):
            return tenants
        for name, plan in _PLANS.items():
            if name not in tenants or not await self._known(tenants[name]["key"]):
                tenants[name] = await self._make_tenant(name, plan)
                await self._set_prices(tenants[name]["id"])
                self._note(tenants)
        for adapter in adapters:
            tenant = tenants[adapter.tenant]
            if adapter.name not in tenant["adapters"]:
                await self._upload(tenant["key"], adapter)
                tenant["adapters"].append(adapter.name)
                self._note(tenants)
        self._partial.replace(self._done)
        return tenants

    def _remembered(self) -> dict[str, dict[str, Any]]:
        for path in (self._partial, self._done):
            if path.exists():
                try:
                    return msgspec.json.decode(path.read_bytes(), type=dict[str, dict[str, Any]])
                except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                    raise CliError(
                        f"{path} is damaged ({error}).",
                        "Restore it from a backup; or move it away, and the demo is made anew.",
                    ) from error
        return {}

    def _note(self, tenants: dict[str, dict[str, Any]]) -> None:
        write_private(self._partial, json.dumps(tenants, indent=2) + "\n")

    async def _all_known(self, tenants: dict[str, dict[str, Any]]) -> bool:
        return all([await self._known(tenant["key"]) for tenant in tenants.values()])

    async def _known(self, key: str) -> bool:
        """False when the database has been replaced since the key was noted. A demo tenant that
        the operator has suspended is known all the same."""
        answer = await self._http.get("/v1/limits", headers=_bearer(key))
        return answer.status_code != 401

    async def _make_tenant(self, name: str, plan: str) -> dict[str, Any]:
        body = {"name": name, "plan": plan}
        made = await self._call("POST", "/admin/v1/tenants", self._admin_key, json=body)
        path = f"/admin/v1/tenants/{made['id']}/api_keys"
        key = await self._call("POST", path, self._admin_key, json={"name": "demo"})
        return {"id": made["id"], "key": key["key"], "adapters": []}

    async def _set_prices(self, tenant_id: str) -> None:
        """So that the demo shows money; others are charged nothing until somebody sets a price."""
        body = {"tenant": tenant_id, "per_million": _PRICES}
        await self._call("POST", "/admin/v1/prices", self._admin_key, json=body)

    async def _upload(self, key: str, adapter: DemoAdapter) -> None:
        files = {
            "adapter_config": (adapter.folder / "adapter_config.json").read_bytes(),
            "weights": (adapter.folder / "adapter_model.safetensors").read_bytes(),
        }
        made = await self._call(
            "POST", "/v1/adapters", key, data={"name": adapter.name}, files=files
        )
        path = f"/v1/adapters/{adapter.name}/versions/{made['version']}"
        async with asyncio.timeout(_CHECK_S):
            while True:
                version = await self._call("GET", path, key)
                if version["state"] == "active":
                    return
                if version["state"] == "rejected":
                    raise CliError(f"the adapter in {adapter.folder} was rejected: {version}")
                await asyncio.sleep(0.1)

    async def _call(self, method: str, path: str, key: str, **more: Any) -> Any:
        answer = await self._http.request(method, path, headers=_bearer(key), **more)
        if answer.is_error:
            raise CliError(f"{method} {path} answered {answer.status_code}: {answer.text[:300]}")
        return answer.json()


def _bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}
