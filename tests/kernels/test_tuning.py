"""The tables of block sizes, and how they are searched for."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed on this machine")

from tenora_bench.gpu.measure import Report
from tenora_bench.gpu.tune import SGMV_OPTIONS, descend
from tenora_kernels.gpu import tuning
from tenora_kernels.gpu.tuning import (
    FOLDER,
    LARGE_SHARED_MEMORY,
    SgmvTuning,
    Tuning,
    tuning_for,
)


def test_a_table_comes_back_as_it_was_written() -> None:
    tuned = replace(Tuning(), sgmv_decode=SgmvTuning(block_rank=32, early_expand=True))
    assert Tuning.from_json(tuned.to_json()) == tuned
    with pytest.raises(TypeError, match="block_size"):
        Tuning.from_json('{"sgmv_decode": {"block_size": 3}}')


@pytest.mark.parametrize(
    ("capability", "expected"),
    [
        ((8, 0), Tuning()),
        ((9, 0), LARGE_SHARED_MEMORY),
        ((10, 0), LARGE_SHARED_MEMORY),
        ((12, 0), Tuning()),
    ],
)
def test_untuned_gpus_get_what_fits_their_shared_memory(
    capability: tuple[int, int], expected: Tuning
) -> None:
    """Blackwell's small GPUs (12.0) have 99 KB a block."""
    with mock.patch.object(tuning, "capability", return_value=capability):
        assert tuning.untuned(torch.device("cuda")) == expected


def test_every_table_kept_can_be_read() -> None:
    for file in FOLDER.glob("*.json"):
        Tuning.from_json(file.read_text())
    assert tuning_for(torch.device("cpu")) == Tuning()


def test_the_search_keeps_what_is_faster_and_skips_what_fails() -> None:
    def cost(tuning: SgmvTuning) -> float:
        if tuning.block_columns == 512:
            raise RuntimeError("out of shared memory")
        return 1 + abs(tuning.block_features - 128) + abs(tuning.block_columns - 600) / 100

    found = descend(SgmvTuning(), SGMV_OPTIONS, cost, Report(seconds_max=60.0), 60.0)
    assert found == SgmvTuning(block_features=128)
    late = descend(SgmvTuning(), SGMV_OPTIONS, cost, Report(seconds_max=60.0), 0.0)
    assert late == SgmvTuning()
