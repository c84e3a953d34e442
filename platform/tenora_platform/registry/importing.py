"""Imports an adapter from a folder that the operator allows: its files are read as `tenora adapter
push` would read them, staged as an upload is, and checked as one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import structlog
from obstore.exceptions import BaseError

from tenora_platform.auth import TenantContext
from tenora_platform.errors import BadRequestError, UnavailableError
from tenora_platform.intake import folder as files
from tenora_platform.intake.check import CONFIG_BYTES_MAX
from tenora_platform.intake.header import HEADER_BYTES_MAX, IntakeError
from tenora_platform.registry.import_places import import_place
from tenora_platform.registry.incoming import IncomingObject, ReceivedLayer, ReceivedWeights
from tenora_platform.registry.schemas import AdapterImport, AdapterVersion
from tenora_platform.registry.service import Registry
from tenora_platform.registry.sources import Folder, existing, open_source, read_whole
from tenora_platform.registry.uploads import Uploads
from tenora_platform.state import AppState
from tenora_platform.templates.check import TEMPLATE_BYTES_MAX, template_text

IMPORT_S_MAX = 600.0
_TOKENIZER_BYTES_MAX = 4 * 1024**2
_PICKLES = ("adapter_model.bin", "adapter_model.pt")

_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class _Found:
    """What of a folder is the adapter. `pieces` is its weights, in order, behind `header`."""

    config: bytes
    chat_template: str | None
    header: bytes
    pieces: tuple[files.Piece, ...]
    layer_bytes: int | None  # of its draft layer, if it has one

    @property
    def bytes(self) -> int:
        return files.Merged(self.header, self.pieces).bytes

    @property
    def all_bytes(self) -> int:
        return self.bytes + (self.layer_bytes or 0)


async def import_adapter(
    state: AppState, tenant: TenantContext, body: AdapterImport
) -> AdapterVersion:
    """The folder's adapter as the next version of `body.name`. Raises BadRequestError (param
    "source"), RateLimitedError, UnavailableError, and what an upload does."""
    folder = open_source(state.settings.import_prefixes, tenant.tenant_id, body.source)
    try:
        async with import_place(state.redis, tenant.tenant_id), asyncio.timeout(IMPORT_S_MAX):
            return await _import(state, tenant, body, folder)
    except IntakeError as error:
        problem = error.problem
        message = f"{problem.field}: {problem.message}."
        raise BadRequestError(message, param="source", code=problem.code) from error
    except FileNotFoundError as error:
        raise BadRequestError(
            "The folder changed while it was being read; import it again.", param="source"
        ) from error
    except TimeoutError as error:
        raise UnavailableError(
            f"The source could not be read within {IMPORT_S_MAX:.0f} s; try again later.",
            code="source_unavailable",
        ) from error
    except BaseError as error:
        _log.warning("import source could not be read", source=body.source, reason=str(error))
        raise UnavailableError(
            "The store of the source refused access or does not answer. The operator's log "
            "has the reason.",
            code="source_unavailable",
        ) from error


async def _import(
    state: AppState, tenant: TenantContext, body: AdapterImport, folder: Folder
) -> AdapterVersion:
    found = await _find(folder)
    registry, uploads = Registry(state, tenant), Uploads(state, tenant)
    await registry.check_room(body.name, ReceivedWeights(found.all_bytes, sha256=""))
    room = await uploads.room()
    if found.all_bytes > room.bytes:
        raise room.refusal
    uploads.require_disk(found.all_bytes)
    async with (
        uploads.weights(room, found.all_bytes) as (version_id, weights),
        uploads.draft_layer(version_id, room) as layer,
    ):
        async for piece in _weights(folder, found):
            weights.write(piece)
            await weights.settle()
        if weights.bytes != found.bytes:
            raise FileNotFoundError(files.WEIGHTS)
        await weights.finish()
        received = ReceivedWeights(
            weights.bytes,
            weights.sha256,
            version_id=version_id,
            source=body.source,
            chat_template=found.chat_template,
            draft_layer=await _layer(folder, found, layer),
        )
        return await registry.add_version(body.name, found.config, received)


async def _layer(folder: Folder, found: _Found, layer: IncomingObject) -> ReceivedLayer | None:
    if found.layer_bytes is None:
        return None
    async for piece in folder.read(files.DRAFT_LAYER, 0, found.layer_bytes):
        layer.write(piece)
        await layer.settle()
    await layer.finish()
    return ReceivedLayer(layer.bytes, layer.sha256)


async def _find(folder: Folder) -> _Found:
    """Raises IntakeError, BadRequestError."""
    config = await read_whole(folder, files.CONFIG, CONFIG_BYTES_MAX)
    if config is None:
        raise IntakeError("source", "config_missing", f"holds no {files.CONFIG}")
    index = await read_whole(folder, files.INDEX, files.INDEX_BYTES_MAX)
    known = await existing(folder, [files.WEIGHTS, files.DRAFT_LAYER, *_PICKLES])
    if files.WEIGHTS not in known and index is not None:
        known |= await existing(folder, files.shards_of(index))
    weights = files.weights_files(known, index)
    template, layer = await _template(folder), known.get(files.DRAFT_LAYER)
    if weights == [files.WEIGHTS]:
        whole = files.Piece(files.WEIGHTS, 0, known[files.WEIGHTS])
        return _Found(config, template, b"", (whole,), layer)
    starts = [(name, await _start(folder, name, known[name]), known[name]) for name in weights]
    merged = files.merge(starts)
    return _Found(config, template, merged.header, merged.pieces, layer)


async def _template(folder: Folder) -> str | None:
    own = await read_whole(folder, files.TEMPLATE, TEMPLATE_BYTES_MAX)
    tokenizer = None
    if own is None:
        tokenizer = await read_whole(folder, files.TOKENIZER_CONFIG, _TOKENIZER_BYTES_MAX)
    return template_text((files.chat_template_of(own, tokenizer) or "").encode())


async def _start(folder: Folder, name: str, size: int) -> bytes:
    """The file's first bytes, up to the end of its header as far as one is taken."""
    length = b"".join([piece async for piece in folder.read(name, 0, min(8, size))])
    end = min(8 + min(int.from_bytes(length, "little"), HEADER_BYTES_MAX), size)
    return length + b"".join([piece async for piece in folder.read(name, len(length), end)])


async def _weights(folder: Folder, found: _Found) -> AsyncIterator[bytes]:
    if found.header:
        yield found.header
    for piece in found.pieces:
        async for data in folder.read(piece.name, piece.begin, piece.end):
            yield data
