"""Opens the object store that the settings name, and says whether it takes what is written. What is
kept there is others' affair."""

from __future__ import annotations

from pathlib import Path

import obstore
from obstore.store import LocalStore, ObjectStore, from_url

from tenora_engine.remote_store import open_remote

PROBE = "tenora-probe"
"""An object that is written again and again, to see whether one can be."""

TIMEOUT_S = 30.0
"""For one request to it, the content included; and for how long one that failed is tried again."""
CONNECT_S = 5.0
_TRIES = 3
_LOCAL = ("file://", "memory://")


def open_object_store(location: str) -> ObjectStore:
    """A folder (made if missing) or anything obstore has a URL for (s3://, gs://, az://). Every
    call has an end: a store that hangs is given up after twice `TIMEOUT_S` at most."""
    if "://" not in location:
        return LocalStore(prefix=Path(location), mkdir=True)
    if location.startswith(_LOCAL):
        return from_url(location)
    return open_remote(location, timeout_s=TIMEOUT_S, connect_s=CONNECT_S, tries=_TRIES)


async def ping(objects: ObjectStore) -> None:
    """Raises obstore's BaseError or OSError where nothing can be written."""
    await obstore.put_async(objects, PROBE, b"tenora", use_multipart=False)
