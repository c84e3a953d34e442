"""The names of the linears that adapters may change. Needs nothing, so that the model can be run
where only torch is installed."""

from __future__ import annotations

LORA_MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""In the order of AdapterTable's last axis."""
