"""Block sizes and launch shapes of the Triton kernels: one table a device, read from
`tuned/<device>.json`, and defaults for a device that nobody has tuned. `make gpu ARGS=--tune` makes
the file. Nothing here changes a result beyond the order of sums."""

from __future__ import annotations

import dataclasses
import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

FOLDER = Path(__file__).with_name("tuned")


@dataclass(frozen=True)
class SgmvTuning:
    """Of one regime of sgmv: tiles of up to 16 rows (decode) or of up to 64 (prefill)."""

    block_features: int = 256  # of the shrink's sums, a quarter for float32
    block_rank: int = 16
    block_columns: int = 256  # of y, in the expand
    shrink_warps: int = 4
    shrink_stages: int = 3
    expand_warps: int = 4
    programs: int = 512  # a launch is cut further until it has about four a multiprocessor
    early_expand: bool = False  # the expand starts beside the shrink and waits for it (PDL)


@dataclass(frozen=True)
class AttentionTuning:
    """Of decode (one query row a tile) or of prefill."""

    block_context: int = 64  # tokens of context a turn, a quarter for float32
    warps: int = 4
    stages: int = 3
    programs: int = 512  # decode: the context is split until the launch has so many


@dataclass(frozen=True)
class Tuning:
    """Everything tuned for one device."""

    sgmv_decode: SgmvTuning = SgmvTuning()
    sgmv_prefill: SgmvTuning = SgmvTuning(block_features=64, block_rank=32, block_columns=128)
    attention_decode: AttentionTuning = AttentionTuning()
    attention_prefill: AttentionTuning = AttentionTuning()

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Tuning:
        """Raises TypeError for names that are not known, ValueError for what is no JSON."""
        table: dict[str, dict[str, Any]] = json.loads(text)
        kinds: dict[str, Any] = {f.name: type(f.default) for f in dataclasses.fields(cls)}
        return cls(**{name: kinds[name](**values) for name, values in table.items()})


def tuned_file(device_name: str) -> Path:
    """Where a device's table is kept."""
    return FOLDER / f"{device_name.replace(' ', '_')}.json"


def tuning_for(device: torch.device) -> Tuning:
    """The table of a device, the defaults where there is none."""
    return _tuning(torch.cuda.get_device_name(device) if device.type == "cuda" else "")


def decode_parts(device: torch.device, kv_heads: int) -> int:
    """Into how many parts contexts are cut for decode to fill a device (`cut_contexts`)."""
    return -(-tuning_for(device).attention_decode.programs // kv_heads)


@functools.cache
def _tuning(device_name: str) -> Tuning:
    file = tuned_file(device_name)
    return Tuning.from_json(file.read_text()) if device_name and file.is_file() else Tuning()
