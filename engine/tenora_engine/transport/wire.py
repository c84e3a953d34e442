"""Messages as msgpack over ZeroMQ, and the addresses engines listen at. Knows no engine."""

from __future__ import annotations

import os
import secrets
import tempfile
from pathlib import Path

import msgspec

from tenora_engine.transport.messages import FromEngine, ToEngine

PING_S = 1.0
ANSWER_MAX_S = 3.0
"""An engine from which nothing came for so long is not ready until it is heard of again; with a
ping each second this shows at most four seconds after it stopped."""
SILENCE_MAX_S = 30.0
"""A client from which nothing came for so long is taken for dead."""
QUEUED_MESSAGES_MAX = 100_000
"""Per peer; one message a step, so many minutes of a peer that does not read."""

_UNIX_PATH_MAX = 100  # sockaddr_un holds 108 bytes, 104 on BSD

encode = msgspec.msgpack.Encoder().encode
decode_to_engine = msgspec.msgpack.Decoder(ToEngine).decode
decode_from_engine = msgspec.msgpack.Decoder(FromEngine).decode


def choose_endpoint(directory: Path | None) -> tuple[str, Path | None]:
    """Where an engine should listen, and the temporary directory made for it, if one was.

    A unix socket in `directory` when its path is short enough, else in a new private directory,
    else a free port of the loopback interface (the token then keeps others out).
    """
    name = f"engine-{secrets.token_hex(4)}.sock"
    if directory is not None and _fits(directory.resolve() / name):
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        return f"ipc://{directory.resolve() / name}", None
    made = Path(tempfile.mkdtemp(prefix="tenora-"))
    if _fits(made / name):
        return f"ipc://{made / name}", made
    made.rmdir()
    return "tcp://127.0.0.1:*", None


def _fits(path: Path) -> bool:
    return len(os.fsencode(path)) <= _UNIX_PATH_MAX
