"""`tenora usage`: tokens and money by time."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from tenora_platform.cli.client import (
    DEFAULT_URL,
    AdminKey,
    ApiClient,
    AsJson,
    TenantKey,
    Url,
    connected,
    show,
)
from tenora_platform.cli.errors import CliError
from tenora_platform.cli.output import say

usage = typer.Typer(no_args_is_help=True)

Start = Annotated[str | None, typer.Option(help="Start of the period, such as 2026-11-01.")]
End = Annotated[str | None, typer.Option(help="End of the period (exclusive).")]
Bucket = Annotated[str | None, typer.Option(help="Length of a time bucket: 1h, 1d or 1mo.")]
GroupBy = Annotated[
    str | None, typer.Option(help="Group by adapter, api_key, ... (comma-separated).")
]
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
    """Show tokens by time bucket."""
    query = _query(start, end, bucket, group_by)
    with connected(url, key, what=_KEY) as api:
        _show_buckets(_whole(api, "/v1/usage", query), as_json=as_json)


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
    """Show costs by time bucket."""
    query = _query(start, end, bucket, group_by)
    with connected(url, key, what=_KEY) as api:
        _show_buckets(_whole(api, "/v1/costs", query), as_json=as_json)


Tenant = Annotated[str | None, typer.Option("--tenant", help="Only the tenant with this id.")]
First = Annotated[str | None, typer.Option("--from", help="First day (UTC), such as 2026-11-01.")]
Last = Annotated[str | None, typer.Option("--to", help="Last day (UTC), inclusive.")]
Recent = Annotated[
    bool,
    typer.Option(
        "--recent", help="Only days that have not ended or have changed, as the hourly run does."
    ),
]
WaitS = Annotated[float, typer.Option(help="Seconds to wait for the worker.")]


@usage.command("reconcile")
def reconcile(
    tenant: Tenant = None,
    first: First = None,
    last: Last = None,
    recent: Recent = False,
    wait_s: WaitS = 600.0,
    url: Url = DEFAULT_URL,
    key: AdminKey = None,
    as_json: AsJson = False,
) -> None:
    """Reconcile every layer of the books (events with their prices, sums, ledger, engine,
    invoices), and show usage that is not billed (needs an admin key). Each difference is named, and
    the exit code is 1 if there is any."""
    body = {"mode": "recent" if recent else "full", "tenant": tenant, "first": first, "last": last}
    given = {name: value for name, value in body.items() if value is not None}
    with connected(url, key, what="the admin key") as api:
        run = api.call("POST", "/admin/v1/reconciliation/runs", json=given)
        run = _finished(api, run, time.monotonic() + wait_s)
        found = {**api.call("GET", "/admin/v1/reconciliation"), "run": run}
    columns = {"event": "event_id", "kind": "kind", "reason": "reason"}
    rows = _named(found, tenant)
    if rows or as_json:
        show(found, columns, as_json=as_json, rows=rows)
    if not as_json:
        say(_summary(run), err=True)
    if not found["settled"] or not run["agrees"]:
        raise typer.Exit(1)


def _finished(api: ApiClient, run: dict[str, Any], until_s: float) -> dict[str, Any]:
    """The run once it is done. Raises CliError."""
    while run["state"] in ("waiting", "running"):
        if time.monotonic() > until_s:
            raise CliError(
                f"The reconciliation {run['id']} is still {run['state']}.",
                "Check that a worker is running (/readyz says so). The result will be kept; "
                "--wait-s waits longer.",
            )
        time.sleep(0.2)
        run = api.call("GET", f"/admin/v1/reconciliation/runs/{run['id']}")
    if run["state"] == "failed":
        raise CliError(f"The reconciliation failed: {run['error']}")
    return run


def _named(found: dict[str, Any], tenant: str | None) -> list[dict[str, Any]]:
    """Of either kind, as rows of one table."""
    unbilled = [
        {"kind": kind, **each}
        for kind, field in (
            ("no price", "newest_unrated_events"),
            ("set aside", "newest_dead_letters"),
        )
        for each in found[field]
        if tenant in (None, each.get("tenant_id"))
    ]
    return unbilled + [
        {
            "event_id": each["subject"],
            "kind": each["kind"],
            "reason": f"expected {each['expected'] or 'nothing'}, found "
            f"{each['found'] or 'nothing'}. {each['advice']}",
        }
        for each in found["run"]["named"]
    ]


def _summary(run: dict[str, Any]) -> str:
    looked, kinds = run["looked"], run["differences"]
    found = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())) or "none"
    return (
        f"{looked['events'] + looked['archived_events']} events, {looked['hour_rows']} hourly "
        f"and {looked['day_rows']} daily sums, {looked['ledger_amounts']} ledger amounts, "
        f"{looked['invoices']} invoices. Differences: {found}."
    )


def _query(*values: str | None) -> dict[str, str]:
    names = ("start", "end", "bucket", "group_by")
    return {name: value for name, value in zip(names, values, strict=True) if value is not None}


def _whole(api: ApiClient, path: str, query: dict[str, str]) -> dict[str, Any]:
    """The only page; of several the buckets, without what each page sums up."""
    page: dict[str, Any] = api.call("GET", path, params=query)
    if page["next_page"] is None:
        return page
    buckets = page["data"]
    while page["next_page"] is not None:
        page = api.call("GET", path, params={**query, "page": page["next_page"]})
        buckets += page["data"]
    return {"object": "page", "data": buckets, "has_more": False, "next_page": None}


def _show_buckets(answer: dict[str, Any], *, as_json: bool) -> None:
    """Buckets of results as one table: the bucket's start, then the results' own fields."""
    rows = []
    for each in answer["data"]:
        began = each.get("start") or each.get("start_time")
        for result in each["results"]:
            row = {"start": began, **result}
            if "meters" in row:
                row["meters"] = ["{meter} {quantity}: {amount}".format(**m) for m in row["meters"]]
            rows.append(row)
    names = dict.fromkeys(name for row in rows for name, value in row.items() if value is not None)
    columns = {name: name for name in names if name != "object"} or {"start": "start"}
    show(answer, columns, as_json=as_json, rows=rows)
