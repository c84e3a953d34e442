"""HTTP routes of the registry: adapters, versions, aliases, resumable uploads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request

from tenora_platform.auth import TenantContext
from tenora_platform.bodies import body_of
from tenora_platform.edge import EdgeRoute, ask_again
from tenora_platform.errors import BadRequestError
from tenora_platform.ids import new_id
from tenora_platform.intake.check import CONFIG_BYTES_MAX
from tenora_platform.intake.header import DRAFT_HEADER_BYTES_MAX, HEADER_BYTES_MAX
from tenora_platform.registry.admission import (
    adapter_room,
    adapters_tenant,
    part_room,
    preflight_room,
)
from tenora_platform.registry.incoming import ReceivedLayer, ReceivedWeights
from tenora_platform.registry.listing import Listing, order_of
from tenora_platform.registry.multipart import MemorySink, Sink, read_multipart
from tenora_platform.registry.preflight import DraftHeader, preflight
from tenora_platform.registry.quota import Room
from tenora_platform.registry.schemas import (
    Adapter,
    AdapterPage,
    AdapterVersion,
    OpenUpload,
    Preflight,
    Upload,
    UploadComplete,
    UploadCreate,
    UploadPart,
    VersionChange,
)
from tenora_platform.registry.service import Registry
from tenora_platform.registry.uploads import Uploads
from tenora_platform.schemas import After, Deleted, Limit, ListPage, Order
from tenora_platform.state import ReadyEngine, State
from tenora_platform.templates.check import TEMPLATE_BYTES_MAX, template_text

router = APIRouter(tags=["adapters"], route_class=EdgeRoute)
AdapterTenant = Annotated[TenantContext, Depends(adapters_tenant)]
AdapterRoom = Annotated[Room, Depends(adapter_room)]
PartRoom = Annotated[Room, Depends(part_room)]

Sort = Annotated[
    str | None,
    Query(description="Sort by created, name, requests or cost; '-' in front means descending"),
]
Search = Annotated[
    str | None,
    Query(
        max_length=128,
        pattern=r"^[^\x00]*$",
        description=(
            "Only adapters whose name contains this, or that have a version whose digest "
            "starts with it"
        ),
    ),
]
NAME_BYTES_MAX = 256


def _form(required: list[str], properties: dict[str, Any]) -> dict[str, Any]:
    """The OpenAPI of a multipart body that is read as it arrives."""
    schema = {"type": "object", "required": required, "properties": properties}
    return {
        "requestBody": {"required": True, "content": {"multipart/form-data": {"schema": schema}}}
    }


_BINARY = {"type": "string", "format": "binary"}
_ADAPTER_FORM = _form(
    ["name", "adapter_config"],
    {
        "name": {
            "type": "string",
            "description": "The adapter's name; the upload becomes its next version",
        },
        "adapter_config": {**_BINARY, "description": "adapter_config.json"},
        "weights": {**_BINARY, "description": "adapter_model.safetensors"},
        "upload_id": {
            "type": "string",
            "description": "The id of a completed upload, instead of weights",
        },
        "chat_template": {
            **_BINARY,
            "description": "The adapter's own chat template (chat_template.jinja, at most 64 KiB)",
        },
        "draft_layer": {
            **_BINARY,
            "description": "A draft layer for this adapter (draft_layer.safetensors)",
        },
    },
)
_PREFLIGHT_FORM = _form(
    ["name", "adapter_config", "header", "weights_bytes"],
    {
        "name": {"type": "string"},
        "adapter_config": {**_BINARY, "description": "adapter_config.json"},
        "header": {
            **_BINARY,
            "description": "The first 8 bytes of adapter_model.safetensors and its header",
        },
        "weights_bytes": {
            "type": "integer",
            "minimum": 0,
            "maximum": 10**15 - 1,
            "description": "Size of the whole file in bytes",
        },
        "draft_layer_header": {
            **_BINARY,
            "description": "The start of draft_layer.safetensors, if one will be uploaded",
        },
        "draft_layer_bytes": {
            "type": "integer",
            "minimum": 0,
            "maximum": 10**15 - 1,
            "description": "Size of that whole file in bytes",
        },
    },
)
_PART_FORM = _form(
    ["data"],
    {
        "data": {
            **_BINARY,
            "description": "The bytes of this part, at most `part_bytes_max` of the upload",
        },
        "sha256": {"type": "string", "description": "SHA-256 of this part, in hex"},
    },
)


@router.post("/v1/adapters", status_code=202, openapi_extra=_ADAPTER_FORM)
async def create_adapter(
    request: Request, state: State, tenant: AdapterTenant, room: AdapterRoom
) -> AdapterVersion:
    """Upload a PEFT LoRA adapter as the next version of `name`. It is quarantined until it has been
    checked; poll the version until its state is active or rejected."""
    name = MemorySink("name", NAME_BYTES_MAX)
    config = MemorySink("adapter_config", CONFIG_BYTES_MAX)
    upload_id = MemorySink("upload_id", NAME_BYTES_MAX)
    template = MemorySink("chat_template", TEMPLATE_BYTES_MAX)
    uploads = Uploads(state, tenant)
    declared_bytes = body_of(request).declared_bytes
    async with (
        uploads.weights(room, declared_bytes) as (version_id, weights),
        uploads.draft_layer(version_id, room) as layer,
    ):
        sinks: dict[str, Sink] = {
            "name": name,
            "adapter_config": config,
            "weights": weights,
            "upload_id": upload_id,
            "chat_template": template,
            "draft_layer": layer,
        }
        seen = await _read_form(request, sinks)
        _require_parts(seen)
        if "upload_id" in seen:
            received = replace(await uploads.completed(_text(upload_id)), version_id=version_id)
        else:
            await weights.finish()
            received = ReceivedWeights(weights.bytes, weights.sha256, version_id=version_id)
        if "draft_layer" in seen:
            await layer.finish()
            came = ReceivedLayer(layer.bytes, layer.sha256)
            received = replace(received, draft_layer=came)
        received = replace(received, chat_template=template_text(bytes(template.data)))
        return await Registry(state, tenant).add_version(_text(name), bytes(config.data), received)


@router.post(
    "/v1/adapters/preflight",
    openapi_extra=_PREFLIGHT_FORM,
    dependencies=[Depends(preflight_room)],
)
async def preflight_adapter(
    request: Request, state: State, tenant: AdapterTenant, engine: ReadyEngine
) -> Preflight:
    """Check whether an upload would be accepted, from its config and its header, before you send
    the weights. The values themselves are checked after the upload."""
    sinks = {
        "name": MemorySink("name", NAME_BYTES_MAX),
        "adapter_config": MemorySink("adapter_config", CONFIG_BYTES_MAX),
        "header": MemorySink("header", 8 + HEADER_BYTES_MAX),
        "weights_bytes": MemorySink("weights_bytes", NAME_BYTES_MAX),
        "draft_layer_header": MemorySink("draft_layer_header", 8 + DRAFT_HEADER_BYTES_MAX),
        "draft_layer_bytes": MemorySink("draft_layer_bytes", NAME_BYTES_MAX),
    }
    seen = await _read_form(request, sinks)
    of_layer = {"draft_layer_header", "draft_layer_bytes"}
    wanted = set(sinks) if seen & of_layer else set(sinks) - of_layer
    for part in sinks:
        if part in wanted - seen:
            raise _missing(part)
    layer = None
    if of_layer <= seen:
        layer_header = bytes(sinks["draft_layer_header"].data)
        layer = DraftHeader(layer_header, _size(sinks["draft_layer_bytes"]))
    config, header = bytes(sinks["adapter_config"].data), bytes(sinks["header"].data)
    size = _size(sinks["weights_bytes"])
    return await preflight(state, tenant, _text(sinks["name"]), config, header, size, layer)


async def _read_form(request: Request, sinks: Mapping[str, Sink]) -> set[str]:
    """The parts that came. Who sends it is asked again afterwards: it may last for hours."""
    content_type = request.headers.get("content-type", "")
    seen = await read_multipart(content_type, request.stream(), sinks)
    await ask_again(request)
    return seen


def _size(sink: MemorySink) -> int:
    size = _text(sink)
    if not (size.isascii() and size.isdecimal() and len(size) < 16):
        raise BadRequestError(f"{sink.name} must be an integer.", param=sink.name)
    return int(size)


def _require_parts(seen: set[str]) -> None:
    for part in ("name", "adapter_config"):
        if part not in seen:
            raise _missing(part)
    if "weights" not in seen and "upload_id" not in seen:
        raise _missing("weights")
    if "weights" in seen and "upload_id" in seen:
        raise BadRequestError("Send either weights or upload_id, not both.", param="upload_id")


def _missing(part: str) -> BadRequestError:
    return BadRequestError(
        f"The form part {part} is missing.", param=part, code="missing_required_parameter"
    )


def _text(sink: MemorySink) -> str:
    return bytes(sink.data).decode("utf-8", errors="replace")


@router.get("/v1/adapters")
async def list_adapters(
    state: State,
    tenant: AdapterTenant,
    limit: Limit = 20,
    after: After = None,
    order: Order = "desc",
    sort: Sort = None,
    q: Search = None,
) -> AdapterPage:
    """List adapters with what each name serves now, its versions, traffic of the last 24 hours,
    cost of this month, and where its data is. The order by `requests` or `cost` may be ten seconds
    old; the values shown are current."""
    by = order_of(sort, order)
    return await Listing(state, tenant).page(q=q, order=by, after=after, limit=limit)


@router.get("/v1/adapters/{name}")
async def get_adapter(name: str, state: State, tenant: AdapterTenant) -> Adapter:
    return await Listing(state, tenant).get(name)


@router.delete("/v1/adapters/{name}")
async def delete_adapter(name: str, state: State, tenant: AdapterTenant) -> Deleted:
    """Delete an adapter. Requests in flight finish, new ones get 404; its memory and cached KV are
    freed."""
    return Deleted(id=await Registry(state, tenant).delete(name), object="adapter")


@router.delete("/v1/models/{model}")
async def delete_model(model: str, state: State, tenant: AdapterTenant) -> Deleted:
    """Delete an adapter, as OpenAI's API; with `name@3` one version of it. Other values of `model`
    cannot be deleted."""
    name, _, version = model.partition("@")
    registry = Registry(state, tenant)
    if not version:
        await registry.delete(name)
    elif version.isdecimal() and version.isascii() and len(version) < 10:
        await registry.delete_version(name, int(version))
    else:
        raise BadRequestError(
            f"{model[:200]!r} is neither an adapter nor a version. Delete {name[:100]!r}, or "
            "one of its versions by number.",
            param="model",
            code="invalid_value",
        )
    return Deleted(id=model, object="model")


@router.get("/v1/adapters/{name}/versions/{version}")
async def get_adapter_version(
    name: str, version: int, state: State, tenant: AdapterTenant
) -> AdapterVersion:
    return await Registry(state, tenant).get_version(name, version)


@router.patch("/v1/adapters/{name}/versions/{version}")
async def change_adapter_version(
    name: str, version: int, body: VersionChange, state: State, tenant: AdapterTenant
) -> AdapterVersion:
    """Deprecate a version, take that back, or revoke it everywhere within a second."""
    return await Registry(state, tenant).set_state(name, version, body)


@router.delete("/v1/adapters/{name}/versions/{version}")
async def delete_adapter_version(
    name: str, version: int, state: State, tenant: AdapterTenant
) -> Deleted:
    deleted = await Registry(state, tenant).delete_version(name, version)
    return Deleted(id=deleted, object="adapter_version")


@router.post("/v1/uploads")
async def create_upload(body: UploadCreate, state: State, tenant: AdapterTenant) -> Upload:
    return await Uploads(state, tenant).create(body)


@router.get("/v1/uploads")
async def list_uploads(state: State, tenant: AdapterTenant) -> ListPage[OpenUpload]:
    """List open uploads, newest first, so that an interrupted one can be resumed. They always fit
    on one page."""
    found = await Uploads(state, tenant).open()
    return ListPage[OpenUpload].of(found, len(found))


@router.get("/v1/uploads/{upload_id}")
async def get_upload(upload_id: str, state: State, tenant: AdapterTenant) -> Upload:
    """Get which parts have arrived, so that an interrupted upload can be resumed."""
    return await Uploads(state, tenant).get(upload_id)


@router.post("/v1/uploads/{upload_id}/parts", openapi_extra=_PART_FORM)
async def add_upload_part(
    upload_id: str, request: Request, state: State, tenant: AdapterTenant, room: PartRoom
) -> UploadPart:
    uploads = Uploads(state, tenant)
    sha256 = MemorySink("sha256", NAME_BYTES_MAX)
    part_id = new_id("part")
    async with uploads.part(upload_id, part_id, room) as data:
        seen = await _read_form(request, {"data": data, "sha256": sha256})
        if "data" not in seen:
            raise _missing("data")
        return await uploads.add_part(upload_id, part_id, data, _text(sha256) or None)


@router.post("/v1/uploads/{upload_id}/complete")
async def complete_upload(
    upload_id: str, body: UploadComplete, state: State, tenant: AdapterTenant
) -> Upload:
    return await Uploads(state, tenant).complete(upload_id, body)


@router.post("/v1/uploads/{upload_id}/cancel")
async def cancel_upload(upload_id: str, state: State, tenant: AdapterTenant) -> Upload:
    return await Uploads(state, tenant).cancel(upload_id)
