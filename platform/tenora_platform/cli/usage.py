"""`tenora usage`: tokens and money by time."""

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


@usage.command("reconcile")
def reconcile(url: Url = DEFAULT_URL, key: AdminKey = None, as_json: AsJson = False) -> None:
    """What was used and is not billed, with the reasons (needs the admin key). Exit code 1 if
    there is any."""
    with connected(url, key, what="the admin key") as api:
        found = api.call("GET", "/admin/v1/reconciliation")
    rows = [
        {"kind": kind, **each}
        for kind, field in (
            ("no price", "newest_unrated_events"),
            ("set aside", "newest_dead_letters"),
        )
        for each in found[field]
    ]
    columns = {"event": "event_id", "kind": "kind", "reason": "reason"}
    show(found, columns, as_json=as_json, rows=rows)
    if not found["settled"]:
        raise typer.Exit(1)


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
