"""What the figures were measured on."""

from __future__ import annotations

import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from tenora_engine.machine import usable_cpus
from tenora_kernels.backend import has_compiled_ops


def threads() -> int:
    """The cores that this process may use."""
    return usable_cpus()


def machine() -> dict[str, Any]:
    cpu = platform.processor() or "unknown"
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        cpu = f"{len(names)} x {names[0].split(':', 1)[1].strip()}" if names else cpu
    return {
        "cpu": cpu,
        "torch": torch.__version__,
        "threads": usable_cpus(),
        "kernels": "compiled" if has_compiled_ops() else "torch",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }
