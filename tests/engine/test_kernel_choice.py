"""What the engine says about the kernels that it will run: a warning where plain torch serves, an
error for a choice that is none."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tenora_engine.config import EngineConfig
from tenora_engine.engine import build_engine
from tenora_engine.errors import ModelLoadError
from tenora_engine.model.loader import read_model_info
from tenora_kernels.backend import has_compiled_ops


def config(folder: Path) -> EngineConfig:
    return EngineConfig(model=str(folder), served_name="base", memory_bytes=1)


@pytest.mark.skipif(not has_compiled_ops(), reason="the kernels have not been compiled here")
def test_compiled_kernels_need_no_warning(base_model_dir: Path) -> None:
    assert read_model_info(config(base_model_dir)).warnings == ()


def test_plain_torch_is_a_warning_at_start(
    base_model_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TENORA_KERNELS", "torch")
    (warning,) = read_model_info(config(base_model_dir)).warnings
    assert warning.startswith("plain torch is used instead of the compiled kernels")
    assert warning.endswith(": TENORA_KERNELS=torch")
    with caplog.at_level(logging.WARNING), pytest.raises(Exception, match="budget"):
        build_engine(config(base_model_dir))
    assert warning in caplog.messages


def test_a_misspelt_choice_ends_the_start(
    base_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENORA_KERNELS", "compield")
    with pytest.raises(ModelLoadError, match="TENORA_KERNELS=compield is none of: compiled, torch"):
        build_engine(config(base_model_dir))
