"""`tenora audit`: whether the log and the ledger are as they were written, and the log as lines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tenora_platform.cli.client import DEFAULT_URL, AdminKey, AsJson, Url, connected, show
from tenora_platform.cli.jobs import Cancel, cancelled, finished

audit = typer.Typer(no_args_is_help=True)


@audit.command("verify")
def verify(
    recent: Annotated[
        bool,
        typer.Option(help="Only entries of the log since each chain was last found right."),
    ] = False,
    cancel: Cancel = None,
    url: Url = DEFAULT_URL,
    key: AdminKey = None,
    as_json: AsJson = False,
) -> None:
    """Verify all hash chains of the audit log and of the ledger. If an entry is not as it was
    written, the command names it and exits with code 1. A worker does it; the command waits, and
    interrupted leaves it running."""
    path = "/admin/v1/audit_logs/verifications"
    with connected(url, key, what="the admin key") as api:
        if cancel is not None:
            cancelled(api, path, cancel, "verification")
            return
        asked = api.call("POST", path, json={"mode": "recent" if recent else "full"})
        found = finished(api, path, asked, "verification", "tenora audit verify")
    rows = [{"valid": found["valid"], "problem": each} for each in found["problems"] or [None]]
    show(found, {"valid": "valid", "problem": "problem"}, as_json=as_json, rows=rows)
    if not found["valid"]:
        raise typer.Exit(1)


@audit.command("export")
def export(
    out: Annotated[Path | None, typer.Option(help="Output file; default: standard output.")] = None,
    tenant: Annotated[
        str | None, typer.Option(help="Only entries of the tenant with this id.")
    ] = None,
    operator: Annotated[bool, typer.Option(help="Only the operator's own entries.")] = False,
    url: Url = DEFAULT_URL,
    key: AdminKey = None,
) -> None:
    """Export all entries of the audit log as JSON lines, chain by chain."""
    query = {"operator": "true"} if operator else {}
    if tenant is not None:
        query["tenant_id"] = tenant
    with connected(url, key, what="the admin key") as api:
        api.save("/admin/v1/audit_logs/export", query, out)
