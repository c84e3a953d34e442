"""Where an engine listens and what opens its door: unix sockets in private folders, or TCP under
CURVE (RFC 26/ZeroMQ). Knows no message and no engine."""

from __future__ import annotations

import os
import secrets
import socket
import stat
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import zmq
from zmq.utils import z85

from tenora_engine.errors import EngineUnavailableError, InsecureEndpointError
from tenora_engine.private_folders import make_private
from tenora_engine.transport.strangers import HANDSHAKE_S, Strangers, can_watch

if TYPE_CHECKING:
    from zmq.auth.thread import ThreadAuthenticator

QUEUED_MESSAGES_MAX = 100_000
"""Per peer; one message a step, so many minutes of a peer that does not read."""

MESSAGE_MAX_BYTES = 8 * 2**20
"""The largest message to an engine in bytes, handshakes included: a prompt of a million tokens
takes five MiB. A peer that announces more is disconnected before anything is kept of it."""

_ANSWER_MAX_BYTES = 256 * 2**20  # of one message from an engine, which keeps less for a client
_UNIX_PATH_MAX = 100  # sockaddr_un holds 108 bytes, 104 on BSD
_SEED_BYTES = 32


class CurveKeys(msgspec.Struct, frozen=True):
    """The two key pairs of an engine and its clients, each key as 40 characters of Z85. Any client
    that has this value is let in, and nobody else."""

    server_public: str
    server_secret: str
    client_public: str
    client_secret: str

    @classmethod
    def derive(cls, server_seed: bytes, client_seed: bytes) -> CurveKeys:
        """The same seeds, of 32 secret bytes each, give the same keys. Raises ValueError for seeds
        of another length."""
        return cls(*_pair(server_seed), *_pair(client_seed))

    @classmethod
    def random(cls) -> CurveKeys:
        return cls.derive(secrets.token_bytes(_SEED_BYTES), secrets.token_bytes(_SEED_BYTES))


def _pair(seed: bytes) -> tuple[str, str]:
    """Public and secret key. Any 32 bytes are a secret key of Curve25519."""
    if len(seed) != _SEED_BYTES:
        raise ValueError(f"a seed has {_SEED_BYTES} bytes, not {len(seed)}")
    secret = z85.encode(seed)
    return zmq.curve_public(secret).decode(), secret.decode()


class EngineAddress(msgspec.Struct, frozen=True):
    """All that a client, or the engine itself, must know: `ipc:///path` or `tcp://host:port`, the
    token that each client says first, and, for TCP, the keys."""

    endpoint: str
    token: str
    keys: CurveKeys | None = None

    def check(self) -> None:
        """Raises InsecureEndpointError where strangers could listen or speak."""
        if self.endpoint.startswith("tcp://"):
            if self.keys is None:
                raise InsecureEndpointError(
                    f"{self.endpoint} needs CURVE keys, because without them prompts and the "
                    "token would be sent unencrypted; give the keys, or listen at ipc:///path"
                )
        elif self.endpoint.startswith("ipc:///"):
            folder = Path(self.endpoint.removeprefix("ipc://")).parent
            if folder.exists() and folder.stat().st_mode & stat.S_IWOTH:
                raise InsecureEndpointError(
                    f"everybody can write to {folder}, so another user could replace the "
                    f"engine's socket; choose a private folder for {self.endpoint}"
                )
        else:
            raise InsecureEndpointError(
                f"{self.endpoint!r} is not an engine's address; use ipc:///path or tcp://host:port"
            )

    @property
    def _curve(self) -> CurveKeys | None:
        return self.keys if self.endpoint.startswith("tcp://") else None

    @contextmanager
    def listening(self) -> Iterator[zmq.Socket[bytes]]:
        """The engine's ROUTER socket. Raises InsecureEndpointError, and EngineUnavailableError when
        another listens there or nobody can."""
        self.check()
        with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
            router.set_hwm(QUEUED_MESSAGES_MAX)
            router.setsockopt(zmq.ROUTER_MANDATORY, 1)
            router.setsockopt(zmq.LINGER, 1000)
            router.setsockopt(zmq.MAXMSGSIZE, MESSAGE_MAX_BYTES)
            router.setsockopt(zmq.HANDSHAKE_IVL, round(HANDSHAKE_S * 1000))
            with ExitStack() as stack:
                if self._curve is not None:
                    stack.callback(_doorman(context, self._curve).stop)
                    if can_watch():
                        strangers = Strangers(router)
                        strangers.start()
                        stack.callback(strangers.close)
                self._bind(router)
                yield router

    def _bind(self, router: zmq.Socket[bytes]) -> None:
        try:
            if self._curve is not None:
                router.curve_server = True
                router.curve_secretkey = self._curve.server_secret.encode()
                router.bind(self.endpoint)
            else:
                self._bind_unix(router, Path(self.endpoint.removeprefix("ipc://")))
        except (zmq.ZMQError, OSError) as error:
            raise EngineUnavailableError(f"cannot listen at {self.endpoint}: {error}") from error

    def _bind_unix(self, router: zmq.Socket[bytes], path: Path) -> None:
        make_private(path.parent)
        if _is_served(path):  # ZeroMQ would take the path from whoever listens there
            raise EngineUnavailableError(f"another engine is listening at {self.endpoint}")
        before = os.umask(0o177)  # a socket of mode 600 from the first moment
        try:
            router.bind(self.endpoint)
        finally:
            os.umask(before)

    def connect(self, dealer: zmq.Socket[Any]) -> None:
        """Raises InsecureEndpointError."""
        self.check()
        dealer.setsockopt(zmq.MAXMSGSIZE, _ANSWER_MAX_BYTES)
        if self._curve is not None:
            dealer.curve_serverkey = self._curve.server_public.encode()
            dealer.curve_publickey = self._curve.client_public.encode()
            dealer.curve_secretkey = self._curve.client_secret.encode()
        dealer.connect(self.endpoint)

    def remove_socket(self) -> None:
        if self.endpoint.startswith("ipc://"):
            Path(self.endpoint.removeprefix("ipc://")).unlink(missing_ok=True)


def _is_served(path: Path) -> bool:
    """Whether someone listens there: a socket that a killed process left does not answer."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except TimeoutError:
            return True
        except OSError:
            return False
        return True


def _doorman(context: zmq.Context[zmq.Socket[bytes]], keys: CurveKeys) -> ThreadAuthenticator:
    """Lets in those who prove the client key (RFC 27/ZAP)."""
    from zmq.auth.thread import ThreadAuthenticator  # clients need none of it

    doorman = ThreadAuthenticator(context)
    doorman.configure_curve_callback("*", _KnownKey(keys.client_public.encode()))
    doorman.start()
    return doorman


class _KnownKey:
    def __init__(self, public: bytes) -> None:
        self._public = public

    def callback(self, domain: str, key: bytes) -> bool:
        return secrets.compare_digest(key, self._public)


def choose_endpoint(directory: Path | None) -> tuple[str, Path | None]:
    """Where an engine should listen, and the temporary directory it will make for it, if any.

    A unix socket in `directory` when its path is short enough, else in a new private directory,
    else a port of the loopback interface that is free now, which needs CurveKeys.
    """
    name = f"engine-{secrets.token_hex(4)}.sock"
    if directory is not None and _fits(directory.resolve() / name):
        return f"ipc://{directory.resolve() / name}", None
    temporary = Path(tempfile.gettempdir()) / f"tenora-{secrets.token_hex(8)}"
    if _fits(temporary / name):
        return f"ipc://{temporary / name}", temporary
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return f"tcp://127.0.0.1:{probe.getsockname()[1]}", None


def _fits(path: Path) -> bool:
    return len(os.fsencode(path)) <= _UNIX_PATH_MAX
