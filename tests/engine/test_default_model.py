"""The default base model comes out of a package; where it is missing, its command is named."""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path
from typing import NoReturn

import pytest

from tenora_engine.errors import ModelLoadError
from tenora_engine.model import default_model
from tenora_engine.model.default_model import (
    FORMAT_VERSION,
    INSTALL_COMMAND,
    MARKER,
    NAME,
    ensure_default_model,
)

MAKEFILE = Path(__file__).parents[2] / "Makefile"


def test_a_missing_package_is_named_as_the_makefile_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> NoReturn:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "files", missing)
    with pytest.raises(ModelLoadError) as caught:
        ensure_default_model(tmp_path)
    assert INSTALL_COMMAND in str(caught.value)
    assert "--model" in str(caught.value)
    assert INSTALL_COMMAND.removeprefix("pip install ") in MAKEFILE.read_text()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b'{"version": "x"}', b"\xff\xfe"])
def test_one_whose_marker_is_damaged_is_made_anew(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "models" / NAME
    folder.mkdir(parents=True)
    (folder / "of_before").touch()
    (folder / MARKER).write_bytes(content)

    def convert(_: Path, scratch: Path) -> None:
        (scratch / MARKER).write_text(json.dumps({"version": FORMAT_VERSION}))

    monkeypatch.setattr(default_model, "find_gguf", lambda: tmp_path / "x.gguf")
    monkeypatch.setattr(default_model, "convert_gguf", convert)
    assert ensure_default_model(tmp_path) == folder
    assert [each.name for each in folder.iterdir()] == [MARKER]


def test_a_folder_that_was_not_made_here_is_left_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "models" / NAME
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    with pytest.raises(ModelLoadError, match="was not made by Tenora"):
        ensure_default_model(tmp_path)
    assert [each.name for each in folder.iterdir()] == ["config.json"]
