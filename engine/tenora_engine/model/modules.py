"""The names of the linears that adapters may change. Needs nothing, so that the model can be run
where only torch is installed."""

from __future__ import annotations

LORA_CALLS = (
    ("q_proj", "k_proj", "v_proj"),
    ("o_proj",),
    ("gate_proj", "up_proj"),
    ("down_proj",),
)
"""The modules that read the same input: one call of sgmv each."""

LORA_MODULES = tuple(name for call in LORA_CALLS for name in call)
"""In the order of AdapterTable's last axis."""
