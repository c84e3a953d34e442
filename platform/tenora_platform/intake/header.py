"""Our own reader of a safetensors header: every rule is checked before any tensor is touched. It
knows the file format only, not LoRA and not the base model.

The safetensors library accepts duplicate keys, a million empty tensors and names with `../`; this
reader does not. Format: 8 bytes little-endian header length, JSON header, tensor data.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from tenora_platform.intake.report import Problem
from tenora_platform.texts import odd_in

HEADER_BYTES_MAX = 1024 * 1024
DRAFT_HEADER_BYTES_MAX = 16 * 1024  # of a draft layer's that is asked about beforehand
TENSORS_MAX = 8192
DIMENSIONS_MAX = 8
NAME_PATTERN = re.compile(r"[A-Za-z0-9_\-]+(\.[A-Za-z0-9_\-]+)*\Z")
NAME_LENGTH_MAX = 256

ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2}
"""The dtypes an adapter may have, and the bytes of one element."""

IDS_BYTES = {**ITEM_BYTES, "I64": 8}
"""Of a file that holds ids of tokens too."""

_SIGNATURES = (
    (b"PK\x03\x04", "pickle_refused", "a zip archive (PyTorch's pickle format)"),
    (b"\x80\x02", "pickle_refused", "a Python pickle"),
    (b"\x80\x03", "pickle_refused", "a Python pickle"),
    (b"\x80\x04", "pickle_refused", "a Python pickle"),
    (b"\x80\x05", "pickle_refused", "a Python pickle"),
    (b"GGUF", "format_refused", "a GGUF file"),
    (b"\x1f\x8b", "format_refused", "a gzip archive"),
    (b"\x89HDF", "format_refused", "an HDF5 file"),
    (b"version ", "format_refused", "a Git LFS pointer (`git lfs pull` fetches the file itself)"),
)


class IntakeError(Exception):
    """The upload is refused. `problem` says where and why."""

    def __init__(self, field: str, code: str, message: str) -> None:
        super().__init__(message)
        self.problem = Problem(field=field, code=code, message=message)


@dataclass(frozen=True)
class TensorEntry:
    """One tensor: `begin` and `end` are byte offsets in the file, not in the data section."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True)
class Header:
    """A header that holds. Tensors are in file order and cover the data section exactly."""

    tensors: tuple[TensorEntry, ...]
    data_begin: int
    file_bytes: int
    metadata: Mapping[str, str] = field(default_factory=dict)


def strict_json(text: bytes, field: str) -> Any:
    """JSON without duplicate keys, NaN or Infinity. Raises IntakeError (code `invalid_json` or
    `duplicate_key`)."""

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for key, value in items:
            if key in out:
                raise IntakeError(
                    field, "duplicate_key", f"the key {show(key)} appears twice in the JSON"
                )
            out[key] = value
        return out

    def constant(word: str) -> Any:
        raise IntakeError(field, "invalid_json", f"{word} is not allowed in JSON")

    try:
        parsed = json.loads(text.decode("utf-8"), object_pairs_hook=pairs, parse_constant=constant)
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise IntakeError(field, "invalid_json", f"this is not valid JSON: {reason}") from error
    if (odd := odd_in(parsed)) is not None:
        raise IntakeError(field, "invalid_json", f"{show(odd.place)} in it {odd.reason}")
    return parsed


def show(text: str) -> str:
    """A tenant's text for a message: short and printable."""
    return ascii(text[:80]) + ("..." if len(text) > 80 else "")


def read_header(
    file: BinaryIO, file_bytes: int, item_bytes: Mapping[str, int] = ITEM_BYTES
) -> Header:
    """Reads and checks the header at the start of `file`, whose tensors may have the dtypes of
    `item_bytes`. Raises IntakeError on the first broken rule: after it nothing in the file can be
    trusted."""
    file.seek(0)
    start = file.read(8)
    length = int.from_bytes(start, "little")
    if length > HEADER_BYTES_MAX or len(start) < 8:
        # Only here: a good file may begin with the same bytes (a length of 640 is 0x80 0x02).
        _refuse_other_formats(start)
    if len(start) < 8:
        raise IntakeError("weights", "truncated", "the file is shorter than a safetensors header")
    if length > HEADER_BYTES_MAX:
        raise IntakeError(
            "weights.header",
            "header_too_large",
            f"the header has {length} bytes; at most {HEADER_BYTES_MAX} are allowed",
        )
    data_begin = 8 + length
    if length < 2 or data_begin > file_bytes:
        raise IntakeError(
            "weights.header", "truncated", f"the file is too short for its header of {length} bytes"
        )
    raw = file.read(length)
    if len(raw) != length:
        raise IntakeError("weights.header", "truncated", "the file ends inside its header")
    if not raw.startswith(b"{"):
        raise IntakeError("weights.header", "invalid_json", "the header does not start with '{'")
    parsed = strict_json(raw, "weights.header")
    if not isinstance(parsed, dict):
        raise IntakeError("weights.header", "invalid_json", "the header is not a JSON object")
    metadata = _checked_metadata(parsed.pop("__metadata__", {}))
    return Header(
        tensors=_entries(parsed, data_begin, file_bytes, item_bytes),
        data_begin=data_begin,
        file_bytes=file_bytes,
        metadata=metadata,
    )


def _refuse_other_formats(start: bytes) -> None:
    for magic, code, what in _SIGNATURES:
        if start.startswith(magic):
            raise IntakeError(
                "weights",
                code,
                f"this is {what}; only safetensors is accepted. Save the adapter with "
                "save_pretrained(..., safe_serialization=True)",
            )


def _checked_metadata(metadata: object) -> dict[str, str]:
    if isinstance(metadata, dict) and all(isinstance(value, str) for value in metadata.values()):
        return metadata
    raise IntakeError(
        "weights.header", "invalid_metadata", "__metadata__ must be an object of strings"
    )


def _entries(
    parsed: dict[str, Any], data_begin: int, file_bytes: int, item_bytes: Mapping[str, int]
) -> tuple[TensorEntry, ...]:
    if not parsed:
        raise IntakeError("weights", "no_tensors", "the file contains no tensors")
    if len(parsed) > TENSORS_MAX:
        raise IntakeError(
            "weights.header",
            "too_many_tensors",
            f"the file has {len(parsed)} tensors; at most {TENSORS_MAX} are allowed",
        )
    entries = [_entry(name, body, data_begin, item_bytes) for name, body in parsed.items()]
    entries.sort(key=lambda entry: entry.begin)
    expected = data_begin
    for entry in entries:
        if entry.begin != expected:
            kind = "overlaps another tensor" if entry.begin < expected else "leaves a gap"
            raise IntakeError(
                entry.name,
                "offsets_not_contiguous",
                f"data_offsets start at byte {entry.begin - data_begin} of the data, which {kind}; "
                f"expected {expected - data_begin}",
            )
        expected = entry.end
    if expected != file_bytes:
        raise IntakeError(
            "weights",
            "size_mismatch",
            f"the tensors end at byte {expected}, but the file has {file_bytes} bytes",
        )
    return tuple(entries)


def _entry(name: str, body: object, data_begin: int, item_bytes: Mapping[str, int]) -> TensorEntry:
    if len(name) > NAME_LENGTH_MAX or NAME_PATTERN.match(name) is None:
        raise IntakeError(
            show(name),
            "invalid_name",
            "a tensor's name must consist of letters, digits, '_' and '-', in parts joined by dots",
        )
    if not isinstance(body, dict) or set(body) != {"dtype", "shape", "data_offsets"}:
        raise IntakeError(
            name,
            "invalid_entry",
            "an entry must have exactly the keys dtype, shape and data_offsets",
        )
    dtype = body["dtype"]
    if not isinstance(dtype, str) or dtype not in item_bytes:
        raise IntakeError(
            name,
            "unsupported_dtype",
            f"dtype {show(str(dtype))} is not allowed; use one of {', '.join(item_bytes)}",
        )
    shape = _sizes(name, "shape", body["shape"])
    if not 1 <= len(shape) <= DIMENSIONS_MAX or 0 in shape:
        raise IntakeError(
            name,
            "invalid_shape",
            f"the shape {list(shape)} is empty or has too many dimensions; DeepSpeed ZeRO-3 "
            "saves empty tensors if the weights were not gathered before saving",
        )
    offsets = _sizes(name, "data_offsets", body["data_offsets"])
    if len(offsets) != 2 or offsets[0] >= offsets[1]:
        raise IntakeError(
            name, "invalid_offsets", "data_offsets must be [begin, end] with begin < end"
        )
    begin, end = offsets
    if end - begin != math.prod(shape) * item_bytes[dtype]:
        raise IntakeError(
            name,
            "invalid_offsets",
            f"{end - begin} bytes do not match shape {list(shape)} in {dtype}",
        )
    return TensorEntry(name, dtype, shape, data_begin + begin, data_begin + end)


def _sizes(name: str, key: str, value: object) -> tuple[int, ...]:
    if not isinstance(value, list) or len(value) > DIMENSIONS_MAX:
        raise IntakeError(
            name, "invalid_entry", f"{key} must be an array of at most {DIMENSIONS_MAX} integers"
        )
    for item in value:
        if type(item) is not int or not 0 <= item < 2**48:
            raise IntakeError(name, "invalid_entry", f"{key} must be an array of integers >= 0")
    return tuple(value)
