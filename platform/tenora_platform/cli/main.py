"""`tenora`: the command line. Each group of commands has a module; this one only puts them together
and holds the commands about the server itself."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from tenora_bench.cli import app as bench
from tenora_platform.cli import (
    adapters,
    admin_keys,
    api_bench,
    audit,
    backup,
    edge_bench,
    growth_bench,
    intake_bench,
    invoices,
    kills,
    money_bench,
    portal_bench,
    prices,
    receipts,
    store,
    tenants,
    usage,
    usage_export,
    usage_rebuild,
)
from tenora_platform.cli.errors import FriendlyGroup
from tenora_platform.cli.options import with_settings
from tenora_platform.cli.output import pass_on, say
from tenora_platform.settings import Settings

app = typer.Typer(
    cls=FriendlyGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},  # of every command below it too
)
app.add_typer(tenants.tenant, name="tenant", help="Tenants (needs an admin key).")
app.add_typer(tenants.key, name="key", help="API keys.")
app.add_typer(admin_keys.admin_key, name="admin-key", help="Admin keys and their roles.")
app.add_typer(adapters.app, name="adapter", help="A tenant's adapters.")
app.add_typer(usage.usage, name="usage", help="Usage and its cost, reconciliation.")
app.add_typer(receipts.receipt, name="receipt", help="Receipts of requests.")
app.add_typer(prices.price, name="price", help="Price lists, and previews of new ones.")
usage.usage.command("export")(usage_export.export_usage)
usage.usage.command("rebuild")(usage_rebuild.rebuild)
app.add_typer(invoices.invoice, name="invoice", help="Make, show and export invoices.")
app.add_typer(audit.audit, name="audit", help="The audit log (needs an admin key).")
app.add_typer(
    store.store, name="store", help="The object store: its state, its database, its trash."
)
app.command("backup")(backup.backup)
app.command("restore")(backup.restore)
bench.command("api")(api_bench.api)  # it knows how an engine is reached
bench.command("edge")(edge_bench.edge)
bench.command("intake")(intake_bench.intake)
bench.command("uploads")(intake_bench.uploads)
bench.command("books")(growth_bench.books)
bench.command("money")(money_bench.money)
bench.command("portal")(portal_bench.portal)
bench.command("kills")(kills.kills)  # it reads the platform's books, which the bench knows not
app.add_typer(bench, name="bench", help="Measurements, each with --json FILE.")


def _show_version(wanted: bool) -> None:
    if wanted:
        say(f"tenora {version('tenora')}")
        raise typer.Exit


@app.callback()
def tenora(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Tenora serves many tenants' LoRA adapters from one base model."""


def serve(settings: Settings) -> None:
    """Run the platform: servers, engine, API and portal. No demo data."""
    from tenora_platform.cli.run import run_platform

    async def nothing_more(_: Settings) -> None:
        return

    run_platform(settings, nothing_more)


def up(settings: Settings) -> None:
    """Run the platform and, on the first start, make two demo tenants with their adapters."""
    from tenora_platform.cli.checks import check_folders
    from tenora_platform.cli.run import run_platform
    from tenora_platform.demo import kept_admin_key, show_demo

    check_folders(settings)  # the demo's key is kept there
    run_platform(settings, show_demo, kept_admin_key)


def check(settings: Settings, *, whole_store: bool = False) -> None:
    """Say what this machine has, and what is wrong. Exit code 1 if something needed is."""
    from tenora_platform.cli import doctor

    is_well = store.check(settings) if whole_store else doctor.report(settings)
    if not is_well:
        raise typer.Exit(1)


def engine(settings: Settings) -> None:
    """Run the engine alone: model, arena, usage outbox. API processes and workers share it."""
    from tenora_platform.cli import parts

    parts.engine(settings)


def api(settings: Settings) -> None:
    """Run the API alone: N processes behind one port, at an engine that runs elsewhere."""
    from tenora_platform.cli import parts

    parts.api(settings)


def worker(settings: Settings) -> None:
    """Run a worker alone: intake of adapters, usage, what is left over. Several may run."""
    from tenora_platform.cli import parts

    parts.worker(settings)


STORE = typer.Option(
    "--store",
    help="Read every object that the database owns, and say instead which are damaged or missing.",
)


def migrate(settings: Settings) -> None:
    """Bring the database to this version's schema, its roles included."""
    from tenora_platform.cli import parts

    parts.migrate(settings)


app.command("serve")(with_settings(serve))
app.command("up")(with_settings(up))
app.command("engine")(with_settings(engine, {"engine": "--listen"}))
app.command("api")(with_settings(api))
app.command("worker")(with_settings(worker))
app.command("migrate")(with_settings(migrate))
app.command("doctor")(with_settings(check, switches={"whole_store": STORE}))


@app.command("openapi")
def openapi(
    out: Annotated[Path | None, typer.Option(help="Output file; default: standard output.")] = None,
) -> None:
    """Print the OpenAPI document, from which the portal's client is generated."""
    from tenora_platform.app import openapi_document

    text = json.dumps(openapi_document(), indent=1) + "\n"
    if out is None:
        pass_on(text)
    else:
        out.write_text(text)


if __name__ == "__main__":
    app()
