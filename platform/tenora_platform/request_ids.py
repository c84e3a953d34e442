"""The ids by which clients call their requests: which of them are kept, and where."""

from __future__ import annotations

import re

import structlog
from starlette.types import Scope

from tenora_platform.keys import hide_keys

REQUEST_ID = r"^[A-Za-z0-9._:-]{1,128}$"
_ID = re.compile(REQUEST_ID)


def id_in_header(scope: Scope) -> str | None:
    """The client's `x-request-id`, if it is a sane one."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and is_sane(value.decode("latin-1")):
            return str(value.decode("latin-1"))
    return None


def is_sane(request_id: str) -> bool:
    """Whether it may be kept and logged with the request: one with a key in it may not."""
    return _ID.match(request_id) is not None and hide_keys(request_id) == request_id


def call_request(scope: Scope, request_id: str | None) -> None:
    """By the id in a body, from now on; the header's, where there is one, is kept."""
    if request_id is not None and is_sane(request_id) and id_in_header(scope) is None:
        scope["state"]["request_id"] = request_id
        structlog.contextvars.bind_contextvars(request_id=request_id)
