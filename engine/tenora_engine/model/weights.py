"""Where a model's tensors come from: the safetensors of a folder, or a seeded generator."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from tenora_engine.errors import ModelLoadError

MISSING_SHOWN = 5


class WeightSource(Protocol):
    def read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """One tensor by its Hugging Face name, in the dtype it is stored in, on the CPU."""
        ...


class SafetensorsFolder:
    """The safetensors of a Hugging Face folder, one file or shards with an index.

    Raises ModelLoadError when there are none or one cannot be read.
    """

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._file_of = self._find()

    def require(self, shapes: dict[str, tuple[int, ...]]) -> None:
        """Raises ModelLoadError naming the tensors that are not there."""
        missing = sorted(set(shapes) - set(self._file_of))
        if missing:
            shown = ", ".join(missing[:MISSING_SHOWN])
            more = f" and {len(missing) - MISSING_SHOWN} more" if len(missing) > 5 else ""
            raise ModelLoadError(
                f"the weights in {self._folder} lack {shown}{more}; the download may be "
                "incomplete, or config.json may belong to another model"
            )

    def read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        file = self._file_of[name]
        try:
            with safe_open(file, framework="pt") as tensors:
                tensor: Tensor = tensors.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise ModelLoadError(f"{file} could not be read: {error}") from error
        if tuple(tensor.shape) != shape:
            raise ModelLoadError(
                f"{name} in {file.name} is {tuple(tensor.shape)}; config.json asks for {shape}"
            )
        if not tensor.is_floating_point():
            raise ModelLoadError(
                f"{name} in {file.name} is {tensor.dtype}; quantised weights are not supported"
            )
        return tensor

    def _find(self) -> dict[str, Path]:
        index = self._folder / "model.safetensors.index.json"
        single = self._folder / "model.safetensors"
        try:
            if index.is_file():
                names: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
                return {name: self._folder / Path(file).name for name, file in names.items()}
            if single.is_file():
                with safe_open(single, framework="pt") as tensors:
                    return dict.fromkeys(tensors.keys(), single)
        except (SafetensorError, OSError, ValueError, KeyError) as error:
            raise ModelLoadError(f"{self._folder} could not be read: {error}") from error
        raise ModelLoadError(
            f"{self._folder} holds neither model.safetensors nor model.safetensors.index.json; "
            "give a folder with safetensors, or load_format dummy for random weights"
        )


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
