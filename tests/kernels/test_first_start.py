"""An installed package compiles its kernels at the first start, into a folder that is named to it,
and starts all the same where that cannot be."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tenora_kernels.compiled import build
from tenora_kernels.compiled.library import DIR_VARIABLE, default_dir, library_path, seal
from tenora_kernels.compiled.load import NotLoadedError, load_extension
from tenora_kernels.compiled.variants import CHOICE_VARIABLE, Variant


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Beside the sources, where nothing has been compiled, and the folder that is named."""
    monkeypatch.delenv(CHOICE_VARIABLE, raising=False)
    monkeypatch.setenv(DIR_VARIABLE, str(tmp_path / "package"))
    named = tmp_path / "data" / "kernels"

    def told(folder: Path) -> None:
        monkeypatch.setenv(DIR_VARIABLE, str(folder))

    monkeypatch.setattr(build, "find_in", told)
    return tmp_path / "package", named


def test_what_is_there_already_is_used(
    places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    beside, named = places
    library = library_path(beside)
    library.parent.mkdir()
    library.write_bytes(b"a library")
    seal(library)
    monkeypatch.setattr(build, "build_extension", None)  # calling it would fail
    build.build_where_missing(named)
    assert default_dir() == beside
    assert not named.exists()


def test_what_is_missing_is_made_once_in_the_named_folder(
    places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, named = places
    made: list[Path] = []

    def compile_(target: Path, variant: Variant, jobs: int) -> None:
        made.append(target)
        target.write_bytes(b"a library")

    monkeypatch.setattr(build, "_compile", compile_)
    build.build_where_missing(named)
    build.build_where_missing(named)
    assert [target.name for target in made] == [library_path(named).name]
    assert default_dir() == named
    assert library_path(named).is_file()


def test_without_a_compiler_torch_serves_and_the_reason_is_kept(
    places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(build, "COMPILERS", ("no-such-compiler",))
    with caplog.at_level(logging.INFO, "tenora_engine"):
        build.build_where_missing(places[1])
    assert "no C++ compiler" in caplog.text
    with pytest.raises(NotLoadedError, match=r"build failed: no C\+\+ compiler"):
        load_extension()


def test_plain_torch_is_a_choice(
    places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CHOICE_VARIABLE, "torch")
    build.build_where_missing(places[1])
    assert not places[1].exists()
