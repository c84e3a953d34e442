"""A folder that `tenora adapter push` sends: what of it is the adapter, read as one file whatever
it lies in, and what is left out. Knows no server."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

from tenora_platform.cli.errors import CliError
from tenora_platform.cli.mlx_folder import MLX_WEIGHTS, converted
from tenora_platform.intake import folder as files
from tenora_platform.intake.header import (
    DRAFT_HEADER_BYTES_MAX,
    HEADER_BYTES_MAX,
    IntakeError,
)

CONVERT = (
    'python -c "import torch, safetensors.torch as s; '
    "t = torch.load(r'{folder}/adapter_model.bin', map_location='cpu', weights_only=True); "
    "s.save_file({{k: v.contiguous().clone() for k, v in t.items()}}, "
    "r'{folder}/adapter_model.safetensors')\""
)


@dataclass(frozen=True)
class DraftFile:
    path: Path
    header: bytes
    bytes: int


@dataclass(frozen=True)
class AdapterFolder:
    """What is sent of a folder, and the names of what is not. `header` is the weights' beginning,
    up to the end of the safetensors header."""

    config: bytes
    header: bytes
    weights_bytes: int
    open_weights: Callable[[], BinaryIO]
    chat_template: str | None
    draft_layer: DraftFile | None
    skipped: tuple[str, ...]


def read_folder(folder: Path) -> AdapterFolder:
    """Raises CliError, which says what is missing and what to do about it."""
    if not folder.is_dir():
        raise CliError(f"{folder} is not a folder.", "Give the folder that save_pretrained wrote.")
    names = sorted(entry.name for entry in folder.iterdir())
    if files.CONFIG not in names:
        raise CliError(f"{folder / files.CONFIG} does not exist.", _hint(folder, names))
    try:
        if files.WEIGHTS not in names and MLX_WEIGHTS in names:
            return _read_mlx(folder, names)
        return _read_peft(folder, names)
    except IntakeError as error:
        hint = ""
        if error.problem.code == "weights_missing" and "adapter_model.bin" in names:
            hint = f"Convert it: {CONVERT.format(folder=folder)}"
        message = f"{folder}: {error.problem.field}: {error.problem.message}."
        raise CliError(message, hint) from error


def _hint(folder: Path, names: Sequence[str]) -> str:
    inside = [name for name in names if (folder / name / files.CONFIG).is_file()]
    if inside:
        latest = max(inside, key=lambda name: [*map(int, filter(str.isdigit, name.split("-"))), -1])
        return f"There is an adapter in {', '.join(inside)}: push {folder / latest}."
    return f"An adapter's folder must contain {files.CONFIG} and {files.WEIGHTS}."


def _read_peft(folder: Path, names: Sequence[str]) -> AdapterFolder:
    index = _read(folder, files.INDEX, names)
    weights = files.weights_files(names, index)
    used = {files.CONFIG, *weights, *([files.INDEX] if index is not None else [])}
    config = (folder / files.CONFIG).read_bytes()
    starts = [(name, _start(folder / name), (folder / name).stat().st_size) for name in weights]
    if len(weights) == 1:
        [(name, header, size)] = starts

        def opened() -> BinaryIO:
            return (folder / name).open("rb")

        return _made(folder, names, used, config, header, size, opened)
    merged = files.merge(starts)
    opened_merged = partial(_opened, folder, merged)
    return _made(folder, names, used, config, merged.header, merged.bytes, opened_merged)


def _read_mlx(folder: Path, names: Sequence[str]) -> AdapterFolder:
    config, weights = converted(
        (folder / files.CONFIG).read_bytes(), (folder / MLX_WEIGHTS).read_bytes()
    )
    length = 8 + int.from_bytes(weights[:8], "little")
    used = {files.CONFIG, MLX_WEIGHTS}
    opened = partial(io.BytesIO, weights)
    return _made(folder, names, used, config, weights[:length], len(weights), opened)


def _made(
    folder: Path,
    names: Sequence[str],
    used: set[str],
    config: bytes,
    header: bytes,
    size: int,
    opened: Callable[[], BinaryIO],
) -> AdapterFolder:
    template = files.chat_template_of(
        _read(folder, files.TEMPLATE, names), _read(folder, files.TOKENIZER_CONFIG, names)
    )
    if template is not None:
        used.add(files.TEMPLATE if files.TEMPLATE in names else files.TOKENIZER_CONFIG)
    layer = None
    if files.DRAFT_LAYER in names:
        path = folder / files.DRAFT_LAYER
        layer = DraftFile(path, _start(path, DRAFT_HEADER_BYTES_MAX), path.stat().st_size)
        used.add(files.DRAFT_LAYER)
    skipped = tuple(
        f"{name}/" if (folder / name).is_dir() else name for name in names if name not in used
    )
    return AdapterFolder(config, header, size, opened, template, layer, skipped)


def _read(folder: Path, name: str, names: Sequence[str]) -> bytes | None:
    return (folder / name).read_bytes() if name in names else None


def _start(path: Path, bytes_max: int = HEADER_BYTES_MAX) -> bytes:
    """The file's first bytes, up to the end of its header as far as the server takes it."""
    with path.open("rb") as file:
        length = file.read(8)
        return length + file.read(min(int.from_bytes(length, "little"), bytes_max))


def _opened(folder: Path, merged: files.Merged) -> BinaryIO:
    return io.BufferedReader(_MergedFile(folder, merged), 1 << 20)


class _MergedFile(io.RawIOBase):
    """A merged file, read from the files that it is made of."""

    def __init__(self, folder: Path, merged: files.Merged) -> None:
        self._folder = folder
        self._merged = merged
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._merged.bytes}
        self._position = start[whence] + offset
        return self._position

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        data = self._at(self._position, len(buffer))
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)

    def _at(self, position: int, count: int) -> bytes:
        header = self._merged.header
        if position < len(header):
            return header[position : position + count]
        position -= len(header)
        for piece in self._merged.pieces:
            if position < piece.end - piece.begin:
                with (self._folder / piece.name).open("rb") as file:
                    file.seek(piece.begin + position)
                    return file.read(min(count, piece.end - piece.begin - position))
            position -= piece.end - piece.begin
        return b""
