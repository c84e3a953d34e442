"""Whether a GPU is there to run on, and what its kernels need of the machine."""

from __future__ import annotations

import shutil
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

DEVICES = ("/proc/driver/nvidia", "/dev/nvidiactl", "/dev/dxg")
"""A sign of an NVIDIA driver: on Linux, in sandboxes without its /proc (gVisor), in WSL2."""

LAUNCHER_COMPILERS = ("gcc", "clang", "cc")


@dataclass(frozen=True, slots=True)
class DeviceChoice:
    """Where the model runs, and why."""

    device: Literal["cpu", "cuda"]
    why: str


def choose_device(asked: Literal["auto", "cpu", "cuda"]) -> DeviceChoice:
    """`cuda` when asked for, or when `auto` finds a GPU that this torch can use."""
    if asked != "auto":
        return DeviceChoice(asked, "as asked for")
    sign = next((name for name in DEVICES if Path(name).exists()), None)
    if sign is None:  # spares the import of torch on most machines
        return DeviceChoice("cpu", f"no NVIDIA driver found: none of {', '.join(DEVICES)} exists")
    import torch

    if torch.cuda.is_available():
        return DeviceChoice("cuda", f"{sign} is present, and torch {torch.__version__} uses it")
    if torch.version.cuda is None:
        return DeviceChoice(
            "cpu", f"{sign} is present, but torch {torch.__version__} is built without CUDA"
        )
    return DeviceChoice(
        "cpu",
        f"{sign} is present, but torch {torch.__version__} (CUDA {torch.version.cuda}) finds no "
        "GPU",
    )


def missing_for_triton() -> str | None:
    """What Triton's launchers, which it compiles when kernels are first used, lack here; None where
    they can be compiled."""
    if not any(map(shutil.which, LAUNCHER_COMPILERS)):
        return f"no C compiler found ({', '.join(LAUNCHER_COMPILERS)}); install gcc"
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    if not header.is_file():
        return (
            f"{header} is missing; install python3-dev, or use a Python that includes its headers"
        )
    return None
