"""`tenora audit`: whether the log and the ledger are as they were written."""

from __future__ import annotations

import typer

from tenora_platform.cli.client import DEFAULT_URL, AdminKey, AsJson, Url, connected, show

audit = typer.Typer(no_args_is_help=True)


@audit.callback()
def group() -> None:
    """One command today; said, so that it keeps its name."""


@audit.command("verify")
def verify(url: Url = DEFAULT_URL, key: AdminKey = None, as_json: AsJson = False) -> None:
    """Walk every chain, of the audit log and of the ledger. Exit code 1, and the names of the
    entries that are not as they were written."""
    with connected(url, key, what="the admin key") as api:
        found = api.call("GET", "/admin/v1/audit_logs/verification")
    rows = [{"valid": found["valid"], "problem": each} for each in found["problems"] or [None]]
    show(found, {"valid": "valid", "problem": "problem"}, as_json=as_json, rows=rows)
    if not found["valid"]:
        raise typer.Exit(1)
