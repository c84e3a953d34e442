"""Which implementation is chosen, that Triton is left alone until asked for, and the benchmark."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from tenora_bench.kernels import run
from tenora_kernels import BASE_SLOT, describe
from tenora_kernels.backend import UnsupportedDeviceError, implementation
from tenora_kernels.synthetic import MIXES, mix_rows


def test_choice() -> None:
    assert implementation(torch.device("cpu")).name in ("torch", "compiled")
    with pytest.raises(UnsupportedDeviceError, match="'meta'; use cpu or cuda"):
        implementation(torch.device("meta"))
    assert describe()["cpu"].startswith(("torch, torch 2", "compiled ("))


def test_triton_is_not_imported_with_the_package() -> None:
    code = "import sys, tenora_kernels; sys.exit('tenora_kernels.gpu' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    code = "import sys, torch; before = 'triton' in sys.modules; import tenora_kernels; "
    code += "sys.exit(('triton' in sys.modules) != before)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("mix", MIXES)
def test_synthetic_mixes(mix: str) -> None:
    for rows, adapters, base in ((1, 1, 0), (7, 3, 2), (40, 16, 5), (4, 1, 4)):
        slots = mix_rows(mix, rows, adapters, base)
        assert slots.shape == (rows,)
        assert int((slots == BASE_SLOT).sum()) == base
        assert int(slots.max()) < adapters
    assert len(set(mix_rows("uniform", 16, 16).tolist())) == 4


def test_benchmark_runs() -> None:
    result = run(tokens=2, adapters=2, ranks=(2,), context=20, layers=1, rounds=1)
    assert result["results"]["sgmv rank 2 distinct"]["us"] > 0
    with pytest.raises(ValueError, match="make gpu"):
        run("cuda")
