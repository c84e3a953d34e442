"""Opens the object store that the settings name. What is kept there is others' affair."""

from __future__ import annotations

from pathlib import Path

from obstore.store import LocalStore, ObjectStore, from_url


def open_object_store(location: str) -> ObjectStore:
    """A folder (made if missing) or anything obstore has a URL for (s3://, gs://, az://)."""
    if "://" in location:
        return from_url(location)
    return LocalStore(prefix=Path(location), mkdir=True)
