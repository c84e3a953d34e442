"""A decoder's weights as they come from a source, layer by layer. Decides nothing about how they
are kept (`decoder`, `compiled_decoder`)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tenora_engine.model.spec import DecoderSpec
from tenora_engine.model.weights import WeightSource


@dataclass(frozen=True)
class LinearWeights:
    """Projections that share an input, their outputs side by side; `modules` name the slices,
    `widths` wide, that adapters may change."""

    weight: Tensor  # [sum(widths), in]
    bias: Tensor | None  # [sum(widths)]
    modules: tuple[str, ...] = ()
    widths: tuple[int, ...] = ()


@dataclass(frozen=True)
class LayerWeights:
    index: int
    input_norm: Tensor  # [hidden]
    qkv: LinearWeights
    query_norm: Tensor | None  # [head_dim], Qwen3
    key_norm: Tensor | None  # [head_dim], Qwen3
    out: LinearWeights
    post_norm: Tensor  # [hidden]
    gate_up: LinearWeights
    down: LinearWeights


class WeightReader:
    """Reads tensors by name, one layer at a time, into `dtype` on `device`.

    Every method raises ModelLoadError when a tensor cannot be read or has another shape.
    """

    def __init__(
        self, spec: DecoderSpec, weights: WeightSource, device: torch.device, dtype: torch.dtype
    ) -> None:
        self._spec = spec
        self._shapes = spec.tensor_shapes()
        self._weights = weights
        self._device = device
        self._dtype = dtype

    def embedding(self) -> Tensor:  # [vocab, hidden]
        return self._tensor("model.embed_tokens.weight")

    def head(self) -> Tensor | None:  # [vocab, hidden]
        """The LM head's own weights; None where they are the embedding's."""
        return None if self._spec.tied_embeddings else self._tensor("lm_head.weight")

    def final_norm(self) -> Tensor:  # [hidden]
        return self._tensor("model.norm.weight")

    def layer(self, index: int) -> LayerWeights:
        prefix = f"model.layers.{index}."
        return LayerWeights(
            index=index,
            input_norm=self._tensor(f"{prefix}input_layernorm.weight"),
            qkv=self._linear(f"{prefix}self_attn.", "q_proj", "k_proj", "v_proj"),
            query_norm=self._optional(f"{prefix}self_attn.q_norm.weight"),
            key_norm=self._optional(f"{prefix}self_attn.k_norm.weight"),
            out=self._linear(f"{prefix}self_attn.", "o_proj"),
            post_norm=self._tensor(f"{prefix}post_attention_layernorm.weight"),
            gate_up=self._linear(f"{prefix}mlp.", "gate_proj", "up_proj"),
            down=self._linear(f"{prefix}mlp.", "down_proj"),
        )

    def _tensor(self, name: str) -> Tensor:
        # Copied, so that nothing stays mapped to a file that could be replaced under us.
        read = self._weights.read(name, self._shapes[name])
        return read.to(device=self._device, dtype=self._dtype, copy=True)

    def _optional(self, name: str) -> Tensor | None:
        return self._tensor(name) if name in self._shapes else None

    def _linear(self, prefix: str, *modules: str) -> LinearWeights:
        weights = [self._tensor(f"{prefix}{module}.weight") for module in modules]
        biases = [self._optional(f"{prefix}{module}.bias") for module in modules]
        present = [bias for bias in biases if bias is not None]
        return LinearWeights(
            torch.cat(weights) if len(weights) > 1 else weights[0],
            torch.cat(present) if present else None,
            modules=modules,
            widths=tuple(weight.shape[0] for weight in weights),
        )
