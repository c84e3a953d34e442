"""How much of an upload may come, said before anything of it is read: what the plan's storage has
left, and no more than the server takes. Knows forms by their size."""

from __future__ import annotations

from fastapi import Request

from tenora_platform.auth import require_scope
from tenora_platform.bodies import body_of
from tenora_platform.edge import BeforeBody
from tenora_platform.intake.check import CONFIG_BYTES_MAX
from tenora_platform.intake.header import DRAFT_HEADER_BYTES_MAX, HEADER_BYTES_MAX
from tenora_platform.registry.quota import Room
from tenora_platform.registry.uploads import Uploads
from tenora_platform.state import get_state
from tenora_platform.templates.check import TEMPLATE_BYTES_MAX

adapters_tenant = require_scope("adapters")

_FORM_BYTES = 64 * 1024  # names, checksums, boundaries and the parts' own headers


@BeforeBody
async def adapter_room(request: Request) -> Room:
    """Of the weights that POST /v1/adapters may bring now. Raises TooLargeError for a body that
    says it has more, and StorageFullError."""
    uploads = Uploads(await get_state(request), await adapters_tenant(request))
    room = await uploads.room()
    body = body_of(request)
    beside = CONFIG_BYTES_MAX + TEMPLATE_BYTES_MAX + _FORM_BYTES
    body.allow(room.bytes + beside, room.refusal)
    uploads.require_disk(body.declared_bytes or 0)
    return room


@BeforeBody
async def part_room(request: Request) -> Room:
    """Of a part of this upload. Raises NotFoundError, ConflictError, too."""
    uploads = Uploads(await get_state(request), await adapters_tenant(request))
    room = await uploads.part_room(request.path_params["upload_id"])
    body = body_of(request)
    body.allow(room.bytes + _FORM_BYTES, room.refusal)
    uploads.require_disk(body.declared_bytes or 0)
    return room


@BeforeBody
async def preflight_room(request: Request) -> None:
    """A config and a header, and that of a draft layer."""
    await adapters_tenant(request)
    headers = HEADER_BYTES_MAX + DRAFT_HEADER_BYTES_MAX
    body_of(request).allow(headers + CONFIG_BYTES_MAX + _FORM_BYTES)
