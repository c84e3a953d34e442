"""Where packed adapters lie in page-locked memory, and who makes room for them there."""

from __future__ import annotations

import torch
from torch import Tensor

from tenora_engine.adapters.tiers import HostTier
from tenora_engine.config import ResolvedConfig
from tenora_engine.pinned import PinnedSlab

_EVICTIONS_MAX = 8  # for one adapter; what is evicted may still be on its way to the device
_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32, "int8": torch.int8}


def slab_for(resolved: ResolvedConfig) -> PinnedSlab | None:
    """Of the host tier's size; None where no device copies from it. Raises MemoryBudgetError when
    so much cannot be page-locked."""
    config = resolved.engine
    if config.device != "cuda" or not config.host_adapter_bytes:
        return None
    dtype = _DTYPES[resolved.packed_dtype]
    return PinnedSlab(config.host_adapter_bytes, resolved.packed_page_elements, dtype)


def take_room(
    slab: PinnedSlab, pages: Tensor, host: HostTier, tenant_key: str = ""
) -> Tensor | None:
    """The pages in the slab, for which the tier drops what goes next for the tenant; None where
    that does not help."""
    for _ in range(_EVICTIONS_MAX):
        own = slab.take(pages)
        if own is not None or not host.evict_for(tenant_key, pages.nbytes):
            return own
    return slab.take(pages)
