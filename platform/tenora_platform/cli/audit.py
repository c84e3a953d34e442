"""`tenora audit`: whether the log is as it was written."""

from __future__ import annotations

import typer

from tenora_platform.cli.client import DEFAULT_URL, AdminKey, AsJson, Url, connected, show

audit = typer.Typer(no_args_is_help=True)


@audit.callback()
def group() -> None:
    """One command today; said, so that it keeps its name."""


@audit.command("verify")
def verify(url: Url = DEFAULT_URL, key: AdminKey = None, as_json: AsJson = False) -> None:
    """Walk every chain. Exit code 1, and the entry's name, if one is not as it was written."""
    with connected(url, key, what="the admin key") as api:
        found = api.call("GET", "/admin/v1/audit_logs/verification")
    show(found, {"valid": "valid", "problem": "problem"}, as_json=as_json, rows=[found])
    if not found["valid"]:
        raise typer.Exit(1)
