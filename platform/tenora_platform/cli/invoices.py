"""`tenora invoice`: make a month's invoices, look at them, take them out as files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import typer

from tenora_platform.cli.client import (
    DEFAULT_URL,
    AdminKey,
    ApiClient,
    AsJson,
    Key,
    Url,
    any_key,
    connected,
    refusal,
    show,
)
from tenora_platform.cli.errors import CliError
from tenora_platform.cli.jobs import Cancel, cancelled, finished
from tenora_platform.cli.output import say

invoice = typer.Typer(no_args_is_help=True)

Form = Literal["json", "csv", "pdf"]
InvoiceId = Annotated[
    str, typer.Argument(help="The invoice's id; without it, the newest invoices.")
]
_ADMIN = "the admin key"
_RUNS = "/admin/v1/invoices/runs"
_LIST = {
    "id": "id",
    "number": "number",
    "kind": "kind",
    "status": "status",
    "period": "period",
    "tenant": "tenant_id",
    "total": "total",
    "due": "amount_due",
    "currency": "currency",
}
_LINES = {
    "no": "no",
    "kind": "kind",
    "description": "description",
    "quantity": "quantity",
    "exact": "exact_amount",
    "amount": "amount",
}
_DETAILS = {
    "day": "day",
    "adapter": "adapter",
    "version": "adapter_version",
    "key": "api_key_id",
    "event": "event_id",
    "x-request-id": "x_request_id",
    "quantity": "quantity",
    "amount": "amount",
}


@invoice.command("run")
def run(
    period: Annotated[
        str | None, typer.Option(help="The month, such as 2026-11; default: the last full month.")
    ] = None,
    tenant: Annotated[str | None, typer.Option(help="Only the tenant with this id.")] = None,
    draft: Annotated[
        bool | None,
        typer.Option(
            "--draft/--final",
            help="Default: final once the grace period has passed, drafts before.",
        ),
    ] = None,
    cancel: Cancel = None,
    url: Url = DEFAULT_URL,
    key: AdminKey = None,
    as_json: AsJson = False,
) -> None:
    """Make the invoices of a month; final invoices do not change when it runs again (needs an admin
    key). Those of all tenants are made by a worker, and the command waits: interrupted, it goes on
    without it. Exits with code 1 if the invoice of any tenant could not be made."""
    given = {"period": period, "tenant": tenant, "draft": draft}
    body: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    with connected(url, key, what=_ADMIN) as api:
        if cancel is not None:
            cancelled(api, _RUNS, cancel, "invoice run")
            return
        if tenant is None:
            asked = api.call("POST", _RUNS, json=body)
            made = finished(api, _RUNS, asked, "invoice run", "tenora invoice run")
            of = {"period": made["period"], "status": made["status"], "limit": 100}
            made["invoices"] = api.call("GET", "/admin/v1/invoices", params=of)["data"]
        else:
            made = api.call("POST", "/admin/v1/invoices/run", json=body)
            made["failures"] = len(made["failed"])
    if not as_json:
        say(
            f"{made['period']}: {made['made']} {made['status']}, "
            f"{made['unchanged']} unchanged, {made['empty']} with nothing to invoice, "
            f"{made['failures']} failed"
        )
        for each in made["failed"]:
            say(f"failed: {each['tenant']}: {each['reason']}", err=True)
    if as_json or made["invoices"]:
        show(made, _LIST, as_json=as_json, rows=made["invoices"])
    if made["failures"]:
        raise typer.Exit(1)


@invoice.command("show")
def show_invoice(
    invoice_id: InvoiceId = "",
    line: Annotated[int | None, typer.Option(help="The line whose usage to show.")] = None,
    group_by: Annotated[
        str, typer.Option(help="Group by day, adapter, api_key or request.")
    ] = "day",
    url: Url = DEFAULT_URL,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Show the newest invoices, one invoice with its lines, or the usage behind a line. A tenant's
    key shows its own invoices, an admin key any."""
    with connected(url, any_key(key), what="a key") as api:
        base = _base(api)
        if not invoice_id:
            found = api.call("GET", base)
            show(found, _LIST, as_json=as_json, rows=found["data"])
            return
        if line is not None:
            path = f"{base}/{invoice_id}/lines/{line}"
            found = api.call("GET", path, params={"group_by": group_by, "limit": 1000})
            named = {
                name: field
                for name, field in _DETAILS.items()
                if any(each[field] is not None for each in found["data"])
            }
            show(found, named, as_json=as_json, rows=found["data"])
            return
        found = api.call("GET", f"{base}/{invoice_id}")
    if not as_json:
        show(found, _LIST, as_json=False, rows=[found])
        say()
    show(found, _LINES, as_json=as_json, rows=found["lines"])


@invoice.command("export")
def export(
    invoice_id: InvoiceId,
    form: Annotated[
        str, typer.Option("--format", help="json, csv or pdf.", metavar="FORMAT")
    ] = "pdf",
    out: Annotated[
        Path | None, typer.Option(help="Output file; default: a file named after the invoice.")
    ] = None,
    url: Url = DEFAULT_URL,
    key: Key = None,
) -> None:
    """Write one invoice to a file."""
    kind = _form(form)
    with connected(url, any_key(key), what="a key") as api:
        base = _base(api)
        path = f"{base}/{invoice_id}" + ("" if kind == "json" else f".{kind}")
        answer = api.http.get(path)
        if answer.is_error:
            raise refusal(answer)
    file = out or Path(f"{invoice_id}.{kind}")
    file.write_bytes(answer.content)
    say(str(file))


def _form(form: str) -> Form:
    known: Form
    for known in get_args(Form):
        if form == known:
            return known
    raise CliError(f"Unknown format {form!r}.", "Use json, csv or pdf.")


def _base(api: ApiClient) -> str:
    """Where this key's invoices are."""
    me = api.call("GET", "/v1/me")
    return "/admin/v1/invoices" if me["type"] == "admin_key" else "/v1/invoices"
