"""`tenora tenant` and `tenora key`."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Annotated, Any

import typer

from tenora_platform.cli.client import (
    DEFAULT_URL,
    AdminKey,
    AsJson,
    Key,
    OverlapS,
    Url,
    connected,
    show,
)
from tenora_platform.cli.errors import CliError
from tenora_platform.cli.output import say
from tenora_platform.times import DAY_S

tenant = typer.Typer(no_args_is_help=True)
key = typer.Typer(no_args_is_help=True)

TenantId = Annotated[str, typer.Argument(help="The tenant's id.")]
_TENANT = {"id": "id", "name": "name", "plan": "plan", "status": "status", "since": "created_at"}
_KEY = {
    "id": "id",
    "name": "name",
    "prefix": "prefix",
    "scopes": "scopes",
    "models": "models",
    "expires": "expires_at",
    "revoked": "revoked_at",
    "last used": "last_used_at",
}
_CREDIT = {
    "id": "id",
    "kind": "kind",
    "amount": "amount",
    "currency": "currency",
    "expires": "expires_at",
    "lapsed": "lapsed",
    "note": "note",
    "granted": "created_at",
}
_ADMIN = "the admin key"


@tenant.command("list")
def list_tenants(url: Url = DEFAULT_URL, key: AdminKey = None, as_json: AsJson = False) -> None:
    """List all tenants, newest first."""
    with connected(url, key, what=_ADMIN) as api:
        show(api.all_of("/admin/v1/tenants"), _TENANT, as_json=as_json)


@tenant.command("create")
def create_tenant(
    name: Annotated[str, typer.Argument(help="A name for the tenant.")],
    plan: Annotated[str, typer.Option(help="Name of the plan.")] = "standard",
    url: Url = DEFAULT_URL,
    key: AdminKey = None,
    as_json: AsJson = False,
) -> None:
    """Create a tenant and its first API key, which is shown only once."""
    with connected(url, key, what=_ADMIN) as api:
        made = api.call("POST", "/admin/v1/tenants", json={"name": name, "plan": plan})
        new = api.call("POST", f"/admin/v1/tenants/{made['id']}/api_keys", json={"name": "first"})
    row = made | {"key": new["key"]}
    show(row, {"id": "id", "plan": "plan", "key": "key"}, as_json=as_json, rows=[row])


@tenant.command("update")
def update_tenant(
    tenant_id: TenantId,
    plan: Annotated[str | None, typer.Option(help="Name of the new plan.")] = None,
    name: Annotated[str | None, typer.Option(help="New name.")] = None,
    status: Annotated[str | None, typer.Option(help="active or suspended.")] = None,
    url: Url = DEFAULT_URL,
    key: AdminKey = None,
    as_json: AsJson = False,
) -> None:
    """Change a tenant; options that are not given stay as they are."""
    given = {"plan": plan, "name": name, "status": status}
    body = {field: value for field, value in given.items() if value is not None}
    with connected(url, key, what=_ADMIN) as api:
        made = api.call("PATCH", f"/admin/v1/tenants/{tenant_id}", json=body)
    show(made, _TENANT, as_json=as_json, rows=[made])


@tenant.command("delete")
def delete_tenant(
    tenant_id: TenantId,
    grace_days: Annotated[
        int | None, typer.Option(help="Until it is erased; the server's setting if absent.")
    ] = None,
    url: Url = DEFAULT_URL,
    key: AdminKey = None,
    as_json: AsJson = False,
) -> None:
    """Suspend a tenant now and erase it after the grace period; until then: tenant restore."""
    query = "" if grace_days is None else f"?grace_days={grace_days}"
    with connected(url, key, what=_ADMIN) as api:
        made = api.call("DELETE", f"/admin/v1/tenants/{tenant_id}{query}")
    show(made, _TENANT | {"erased after": "erase_after"}, as_json=as_json, rows=[made])


@tenant.command("restore")
def restore_tenant(
    tenant_id: TenantId, url: Url = DEFAULT_URL, key: AdminKey = None, as_json: AsJson = False
) -> None:
    """Take a deletion back before its grace period is over."""
    with connected(url, key, what=_ADMIN) as api:
        made = api.call("POST", f"/admin/v1/tenants/{tenant_id}/restore")
    show(made, _TENANT, as_json=as_json, rows=[made])


@tenant.command("credit")
def grant_credit(
    tenant_id: TenantId,
    amount: Annotated[
        str,
        typer.Argument(
            help="Amount of money, such as 25.00; without it, the existing grants are shown."
        ),
    ] = "",
    kind: Annotated[str | None, typer.Option(help="granted (the default) or bought.")] = None,
    expires_at: Annotated[
        str | None, typer.Option(help="When the credit expires, such as 2027-01-31T00:00:00Z.")
    ] = None,
    note: Annotated[str | None, typer.Option(help="A note about the grant.")] = None,
    url: Url = DEFAULT_URL,
    key: AdminKey = None,
    as_json: AsJson = False,
) -> None:
    """Grant prepaid credit, or show existing grants. A tenant with credit can spend only that
    credit."""
    path = f"/admin/v1/tenants/{tenant_id}/credits"
    given = {"amount": amount, "kind": kind, "expires_at": expires_at, "note": note}
    body = {field: value for field, value in given.items() if value}
    with connected(url, key, what=_ADMIN) as api:
        if not amount:
            show(api.all_of(path), _CREDIT, as_json=as_json)
            return
        made = api.call("POST", path, json=body)
    show(made, _CREDIT, as_json=as_json, rows=[made])


@key.command("list")
def list_keys(
    tenant_id: Annotated[str | None, typer.Option("--tenant", help="With the admin key.")] = None,
    url: Url = DEFAULT_URL,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """List a tenant's keys: with a tenant's key its own, with an admin key those of --tenant."""
    with connected(url, _either(key, tenant_id), what="a key") as api:
        show(api.all_of(_keys_path(tenant_id)), _KEY, as_json=as_json)


@key.command("create")
def create_key(
    name: Annotated[str, typer.Argument(help="A name for the key.")],
    tenant_id: Annotated[str | None, typer.Option("--tenant", help="With the admin key.")] = None,
    scope: Annotated[
        list[str] | None,
        typer.Option(help="A scope of the key; can be repeated. Default: all scopes."),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            help=(
                "A model the key may use: NAME, NAME@3 or the base model; can be repeated. "
                "Default: all models."
            )
        ),
    ] = None,
    expires_at: Annotated[
        str | None, typer.Option(help="When the key expires, such as 2027-01-31T00:00:00Z.")
    ] = None,
    limit: Annotated[
        list[str] | None,
        typer.Option(help="A limit, such as requests_per_min=60 or budget=12.50; can be repeated."),
    ] = None,
    url: Url = DEFAULT_URL,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Create an API key. Its secret is shown only once."""
    body: dict[str, Any] = {"name": name}
    if model:
        body["models"] = model
    if limit:
        body["limits"] = dict(_limit(text) for text in limit)
    if scope:
        body["scopes"] = scope
    if expires_at:
        body["expires_at"] = expires_at
    with connected(url, _either(key, tenant_id), what="a key") as api:
        made = api.call("POST", _keys_path(tenant_id), json=body)
    columns = {"id": "id", "scopes": "scopes", "key": "key"}
    show(made, columns, as_json=as_json, rows=[made])


@key.command("rotate")
def rotate_key(
    key_id: Annotated[str, typer.Argument(help="The key's id.")],
    overlap_s: OverlapS = DAY_S,
    tenant_id: Annotated[str | None, typer.Option("--tenant", help="With the admin key.")] = None,
    url: Url = DEFAULT_URL,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Give a key a new secret, which is shown only once."""
    with connected(url, _either(key, tenant_id), what="a key") as api:
        path = f"{_keys_path(tenant_id)}/{key_id}/rotate"
        made = api.call("POST", path, json={"overlap_s": overlap_s})
    show(made, {"id": "id", "prefix": "prefix", "key": "key"}, as_json=as_json, rows=[made])


@key.command("revoke")
def revoke_key(
    key_id: Annotated[str, typer.Argument(help="The key's id.")],
    tenant_id: Annotated[str | None, typer.Option("--tenant", help="With the admin key.")] = None,
    url: Url = DEFAULT_URL,
    key: Key = None,
) -> None:
    """Revoke a key, effective at once."""
    with connected(url, _either(key, tenant_id), what="a key") as api:
        ended = api.call("DELETE", f"{_keys_path(tenant_id)}/{key_id}")
    say(f"revoked {key_id}")
    if (more := ended["keys"] - 1) > 0:
        say(f"revoked with it: {more} that it created")
    if ended["webhook_endpoints"]:
        say(f"webhook endpoints disabled: {ended['webhook_endpoints']}")


def _limit(text: str) -> tuple[str, str | int | float]:
    """`name=value`; which names there are, and which values, the server says. Money stays text."""
    name, separator, value = text.partition("=")
    if not separator:
        raise CliError(f"{text!r} is not a limit.", "Write it as in --limit requests_per_min=60")
    name, value = name.strip(), value.strip()
    if value.isdecimal() and not name.startswith("budget"):
        return name, int(value)
    if name == "budget_soft":
        with suppress(ValueError):
            return name, float(value)
    return name, value


def _keys_path(tenant_id: str | None) -> str:
    return "/v1/api_keys" if tenant_id is None else f"/admin/v1/tenants/{tenant_id}/api_keys"


def _either(key: str | None, tenant_id: str | None) -> str | None:
    """Another tenant's keys are the operator's business."""
    return key or os.environ.get("TENORA_API_KEY" if tenant_id is None else "TENORA_ADMIN_KEY")
