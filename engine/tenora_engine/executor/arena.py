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
    """`pool` is the arena by pages of KV; `adapters` the same memory by pages of adapters."""

    pool: Tensor  # [num_pages, page_elements], the model's dtype
    adapters: Tensor  # [num_pages, packed_page_elements], the model's dtype or int8

    @classmethod
    def allocate(cls, config: ResolvedConfig) -> Arena:
        """A zeroed arena on the configured device. On the CPU the pages of memory behind it are
        taken when first written (calloc), so an idle server does not hold the whole budget."""
        shape = (config.num_pages, config.page_elements)
        dtype = TORCH_DTYPES[config.engine.dtype]
        if config.engine.device != "cpu":
            pool = torch.zeros(shape, dtype=dtype, device=config.engine.device)
            return cls(pool, as_packed(pool, config))
        num_bytes = config.num_pages * config.page_elements * dtype.itemsize
        raw = np.zeros(num_bytes + _ALIGNMENT, dtype=np.uint8)
        start = -raw.ctypes.data % _ALIGNMENT
        pool = torch.from_numpy(raw[start : start + num_bytes]).view(dtype).view(shape)
        return cls(pool, as_packed(pool, config))

    @property
    def num_pages(self) -> int:
        return self.pool.shape[0]


def as_packed(
    pool: Tensor,  # [num_pages, page_elements]
    config: ResolvedConfig,
) -> Tensor:  # [num_pages, packed_page_elements]
    """The pages as adapters count their elements."""
    return pool.view(torch.int8) if config.packed_dtype == "int8" else pool
