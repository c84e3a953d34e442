"""The page arena: the one tensor in which all KV and all adapters lie. It knows no owners."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tenora_engine.config import DType, ResolvedConfig

TORCH_DTYPES: dict[DType, torch.dtype] = {"bfloat16": torch.bfloat16, "float32": torch.float32}

_ALIGNMENT = 64  # a cache line, and a full AVX-512 register


@dataclass(frozen=True)
class Arena:
    """`pool` is the arena by pages, `flat` the same memory by elements (what offsets count)."""

    pool: Tensor  # [num_pages, page_elements]

    @classmethod
    def allocate(cls, config: ResolvedConfig) -> Arena:
        """A zeroed arena on the configured device. On the CPU the pages of memory behind it are
        taken when first written (calloc), so an idle server does not hold the whole budget."""
        shape = (config.num_pages, config.page_elements)
        dtype = TORCH_DTYPES[config.engine.dtype]
        if config.engine.device != "cpu":
            return cls(torch.zeros(shape, dtype=dtype, device=config.engine.device))
        num_bytes = config.num_pages * config.page_elements * dtype.itemsize
        raw = np.zeros(num_bytes + _ALIGNMENT, dtype=np.uint8)
        start = -raw.ctypes.data % _ALIGNMENT
        return cls(torch.from_numpy(raw[start : start + num_bytes]).view(dtype).view(shape))

    @property
    def flat(self) -> Tensor:  # [num_pages * page_elements]
        return self.pool.view(-1)

    @property
    def num_pages(self) -> int:
        return self.pool.shape[0]
