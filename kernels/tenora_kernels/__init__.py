"""Arithmetic on tensors for multi-adapter serving: one public function per op, each with a Triton
and a plain torch implementation. Knows slots, pages and rows; no request, tenant or schedule."""

from tenora_kernels.backend import describe
from tenora_kernels.fixed_linear import fixed_linear
from tenora_kernels.kv_write import kv_write
from tenora_kernels.norms import rms_norm, silu_mul
from tenora_kernels.paged_attention import paged_attention
from tenora_kernels.segments import (
    BASE_SLOT,
    AdapterSegments,
    AdapterTable,
    AttentionLayout,
    KVLayout,
    build_attention_layout,
    build_segments,
)
from tenora_kernels.sgmv import sgmv

__all__ = [
    "BASE_SLOT",
    "AdapterSegments",
    "AdapterTable",
    "AttentionLayout",
    "KVLayout",
    "build_attention_layout",
    "build_segments",
    "describe",
    "fixed_linear",
    "kv_write",
    "paged_attention",
    "rms_norm",
    "sgmv",
    "silu_mul",
]
