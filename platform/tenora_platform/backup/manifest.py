"""The manifest: what a backup holds, and by which versions and under which server secret it was
made. It is written last, so that a backup without one is not complete, and sealed by the secret."""

from __future__ import annotations

import hmac
from collections.abc import Iterator
from datetime import date, datetime

import msgspec
from msgspec.structs import replace

from tenora_platform.backup.place import BackupError, Place, Stored
from tenora_platform.registry.whole import Fault
from tenora_platform.secret import ServerSecret

FILE = "manifest.json"
SECRET_FILE = "secret"
FORMAT = 1


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """A table as COPY writes it in text, compressed by gzip."""

    name: str
    columns: list[str]
    rows: int
    file: Stored


class Sequence(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    last_value: int
    is_called: bool


class Objects(msgspec.Struct, frozen=True, kw_only=True):
    """How many there are; `file` lists them, a line of JSON each."""

    count: int
    bytes: int
    file: Stored


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """`at`: the moment of the database, which the objects are no older than. `revision`: of its
    schema. `months`: those with a partition of usage events. `admin_keys`: hashes of keys that
    `tenora serve` made. `damaged`: what was not whole in the store then; left out where all was, as
    in manifests of before."""

    format: int
    tenora: str
    revision: str
    installation: str
    postgresql: str
    at: datetime
    finished_at: datetime
    secret_fingerprint: str
    secret: Stored | None
    admin_keys: list[str]
    months: list[date]
    tables: list[Table]
    sequences: list[Sequence]
    objects: Objects
    damaged: list[Fault] | msgspec.UnsetType = msgspec.UNSET
    seal: str = ""

    @property
    def files(self) -> Iterator[Stored]:
        """All but the objects."""
        if self.secret is not None:
            yield self.secret
        for table in self.tables:
            yield table.file
        yield self.objects.file

    @property
    def faults(self) -> list[Fault]:
        return self.damaged if isinstance(self.damaged, list) else []


class _Format(msgspec.Struct):
    format: int
    tenora: str = "an unknown version"


def sealed(manifest: Manifest, secret: ServerSecret) -> Manifest:
    return replace(manifest, seal=_seal(manifest, secret))


def encode(manifest: Manifest) -> bytes:
    return msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"


def read_manifest(place: Place) -> Manifest:
    """Raises BackupError; whether the secret is the right one is not looked at."""
    content = place.content(FILE)
    if content is None:
        raise BackupError(
            f"{place.location} holds no complete backup: {FILE}, which is written last, is missing."
        )
    try:
        known = msgspec.json.decode(content, type=_Format)
        if known.format > FORMAT:
            raise BackupError(
                f"{place.location} was made by a newer Tenora ({known.tenora}): restore it with "
                "that version or a later one."
            )
        return msgspec.json.decode(content, type=Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BackupError(
            f"{place.location} is damaged: its {FILE} cannot be read ({error})."
        ) from error


def check_seal(manifest: Manifest, secret: ServerSecret, location: str) -> None:
    """Raises BackupError for a manifest that is not as it was written."""
    if not hmac.compare_digest(manifest.seal, _seal(manifest, secret)):
        raise BackupError(
            f"{location} is damaged: its {FILE} was changed after the backup was made."
        )


def _seal(manifest: Manifest, secret: ServerSecret) -> str:
    content = msgspec.json.encode(replace(manifest, seal=""))
    return secret.mac("backup-manifest", content.decode())
