"""Room on the disks that uploads fill: what is left of them belongs to the database and the
engine's records, without which nobody is served. Knows folders and errors, not uploads."""

from __future__ import annotations

import contextlib
import errno
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from obstore.exceptions import BaseError

from tenora_platform.errors import ApiError

_FULL = (errno.ENOSPC, errno.EDQUOT)
_FULL_TEXT = re.compile(rf"\(os error ({'|'.join(map(str, _FULL))})\)")  # as obstore says it


class StorageFullError(ApiError):
    """507. A client that sent it all again at once would not fare better."""

    status = 507
    type = "server_error"
    code = "storage_full"

    def __init__(self) -> None:
        super().__init__(
            "The server does not have enough disk space for this upload, and kept none of it. "
            "Try a smaller file, or try later; the operator can free or add disk space.",
            headers={"x-should-retry": "false"},
        )


def require_room(folder: Path, more_bytes: int, reserve_bytes: int) -> None:
    """Raises StorageFullError if `more_bytes` in `folder` would leave less than the reserve."""
    if shutil.disk_usage(folder).free - more_bytes < reserve_bytes:
        raise StorageFullError


@contextlib.contextmanager
def full_disk_named() -> Iterator[None]:
    """What a full disk raises within the block becomes StorageFullError."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise StorageFullError from error
    except BaseError as error:
        if _FULL_TEXT.search(str(error)) is None:
            raise
        raise StorageFullError from error
