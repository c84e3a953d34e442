"""A decoder of the Llama family over paged KV, with each row's own adapter in every linear. Knows
rows and pages; no requests, no sampling."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - what torch's own documentation calls it
from torch import Tensor

from tenora_engine.model.inputs import Arena, ForwardInputs
from tenora_engine.model.linear import PackedLinear
from tenora_engine.model.rope import rope_table
from tenora_engine.model.spec import DecoderSpec
from tenora_engine.model.weights import WeightSource
from tenora_kernels import kv_write, paged_attention, rms_norm, silu_mul


@dataclass(frozen=True)
class DecoderLayer:
    """One layer's weights; the projections that share an input are packed into one."""

    index: int
    input_norm: Tensor  # [hidden]
    qkv: PackedLinear
    query_norm: Tensor | None  # [head_dim], Qwen3
    key_norm: Tensor | None  # [head_dim], Qwen3
    out: PackedLinear
    post_norm: Tensor  # [hidden]
    gate_up: PackedLinear
    down: PackedLinear


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
    def load(
        cls,
        spec: DecoderSpec,
        weights: WeightSource,
        max_positions: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> Decoder:
        """Raises ModelLoadError when a tensor cannot be read or has another shape."""
        reader = _Reader(spec, weights, device, dtype)
        embedding = reader.tensor("model.embed_tokens.weight")
        head = embedding if spec.tied_embeddings else reader.tensor("lm_head.weight")
        return cls(
            spec=spec,
            embedding=embedding,
            layers=[reader.layer(index) for index in range(spec.num_layers)],
            final_norm=reader.tensor("model.norm.weight"),
            head=PackedLinear(head, None),
            rope=rope_table(spec, max_positions, device),
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


class _Reader:
    """Reads tensors by name and packs those that share an input."""

    def __init__(
        self, spec: DecoderSpec, weights: WeightSource, device: torch.device, dtype: torch.dtype
    ) -> None:
        self._shapes = spec.tensor_shapes()
        self._weights = weights
        self._device = device
        self._dtype = dtype

    def tensor(self, name: str) -> Tensor:
        # Copied, so that nothing stays mapped to a file that could be replaced under us.
        read = self._weights.read(name, self._shapes[name])
        return read.to(device=self._device, dtype=self._dtype, copy=True)

    def layer(self, index: int) -> DecoderLayer:
        prefix = f"model.layers.{index}."
        return DecoderLayer(
            index=index,
            input_norm=self.tensor(f"{prefix}input_layernorm.weight"),
            qkv=self._packed(f"{prefix}self_attn.", "q_proj", "k_proj", "v_proj"),
            query_norm=self._optional(f"{prefix}self_attn.q_norm.weight"),
            key_norm=self._optional(f"{prefix}self_attn.k_norm.weight"),
            out=self._packed(f"{prefix}self_attn.", "o_proj"),
            post_norm=self.tensor(f"{prefix}post_attention_layernorm.weight"),
            gate_up=self._packed(f"{prefix}mlp.", "gate_proj", "up_proj"),
            down=self._packed(f"{prefix}mlp.", "down_proj"),
        )

    def _optional(self, name: str) -> Tensor | None:
        return self.tensor(name) if name in self._shapes else None

    def _packed(self, prefix: str, *modules: str) -> PackedLinear:
        weights = [self.tensor(f"{prefix}{module}.weight") for module in modules]
        biases = [self._optional(f"{prefix}{module}.bias") for module in modules]
        present = [bias for bias in biases if bias is not None]
        return PackedLinear(
            torch.cat(weights) if len(weights) > 1 else weights[0],
            torch.cat(present) if present else None,
            modules=modules,
            widths=tuple(weight.shape[0] for weight in weights),
        )
