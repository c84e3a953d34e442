"""`tenora usage` and `tenora invoice`."""

from __future__ import annotations

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

usage = typer.Typer(no_args_is_help=True)
invoice = typer.Typer(no_args_is_help=True)

Start = Annotated[str | None, typer.Option(help="From this time on, such as 2026-11-01.")]
End = Annotated[str | None, typer.Option(help="Before this time.")]
Bucket = Annotated[str | None, typer.Option(help="1h or 1d.")]
GroupBy = Annotated[str | None, typer.Option(help="adapter, api_key, ...")]
_KEY = "a tenant's API key"


@usage.command("show")
def show_usage(
    start: Start = None,
    end: End = None,
    bucket: Bucket = None,
    group_by: GroupBy = None,
    url: Url = DEFAULT_URL,
    key: TenantKey = None,
    as_json: AsJson = False,
) -> None:
    """Tokens by time."""
    query = _query(start, end, bucket, group_by)
    with connected(url, key, what=_KEY) as api:
        _show_buckets(api.call("GET", "/v1/usage", params=query), as_json=as_json)


@usage.command("costs")
def show_costs(
    start: Start = None,
    end: End = None,
    bucket: Bucket = None,
    group_by: GroupBy = None,
    url: Url = DEFAULT_URL,
    key: TenantKey = None,
    as_json: AsJson = False,
) -> None:
    """Money by time."""
    query = _query(start, end, bucket, group_by)
    with connected(url, key, what=_KEY) as api:
        _show_buckets(api.call("GET", "/v1/costs", params=query), as_json=as_json)


@invoice.command("list")
def list_invoices(url: Url = DEFAULT_URL, key: TenantKey = None, as_json: AsJson = False) -> None:
    """The tenant's invoices."""
    with connected(url, key, what=_KEY) as api:
        rows = api.all_of("/v1/invoices")
    show(rows, {name: name for name in rows[0]} if rows else {"id": "id"}, as_json=as_json)


@invoice.command("run")
def run_invoices(url: Url = DEFAULT_URL, key: AdminKey = None) -> None:
    """Make the invoices that are due (admin key)."""
    with connected(url, key, what="the admin key") as api:
        show(api.call("POST", "/admin/v1/invoices/run", json={}), {}, as_json=True)


def _query(*values: str | None) -> dict[str, str]:
    names = ("start", "end", "bucket", "group_by")
    return {name: value for name, value in zip(names, values, strict=True) if value is not None}


def _show_buckets(answer: dict[str, Any], *, as_json: bool) -> None:
    """Buckets of results as one table: the bucket's start, then the results' own fields."""
    rows = []
    for each in answer["data"]:
        began = each.get("start") or each.get("start_time")
        rows += [{"start": began, **result} for result in each["results"]]
    names = dict.fromkeys(name for row in rows for name, value in row.items() if value is not None)
    columns = {name: name for name in names if name != "object"} or {"start": "start"}
    show(answer, columns, as_json=as_json, rows=rows)
