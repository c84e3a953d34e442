"""`tenora adapter`: upload a PEFT folder and look after what was uploaded."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Annotated, Any, BinaryIO, cast

import httpx
import typer
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TransferSpeedColumn,
)

from tenora_platform.cli.adapter_folder import AdapterFolder, read_folder
from tenora_platform.cli.client import (
    DEFAULT_URL,
    ApiClient,
    AsJson,
    TenantKey,
    Url,
    connected,
    refusal,
    show,
)
from tenora_platform.cli.errors import CliError
from tenora_platform.cli.output import say, terminal

app = typer.Typer(no_args_is_help=True)
_KEY = "a tenant's API key"
_CHECK_S = 300
_COLUMNS = {
    "name": "name",
    "version": "version",
    "state": "state",
    "rank": "rank",
    "bytes": "bytes",
}


@app.command("list")
def list_adapters(url: Url = DEFAULT_URL, key: TenantKey = None, as_json: AsJson = False) -> None:
    """List the tenant's adapters."""
    with connected(url, key, what=_KEY) as api:
        show(api.all_of("/v1/adapters"), _COLUMNS, as_json=as_json)


@app.command("show")
def show_adapter(
    name: str, url: Url = DEFAULT_URL, key: TenantKey = None, as_json: AsJson = False
) -> None:
    """Show one adapter with its versions and their reports."""
    with connected(url, key, what=_KEY) as api:
        found = api.call("GET", f"/v1/adapters/{name}")
    versions = found.get("versions", [])
    show(found, _COLUMNS, as_json=as_json, rows=[found, *versions])
    if not as_json:
        for version in versions:
            label = f"{name}@{version['version']}"
            for kind in ("problems", "warnings"):
                for line in findings(version, kind):
                    say(f"{label} {kind.removesuffix('s')}: {line}")


@app.command("push")
def push(
    folder: Annotated[
        Path,
        typer.Argument(help="The folder that the trainer wrote (PEFT's save_pretrained, or MLX)."),
    ],
    name: Annotated[
        str, typer.Option(help="The adapter's name. If it exists, this becomes a new version.")
    ],
    url: Url = DEFAULT_URL,
    key: TenantKey = None,
) -> None:
    """Upload an adapter's folder and wait until it has been checked. Weights in several files are
    sent as one, and MLX's are converted to PEFT's. Files that do not belong to the adapter are
    listed and not sent."""
    sent = read_folder(folder)
    if sent.skipped:
        say(f"not sent: {', '.join(sent.skipped)}", err=True)
    with connected(url, key, what=_KEY) as api:
        _preflight(api, name, sent)
        made = _upload(api, name, sent)
        version = _await_check(api, name, int(made["version"]))
    if version["state"] == "rejected":
        raise CliError(f"{name}@{version['version']} was rejected: {reasons(version)}")
    say(f"{name}@{version['version']} is {version['state']} ({version['digest']})")
    for line in findings(version, "warnings"):
        say(f"warning: {line}", err=True)


def _preflight(api: ApiClient, name: str, sent: AdapterFolder) -> None:
    """Raises CliError if the upload would be refused. What cannot be known yet is no refusal."""
    fields = {"name": name, "weights_bytes": str(sent.weights_bytes)}
    files = {"adapter_config": sent.config, "header": sent.header}
    if sent.draft_layer is not None:
        fields["draft_layer_bytes"] = str(sent.draft_layer.bytes)
        files["draft_layer_header"] = sent.draft_layer.header
    answer = api.http.post("/v1/adapters/preflight", data=fields, files=files)
    if answer.status_code == httpx.codes.SERVICE_UNAVAILABLE:
        return  # the engine is loading: the upload is taken and checked later
    if answer.is_error:
        raise refusal(answer)
    if not answer.json()["accepted"]:
        raise CliError(
            f"{name} would be rejected: {reasons(answer.json())}", "The weights have not been sent."
        )


@app.command("delete")
def delete(
    name: str,
    version: Annotated[int | None, typer.Option(help="Delete only this version.")] = None,
    url: Url = DEFAULT_URL,
    key: TenantKey = None,
) -> None:
    """Delete an adapter or one of its versions. Requests in flight finish."""
    path = f"/v1/adapters/{name}" + ("" if version is None else f"/versions/{version}")
    with connected(url, key, what=_KEY) as api:
        api.call("DELETE", path)
    say(f"deleted {name}" + ("" if version is None else f"@{version}"))


@app.command("alias")
def alias(
    name: str,
    alias_name: Annotated[str, typer.Argument(metavar="ALIAS", help="The alias, such as prod.")],
    target: Annotated[
        list[str], typer.Argument(help="VERSION or VERSION=WEIGHT; the weights add up to 100.")
    ],
    url: Url = DEFAULT_URL,
    key: TenantKey = None,
) -> None:
    """Point an alias at one version, or at several with weights."""
    targets = [parse_target(word) for word in target]
    with connected(url, key, what=_KEY) as api:
        api.call("PUT", f"/v1/adapters/{name}/aliases/{alias_name}", json={"targets": targets})
    say(f"{name}@{alias_name} -> {' '.join(target)}")


def parse_target(word: str) -> dict[str, int]:
    """`3` or `3=90`. Raises CliError."""
    version, _, weight = word.partition("=")
    if not version.isdigit() or not (weight or "100").isdigit():
        raise CliError(f"{word!r} must be VERSION or VERSION=WEIGHT, such as 3=90.")
    return {"version": int(version), "weight": int(weight or 100)}


def reasons(version: dict[str, Any]) -> str:
    """Why an upload was rejected, field by field."""
    return "; ".join(findings(version, "problems")) or "no reason given"


def findings(version: dict[str, Any], kind: str) -> list[str]:
    """The `problems` or `warnings` of its check, a line each."""
    report = version.get("validation") or {}
    return [f"{each['field']}: {each['message']}" for each in report.get(kind, [])]


class _Counted:
    """A file that tells how much of it has been read."""

    def __init__(self, file: BinaryIO, progress: Progress, size: int) -> None:
        self._file = file
        self._progress = progress
        self._task = progress.add_task("uploading", total=size)

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self._progress.advance(self._task, len(data))
        return data

    def fileno(self) -> int:
        return self._file.fileno()

    def tell(self) -> int:
        return self._file.tell()

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def __iter__(self) -> _Counted:
        return self

    def __next__(self) -> bytes:
        if data := self.read(1 << 20):
            return data
        raise StopIteration


def _template_part(sent: AdapterFolder) -> dict[str, Any]:
    if sent.chat_template is None:
        return {}
    return {"chat_template": ("chat_template.jinja", sent.chat_template.encode(), "text/plain")}


def _layer_part(sent: AdapterFolder, opened: contextlib.ExitStack) -> dict[str, Any]:
    if sent.draft_layer is None:
        return {}
    path = sent.draft_layer.path
    file = opened.enter_context(path.open("rb"))
    return {"draft_layer": (path.name, file, "application/octet-stream")}


def _upload(api: ApiClient, name: str, sent: AdapterFolder) -> dict[str, Any]:
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        console=terminal(stderr=True, wraps=True),
    )
    with bar, sent.open_weights() as file, contextlib.ExitStack() as opened:
        counted = cast(BinaryIO, _Counted(file, bar, sent.weights_bytes))
        files = {
            "adapter_config": ("adapter_config.json", sent.config, "application/json"),
            **_template_part(sent),
            **_layer_part(sent, opened),
            "weights": ("adapter_model.safetensors", counted, "application/octet-stream"),
        }
        timeout = httpx.Timeout(60, write=600, read=600)
        made: dict[str, Any] = api.call(
            "POST", "/v1/adapters", data={"name": name}, files=files, timeout=timeout
        )
        return made


def _await_check(api: ApiClient, name: str, number: int) -> dict[str, Any]:
    deadline = time.monotonic() + _CHECK_S
    while True:
        found: dict[str, Any] = api.call("GET", f"/v1/adapters/{name}/versions/{number}")
        if found["state"] not in ("quarantined", "validating"):
            return found
        if time.monotonic() > deadline:
            raise CliError(
                f"The check of {name}@{number} has not finished after {_CHECK_S} s.",
                f"It continues on the server. See its state with: tenora adapter show {name}",
            )
        time.sleep(0.2)
