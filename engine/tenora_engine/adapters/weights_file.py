"""The weights of an adapter out of an object store: read and hashed in parts, then seen as tensors
without a copy. Small pieces, none of which holds the interpreter for long: steps run beside."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from tenora_engine.pace import Work

if TYPE_CHECKING:
    from obstore.store import ObjectStore

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,  # ids of tokens, of a draft layer
}
_LOCAL_PART_BYTES = 1024**2
_REMOTE_PART_BYTES = 8 * 1024**2  # each is a request
_HASHED_AT_ONCE = 512 * 1024


def read_object(
    store: ObjectStore, key: str, work: Work
) -> tuple[Tensor, str]:  # [bytes] uint8, its SHA-256 in hex
    """One object; an empty one is FileNotFoundError. Raises what obstore does. What the caller goes
    on to do with it is at the same pace."""
    from obstore import get, get_range, head
    from obstore.exceptions import BaseError
    from obstore.store import LocalStore

    part = _LOCAL_PART_BYTES if isinstance(store, LocalStore) else _REMOTE_PART_BYTES
    with work.waiting():
        try:
            first = get(store, key, options={"range": (0, part)})
        except BaseError as error:
            if head(store, key)["size"]:
                raise
            raise FileNotFoundError(key) from error  # nothing has no range
        chunk: Any = first.bytes()
    size = first.meta["size"]
    work.begin(size)
    data = np.empty(size, dtype=np.uint8)
    digest = hashlib.sha256()
    filled = 0
    while True:
        taken = np.frombuffer(chunk, dtype=np.uint8)
        for start in range(0, len(taken), _HASHED_AT_ONCE):
            piece = taken[start : start + _HASHED_AT_ONCE]
            digest.update(piece.data)
            data[filled : filled + len(piece)] = piece
            filled += len(piece)
            work.rest()
        if filled >= size:
            return torch.from_numpy(data), digest.hexdigest()
        with work.waiting():
            chunk = get_range(store, key, start=filled, end=min(filled + part, size))


def tensors_of(
    file: Tensor,  # [bytes] uint8
) -> dict[str, Tensor]:
    """The tensors of a safetensors file, as views of it. Raises ValueError when it is none."""
    length = int.from_bytes(bytes(file[:8].numpy()), "little")
    data = file[8 + length :]
    try:
        header = json.loads(bytes(file[8 : 8 + length].numpy()))
        header.pop("__metadata__", None)
        return {name: _tensor(data, **entry) for name, entry in header.items()}
    except (KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise ValueError(f"not a safetensors file: {error!r}") from error


def _tensor(data: Tensor, dtype: str, shape: list[int], data_offsets: tuple[int, int]) -> Tensor:
    start, end = data_offsets
    values = data[start:end]
    kind = DTYPES[dtype]
    if values.storage_offset() % kind.itemsize:
        values = values.clone()
    return values.view(kind).view(shape)
