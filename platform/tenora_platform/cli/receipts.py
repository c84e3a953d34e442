"""`tenora receipt`: one from the server; and whether one is as it was signed, without asking the
server for anything but its keys."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import httpx
import typer
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from tenora_platform.cli.client import (
    DEFAULT_URL,
    AsJson,
    TenantKey,
    Url,
    connected,
    refusal,
    server_url,
)
from tenora_platform.cli.errors import show_error
from tenora_platform.cli.output import pass_on, say
from tenora_platform.receipts.document import (
    BYTES_MAX,
    NotAReceiptError,
    ReceiptError,
    UnknownKeyError,
    verify,
)
from tenora_platform.receipts.keys import KeysError, read_key_set

receipt = typer.Typer(no_args_is_help=True)

KEYS_PATH = "/.well-known/tenora-keys.json"
DOES_NOT_HOLD = 1
UNKNOWN_KEY = 3
NOT_A_RECEIPT = 4
NO_KEYS = 5
_HINTS = {
    UNKNOWN_KEY: (
        "Check that these are the keys of the server that signed it, and not older than "
        "the receipt."
    ),
    NOT_A_RECEIPT: "A receipt is the complete answer of GET /v1/requests/{id}.",
    NO_KEYS: f"A server publishes its keys at {KEYS_PATH}.",
}


@receipt.command("get")
def get_receipt(
    request_id: Annotated[str, typer.Argument(help="The answer's id, or its x-request-id.")],
    out: Annotated[Path | None, typer.Option(help="Output file; default: standard output.")] = None,
    url: Url = DEFAULT_URL,
    key: TenantKey = None,
) -> None:
    """Get the signed receipt of one request."""
    with connected(url, key, what="a tenant's API key") as api:
        answer = api.http.get(f"/v1/requests/{quote(request_id, safe='')}")
    if answer.is_error:
        raise refusal(answer)
    if out is None:
        pass_on(f"{answer.text}\n")
    else:
        out.write_bytes(answer.content)


@receipt.command("verify")
def verify_receipt(
    file: Annotated[str, typer.Argument(help="The receipt's file; - for standard input.")],
    keys: Annotated[
        str | None,
        typer.Option(help=f"File or URL of the public keys; default: the server's {KEYS_PATH}."),
    ] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Verify a receipt; works offline with a file of keys. Exit code 0: valid; 1: a field was
    changed, or the signature does not match the key; 3: unknown key; 4: not a receipt; 5: no keys
    found."""
    try:
        text = _read(file)
    except OSError as error:
        raise _failed(NOT_A_RECEIPT, f"{file} cannot be read: {error.strerror}", as_json) from error
    source = keys or server_url(url) + KEYS_PATH
    try:
        known = _keys(source)
    except (OSError, ValueError, KeysError, httpx.HTTPError) as error:
        raise _failed(NO_KEYS, f"no keys from {source}: {error}", as_json) from error
    try:
        found = verify(text, known)
    except ReceiptError as error:
        raise _failed(_code(error), f"{file} does not verify: {error}", as_json) from error
    said = {"valid": True, "kid": found["signature"]["kid"], "id": found.get("id")}
    if as_json:
        say(json.dumps(said))
    else:
        say(f"valid: {said['id']} was signed with the key {said['kid']}")


def _read(file: str) -> bytes:
    if file == "-":
        return sys.stdin.buffer.read(BYTES_MAX + 1)
    with Path(file).open("rb") as opened:
        return opened.read(BYTES_MAX + 1)


def _keys(source: str) -> dict[str, Ed25519PublicKey]:
    found: Any
    if source.startswith(("http://", "https://")):
        answer = httpx.get(source, timeout=30, follow_redirects=True)
        answer.raise_for_status()
        found = answer.json()
    else:
        found = json.loads(Path(source).read_bytes())
    return read_key_set(found)


def _code(error: ReceiptError) -> int:
    if isinstance(error, UnknownKeyError):
        return UNKNOWN_KEY
    return NOT_A_RECEIPT if isinstance(error, NotAReceiptError) else DOES_NOT_HOLD


def _failed(code: int, reason: str, as_json: bool) -> typer.Exit:
    """Says so; the exit to raise."""
    if as_json:
        say(json.dumps({"valid": False, "reason": reason}))
    else:
        show_error(f"{reason}.", _HINTS.get(code))
    return typer.Exit(code)
