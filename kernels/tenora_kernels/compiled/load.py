"""Loads the library that `build` has made, or says why it cannot be."""

from __future__ import annotations

from pathlib import Path

import torch

from tenora_kernels.compiled.library import default_dir, is_whole, library_path, reason_path
from tenora_kernels.compiled.variants import CHOICE_VARIABLE, TORCH, Variant, chosen

BUILD_COMMAND = "python -m tenora_kernels.compiled.build"


class NotLoadedError(RuntimeError):
    """The compiled ops are not to be had in this process; the message is one line."""


def load_extension(target_dir: Path | None = None) -> None:
    """Make `torch.ops.tenora` available. Never compiles: that is done at set-up.

    Raises NotLoadedError with the reason, UnknownKernelsError for a misspelt choice.
    """
    variant = chosen()
    if variant is None:
        raise NotLoadedError(f"{CHOICE_VARIABLE}={TORCH}")
    target_dir = target_dir or default_dir()
    library = library_path(target_dir, variant)
    if not library.exists():
        raise NotLoadedError(_why_absent(target_dir, variant))
    if not is_whole(library):
        raise NotLoadedError(f"{library.name} is damaged; run: {BUILD_COMMAND}")
    try:
        torch.ops.load_library(library)  # type: ignore[no-untyped-call] # torch's own
    except OSError as error:
        raise NotLoadedError(f"{library.name} cannot be loaded: {error.__cause__}") from error


def _why_absent(target_dir: Path, variant: Variant) -> str:
    try:
        return f"build failed: {reason_path(target_dir, variant).read_text().strip()}"
    except FileNotFoundError:
        return f"not built; run: {BUILD_COMMAND}"
