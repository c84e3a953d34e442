"""Which tokens end a sequence, by a model folder: for the engine, which stops at them, and for the
text side, which does not show them. Imports no torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tenora_engine.errors import ModelLoadError

FILES = ("generation_config.json", "config.json")
"""In this order, as transformers' `generate` takes them: a chat model's turn ends by ids that only
the first one names."""


def read_eos_token_ids(folder: Path) -> tuple[int, ...]:
    """The end tokens of the first file that names any, in its order; empty when none does. Raises
    ModelLoadError when a file cannot be read or names something else than token ids."""
    for name in FILES:
        file = folder / name
        if not file.is_file():
            continue
        try:
            found = json.loads(file.read_text(encoding="utf-8")).get("eos_token_id")
        except (OSError, ValueError, AttributeError) as error:
            raise ModelLoadError(f"{file} is not a JSON object: {error}") from error
        ids = _token_ids(file, found)
        if ids:
            return ids
    return ()


def _token_ids(file: Path, found: Any) -> tuple[int, ...]:
    if found is None:
        return ()
    ids = found if isinstance(found, list) else [found]
    if any(type(token) is not int or token < 0 for token in ids):
        raise ModelLoadError(f"{file}: eos_token_id must be a token id or a list of them")
    return tuple(dict.fromkeys(ids))
