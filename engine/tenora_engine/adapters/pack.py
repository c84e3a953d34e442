"""Packs an adapter into pages of granules (docs/decisions/0001), and to and from the bytes that
Redis keeps. Knows neither tiers nor the device."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from tenora_engine.adapters.packed import PackedAdapter
from tenora_engine.adapters.peft_format import (
    AdapterFormatError,
    EffectiveLora,
    LoraConfig,
    ModuleKey,
    TensorInfo,
    by_peft_name,
    check_tensors,
    effective_modules,
    tensor_name,
)
from tenora_engine.config import LORA_MODULES, ModelInfo, PackedDType, ResolvedConfig
from tenora_engine.errors import AdapterLoadError
from tenora_engine.events import AdapterFootprint
from tenora_engine.model.modules import LORA_CALLS
from tenora_kernels.segments import SCALE_BYTES

TORCH_DTYPES: dict[PackedDType, torch.dtype] = {
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "int8": torch.int8,
}
_INT8_MAX = 127  # symmetric: -128 is not used
_SAFETENSORS_DTYPES = {
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float64: "F64",
}
_MAGIC = b"TNPK0001"
_HEADER_BYTES = len(_MAGIC) + 32
_TABLES = ("granule_page", "granule_start", "rank", "a_offset", "b_offset", "scale")

Check = Callable[[bytes | memoryview], bytes]
"""Makes the 32 bytes by which serialised content is known again."""


def checksum(content: bytes | memoryview) -> bytes:
    """Find damage by it, not who wrote the content."""
    return hashlib.sha256(content).digest()


class CorruptEntryError(ValueError):
    """Serialised bytes that are damaged, or were packed for another model or page size."""


@dataclass(frozen=True)
class _Row:
    """One module's row of A, or of B^T, in a granule."""

    module: str
    side: Literal["A", "B"]

    def features(self, model: ModelInfo) -> int:
        return model.modules[self.module]["AB".index(self.side)]


@dataclass(frozen=True)
class _Band:
    """Rank rows `first:last` of one layer, where the same modules are present: granules of one
    length, which lie one after another."""

    layer: int
    first: int
    last: int
    rows: tuple[_Row, ...]
    length: int  # elements of one granule


def layout_key(model: ModelInfo, page_elements: int, dtype: PackedDType) -> str:
    """Names everything a packed adapter's bytes depend on besides the adapter. Two engines with one
    key may share packed pages."""
    dims = ",".join(
        "x".join(map(str, model.modules[name])) if name in model.modules else "-"
        for name in LORA_MODULES
    )
    return f"granules-2/{dtype}/{page_elements}/{model.num_layers}/{dims}"


def check_tables(
    packed: PackedAdapter,
    model: ModelInfo,
    page_elements: int,
    dtype: PackedDType,
    max_rank: int,
) -> None:
    """Raises CorruptEntryError unless tables and pages are what packing makes of such ranks here:
    then no place in them lies outside of the adapter's pages."""
    layers, modules = model.num_layers, len(LORA_MODULES)
    used = packed.granule_page.shape[-1] if packed.granule_page.dim() else 0
    _require(packed, "pages", TORCH_DTYPES[dtype], (*packed.pages.shape[:1], page_elements))
    for name in ("granule_page", "granule_start"):
        _require(packed, name, torch.int32, (layers, used))
    for name in ("rank", "a_offset", "b_offset"):
        _require(packed, name, torch.int32, (layers, modules))
    _require(packed, "scale", torch.float32, (layers, modules))
    if not 0 < used <= max_rank or not bool(packed.scale.isfinite().all()):
        raise CorruptEntryError(f"ranks up to {used}, or a scale that is not finite")
    effective = {
        (layer, LORA_MODULES[module]): EffectiveLora(rank, 1.0)
        for layer, ranks in enumerate(packed.rank.tolist())
        for module, rank in enumerate(ranks)
        if rank
    }
    if any(
        module not in model.modules or not 0 < lora.rank <= used
        for (_, module), lora in effective.items()
    ):
        raise CorruptEntryError("ranks of modules that the model has not, or beyond the tables")
    try:
        made = _Packer(effective, model, page_elements, dtype).places()
    except AdapterLoadError as error:
        raise CorruptEntryError(str(error)) from error
    if packed.num_pages != made.num_pages or any(
        not torch.equal(getattr(packed, name), getattr(made, name))
        for name in ("granule_page", "granule_start", "a_offset", "b_offset")
    ):
        raise CorruptEntryError("its tables are not those of its ranks")


def _require(packed: PackedAdapter, name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    found: Tensor = getattr(packed, name)
    if found.dtype != dtype or tuple(found.shape) != shape or 0 in shape:
        raise CorruptEntryError(f"{name} is {found.dtype} {tuple(found.shape)}")


def pack_adapter(
    digest: str,
    config: LoraConfig,
    tensors: Mapping[str, Tensor],  # by PEFT's names; A [rank, in], B [out, rank]
    model: ModelInfo,
    page_elements: int,
    dtype: PackedDType,
    max_rank: int,
    rest: Callable[[], None] = lambda: None,
) -> PackedAdapter:
    """Lay the adapter's rows into pages of `page_elements` elements of `dtype`; int8 rows are
    rounded to multiples of their largest weight / 127, which lies before them. `rest` is called
    after each piece of the work.

    Raises AdapterFormatError when tensors and config do not fit together or the model, and
    AdapterLoadError when a granule is larger than a page or a value is not finite.
    """
    effective = effective_modules(config, model)
    infos = {
        name: TensorInfo(
            _SAFETENSORS_DTYPES.get(tensor.dtype, str(tensor.dtype)), tuple(tensor.shape)
        )
        for name, tensor in tensors.items()
    }
    problems = check_tensors(effective, infos, model, max_rank)
    if problems:
        raise AdapterFormatError(problems)
    packer = _Packer(effective, model, page_elements, dtype)
    return packer.pack(digest, by_peft_name(tensors), rest)


def packed_pages(
    effective: Mapping[ModuleKey, EffectiveLora],
    model: ModelInfo,
    page_elements: int,
    dtype: PackedDType,
) -> int:
    """How many pages an adapter will take, without its tensors. Raises AdapterLoadError when a
    granule is larger than a page."""
    return _count_pages(_bands(effective, model, _before_row(dtype)), page_elements)


def footprint(config: ResolvedConfig, ranks: Mapping[str, Sequence[int]]) -> AdapterFootprint:
    """What an adapter with these ranks ({module: one of each layer, 0 where it lacks it}) takes.
    Raises AdapterLoadError when a granule is larger than a page, and for modules or layers that
    the model has not."""
    model = config.model
    effective = {}
    for module, of_layers in ranks.items():
        if module not in model.modules or len(of_layers) > model.num_layers:
            raise AdapterLoadError(f"{model.id} has no such modules or layers: {module[:80]}")
        for layer, rank in enumerate(of_layers):
            if rank > 0:
                effective[layer, module] = EffectiveLora(rank, 1.0)
    pages = packed_pages(effective, model, config.packed_page_elements, config.packed_dtype)
    max_rank = max((lora.rank for lora in effective.values()), default=0)
    cells = 2 * max_rank + 4 * len(LORA_MODULES)  # of the tables beside the pages, in each layer
    table_bytes = 4 * model.num_layers * cells
    host_bytes = pages * config.page_bytes
    return AdapterFootprint(pages, config.page_bytes, host_bytes + table_bytes)


def _before_row(dtype: PackedDType) -> int:
    """Elements of its own that each A row and each B^T row has right before it."""
    return SCALE_BYTES if dtype == "int8" else 0


def _bands(
    effective: Mapping[ModuleKey, EffectiveLora], model: ModelInfo, before_row: int
) -> list[_Band]:
    """All bands, in the order in which they lie in the pages."""
    bands = []
    for layer in range(model.num_layers):
        granule = _granule(effective, layer)
        ranks = sorted({effective[layer, row.module].rank for row in granule})
        for first, last in zip([0, *ranks], ranks, strict=False):
            rows = tuple(row for row in granule if effective[layer, row.module].rank >= last)
            length = sum(before_row + row.features(model) for row in rows)
            bands.append(_Band(layer, first, last, rows, length))
    return bands


def _granule(effective: Mapping[ModuleKey, EffectiveLora], layer: int) -> list[_Row]:
    """The layer's modules by falling rank, so that those of a row lie where they lie in any other;
    of one rank, all A rows that a call reads side by side, then all B rows."""
    rows = []
    present = {
        name: effective[layer, name].rank for name in LORA_MODULES if (layer, name) in effective
    }
    for rank in sorted(set(present.values()), reverse=True):
        for call in LORA_CALLS:
            names = [name for name in call if present.get(name) == rank]
            rows += [_Row(name, "A") for name in names] + [_Row(name, "B") for name in names]
    return rows


@dataclass(frozen=True)
class _Run:
    """Rank rows of one band that lie in one page: `count` granules from element `start` on."""

    band: _Band
    row: int
    count: int
    page: int
    start: int


def _runs(bands: list[_Band], page_elements: int) -> Iterator[_Run]:
    """Place the granules one after another; none straddles two pages."""
    page, cursor = 0, 0
    for band in bands:
        if band.length > page_elements:
            raise AdapterLoadError(
                f"one rank row of layer {band.layer} takes {band.length} elements, a page holds"
                f" {page_elements}; raise block_tokens"
            )
        row = band.first
        while row < band.last:
            count = min((page_elements - cursor) // band.length, band.last - row)
            if count == 0:
                page, cursor = page + 1, 0
                continue
            yield _Run(band, row, count, page, cursor)
            row, cursor = row + count, cursor + count * band.length


def _count_pages(bands: list[_Band], page_elements: int) -> int:
    return 1 + max((run.page for run in _runs(bands, page_elements)), default=-1)


@dataclass(frozen=True)
class _Places:
    """Where everything of an adapter lies, as PackedAdapter has it."""

    num_pages: int
    granule_page: Tensor
    granule_start: Tensor
    rank: Tensor
    a_offset: Tensor
    b_offset: Tensor
    scale: Tensor


class _Packer:
    """Packs one adapter; its loops go over layers, modules and runs, never over rows."""

    def __init__(
        self,
        effective: Mapping[ModuleKey, EffectiveLora],
        model: ModelInfo,
        page_elements: int,
        dtype: PackedDType,
    ) -> None:
        self._effective = effective
        self._model = model
        self._page_elements = page_elements
        self._dtype = TORCH_DTYPES[dtype]
        self._before_row = _before_row(dtype)
        self._layout_key = layout_key(model, page_elements, dtype)

    def pack(
        self, digest: str, tensors: Mapping[str, Tensor], rest: Callable[[], None]
    ) -> PackedAdapter:
        places = self.places()
        pages = _zeros((places.num_pages, self._page_elements), self._dtype)
        for run in self._all_runs():
            end = run.start + run.count * run.band.length
            granules = pages[run.page, run.start : end].view(run.count, run.band.length)
            self._write_rows(granules, run, tensors)
            rest()
        return PackedAdapter(
            digest=digest,
            layout_key=self._layout_key,
            pages=pages,
            granule_page=places.granule_page,
            granule_start=places.granule_start,
            rank=places.rank,
            a_offset=places.a_offset,
            b_offset=places.b_offset,
            scale=places.scale,
        )

    def places(self) -> _Places:
        """Raises AdapterLoadError when a granule is larger than a page."""
        runs = self._all_runs()
        max_rank = max((lora.rank for lora in self._effective.values()), default=0)
        granule_page = torch.full((self._model.num_layers, max_rank), -1, dtype=torch.int32)
        granule_start = granule_page.clone()
        for run in runs:
            end = run.start + run.count * run.band.length
            place = (run.band.layer, slice(run.row, run.row + run.count))
            granule_page[place] = run.page
            granule_start[place] = torch.arange(run.start, end, run.band.length, dtype=torch.int32)
        num_pages = 1 + max((run.page for run in runs), default=-1)
        return _Places(num_pages, granule_page, granule_start, *self._tables())

    def _all_runs(self) -> list[_Run]:
        bands = _bands(self._effective, self._model, self._before_row)
        return list(_runs(bands, self._page_elements))

    def _write_rows(
        self,
        granules: Tensor,  # [run.count, run.band.length], in the pages' dtype
        run: _Run,
        tensors: Mapping[str, Tensor],
    ) -> None:
        start = 0
        for row in run.band.rows:
            tensor = tensors[tensor_name(run.band.layer, row.module, row.side)]
            by_rank = tensor if row.side == "A" else tensor.t()  # [rank, in], [out, rank]
            part = by_rank[run.row : run.row + run.count]
            if self._dtype == torch.int8:
                part = _quantised(part)
            end = start + part.shape[1]
            granules[:, start:end].copy_(part)
            start = end
        if self._dtype != torch.int8:
            _require_finite(granules)

    def _tables(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """rank, a_offset, b_offset (int32) and scale (float32), each `[layers, modules]`."""
        modules, layers = range(len(LORA_MODULES)), range(self._model.num_layers)
        rank, a_offset, b_offset = ([[0 for _ in modules] for _ in layers] for _ in range(3))
        scale = [[0.0 for _ in modules] for _ in layers]
        for layer in layers:
            offset = 0
            for row in _granule(self._effective, layer):
                module = LORA_MODULES.index(row.module)
                lora = self._effective[layer, row.module]
                rank[layer][module], scale[layer][module] = lora.rank, lora.scale
                offset += self._before_row
                (a_offset if row.side == "A" else b_offset)[layer][module] = offset
                offset += row.features(self._model)
        return (
            torch.tensor(rank, dtype=torch.int32),
            torch.tensor(a_offset, dtype=torch.int32),
            torch.tensor(b_offset, dtype=torch.int32),
            torch.tensor(scale, dtype=torch.float32),
        )


def _zeros(shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
    """Zeros whose memory is taken as it is written (calloc), so piece by piece."""
    raw = np.zeros(shape[0] * shape[1] * dtype.itemsize, dtype=np.uint8)
    return torch.from_numpy(raw).view(dtype).view(shape)


def _require_finite(values: Tensor) -> None:
    least, most = values.aminmax()  # NaN if any value is; in one pass, unlike isfinite
    if not (bool(least.isfinite()) and bool(most.isfinite())):
        raise AdapterLoadError(
            f"the weights contain values that {values.dtype} cannot represent (NaN or infinity)"
        )


def _quantised(
    rows: Tensor,  # [n, features]
) -> Tensor:  # [n, SCALE_BYTES + features] int8
    """Each row's scale, then its weights as multiples of it."""
    rows = rows.float()
    scale = rows.abs().amax(1, keepdim=True) / _INT8_MAX
    _require_finite(scale)
    # A row of zeros has scale 0; so small a row that its scale is 0 too becomes one.
    weights = torch.where(scale > 0, rows / scale, 0).round().clamp(-_INT8_MAX, _INT8_MAX)
    return torch.cat([scale.view(torch.int8), weights.to(torch.int8)], dim=1)


def serialise(packed: PackedAdapter, check: Check = checksum) -> bytes:
    """Bytes for another place: a magic word, the check of all that follows, a length-prefixed JSON
    object with the digest and the layout key, then safetensors."""
    tensors = {name: getattr(packed, name).contiguous() for name in ("pages", *_TABLES)}
    names = json.dumps({"digest": packed.digest, "layout_key": packed.layout_key}).encode()
    content = len(names).to_bytes(4, "little") + names + safetensors.torch.save(tensors)
    return _MAGIC + check(content) + content


def deserialise(
    data: bytes, expected_layout_key: str, digest: str, check: Check = checksum
) -> PackedAdapter:
    """The inverse of `serialise`. Raises CorruptEntryError when the bytes are damaged, of another
    adapter, or packed for another layout."""
    content = memoryview(data)[_HEADER_BYTES:]
    if len(data) < _HEADER_BYTES + 4 or data[: len(_MAGIC)] != _MAGIC:
        raise CorruptEntryError("this is not a packed adapter")
    if not hmac.compare_digest(check(content), data[len(_MAGIC) : _HEADER_BYTES]):
        raise CorruptEntryError("the check of a packed adapter is wrong")
    end = 4 + int.from_bytes(content[:4], "little")
    try:
        names = json.loads(bytes(content[4:end]))
        tensors = safetensors.torch.load(bytes(content[end:]))
        packed = PackedAdapter(
            digest=names["digest"],
            layout_key=names["layout_key"],
            pages=tensors["pages"],
            **{name: tensors[name] for name in _TABLES},
        )
    except (ValueError, KeyError, TypeError, SafetensorError) as error:
        raise CorruptEntryError(f"a packed adapter cannot be read: {error}") from error
    if packed.layout_key != expected_layout_key or packed.digest != digest:
        raise CorruptEntryError(f"holds {packed.digest} for {packed.layout_key}")
    return packed
