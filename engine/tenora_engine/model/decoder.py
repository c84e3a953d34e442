"""A decoder over paged KV, with each row's own adapter in every linear: in single ops, on any
device. Knows rows and pages; no requests, no sampling."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - what torch's own documentation calls it
from torch import Tensor

from tenora_engine.model.inputs import Arena, ForwardInputs
from tenora_engine.model.layers import DecoderWeights, Layer
from tenora_engine.model.rope import rope_tables
from tenora_kernels import kv_write, paged_attention, rms_norm, silu_mul


class Decoder:
    """`forward` writes the step's KV and returns the normed hidden states of all rows; `logits`
    puts the LM head over those that sample."""

    def __init__(self, weights: DecoderWeights, max_positions: int) -> None:
        """Raises ModelLoadError for a rotary embedding that is not supported."""
        self._weights = weights
        self._rope = rope_tables(weights.spec, max_positions, weights.embedding.device)

    @property
    def vocab(self) -> int:
        """Logits of a row."""
        return self._weights.spec.vocab

    def forward(
        self,
        inputs: ForwardInputs,
        arena: Arena,
    ) -> Tensor:  # [num_tokens, hidden]
        """Run all rows through all layers; their KV is in the arena afterwards."""
        weights = self._weights
        eps = weights.spec.layer.norm_eps
        residual = F.embedding(inputs.token_ids, weights.embedding)
        change = None  # what the last part adds to the residual stream
        for layer in weights.layers:
            x, residual = _add_and_norm(residual, change, layer.attention_in, eps)
            change = _norm(self._attend(layer, x, inputs, arena), layer.attention_out, eps)
            x, residual = _add_and_norm(residual, change, layer.mlp_in, eps)
            change = _norm(self._mlp(layer, x, inputs, arena), layer.mlp_out, eps)
        return _add_and_norm(residual, change, weights.final_norm, eps)[0]

    @torch.inference_mode()
    def next_logits(
        self,
        inputs: ForwardInputs,
        arena: Arena,
        rows: Tensor,  # [num_samples] int64
    ) -> Tensor:  # [num_samples, vocab]
        """`forward`, then `logits` of `rows`."""
        return self.logits(self.forward(inputs, arena), rows)

    def logits(
        self,
        hidden: Tensor,  # [num_tokens, hidden]
        rows: Tensor,  # [num_samples] int64
    ) -> Tensor:  # [num_samples, vocab]
        """The LM head over `rows` of `hidden`, in the model's dtype."""
        return self._weights.head(hidden.index_select(0, rows))

    def _attend(self, layer: Layer, x: Tensor, inputs: ForwardInputs, arena: Arena) -> Tensor:
        spec = layer.spec
        qkv = layer.qkv.adapted(x, inputs.segments, arena, layer.index)
        query = qkv[:, : spec.query_width]
        key, value = qkv[:, spec.query_width :].chunk(2, dim=1)
        if layer.query_norm is not None and layer.key_norm is not None:
            query = _norm_groups(query, layer.query_norm, spec.norm_eps)
            key = _norm_groups(key, layer.key_norm, spec.norm_eps)
        query = _groups(query, spec.head_dim)  # [num_tokens, heads, head_dim]
        kv_write(
            query,
            _groups(key, spec.head_dim),
            _groups(value, spec.head_dim),
            *self._rope[layer.index],
            inputs.positions,
            arena.pool,
            arena.kv,
            layer.index,
            inputs.slots,
        )
        attended = paged_attention(
            query, arena.pool, arena.kv, layer.index, inputs.attention, spec.attention_scale
        )
        return layer.out.adapted(attended.flatten(1), inputs.segments, arena, layer.index)

    def _mlp(self, layer: Layer, x: Tensor, inputs: ForwardInputs, arena: Arena) -> Tensor:
        gate_up = layer.gate_up.adapted(x, inputs.segments, arena, layer.index)
        return layer.down.adapted(silu_mul(gate_up), inputs.segments, arena, layer.index)


def _add_and_norm(
    residual: Tensor, change: Tensor | None, weight: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    """(what the next part reads, the residual stream with `change`)."""
    if weight is None:
        total = residual if change is None else residual + change
        return total, total
    if change is None:
        return rms_norm(residual, weight, eps), residual
    return rms_norm(change, weight, eps, residual)


def _norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    return x if weight is None else rms_norm(x, weight, eps)


def _norm_groups(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Heads by themselves, or all of a row at once, as the weight is long."""
    return rms_norm(_groups(x, len(weight)), weight, eps).view(x.shape)


def _groups(x: Tensor, width: int) -> Tensor:
    return x.view(x.shape[0], x.shape[1] // width, width)
