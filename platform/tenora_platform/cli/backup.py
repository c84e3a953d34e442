"""`tenora backup` and `tenora restore`: a whole installation into a folder or an object store, and
back. At the database and the store, not through the API: it has to work when nothing else does."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from tenora_platform.cli.errors import CliError
from tenora_platform.cli.output import say

DataDir = Annotated[
    Path | None, typer.Option(help="Of the installation; its database: TENORA_DATABASE_URL.")
]


def backup(
    to: Annotated[str, typer.Argument(help="A new or empty folder, or s3://, gs:// or az://.")],
    with_secret: Annotated[
        bool, typer.Option("--with-secret", help="The server secret too: it opens everything.")
    ] = False,
    data_dir: DataDir = None,
) -> None:
    """Back up database, object store and, if asked to, the server secret, while the platform
    serves. What is complete has a manifest.json. Exit code 1, and what is damaged or missing in the
    object store named, if anything is: the backup is complete all the same."""
    from tenora_platform.backup.making import make_backup
    from tenora_platform.cli.parts import reached_database, require_current, require_installation
    from tenora_platform.settings import Settings

    settings = Settings() if data_dir is None else Settings(data_dir=data_dir)
    require_installation(settings)
    before = os.umask(0o077)  # what tenants and people wrote is in it
    try:
        with reached_database(settings) as urls:
            require_current(urls)
            made = make_backup(settings, urls, to, with_secret=with_secret)
    finally:
        os.umask(before)
    rows = sum(table.rows for table in made.tables)
    say(
        f"Backup of {made.at:%Y-%m-%d %H:%M:%S} UTC: {len(made.tables)} tables, {rows} rows, "
        f"{made.objects.count} objects ({made.objects.bytes} bytes)."
    )
    if made.secret is None:
        say(
            "The server secret is not in it. Keep it elsewhere: without it the backup cannot be "
            f"restored (fingerprint {made.secret_fingerprint[:8]})."
        )
    if made.faults:
        raise CliError(
            "The backup is complete, and not all in the object store is whole: "
            + "; ".join(map(str, made.faults)),
            "Files that were lost may be in an older backup, or in the trash: tenora store trash. "
            "Else their owners upload them again.",
        )


def restore(
    source: Annotated[str, typer.Argument(metavar="FROM", help="Where the backup lies.")],
    data_dir: DataDir = None,
) -> None:
    """Restore a backup into an empty data directory, or an empty database and object store, and
    prove it: the books, every chain, receipts, the digest of every object. Exit code 1, and what
    does not hold named, if anything does not."""
    from pydantic import SecretStr

    from tenora_platform.backup.manifest import read_manifest
    from tenora_platform.backup.place import Place
    from tenora_platform.backup.proof import prove
    from tenora_platform.backup.restoring import check_backup, restore_backup
    from tenora_platform.cli.checks import check_folders
    from tenora_platform.cli.parts import reached_database
    from tenora_platform.erasure.holding import in_words
    from tenora_platform.secret import keep_secret
    from tenora_platform.settings import Settings

    settings = Settings() if data_dir is None else Settings(data_dir=data_dir)
    place = Place(source)
    manifest = read_manifest(place)
    secret = check_backup(settings, place, manifest)
    check_folders(settings)
    if settings.database_url is None and settings.secret is None:
        keep_secret(settings.data_dir, secret)  # a database of our own is made under it
    known = settings.model_copy(update={"secret": SecretStr(secret.root.decode())})
    with reached_database(known) as urls:
        held = restore_backup(settings, urls, place, manifest)
        say(
            f"Restored as of {manifest.at:%Y-%m-%d %H:%M:%S} UTC: "
            f"{sum(table.rows for table in manifest.tables)} rows, "
            f"{manifest.objects.count} objects, each read back."
        )
        if (waiting := in_words(held)) is not None:
            say(waiting)
        proof = prove(settings, urls, manifest.faults)
    say(f"Proved: {proof.events} events, {proof.invoices} invoices, {proof.receipts} receipts.")
    if proof.problems:
        raise CliError(
            "The restore is complete, and not all of it holds: " + "; ".join(proof.problems),
            "Unless it says otherwise, it was so when the backup was made, or the backup was "
            "changed under the secret.",
        )
