"""`make gpu` runs through where there is no GPU: each section at tiny sizes, in the interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    paths = [str(ROOT / part) for part in ("kernels", "engine")]
    return subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "gpu.py"), *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}
        | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_smoke(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="triton is not installed on this machine")
    result = tmp_path / "gpu.json"
    finished = run("--smoke", "--json", str(result), TRITON_INTERPRET="1")
    assert finished.returncode == 0, finished.stdout + finished.stderr
    found = json.loads(result.read_text())
    assert not found["errors"]
    assert all(check["right"] for check in found["checks"])
    kinds = {timing["case"].split()[0] for timing in found["timings"]}
    assert kinds == {"attention", "decode", "fixed_linear", "host", "sgmv"}


def test_says_that_there_is_no_gpu() -> None:
    finished = run("--allow-no-gpu", CUDA_VISIBLE_DEVICES="")
    assert finished.returncode == 0, finished.stderr
    assert "No NVIDIA GPU" in finished.stdout


def test_needs_torch_and_triton_only() -> None:
    """What the GPU's machine lacks is hidden from the imports."""
    missing = ("msgspec", "zmq", "obstore", "redis", "fastapi", "sqlalchemy", "transformers")
    hide = f"import sys; sys.modules.update(dict.fromkeys({missing!r}))"
    script = f"{hide}; sys.path.insert(0, {str(ROOT / 'benchmarks')!r}); import gpu"
    finished = subprocess.run(
        [sys.executable, "-c", script],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT / "kernels"), str(ROOT / "engine")]),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
