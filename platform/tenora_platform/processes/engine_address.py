"""Where the installation's engine listens, and what opens its door: all of it follows from the data
directory and the server secret, so that parts which share these find each other."""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from pathlib import Path

from tenora_engine.private_folders import make_private
from tenora_engine.transport.address import CurveKeys, EngineAddress
from tenora_platform.cli.errors import CliError
from tenora_platform.secret import ServerSecret
from tenora_platform.settings import Settings

_UNIX_PATH_MAX = 100  # sockaddr_un holds 108 bytes, 104 on BSD


def engine_address(settings: Settings) -> EngineAddress:
    """Raises CliError where another machine's engine is meant and its secret is not known."""
    endpoint = settings.engine or default_endpoint(settings.data_dir)
    is_known = settings.secret is not None or (settings.data_dir / "secret").exists()
    if endpoint.startswith("tcp://") and not is_known:
        raise CliError(
            f"The connection to an engine at {endpoint} is encrypted with CURVE, whose keys "
            "are derived from the server secret.",
            "Set TENORA_SECRET to the installation's secret, the same for all its processes.",
        )
    return address_of(endpoint, settings.server_secret())


def address_of(endpoint: str, secret: ServerSecret) -> EngineAddress:
    keys = CurveKeys.derive(secret.key("engine-curve-server"), secret.key("engine-curve-client"))
    return EngineAddress(endpoint, secret.mac("engine-token", "hello"), keys)


def default_endpoint(data_dir: Path) -> str:
    """The same at each start: a unix socket under the data directory, or, where that path is too
    long for one, in a private folder for temporary files. Raises CliError if that is another
    user's."""
    path = data_dir.resolve() / "engine" / "engine.sock"
    if len(os.fsencode(path)) > _UNIX_PATH_MAX:
        name = hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
        path = Path(tempfile.gettempdir()) / f"tenora-{os.geteuid()}-{name}" / "engine.sock"
    folder = path.parent
    make_private(folder)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise CliError(
            f"{folder} must belong to this user alone, because the engine's socket is "
            "created in it.",
            "Remove it, or choose another --data-dir.",
        )
    return f"ipc://{path}"
