"""What an adapter will take, said before its weights are there, and what packing makes of it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tenora_engine.adapters.pack import footprint, pack_adapter
from tenora_engine.adapters.peft_format import (
    effective_modules,
    module_path,
    parse_adapter_config,
)
from tenora_engine.adapters.tiers import packed_bytes
from tenora_engine.config import LORA_MODULES, EngineConfig, ResolvedConfig
from tenora_engine.errors import AdapterLoadError
from tiny_model import DIGEST, MODEL

LAYERS = MODEL.num_layers
PLAIN = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 4, "lora_alpha": 8}


def tiny(page: int) -> ResolvedConfig:
    return ResolvedConfig(
        engine=EngineConfig(model="none", served_name="tiny", dtype="float32"),
        model=MODEL,
        page_elements=page,
        page_bytes=4 * page,
        num_pages=8,
        workspace_bytes=0,
    )


@given(
    table=st.dictionaries(
        st.sampled_from(LORA_MODULES),
        st.lists(st.integers(0, 9), min_size=LAYERS, max_size=LAYERS).filter(any),
        min_size=1,
    ),
    page=st.integers(500, 3000),
)
@settings(max_examples=25)
def test_a_footprint_is_what_packing_takes(table: dict[str, list[int]], page: int) -> None:
    """Without its tensors: the ranks alone say it, to the byte."""
    ranks = {
        module_path(layer, module): rank
        for module, of_layers in table.items()
        for layer, rank in enumerate(of_layers)
        if rank
    }
    config = {
        **PLAIN,
        "target_modules": list(ranks),
        "rank_pattern": {f"^{path}": rank for path, rank in ranks.items()},
    }
    tensors = {}
    for (layer, module), lora in effective_modules(parse_adapter_config(config), MODEL).items():
        features_in, features_out = MODEL.modules[module]
        for matrix, shape in (("A", (lora.rank, features_in)), ("B", (features_out, lora.rank))):
            name = f"base_model.model.{module_path(layer, module)}.lora_{matrix}.weight"
            tensors[name] = torch.ones(shape)
    packed = pack_adapter(
        DIGEST, parse_adapter_config(config), tensors, MODEL, page, "float32", max_rank=64
    )
    takes = footprint(tiny(page), table)
    assert (takes.pages, takes.page_bytes) == (packed.num_pages, 4 * page)
    assert takes.host_bytes == packed_bytes(packed)


@pytest.mark.parametrize("table", [{"lm_head": [1, 1]}, {"q_proj": [1] * (LAYERS + 1)}])
def test_a_footprint_of_what_the_model_lacks_is_refused(table: dict[str, list[int]]) -> None:
    with pytest.raises(AdapterLoadError, match="no such modules or layers"):
        footprint(tiny(500), table)
