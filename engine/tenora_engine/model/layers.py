"""A decoder's weights, read layer by layer from a source, its linears in the form that they are
used in. Runs nothing: `decoder` and `compiled_decoder` do."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tenora_engine.model.linear import Linear, LinearWeights
from tenora_engine.model.modules import LORA_CALLS
from tenora_engine.model.spec import EMBEDDING, HEAD, DecoderSpec, LayerSpec, layer_prefix
from tenora_engine.model.weights import WeightSource


@dataclass(frozen=True)
class Layer:
    """What a LayerSpec describes; a norm that it has not is None."""

    index: int
    spec: LayerSpec
    attention_in: Tensor | None  # [hidden]
    qkv: Linear
    query_norm: Tensor | None  # [head_dim] or [query_width]
    key_norm: Tensor | None  # [head_dim] or [kv_width]
    out: Linear
    attention_out: Tensor | None  # [hidden]
    mlp_in: Tensor | None  # [hidden]
    gate_up: Linear
    down: Linear
    mlp_out: Tensor | None  # [hidden]


@dataclass(frozen=True)
class DecoderWeights:
    """All of a decoder's; where the spec ties the embeddings, the head is made of `embedding`."""

    spec: DecoderSpec
    embedding: Tensor  # [vocab, hidden]
    layers: tuple[Layer, ...]
    final_norm: Tensor  # [hidden]
    head: Linear


def read_weights(
    spec: DecoderSpec,
    source: WeightSource,
    device: torch.device,
    dtype: torch.dtype,
    form: type[Linear],
) -> DecoderWeights:
    """Raises ModelLoadError when a tensor cannot be read or has another shape."""
    read = _Reader(spec, source, device, dtype, form)
    embedding = read.scaled(EMBEDDING, spec.embedding_factor)
    head = embedding if spec.tied_embeddings else read.tensor(HEAD)
    return DecoderWeights(
        spec=spec,
        embedding=embedding,
        layers=tuple(read.layer(index) for index in range(spec.num_layers)),
        final_norm=read.scaled("model.norm.weight", spec.final_norm_factor),
        head=form(LinearWeights(head, None)),
    )


class _Reader:
    """Reads tensors by name into `dtype` on `device`."""

    def __init__(
        self,
        spec: DecoderSpec,
        source: WeightSource,
        device: torch.device,
        dtype: torch.dtype,
        form: type[Linear],
    ) -> None:
        self._spec = spec
        self._shapes = spec.tensor_shapes()
        self._source = source
        self._device = device
        self._dtype = dtype
        self._form = form

    def layer(self, index: int) -> Layer:
        spec = self._spec.layers[index]
        prefix = layer_prefix(index)
        qkv, out, gate_up, down = (self._linear(prefix, spec, modules) for modules in LORA_CALLS)
        return Layer(
            index=index,
            spec=spec,
            attention_in=self._norm(prefix, spec.norms.attention_in),
            qkv=qkv,
            query_norm=self._optional(f"{prefix}self_attn.q_norm.weight"),
            key_norm=self._optional(f"{prefix}self_attn.k_norm.weight"),
            out=out,
            attention_out=self._norm(prefix, spec.norms.attention_out),
            mlp_in=self._norm(prefix, spec.norms.mlp_in),
            gate_up=gate_up,
            down=down,
            mlp_out=self._norm(prefix, spec.norms.mlp_out),
        )

    def tensor(self, name: str) -> Tensor:
        # Copied, so that nothing stays mapped to a file that could be replaced under us.
        read = self._source.read(name, self._shapes[name])
        return read.to(device=self._device, dtype=self._dtype, copy=True)

    def scaled(self, name: str, factor: float) -> Tensor:
        tensor = self.tensor(name)
        return tensor if factor == 1.0 else tensor.mul_(factor)

    def _optional(self, name: str) -> Tensor | None:
        return self.tensor(name) if name in self._shapes else None

    def _norm(self, prefix: str, name: str | None) -> Tensor | None:
        return None if name is None else self.tensor(f"{prefix}{name}.weight")

    def _linear(self, prefix: str, spec: LayerSpec, modules: tuple[str, ...]) -> Linear:
        linears = {name: spec.linears[name] for name in modules}
        names = [f"{prefix}{linear.part}.{name}" for name, linear in linears.items()]
        weights = [self.tensor(f"{name}.weight") for name in names]
        biases = [self._optional(f"{name}.bias") for name in names]
        present = [bias for bias in biases if bias is not None]
        return self._form(
            LinearWeights(
                torch.cat(weights) if len(weights) > 1 else weights[0],
                torch.cat(present) if present else None,
                modules=modules,
                widths=tuple(linear.out_features for linear in linears.values()),
            )
        )
