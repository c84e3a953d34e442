"""Where a model's tensors come from: the safetensors of a folder, or a seeded generator."""

from __future__ import annotations

import hashlib
import json
import math
import re
from pathlib import Path
from typing import NamedTuple, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from tenora_engine.errors import ModelLoadError

NAMES_SHOWN = 5

DTYPES = ("F64", "F32", "F16", "BF16")
"""What a weight may be stored in. Eight bits and fewer mean nothing without the scales that a
quantised checkpoint has beside them."""

IDLE_TENSORS = tuple(
    map(
        re.compile,
        (
            r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.(inv_freq|cos_cached|sin_cached)",
            r"model\.layers\.\d+\.self_attn\.(bias|masked_bias)",  # a causal mask
            r"model\.(layers\.\d+\.self_attn\.)?causal_mask",
            r"model\.position_ids",
        ),
    )
)
"""Buffers that older versions of transformers wrote beside the weights: all of them are computed
anew from config.json."""


class WeightSource(Protocol):
    def read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """One tensor by its Hugging Face name, in the dtype it is stored in, on the CPU."""
        ...


class _Stored(NamedTuple):
    file: Path
    name: str
    dtype: str  # as safetensors writes it
    shape: tuple[int, ...]


class SafetensorsFolder:
    """The safetensors of a Hugging Face folder, one file or shards with an index; of each file all
    that is in it. Raises ModelLoadError when there are none or one cannot be read."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._stored = self._find()

    def __contains__(self, name: str) -> bool:
        return name in self._stored

    def has_another(self, name: str, than: str) -> bool:
        """Whether both are there, and not the same numbers, as far as they are any."""
        if not {name, than} <= self._stored.keys():
            return False
        one, other = self._stored[name], self._stored[than]
        if one.shape != other.shape or not {one.dtype, other.dtype} <= {*DTYPES}:
            return True
        mine, theirs = self._get(one), self._get(other)
        if mine.dtype != theirs.dtype:
            mine, theirs = mine.float(), theirs.float()
        return not torch.equal(mine, theirs)

    def stand_in(self, name: str, for_missing: str) -> None:
        """What is not there under the one name is read under the other, if it is there."""
        if name in self._stored:
            self._stored.setdefault(for_missing, self._stored[name])

    def require(self, shapes: dict[str, tuple[int, ...]]) -> None:
        """All of these, of a kind and shape that can be computed with, and nothing else of which it
        is not known that it changes no answer. Raises ModelLoadError naming what is wrong."""
        missing = sorted(set(shapes) - set(self._stored))
        if missing:
            raise ModelLoadError(
                f"the weights in {self._folder} lack {_shown(missing)}; the download may be "
                "incomplete, or config.json may belong to another model"
            )
        for name in sorted(self._stored):
            if name in shapes:
                self._check(name, shapes[name])
        unknown = [name for name in self._stored if name not in shapes and not _is_idle(name)]
        if unknown:
            raise ModelLoadError(
                f"the weights in {self._folder} have {_shown(sorted(unknown))}, for which this"
                " architecture has no use as config.json describes it: answers would be wrong."
                " Quantised weights are not supported: use the original ones. Else correct"
                " config.json, or remove the tensors if they belong to no part of the model"
            )

    def read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        self._check(name, shape)
        return self._get(self._stored[name])

    def _check(self, name: str, shape: tuple[int, ...]) -> None:
        stored = self._stored[name]
        if stored.shape != shape:
            raise ModelLoadError(
                f"{name} in {stored.file.name} is {stored.shape}; config.json asks for {shape}"
            )
        if stored.dtype not in DTYPES:
            raise ModelLoadError(
                f"{name} in {stored.file.name} is {stored.dtype}; quantised weights are not"
                f" supported: use the original ones ({', '.join(DTYPES)})"
            )

    def _get(self, stored: _Stored) -> Tensor:
        try:
            with safe_open(stored.file, framework="pt") as tensors:
                tensor: Tensor = tensors.get_tensor(stored.name)
        except (SafetensorError, OSError) as error:
            raise ModelLoadError(f"{stored.file} could not be read: {error}") from error
        return tensor

    def _find(self) -> dict[str, _Stored]:
        index = self._folder / "model.safetensors.index.json"
        single = self._folder / "model.safetensors"
        try:
            if index.is_file():
                names: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
                files = sorted({self._folder / Path(file).name for file in names.values()})
            elif single.is_file():
                files = [single]
            else:
                raise ModelLoadError(
                    f"{self._folder} holds neither model.safetensors nor "
                    "model.safetensors.index.json; give a folder with safetensors, or load_format"
                    " dummy for random weights"
                )
            return {stored.name: stored for file in files for stored in _tensors_of(file)}
        except (SafetensorError, OSError, ValueError, KeyError, AttributeError, TypeError) as error:
            raise ModelLoadError(f"{self._folder} could not be read: {error}") from error


def _tensors_of(file: Path) -> list[_Stored]:
    """By the file's header alone."""
    with safe_open(file, framework="pt") as tensors:
        slices = {name: tensors.get_slice(name) for name in tensors.keys()}  # noqa: SIM118
        return [
            _Stored(file, name, each.get_dtype(), tuple(each.get_shape()))
            for name, each in slices.items()
        ]


def _is_idle(name: str) -> bool:
    return any(pattern.fullmatch(name) for pattern in IDLE_TENSORS)


def _shown(names: list[str]) -> str:
    more = len(names) - NAMES_SHOWN
    return ", ".join(names[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")


_DRAWN_MAX = (1 << 20) - 3
"""Numbers of a tensor that are drawn; a larger one repeats them, so that no two rows are the same.
All of an 8B model's take 45 s."""


class RandomWeights:
    """Weights for measuring sizes that cannot be downloaded: normal with deviation 0.02, norms
    near one. A tensor depends on the seed and its name only."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        digest = hashlib.sha256(f"{self._seed}:{name}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
        count = math.prod(shape)
        values = torch.empty(min(count, _DRAWN_MAX)).normal_(0.0, 0.02, generator=generator)
        values = values.repeat(-(-count // _DRAWN_MAX))[:count].view(shape)
        return values + 1.0 if name.endswith("norm.weight") else values
