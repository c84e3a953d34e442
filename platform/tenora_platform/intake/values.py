"""Reads every value of a checked safetensors file once, in chunks: SHA-256 of the file, and for
each tensor whether it is finite, how large, and its norm. Knows no names' meaning."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from tenora_platform.intake.header import IDS_BYTES, Header, TensorEntry

CHUNK_BYTES = 4 * 1024 * 1024
VALUE_MAX = 65504.0  # the largest float16; beyond it sixteen-bit arithmetic makes infinities


_STORED = {"F32": "<f4", "F16": "<f2", "I64": "<i8"}


@dataclass(frozen=True)
class TensorValues:
    """What one tensor holds. The numbers are meaningless unless `finite`."""

    name: str
    elements: int
    finite: bool
    largest: float
    sum_of_squares: float


@dataclass(frozen=True)
class FileValues:
    sha256: str  # hex, of the whole file
    tensors: tuple[TensorValues, ...]


def scan_values(file: BinaryIO, header: Header) -> FileValues:
    """One pass over the file, `CHUNK_BYTES` at a time. Raises OSError, and ValueError if the file
    is shorter than its header said (it changed while it was read)."""
    digest = hashlib.sha256()
    file.seek(0)
    digest.update(_read(file, header.data_begin))
    tensors = tuple(_scan(file, entry, digest) for entry in header.tensors)
    return FileValues(digest.hexdigest(), tensors)


def _read(file: BinaryIO, count: int) -> bytes:
    data = file.read(count)
    if len(data) != count:
        raise ValueError("the file became shorter while it was being checked")
    return data


def _scan(file: BinaryIO, entry: TensorEntry, digest: Any) -> TensorValues:
    remaining = entry.end - entry.begin
    finite, largest, squares = True, 0.0, 0.0
    while remaining:
        data = _read(file, min(CHUNK_BYTES, remaining))
        remaining -= len(data)
        digest.update(data)
        if not finite:
            continue
        with np.errstate(invalid="ignore"):  # widening a signalling NaN would warn
            values = as_float64(data, entry.dtype)
        if not np.isfinite(values).all():
            finite = False
            continue
        largest = max(largest, float(np.abs(values).max()))
        squares += float(np.dot(values, values))
    return TensorValues(
        name=entry.name,
        elements=(entry.end - entry.begin) // IDS_BYTES[entry.dtype],
        finite=finite,
        largest=largest,
        sum_of_squares=squares,
    )


def as_float64(data: bytes, dtype: str) -> NDArray[np.float64]:
    """Stored values, widened; exact (whole numbers up to 2^53)."""
    if dtype == "BF16":  # the upper half of a float32
        wide = np.frombuffer(data, dtype="<u2").astype("<u4") << 16
        return wide.view("<f4").astype(np.float64)
    return np.frombuffer(data, dtype=_STORED[dtype]).astype(np.float64)
