"""Decode steps replayed over static tensors: any mix and number of adapters, the same answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch

import drafts_in_triton
import graph_replays
from tenora_engine.executor.graphs import LARGEST_BUCKET, CudaCapture, decode_buckets


def test_replays_in_the_interpreter() -> None:
    """Without a GPU: the same static tensors and kernels, each replay a call."""
    pytest.importorskip("triton", reason="triton is not installed on this machine")
    in_interpreter(graph_replays.__file__)


def in_interpreter(program: str) -> str:
    """What it prints."""
    run = subprocess.run(
        [sys.executable, program],
        env={
            **os.environ,
            "TRITON_INTERPRET": "1",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(sys.path),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_drafts_in_the_interpreter() -> None:
    """Without a GPU: an engine on CUDA's way of a step, batch-invariant, answers the same to the
    bit with drafts and without. Each of them is a decode row, which replays."""
    pytest.importorskip("triton", reason="triton is not installed on this machine")
    found = json.loads(in_interpreter(drafts_in_triton.__file__))
    assert found["drafts_accepted"] > 0
    assert found["drafts_rejected"] > 0


@pytest.mark.gpu
def test_captured_graphs() -> None:
    if not torch.cuda.is_available():
        pytest.skip("this machine has no CUDA device")
    graph_replays.check(torch.device("cuda"), CudaCapture())


def test_buckets() -> None:
    assert decode_buckets(1) == (1,)
    assert decode_buckets(7) == (1, 2, 4, 8)
    assert decode_buckets(64) == (1, 2, 4, 8, 16, 32, 64)
    assert decode_buckets(65)[-1] == 96
    assert decode_buckets(5000)[-1] == LARGEST_BUCKET
