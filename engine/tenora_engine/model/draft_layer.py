"""A trained draft layer, from a file to what the compiled library runs: from what the base decoder
made of a sequence's last token, and the token that came next, a chain of those that may follow. It
has no KV of its own, but attends to that of the base's last layer.

`examples/train_draft.py` trains one and says where its parts are from."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from tenora_engine.adapters.draft_format import (
    FORMAT,
    VOCABULARY,
    VOCABULARY_MAX,
    tensor_shapes,
)
from tenora_engine.errors import ModelLoadError
from tenora_engine.model.compiled_decoder import decoder_sizes
from tenora_engine.model.layers import DecoderWeights
from tenora_engine.model.linear import PackedLinear
from tenora_engine.model.rope import RopeTable
from tenora_engine.model.spec import DecoderSpec
from tenora_kernels.compiled.draft_layer import DraftLayer, DraftWeights
from tenora_kernels.compiled.linear import (
    INT8_STEP,
    PackedWeight,
    pack_weight,
    quantise_weight,
    unpack_rows,
)


def draft_bytes(spec: DecoderSpec, item: int) -> int:
    """At most, of a layer in memory, where an element of the model's has `item` bytes."""
    shapes = draft_shapes(spec, 0).values()
    head = min(VOCABULARY_MAX, spec.vocab) * spec.layer.hidden
    return (sum(math.prod(shape) for shape in shapes) + head) * item


def draft_shapes(spec: DecoderSpec, vocabulary: int) -> dict[str, tuple[int, ...]]:
    """Of a layer's tensors for that base; `vocabulary`: how many of its tokens it foretells."""
    layer = spec.layers[-1]
    return tensor_shapes(layer.hidden, layer.intermediate, layer.query_width, vocabulary)


def read_draft_layer(path: Path) -> dict[str, Tensor]:
    """The tensors of a file. Raises ModelLoadError when it cannot be read or is something else."""
    try:
        with safe_open(path, framework="pt") as file:
            kind = (file.metadata() or {}).get("format")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise ModelLoadError(f"the draft layer {path} could not be read: {error}") from error
    if kind != FORMAT:
        raise ModelLoadError(
            f"{path} is not a draft layer: its format is {kind!r}, not {FORMAT!r}; "
            "examples/train_draft.py makes one"
        )
    return tensors


def _checked(
    name: str, tensors: Mapping[str, Tensor], spec: DecoderSpec
) -> tuple[dict[str, Tensor], Tensor]:  # [known] int64
    """The layer's weights and vocabulary. Raises ModelLoadError when it is for another base."""
    vocabulary = tensors.get(VOCABULARY, torch.empty(0, dtype=torch.int64))
    wanted = draft_shapes(spec, len(vocabulary))
    for part, shape in wanted.items():
        found = tuple(tensors[part].shape) if part in tensors else None
        if found != shape:
            raise ModelLoadError(
                f"the draft layer {name} belongs to another base model: {part} is "
                f"{'missing' if found is None else found}, but this base model needs {shape}"
            )
    ids = vocabulary.to(torch.int64)
    if not 0 < len(ids) <= VOCABULARY_MAX or not bool(((ids >= 0) & (ids < spec.vocab)).all()):
        raise ModelLoadError(
            f"the draft layer {name} belongs to another base model: its vocabulary must have 1 "
            f"to {VOCABULARY_MAX} of the {spec.vocab} tokens"
        )
    return {part: tensors[part] for part in wanted if part != VOCABULARY}, ids


@dataclass(frozen=True)
class DraftMaker:
    """Makes layers that run beside one base's compiled decoder, whose weights they share."""

    spec: DecoderSpec
    embedding: Tensor | None  # [vocab, hidden]; None: the head serves as embedding
    head: PackedWeight  # [vocab, hidden]
    final_norm: Tensor  # [hidden]
    rope: RopeTable  # of the last layer

    @staticmethod
    def of(base: DecoderWeights, rope: RopeTable) -> DraftMaker | None:
        """None: the base's linears are not packed."""
        if not isinstance(base.head, PackedLinear):
            return None
        embedding = None if base.spec.tied_embeddings else base.embedding
        head = base.head.projection.weight
        return DraftMaker(base.spec, embedding, head, base.final_norm, rope)

    def make(self, name: str, tensors: Mapping[str, Tensor]) -> MadeLayer:
        """The layer of a file's tensors. Raises ModelLoadError when it is not one for that base."""
        spec, dtype = self.spec.layers[-1], self.final_norm.dtype
        found, vocabulary = _checked(name, tensors, self.spec)
        cast = {part: tensor.to(dtype, copy=True) for part, tensor in found.items()}
        is_even = not spec.hidden % INT8_STEP and not spec.intermediate % INT8_STEP
        pack = quantise_weight if dtype == torch.bfloat16 and is_even else pack_weight
        cos, sin = self.rope
        weights = DraftWeights(
            embedding=self.embedding,
            lm_head=self.head,
            base_norm=self.final_norm,
            embedding_norm=cast["embedding_norm"],
            state_norm=cast["state_norm"],
            attention_norm=cast["attention_norm"],
            mlp_norm=cast["mlp_norm"],
            final_norm=cast["final_norm"],
            join=pack(cast["join"]),
            query=pack(cast["query"]),
            out=pack(cast["out"]),
            gate_up=pack(cast["gate_up"]),
            down=pack(cast["down"]),
            head=pack(unpack_rows(self.head, vocabulary, dtype)),
            vocabulary=vocabulary.clone(),  # of a file that is not kept
            cos=cos.contiguous(),
            sin=sin.contiguous(),
        )
        scale = 1 / math.sqrt(spec.head_dim)
        layer = DraftLayer(decoder_sizes(self.spec), weights, spec.norm_eps, scale)
        return MadeLayer(layer, weights.own_bytes)


@dataclass(frozen=True)
class MadeLayer:
    """A layer that is ready to run, and what it takes beside the base's weights."""

    layer: DraftLayer
    num_bytes: int


def load_draft_layer(path: Path, maker: DraftMaker | None) -> DraftLayer:
    """The layer of a file. Raises ModelLoadError when it is not one for that base, or there is no
    `maker`, for the base's linears are not packed."""
    if maker is None:
        raise ModelLoadError(
            "a draft layer needs device cpu and the compiled kernels (tenora doctor says why "
            "they are missing); leave draft_layer out"
        )
    return maker.make(str(path), read_draft_layer(path)).layer
