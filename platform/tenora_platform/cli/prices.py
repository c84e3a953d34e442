"""`tenora price`: price lists, and what a new one would change."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from tenora_platform.cli.client import (
    DEFAULT_URL,
    AdminKey,
    AsJson,
    TenantKey,
    Url,
    connected,
    show,
)
from tenora_platform.cli.errors import CliError

price = typer.Typer(no_args_is_help=True)

File = Annotated[
    typer.FileText,
    typer.Argument(
        help="File with the body of POST /admin/v1/prices as JSON; - for standard input."
    ),
]
_PATH = "/admin/v1/prices"
_ADMIN = "the admin key"
_LIST = {
    "id": "id",
    "holds for": "holds for",
    "from": "effective_from",
    "until": "effective_to",
    "prices": "prices",
    "minimum": "minimum",
    "included": "included",
}
_SCOPES = ("adapter", "tenant", "plan", "model")


@price.command("list")
def list_prices(url: Url = DEFAULT_URL, key: AdminKey = None, as_json: AsJson = False) -> None:
    """List all price lists, oldest first (needs an admin key)."""
    with connected(url, key, what=_ADMIN) as api:
        found = api.call("GET", _PATH)
    show(found, _LIST, as_json=as_json, rows=[_row(each) for each in found["data"]])


@price.command("own")
def own_prices(url: Url = DEFAULT_URL, key: TenantKey = None, as_json: AsJson = False) -> None:
    """Show the prices in force for a tenant, and announced ones (needs its API key)."""
    with connected(url, key, what="a tenant's API key") as api:
        found = api.call("GET", "/v1/prices")
    columns = {"status": "status", **_LIST}
    show(found, columns, as_json=as_json, rows=[_row(each) for each in found["data"]])


@price.command("add")
def add_prices(
    file: File, url: Url = DEFAULT_URL, key: AdminKey = None, as_json: AsJson = False
) -> None:
    """Add a price list, effective now or at its `effective_from` (needs an admin key)."""
    body = _body(file)
    with connected(url, key, what=_ADMIN) as api:
        made = api.call("POST", _PATH, json=body)
    show(made, _LIST, as_json=as_json, rows=[_row(made)])


@price.command("preview")
def preview_prices(
    file: File,
    month: Annotated[
        str | None, typer.Option(help="The month, such as 2026-10; default: the last full month.")
    ] = None,
    url: Url = DEFAULT_URL,
    key: AdminKey = None,
    as_json: AsJson = False,
) -> None:
    """Preview what a month would have cost each tenant under a list like this (needs an admin
    key)."""
    body = _body(file)
    body.pop("effective_from", None)
    if month is not None:
        body["month"] = month
    with connected(url, key, what=_ADMIN) as api:
        found = api.call("POST", f"{_PATH}/preview", json=body)
    rows = []
    for tenant in found["data"]:
        due = {"meter": "due", "before": tenant["due_before"], "after": tenant["due_after"]}
        for each in (*tenant["meters"], due):
            money = {name: _money(each[name]) for name in ("before", "after")}
            rows.append({"tenant": tenant["tenant"], **each, **money})
    names = ("tenant", "meter", "class", "quantity", "before", "after", "unpriced")
    show(found, {name: name for name in names}, as_json=as_json, rows=rows)


def _body(file: Any) -> dict[str, Any]:
    try:
        body = json.load(file)
    except ValueError as error:
        raise CliError(f"{file.name} is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise CliError(
            f"{file.name} is not a JSON object.", 'Write an object such as {"per_million": {...}}'
        )
    return body


def _row(found: dict[str, Any]) -> dict[str, Any]:
    scope = ", ".join(f"{name} {found[name]}" for name in _SCOPES if found[name]) or "all"
    prices = ", ".join(f"{meter} {_prices(each)}" for meter, each in found["per_million"].items())
    return {**found, "holds for": scope, "prices": f"{prices} {found['currency']}"}


def _prices(found: str | list[dict[str, Any]]) -> str:
    if isinstance(found, str):
        return found
    each = []
    for entry in found:
        begin = f" from {entry['from']}" if entry["from"] else ""
        each.append(f"{entry['class'] or 'any'}{begin}: {entry['price']}")
    return f"({'; '.join(each)})"


def _money(found: dict[str, str]) -> str:
    return ", ".join(f"{amount} {currency}" for currency, amount in found.items()) or "-"
