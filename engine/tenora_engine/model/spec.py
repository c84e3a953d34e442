"""What a decoder is made of, as data: its sizes, and each layer's norms, linears and attention.
Both decoders are built from it; `families` reads it from a config. No tensors here."""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass, replace
from typing import Any, Literal

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"

QueryKeyNorm = Literal["head", "width"]
"""Over each head by itself, or over all heads of a row at once."""


@dataclass(frozen=True)
class LinearSpec:
    """One projection: `self_attn` or `mlp` is the part of the layer it is in."""

    part: str
    in_features: int
    out_features: int
    bias: bool

    @property
    def shape(self) -> tuple[int, int]:
        """As adapters see it: inputs, outputs."""
        return self.in_features, self.out_features


@dataclass(frozen=True)
class Norms:
    """Where a layer has RMS norms, by their names in the checkpoint; None is no norm. `_in` is of
    what a part reads, `_out` of what it adds to the residual stream."""

    attention_in: str | None = None
    attention_out: str | None = None
    mlp_in: str | None = None
    mlp_out: str | None = None


@dataclass(frozen=True)
class LayerSpec:
    """One layer: attention, then a gated MLP with SiLU, a residual connection around each.

    Sizes are those of every layer of the decoder, for KV and adapters are cut alike for all.
    """

    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float
    norms: Norms
    attention_scale: float  # of the products of queries and keys
    query_key_norm: QueryKeyNorm | None
    rotary_dim: int  # of each head, the dimensions that are turned by position
    window: int | None  # tokens that a token attends to, its own among them; None: all
    biased: frozenset[str]  # the LORA_MODULES that have a bias

    @property
    def query_width(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head_dim

    @property
    def linears(self) -> dict[str, LinearSpec]:
        """By name, in the order of LORA_MODULES."""
        hidden, inner, query, kv = self.hidden, self.intermediate, self.query_width, self.kv_width
        shapes = {
            "q_proj": ("self_attn", hidden, query),
            "k_proj": ("self_attn", hidden, kv),
            "v_proj": ("self_attn", hidden, kv),
            "o_proj": ("self_attn", query, hidden),
            "gate_proj": ("mlp", hidden, inner),
            "up_proj": ("mlp", hidden, inner),
            "down_proj": ("mlp", inner, hidden),
        }
        return {name: LinearSpec(*shape, name in self.biased) for name, shape in shapes.items()}

    @property
    def query_key_norm_shapes(self) -> dict[str, tuple[int, ...]]:
        """Of `q_norm` and `k_norm`; empty where the layer has none."""
        if self.query_key_norm is None:
            return {}
        if self.query_key_norm == "head":
            return {"q_norm": (self.head_dim,), "k_norm": (self.head_dim,)}
        return {"q_norm": (self.query_width,), "k_norm": (self.kv_width,)}

    @property
    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the layer's tensors, by their names in the checkpoint below the layer's own."""
        norms = astuple(self.norms)
        shapes: dict[str, tuple[int, ...]] = {
            f"{name}.weight": (self.hidden,) for name in norms if name is not None
        }
        for name, linear in self.linears.items():
            shapes[f"{linear.part}.{name}.weight"] = (linear.out_features, linear.in_features)
            if linear.bias:
                shapes[f"{linear.part}.{name}.bias"] = (linear.out_features,)
        for name, shape in self.query_key_norm_shapes.items():
            shapes[f"self_attn.{name}.weight"] = shape
        return shapes


@dataclass(frozen=True)
class DecoderSpec:
    """An embedding, layers, a norm and an LM head, and the folder they were read from."""

    folder: str
    architecture: str
    layers: tuple[LayerSpec, ...]
    vocab: int
    context_tokens: int
    tied_embeddings: bool
    rope: dict[str, Any]  # config.json's rope_parameters, at least rope_type and rope_theta
    eos_token_ids: tuple[int, ...] = ()
    embedding_factor: float = 1.0  # what the embedding's weights (a tied head's too) are times
    final_norm_factor: float = 1.0  # and the final norm's

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def layer(self) -> LayerSpec:
        """The first; its sizes and its `norm_eps` are those of all."""
        return self.layers[0]

    @property
    def window(self) -> int | None:
        """The shortest of any layer; None where every layer attends to all tokens."""
        return min(
            (layer.window for layer in self.layers if layer.window is not None), default=None
        )

    def untied(self) -> DecoderSpec:
        """The same with a head of its own, which is not times `embedding_factor`."""
        factor = self.final_norm_factor * self.embedding_factor
        return replace(self, tied_embeddings=False, final_norm_factor=factor)

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor the checkpoint must hold, by its Hugging Face name."""
        shapes: dict[str, tuple[int, ...]] = {
            EMBEDDING: (self.vocab, self.layer.hidden),
            "model.norm.weight": (self.layer.hidden,),
        }
        if not self.tied_embeddings:
            shapes[HEAD] = (self.vocab, self.layer.hidden)
        for index, layer in enumerate(self.layers):
            prefix = layer_prefix(index)
            shapes.update((prefix + name, shape) for name, shape in layer.tensor_shapes.items())
        return shapes

    @property
    def num_parameters(self) -> int:
        return sum(math.prod(shape) for shape in self.tensor_shapes().values())

    @property
    def num_linear_parameters(self) -> int:
        """Of all projections and the LM head, biases apart."""
        linears = self.layer.linears.values()
        layer = sum(math.prod(linear.shape) for linear in linears)
        return self.num_layers * layer + self.vocab * self.layer.hidden

    @property
    def num_linear_outputs(self) -> int:
        layer = sum(linear.out_features for linear in self.layer.linears.values())
        return self.num_layers * layer + self.vocab


def layer_prefix(index: int) -> str:
    """What the names of a layer's tensors begin with."""
    return f"model.layers.{index}."
