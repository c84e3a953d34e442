"""`tenora usage rebuild`: a month's sums of usage made anew from its events. At the database, not
through the API: it takes as long as it takes, and whoever stores usage waits meanwhile."""

from __future__ import annotations

import asyncio
import re
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tenora_platform.cli.client import show
from tenora_platform.cli.errors import CliError
from tenora_platform.cli.output import say

if TYPE_CHECKING:
    from tenora_platform.db import DatabaseUrls
    from tenora_platform.settings import Settings
    from tenora_platform.usage.rebuild import Moved

_COLUMNS = {
    "sums by": "sums_by",
    "tenant": "tenant",
    "day": "day",
    "meter": "meter",
    "quantity before": "quantity_before",
    "now": "quantity",
    "amount before": "amount_before",
    "amount now": "amount",
}
Month = Annotated[str, typer.Option(help="The month (UTC), such as 2026-10.")]
DataDir = Annotated[
    Path | None,
    typer.Option(
        help="The installation's data directory; its database comes from TENORA_DATABASE_URL."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the changes as JSON.")]


def rebuild(month: Month, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Make the hourly and daily sums of a month anew from its events, archived ones too, and say
    which were other than they are now; the ledger follows by itself. For when a reconciliation
    names hour_wrong or day_wrong and the events are right."""
    from tenora_platform.cli.parts import reached_database, require_installation
    from tenora_platform.settings import Settings

    if not re.fullmatch(r"20\d\d-(0[1-9]|1[0-2])", month):
        raise CliError(f"{month!r} is not a month.", "Write it as in --month 2026-10.")
    settings = Settings() if data_dir is None else Settings(data_dir=data_dir)
    require_installation(settings)
    with reached_database(settings) as urls:
        moved = asyncio.run(_rebuild(settings, urls, date.fromisoformat(f"{month}-01")))
    rows = [
        {
            "sums_by": each.table,
            "tenant": each.tenant_id,
            "day": str(each.day),
            "meter": each.meter,
            "quantity_before": each.quantity[0],
            "quantity": each.quantity[1],
            "amount_before": f"{each.amount[0]:f}",
            "amount": f"{each.amount[1]:f}",
        }
        for each in moved
    ]
    if rows or as_json:
        show(rows, _COLUMNS, as_json=as_json)
    say(f"{month}: the sums were recalculated from the events. {_summary(rows)}", err=True)


def _summary(changed: list[dict[str, object]]) -> str:
    if not changed:
        return "All were right."
    return (
        f"{len(changed)} sums were wrong and have been corrected; a worker posts "
        "the difference to the ledger."
    )


async def _rebuild(settings: Settings, urls: DatabaseUrls, month: date) -> list[Moved]:
    """Raises CliError for an archive that cannot be read: then nothing has changed."""
    from tenora_platform.audit.service import AuditLog
    from tenora_platform.db import Database
    from tenora_platform.object_store import open_object_store
    from tenora_platform.usage.archive import ArchiveError, UsageArchive
    from tenora_platform.usage.rebuild import rebuild_in

    db = Database(urls)
    objects = open_object_store(settings.object_store_url)
    archive = UsageArchive(db, objects, settings.installation)
    try:
        async with db.patient().admin_session() as session:
            moved = await rebuild_in(session, archive, month)
            await AuditLog(urls.secret).append(
                session,
                actor="command line",
                action="usage.rebuild",
                target=f"{month:%Y-%m}",
                after={"sums_changed": len(moved)},
            )
        return moved
    except ArchiveError as error:
        raise CliError(
            f"The archive of usage cannot be read: {error}.",
            "Nothing has changed. Restore the file as `tenora usage reconcile` says.",
        ) from error
    finally:
        await db.close()
