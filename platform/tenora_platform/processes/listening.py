"""The one listening socket of all API processes. Its owner holds it as long as the port is served,
so that connections wait while no process takes them, and none is refused while one is replaced."""

from __future__ import annotations

import socket

from tenora_platform.cli.errors import CliError

BACKLOG = 2048


def listen(host: str, port: int) -> socket.socket:
    """Raises CliError if the address cannot be listened on."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(BACKLOG)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise CliError(
            f"Cannot listen on {host}:{port}: {error.strerror or error}.",
            "Another server, perhaps another Tenora, may be using it. Choose another --port.",
        ) from error
    return listener
