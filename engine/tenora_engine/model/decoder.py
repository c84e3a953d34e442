"""A decoder of the Llama family over paged KV, with each row's own adapter in every linear. Knows
rows and pages; no requests, no sampling."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - what torch's own documentation calls it
from torch import Tensor

from tenora_engine.model.inputs import Arena, ForwardInputs
from tenora_engine.model.layers import LayerWeights, LinearWeights, WeightReader
from tenora_engine.model.linear import PackedLinear
from tenora_engine.model.rope import rope_table
from tenora_engine.model.spec import DecoderSpec
from tenora_kernels import kv_write, paged_attention, rms_norm, silu_mul


@dataclass(frozen=True)
class DecoderLayer:
    """One layer's weights, its linears ready to be used."""

    index: int
    input_norm: Tensor  # [hidden]
    qkv: PackedLinear
    query_norm: Tensor | None  # [head_dim], Qwen3
    key_norm: Tensor | None  # [head_dim], Qwen3
    out: PackedLinear
    post_norm: Tensor  # [hidden]
    gate_up: PackedLinear
    down: PackedLinear

    @classmethod
    def of(cls, weights: LayerWeights) -> DecoderLayer:
        return cls(
            index=weights.index,
            input_norm=weights.input_norm,
            qkv=PackedLinear(weights.qkv),
            query_norm=weights.query_norm,
            key_norm=weights.key_norm,
            out=PackedLinear(weights.out),
            post_norm=weights.post_norm,
            gate_up=PackedLinear(weights.gate_up),
            down=PackedLinear(weights.down),
        )


class Decoder:
    """Made by `load`. `forward` writes the step's KV and returns the normed hidden states of all
    rows; `logits` puts the LM head over those that sample."""

    def __init__(
        self,
        spec: DecoderSpec,
        embedding: Tensor,  # [vocab, hidden]
        layers: list[DecoderLayer],
        final_norm: Tensor,  # [hidden]
        head: PackedLinear,
        rope: tuple[Tensor, Tensor],
    ) -> None:
        self._spec = spec
        self._embedding = embedding
        self._layers = layers
        self._final_norm = final_norm
        self._head = head
        self._cos, self._sin = rope
        self._scale = spec.head_dim**-0.5

    @classmethod
    def load(cls, spec: DecoderSpec, reader: WeightReader, max_positions: int) -> Decoder:
        """Raises ModelLoadError when a tensor cannot be read or has another shape."""
        embedding = reader.embedding()
        head = reader.head()
        return cls(
            spec=spec,
            embedding=embedding,
            layers=[DecoderLayer.of(reader.layer(index)) for index in range(spec.num_layers)],
            final_norm=reader.final_norm(),
            head=PackedLinear(LinearWeights(embedding if head is None else head, None)),
            rope=rope_table(spec, max_positions, embedding.device),
        )

    def forward(
        self,
        inputs: ForwardInputs,
        arena: Arena,
    ) -> Tensor:  # [num_tokens, hidden]
        """Run all rows through all layers; their KV is in the arena afterwards."""
        eps = self._spec.norm_eps
        residual = F.embedding(inputs.token_ids, self._embedding)
        normed = rms_norm(residual, self._layers[0].input_norm, eps)
        for layer, next_norm in zip(self._layers, self._next_norms(), strict=True):
            attended = self._attend(layer, normed, inputs, arena)
            normed, residual = rms_norm(attended, layer.post_norm, eps, residual)
            changed = self._mlp(layer, normed, inputs, arena)
            normed, residual = rms_norm(changed, next_norm, eps, residual)
        return normed

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
        return self._head(hidden.index_select(0, rows))

    def _next_norms(self) -> list[Tensor]:
        return [layer.input_norm for layer in self._layers[1:]] + [self._final_norm]

    def _attend(
        self, layer: DecoderLayer, x: Tensor, inputs: ForwardInputs, arena: Arena
    ) -> Tensor:
        spec = self._spec
        qkv = layer.qkv.adapted(x, inputs.segments, arena, layer.index)
        heads = qkv.view(
            x.shape[0], -1, spec.head_dim
        )  # [num_tokens, heads + 2 kv_heads, head_dim]
        query = heads[:, : spec.heads]
        key = heads[:, spec.heads : spec.heads + spec.kv_heads]
        value = heads[:, spec.heads + spec.kv_heads :]
        if layer.query_norm is not None and layer.key_norm is not None:
            query = rms_norm(query, layer.query_norm, spec.norm_eps)
            key = rms_norm(key, layer.key_norm, spec.norm_eps)
        kv_write(
            query,
            key,
            value,
            self._cos,
            self._sin,
            inputs.positions,
            arena.pool,
            arena.kv,
            layer.index,
            inputs.slots,
        )
        attended = paged_attention(
            query, arena.pool, arena.kv, layer.index, inputs.attention, self._scale
        )
        return layer.out.adapted(attended.flatten(1), inputs.segments, arena, layer.index)

    def _mlp(self, layer: DecoderLayer, x: Tensor, inputs: ForwardInputs, arena: Arena) -> Tensor:
        gate_up = layer.gate_up.adapted(x, inputs.segments, arena, layer.index)
        return layer.down.adapted(silu_mul(gate_up), inputs.segments, arena, layer.index)
