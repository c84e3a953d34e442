"""`tenora admin-key`: the operator's keys and their roles."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tenora_platform.cli.client import (
    DEFAULT_URL,
    AdminKey,
    AsJson,
    OverlapS,
    Url,
    connected,
    show,
)
from tenora_platform.cli.output import say
from tenora_platform.times import DAY_S

admin_key = typer.Typer(no_args_is_help=True)

KeyId = Annotated[str, typer.Argument(help="The key's id.")]
_PATH = "/admin/v1/admin_keys"
_KEY = {
    "id": "id",
    "name": "name",
    "role": "role",
    "prefix": "prefix",
    "source": "source",
    "expires": "expires_at",
    "revoked": "revoked_at",
    "last used": "last_used_at",
    "created by": "created_by",
}
_NEW = {"id": "id", "role": "role", "key": "key"}
_OWNER = "an owner's admin key"


@admin_key.command("list")
def list_keys(url: Url = DEFAULT_URL, key: AdminKey = None, as_json: AsJson = False) -> None:
    """List all admin keys, newest first; the configured one comes last."""
    with connected(url, key, what=_OWNER) as api:
        show(api.all_of(_PATH), _KEY, as_json=as_json)


@admin_key.command("create")
def create_key(
    name: Annotated[str, typer.Argument(help="A name for the key.")],
    role: Annotated[str, typer.Option(help="owner, operator, billing, read_only or metrics.")],
    expires_at: Annotated[
        str | None, typer.Option(help="When the key expires, such as 2027-01-31T00:00:00Z.")
    ] = None,
    url: Url = DEFAULT_URL,
    key: AdminKey = None,
    as_json: AsJson = False,
) -> None:
    """Create an admin key. Its secret is shown only once."""
    body: dict[str, Any] = {"name": name, "role": role}
    if expires_at:
        body["expires_at"] = expires_at
    with connected(url, key, what=_OWNER) as api:
        made = api.call("POST", _PATH, json=body)
    show(made, _NEW, as_json=as_json, rows=[made])


@admin_key.command("rotate")
def rotate_key(
    key_id: KeyId,
    overlap_s: OverlapS = DAY_S,
    url: Url = DEFAULT_URL,
    key: AdminKey = None,
    as_json: AsJson = False,
) -> None:
    """Give an admin key a new secret, which is shown only once."""
    with connected(url, key, what=_OWNER) as api:
        made = api.call("POST", f"{_PATH}/{key_id}/rotate", json={"overlap_s": overlap_s})
    show(made, _NEW, as_json=as_json, rows=[made])


@admin_key.command("revoke")
def revoke_key(key_id: KeyId, url: Url = DEFAULT_URL, key: AdminKey = None) -> None:
    """Revoke an admin key, effective at once."""
    with connected(url, key, what=_OWNER) as api:
        api.call("DELETE", f"{_PATH}/{key_id}")
    say(f"revoked {key_id}")
