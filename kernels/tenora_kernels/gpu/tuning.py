"""Block sizes and launch shapes of the Triton kernels: one table a device, read from
`tuned/<device>.json`, and defaults for a device that nobody has tuned. `make gpu ARGS=--tune` makes
the file. Nothing here changes a result beyond the order of sums."""

from __future__ import annotations

import dataclasses
import functools
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

FOLDER = Path(__file__).with_name("tuned")
FP8_CAPABILITY = (8, 9)


@dataclass(frozen=True)
class SgmvTuning:
    """Of one regime of sgmv: tiles of up to 16 rows (decode) or of up to 64 (prefill)."""

    block_features: int = 256  # of the shrink's sums, a quarter for float32
    block_rank: int = 16
    block_columns: int = 256  # of y, in the expand
    shrink_warps: int = 4
    shrink_stages: int = 3
    expand_warps: int = 8  # 64 registers a thread at 8B shapes: twice the warps of 4
    programs: int = 512  # a launch is cut further until it has about four a multiprocessor
    expand_programs: int = 792  # six a multiprocessor; each takes tile after tile
    early_expand: bool = False  # the expand starts beside the shrink and waits for it (PDL)


@dataclass(frozen=True)
class AttentionTuning:
    """Of decode (one query row a tile) or of prefill."""

    block_context: int = 64  # tokens of context a turn, a quarter for float32, at least 16
    warps: int = 4  # for wide tiles of prefill at least 8
    stages: int = 3  # the page table halves their depth: 5 is the first with two buffers of K and V
    programs: int = 512  # decode: the context is split until the launch has so many


@dataclass(frozen=True)
class Tuning:
    """Everything tuned for one device."""

    sgmv_decode: SgmvTuning = SgmvTuning()
    sgmv_prefill: SgmvTuning = SgmvTuning(
        block_features=64, block_rank=32, block_columns=128, expand_warps=4, programs=132
    )
    attention_decode: AttentionTuning = AttentionTuning(block_context=32, stages=5)
    attention_decode_fp8: AttentionTuning = AttentionTuning(block_context=64, stages=5)
    attention_prefill: AttentionTuning = AttentionTuning()

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Tuning:
        """Raises TypeError for names that are not known, ValueError for what is no JSON."""
        table: dict[str, dict[str, Any]] = json.loads(text)
        kinds: dict[str, Any] = {f.name: type(f.default) for f in dataclasses.fields(cls)}
        return cls(**{name: kinds[name](**values) for name, values in table.items()})


LARGE_SHARED_MEMORY = Tuning(
    sgmv_decode=SgmvTuning(
        block_features=128, block_columns=512, shrink_warps=2, early_expand=True
    ),
    sgmv_prefill=SgmvTuning(
        block_features=256,
        block_rank=32,
        block_columns=128,  # 256, which an H200's own table has, spill
        shrink_warps=8,
        shrink_stages=4,
        expand_warps=4,
        programs=132,
        expand_programs=1056,
    ),
    attention_decode=AttentionTuning(block_context=32, stages=5, programs=384),
    attention_decode_fp8=AttentionTuning(block_context=128, stages=5),
    attention_prefill=AttentionTuning(stages=5),
)
"""Defaults of Hopper and of Blackwell's large GPUs, with 227 KB of shared memory a block: what was
found on an H200 (docs/log/2026-11-26-h200.md)."""


def tuned_file(device_name: str) -> Path:
    """Where a device's table is kept."""
    return FOLDER / f"{device_name.replace(' ', '_')}.json"


@functools.cache
def tuning_for(device: torch.device) -> Tuning:
    """The table of a device, the defaults where there is none; kept, since every launch asks."""
    found = untuned(device)
    if device.type == "cuda":
        file = tuned_file(torch.cuda.get_device_name(device))
        found = Tuning.from_json(file.read_text()) if file.is_file() else found
    return found if has_early_launch(device) else _without_early_launch(found)


def untuned(device: torch.device) -> Tuning:
    """Defaults by compute capability; those of small GPUs where there is none."""
    is_large = device.type == "cuda" and capability(device)[0] in (9, 10)
    return LARGE_SHARED_MEMORY if is_large else Tuning()


def decode_parts(device: torch.device, kv_heads: int) -> int:
    """Into how many parts contexts are cut for decode to fill a device (`cut_contexts`)."""
    return -(-tuning_for(device).attention_decode.programs // kv_heads)


@functools.cache
def capability(device: torch.device) -> tuple[int, int]:
    """The compute capability of a GPU; where there is none (Triton's interpreter), Hopper's."""
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else (9, 0)


def has_early_launch(device: torch.device) -> bool:
    """Whether there is programmatic dependent launch: Hopper and later."""
    return capability(device) >= (9, 0)


def has_fp8(device: torch.device) -> bool:
    """Whether there is e4m3: Ada and later."""
    return capability(device) >= FP8_CAPABILITY


def _without_early_launch(tuning: Tuning) -> Tuning:
    return replace(
        tuning,
        sgmv_decode=replace(tuning.sgmv_decode, early_expand=False),
        sgmv_prefill=replace(tuning.sgmv_prefill, early_expand=False),
    )
