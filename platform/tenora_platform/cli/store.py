"""`tenora store`: whether object store and database belong together, and the store's trash. At the
database and the store, not through the API: it is for when one of them was lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from tenora_platform.cli.client import show
from tenora_platform.cli.errors import CliError
from tenora_platform.cli.output import say

if TYPE_CHECKING:
    from obstore.store import ObjectStore
    from sqlalchemy.ext.asyncio import AsyncSession

    from tenora_platform.audit.service import AuditLog
    from tenora_platform.db import Database, DatabaseUrls
    from tenora_platform.registry.store_identity import StoreIdentity
    from tenora_platform.registry.trash import Trash, Trashed
    from tenora_platform.registry.whole import Looked
    from tenora_platform.settings import Settings

T = TypeVar("T")
store = typer.Typer(no_args_is_help=True)
DataDir = Annotated[
    Path | None,
    typer.Option(
        help="The installation's data directory; its database comes from TENORA_DATABASE_URL."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print as JSON.")]


@dataclass(frozen=True, slots=True)
class _Parts:
    db: Database
    objects: ObjectStore
    identity: StoreIdentity
    trash: Trash
    audit: AuditLog


@store.command("status")
def status(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Show whether the object store belongs to this database, what is in it, and what no row of the
    database owns. Exits with code 1 if garbage collection has stopped, or if files of adapters that
    the database serves are missing."""
    found = _run(data_dir, _status)
    columns = {name.replace("_", " "): name for name in found}
    show(found, columns, as_json=as_json, rows=[found])
    if found["problem"] is not None or found["missing_adapters"]:
        raise typer.Exit(1)


@store.command("adopt")
def adopt(
    yes: Annotated[bool, typer.Option("--yes", help="Carry it out.")] = False,
    data_dir: DataDir = None,
) -> None:
    """Declare that the object store belongs to the database as it is now, for instance after a
    restore. What its rows own is restored from the trash; after an hour, what no row owns is moved
    to the trash, where it stays for a week. Deleted tenants are erased only once you confirm it."""
    from tenora_platform.erasure.holding import in_words

    found = _run(data_dir, _status)
    belongs = found["problem"] is None
    if belongs and not found["unowned"] and not found["missing_adapters"]:
        say(
            "Nothing to do: the object store belongs to this database "
            f"(generation {found['generation']}), and no object is missing or without an owner."
        )
        return
    if not yes:
        raise CliError(
            f"{found['problem'] or 'The object store already belongs to this database.'} "
            f"{found['unowned']} of its {found['objects']} objects are owned by no row, and "
            f"{found['missing_adapters']} adapters that the database serves are missing from it.",
            "This is needed only where garbage collection has stopped because of these objects. "
            "If so, run: tenora store adopt --yes"
            if belongs
            else "If this is not the right database, restore that first. If it is, run: tenora "
            "store adopt --yes",
        )
    adopted = _run(data_dir, _adopt)
    say(
        "The object store now belongs to this database "
        f"(generation {adopted['generation']}). {len(adopted['back'])} objects were restored from "
        "the trash."
    )
    if (waiting := in_words(adopted["held"])) is not None:
        say(waiting)


@store.command("trash")
def trash(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List what is in the trash, since when, and when it will be deleted."""
    rows = _run(data_dir, _trash)
    columns = {"path": "path", "bytes": "bytes", "since": "since", "deleted on": "deleted_on"}
    show(rows, columns, as_json=as_json)


@store.command("restore")
def restore(
    paths: Annotated[
        list[str] | None,
        typer.Argument(
            help=(
                "Paths, or prefixes of paths, as listed by the trash; default: all that a row owns."
            )
        ),
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Restore objects from the trash: those that a row owns, or the given ones. The next sweep
    moves what no row owns to the trash again."""
    for path in _run(data_dir, lambda parts: _restore(parts, paths)):
        say(path)


def check(settings: Settings) -> bool:
    """Read every object that the database owns, print what is damaged or missing, and whether all
    is whole. Versions are marked by it: those that cannot be served, and those that can again."""
    looked = _with(settings, _check)
    for fault in looked.faults:
        say(str(fault))
    say(f"{looked.objects} objects ({looked.bytes} bytes) read, {len(looked.faults)} of them wrong")
    return not looked.faults


async def _check(parts: _Parts) -> Looked:
    from tenora_platform.registry import damage
    from tenora_platform.registry.store_identity import identity
    from tenora_platform.registry.whole import StoreReader

    looked = await StoreReader(parts.db, parts.objects).read_all()
    async with parts.db.admin_session() as session:
        # Another store is no reason to tell tenants that theirs is damaged.
        record, row = await parts.identity.read(), await identity(session)
        if await parts.identity.compare(session, record, row) is None:
            wrong = [each for each in looked.faults if each.verdict != "unreadable"]
            await damage.mark(session, damage.of_contents({each.digest for each in wrong}))
            await damage.unmark(session, damage.of_contents(looked.whole))
    return looked


def _run(data_dir: Path | None, call: Callable[[_Parts], Awaitable[T]]) -> T:
    from tenora_platform.settings import Settings

    return _with(Settings() if data_dir is None else Settings(data_dir=data_dir), call)


def _with(settings: Settings, call: Callable[[_Parts], Awaitable[T]]) -> T:
    from tenora_platform.cli.parts import reached_database, require_current, require_installation

    require_installation(settings)

    async def called(urls: DatabaseUrls) -> T:
        async with _parts(urls, settings.object_store_url) as parts:
            return await call(parts)

    with reached_database(settings) as urls:
        require_current(urls)
        return asyncio.run(called(urls))


@asynccontextmanager
async def _parts(urls: DatabaseUrls, location: str) -> AsyncIterator[_Parts]:
    from tenora_platform.audit.service import AuditLog
    from tenora_platform.db import Database
    from tenora_platform.object_store import open_object_store
    from tenora_platform.registry.store_identity import StoreIdentity
    from tenora_platform.registry.trash import Trash

    db, objects = Database(urls).patient(), open_object_store(location)
    try:
        yield _Parts(db, objects, StoreIdentity(db, objects), Trash(objects), AuditLog(urls.secret))
    finally:
        await db.close()


async def _status(parts: _Parts) -> dict[str, Any]:
    from tenora_platform.registry.inventory import take_inventory
    from tenora_platform.registry.store_identity import identity

    record = await parts.identity.read()
    async with parts.db.admin_session() as session:
        row = await identity(session)
        found = await take_inventory(session, parts.objects)
        problem = await parts.identity.compare(session, record, row)
    return {
        "problem": problem,
        "database": row.id,
        "generation": row.generation,
        "store_database": record and record.database,
        "store_generation": record and record.generation,
        "objects": found.objects,
        "unowned": found.unowned_objects,
        "missing_adapters": len(found.missing),
        "in_trash": len(await parts.trash.contents()),
    }


async def _adopt(parts: _Parts) -> dict[str, Any]:
    from tenora_platform.audit.witness import Witness
    from tenora_platform.erasure.holding import hold_erasures
    from tenora_platform.jobs.repository import end_open

    async with parts.db.admin_session() as session:
        before = await parts.identity.read()
        record = await parts.identity.adopt(session)
        await parts.audit.append(
            session,
            actor="command line",
            action="object_store.adopt",
            target=record.database,
            before=_said(before),
            after=_said(record),
        )
        held = await hold_erasures(session, parts.audit, "command line")
        await end_open(session, "The object store was adopted. Start it again if it is needed.")
    # First: after a crash between the two, the store is not the database's, and is adopted again.
    await Witness(parts.objects, parts.db.secret).forget()
    await parts.identity.write(record)
    back = await _restore(parts, None)
    return {"generation": record.generation, "back": back, "held": held}


def _said(record: Any) -> dict[str, object] | None:
    return record and {"database": record.database, "generation": record.generation}


async def _trash(parts: _Parts) -> list[dict[str, Any]]:
    return [
        {
            "path": each.path,
            "bytes": each.size,
            "since": str(each.day),
            "deleted_on": str(each.deleted_on),
        }
        for each in await parts.trash.contents()
    ]


async def _restore(parts: _Parts, paths: list[str] | None) -> list[str]:
    found = await parts.trash.contents()
    async with parts.db.admin_session() as session:
        wanted = await _owned(session, found) if paths is None else _named(found, paths)
        back = await parts.trash.bring_back(reversed(wanted))  # the newest of two
        if back:
            await parts.audit.append(
                session,
                actor="command line",
                action="object_store.restore",
                target="trash",
                after={"objects": len(back)},
            )
    return back


async def _owned(session: AsyncSession, found: list[Trashed]) -> list[Trashed]:
    from tenora_platform.registry.inventory import owned_paths

    owned = await owned_paths(session, [each.path for each in found])
    return [each for each in found if each.path in owned]


def _named(found: list[Trashed], paths: list[str]) -> list[Trashed]:
    wanted = tuple(path.rstrip("/") for path in paths)
    return [
        each
        for each in found
        if each.path in wanted or each.path.startswith(tuple(f"{path}/" for path in wanted))
    ]
