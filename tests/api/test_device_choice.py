"""Where the model runs when nobody has said, and what the doctor says of it."""

from __future__ import annotations

import shutil
import sysconfig
from pathlib import Path

import pytest
import torch

from tenora_engine.config import HOST_ADAPTER_BYTES
from tenora_platform import gpu
from tenora_platform.cli.doctor import check_compiler, check_device
from tenora_platform.gpu import choose_device, missing_for_triton
from tenora_platform.settings import Settings


@pytest.fixture
def signs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Path]:
    """Where a driver would be seen; none is."""
    paths = [tmp_path / name for name in ("proc", "nvidiactl", "dxg")]
    monkeypatch.setattr(gpu, "DEVICES", tuple(map(str, paths)))
    return paths


@pytest.mark.parametrize("place", range(3))
def test_auto_sees_a_gpu_in_sandboxes_and_wsl(
    monkeypatch: pytest.MonkeyPatch, signs: list[Path], place: int
) -> None:
    signs[place].touch()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    chosen = choose_device("auto")
    assert chosen.device == "cuda"
    assert str(signs[place]) in chosen.why


def test_the_real_places_are_looked_at() -> None:
    assert set(gpu.DEVICES) == {"/proc/driver/nvidia", "/dev/nvidiactl", "/dev/dxg"}


def test_a_gpu_that_torch_cannot_use_is_not_silent(
    monkeypatch: pytest.MonkeyPatch, signs: list[Path], settings: Settings
) -> None:
    automatic = settings.model_copy(update={"device": "auto"})
    finding = check_device(automatic)
    assert (finding.verdict, "no NVIDIA driver found" in finding.text) == ("ok", True)
    signs[1].touch()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", None)
    finding = check_device(automatic)
    assert finding.verdict == "note"
    assert finding.text.startswith("cpu (no GPU is used)")
    assert finding.text.endswith("is built without CUDA")


def test_what_triton_lacks_is_said_before_it_is_missed(
    monkeypatch: pytest.MonkeyPatch, signs: list[Path], tmp_path: Path, settings: Settings
) -> None:
    on_gpu = settings.model_copy(update={"device": "cuda"})
    monkeypatch.setattr(shutil, "which", lambda name: None)
    finding = check_compiler(on_gpu)
    assert (finding.verdict, "no C compiler" in finding.text) == ("wrong", True)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
    assert "Python.h" in check_compiler(on_gpu).text
    (tmp_path / "Python.h").touch()
    assert missing_for_triton() is None


def test_host_memory_for_adapters_follows_the_device(settings: Settings) -> None:
    named = settings.model_copy(update={"host_adapter_memory": 5, "model": "somewhere"})
    assert named.to_engine_config().host_adapter_bytes == 5
    for device in ("cpu", "cuda"):
        free = named.model_copy(update={"host_adapter_memory": None, "device": device})
        given = free.to_engine_config().host_adapter_bytes
        assert 0 < given <= HOST_ADAPTER_BYTES[device]
    assert given > HOST_ADAPTER_BYTES["cpu"]
