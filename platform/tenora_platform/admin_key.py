"""The first admin key, an owner's: the configured one, or one made here and shown once. Only hashes
of a made one are kept, in the data directory. Further keys are made by the API (`operators`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sqlalchemy import NullPool, TextClause, create_engine, text

from tenora_engine.private_folders import make_private
from tenora_platform.db import DatabaseUrls
from tenora_platform.keys import hash_key, make_key
from tenora_platform.ownership import read_own
from tenora_platform.secret import SecretLostError, ServerSecret, write_private
from tenora_platform.settings import Settings

_HAS_OWNER = text(
    "select exists (select from admin_keys"
    " where role = 'owner' and revoked_at is null and expires_at is null)"
)


def admin_key_hashes(settings: Settings, secret: ServerSecret) -> tuple[str, ...]:
    """The hashes of the configured keys: TENORA_ADMIN_KEY alone if set, else those made here.
    There may be none: others are in the database (`operators`)."""
    if settings.admin_key is not None:
        return (hash_key(settings.admin_key.get_secret_value(), secret),)
    return _read(settings)


_WAS_USED = text(
    "select exists (select from audit_logs"
    " where starts_with(actor, 'admin_key:') or starts_with(actor, 'person:'))"
)


def first_admin_key(settings: Settings, urls: DatabaseUrls, secret: ServerSecret) -> str | None:
    """A key made here where there is no owner yet; None where there is one. Raises SecretLostError
    where somebody has administered this database before: then the key was lost, not absent."""
    if has_admin_key(settings, urls):
        return None
    return _made_for(settings, urls, secret)


def one_more_admin_key(settings: Settings, urls: DatabaseUrls, secret: ServerSecret) -> str:
    """A key made here, beside others that were. Raises SecretLostError, as `first_admin_key`."""
    if _read(settings):
        return make_admin_key(settings, secret)
    return _made_for(settings, urls, secret)


def _made_for(settings: Settings, urls: DatabaseUrls, secret: ServerSecret) -> str:
    if _says(urls, _WAS_USED):
        raise SecretLostError(
            "There is no admin key, but this database has been administered with one: "
            f"{_file(settings)} is gone, or TENORA_ADMIN_KEY is not set as it was. Restore the "
            "file from a backup, or set TENORA_ADMIN_KEY, to a new key if the old one is lost."
        )
    return make_admin_key(settings, secret)


def has_admin_key(settings: Settings, urls: DatabaseUrls) -> bool:
    """Whether there is an owner: a configured key, or one in the (migrated) database that does not
    end by itself."""
    if settings.admin_key is not None or _read(settings):
        return True
    return _says(urls, _HAS_OWNER)


def _says(urls: DatabaseUrls, query: TextClause) -> bool:
    engine = create_engine(urls.admin, poolclass=NullPool, connect_args={"connect_timeout": 10})
    with engine.connect() as connection:
        return bool(connection.scalar(query))


def make_admin_key(settings: Settings, secret: ServerSecret) -> str:
    """One more admin key, valid from the next start. Show it now: it cannot be had again."""
    key = make_key("tna").text
    make_private(settings.data_dir)
    hashes = (*_read(settings), hash_key(key, secret))
    keep_made_keys(settings, hashes)
    return key


def made_keys(settings: Settings) -> tuple[str, ...]:
    """The hashes of those that were made here."""
    return _read(settings)


def keep_made_keys(settings: Settings, hashes: Sequence[str]) -> None:
    """Have these valid from the next start, as if they had been made here."""
    write_private(_file(settings), "".join(f"{each}\n" for each in hashes))


def _file(settings: Settings) -> Path:
    return settings.data_dir / "admin_keys"


def _read(settings: Settings) -> tuple[str, ...]:
    path = _file(settings)
    if not path.exists():
        return ()
    try:
        hashes = tuple(read_own(path).split())
    except UnicodeDecodeError as error:
        raise SecretLostError(_damaged(path, "are not text")) from error
    if not hashes:  # none is never written
        raise SecretLostError(_damaged(path, "are gone"))
    return hashes


def _damaged(path: Path, how: str) -> str:
    return (
        f"The hashes of admin keys {path} {how}: the file is damaged. Restore it from a backup. To "
        "start over, move it away and set TENORA_ADMIN_KEY to a new key: those made before no "
        "longer work then."
    )
