"""The management API from a shell: where the server is, which key to send, how errors read."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer

from tenora_engine.printable import printable
from tenora_platform.cli.errors import CliError
from tenora_platform.cli.output import pass_on, say

Url = Annotated[str, typer.Option("--url", envvar="TENORA_URL", help="The server's address.")]
Key = Annotated[
    str | None,
    typer.Option(
        "--key",
        help="API key or admin key; default: TENORA_API_KEY, else TENORA_ADMIN_KEY.",
        show_default=False,
    ),
]
TenantKey = Annotated[
    str | None,
    typer.Option(
        "--key", envvar="TENORA_API_KEY", help="The tenant's API key.", show_default=False
    ),
]
AdminKey = Annotated[
    str | None,
    typer.Option("--key", envvar="TENORA_ADMIN_KEY", help="An admin key.", show_default=False),
]
OverlapS = Annotated[
    int, typer.Option(help="Seconds for which the previous secret stays valid; 0 ends it at once.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the server's answer as JSON.")]

DEFAULT_URL = "http://127.0.0.1:8000"


@dataclass(frozen=True)
class ApiClient:
    """Calls with a key; refusals become CliError with the server's words."""

    http: httpx.Client

    def call(self, method: str, path: str, **more: Any) -> Any:
        answer = self.http.request(method, path, **more)
        if answer.is_error:
            raise refusal(answer)
        try:
            return answer.json()
        except ValueError as error:
            raise _another_service(answer) from error

    def all_of(self, path: str, **query: Any) -> list[dict[str, Any]]:
        """Every item of a paged list."""
        items: list[dict[str, Any]] = []
        while True:
            page = self.call("GET", path, params={**query, "limit": 100})
            items += page["data"]
            if not page.get("has_more") or not page.get("last_id"):
                return items
            query["after"] = page["last_id"]  # also of an empty page, of a search that goes on

    def save(self, path: str, query: dict[str, str], out: Path | None) -> None:
        """A streamed answer into a file, whose name is printed, or onto standard output."""
        with self.http.stream("GET", path, params=query) as answer:
            if answer.is_error:
                answer.read()
                raise refusal(answer)
            if out is None:
                for piece in answer.iter_text():
                    pass_on(piece)
                return
            with out.open("wb") as file:
                for chunk in answer.iter_bytes():
                    file.write(chunk)
        say(str(out))


def any_key(key: str | None) -> str | None:
    """As the option says: else a tenant's, else the admin key of the environment."""
    return key or os.environ.get("TENORA_API_KEY") or os.environ.get("TENORA_ADMIN_KEY")


def refusal(answer: httpx.Response) -> CliError:
    """An error answer in words."""
    try:
        error = answer.json()["error"]
        message = str(error["message"])
        param = f" (field {error['param']})" if error.get("param") else ""
    except (ValueError, KeyError, TypeError):
        message, param = answer.text[:300], ""
    hint = {
        401: "Give a key with --key, TENORA_API_KEY or TENORA_ADMIN_KEY.",
        403: (
            "Check that this is the right kind of key: /v1 needs a tenant's key, /admin "
            "needs an admin key."
        ),
    }.get(answer.status_code)
    return CliError(f"{message}{param} [{answer.status_code}]", hint)


def _check_origin(answer: httpx.Response) -> None:
    """Raises CliError for an answer that is not of a Tenora: each of ours names its request."""
    if answer.is_redirect:
        raise CliError(
            f"{answer.url} redirects to {answer.headers.get('location', 'nowhere')}.",
            "Give the address of the server itself with --url or TENORA_URL.",
        )
    if "x-request-id" not in answer.headers:
        raise _another_service(answer)


def _another_service(answer: httpx.Response) -> CliError:
    return CliError(
        f"{answer.url} does not answer as Tenora does [{answer.status_code}].",
        "A proxy or another service may be at this address: check --url or TENORA_URL.",
    )


def server_url(url: str) -> str:
    """The server's address, also of what other clients are given: `http://host:8000/v1`. Raises
    CliError for what is no URL."""
    if not url.startswith(("http://", "https://")):
        raise CliError(
            f"{url!r} is not the address of a server.",
            f"Give an address such as {DEFAULT_URL} with --url.",
        )
    return url.rstrip("/").removesuffix("/v1")


@contextmanager
def connected(url: str, key: str | None, *, what: str) -> Iterator[ApiClient]:
    """A client for one command. Raises CliError without a key."""
    if not key:
        raise CliError(
            f"This needs {what}.", "Give it with --key, TENORA_API_KEY or TENORA_ADMIN_KEY."
        )
    headers = {"authorization": f"Bearer {key}"}
    hooks = {"response": [_check_origin]}
    with httpx.Client(
        base_url=server_url(url), headers=headers, timeout=60, event_hooks=hooks
    ) as http:
        yield ApiClient(http)


def show(
    data: Any, columns: dict[str, str], *, as_json: bool, rows: list[dict[str, Any]] | None = None
) -> None:
    """Print a list of objects as a table of `columns` (heading -> field), or `data` as JSON."""
    if as_json:
        say(json.dumps(data, indent=2))
        return
    # Lines are not folded to the terminal: ids and keys must stay whole to be copied.
    lines = [list(columns)]
    for row in rows if rows is not None else data:
        lines.append([_cell(row.get(field)) for field in columns.values()])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        padded = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        say("  ".join(padded).rstrip())


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, list):
        value = ", ".join(map(str, value))
    return printable(str(value))
