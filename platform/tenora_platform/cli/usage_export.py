"""`tenora usage export`: usage as lines for another metering service."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tenora_platform.cli.client import DEFAULT_URL, AdminKey, Url, connected


def export_usage(
    out: Annotated[Path | None, typer.Option(help="Output file; default: standard output.")] = None,
    start: Annotated[
        str | None,
        typer.Option(help="Only requests that ended at or after this time, such as 2026-11-01."),
    ] = None,
    end: Annotated[
        str | None, typer.Option(help="Only requests that ended before this time.")
    ] = None,
    tenant: Annotated[str | None, typer.Option(help="Only the tenant with this id.")] = None,
    form: Annotated[
        str, typer.Option("--format", help="openmeter (CloudEvents) or lago.", metavar="FORMAT")
    ] = "openmeter",
    url: Url = DEFAULT_URL,
    key: AdminKey = None,
) -> None:
    """Every event of usage as a line of JSON, with the same id each time (needs the admin key)."""
    given = {"start": start, "end": end, "tenant": tenant, "form": form}
    query = {name: value for name, value in given.items() if value is not None}
    with connected(url, key, what="the admin key") as api:
        api.save("/admin/v1/usage/cloudevents", query, out)
