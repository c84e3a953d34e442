"""A trained draft layer, from a file to what the compiled library runs: from what the base decoder
made of a sequence's last token, and the token that came next, a chain of those that may follow. It
has no KV of its own, but attends to that of the base's last layer.

`examples/train_draft.py` trains one and says where its parts are from."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from tenora_engine.errors import ModelLoadError
from tenora_engine.model.compiled_decoder import decoder_sizes
from tenora_engine.model.layers import DecoderWeights
from tenora_engine.model.linear import PackedLinear
from tenora_engine.model.rope import RopeTable
from tenora_engine.model.spec import DecoderSpec
from tenora_kernels.compiled.draft_layer import DraftLayer, DraftWeights
from tenora_kernels.compiled.linear import INT8_STEP, pack_weight, quantise_weight, unpack_rows

FORMAT = "tenora-draft-layer-1"
VOCABULARY_MAX = 32768


def draft_bytes(spec: DecoderSpec, item: int) -> int:
    """At most, of a layer in memory, where an element of the model's has `item` bytes."""
    shapes = draft_shapes(spec, 0).values()
    head = min(VOCABULARY_MAX, spec.vocab) * spec.layer.hidden
    return (sum(math.prod(shape) for shape in shapes) + head) * item


def draft_shapes(spec: DecoderSpec, vocabulary: int) -> dict[str, tuple[int, ...]]:
    """Of a layer's tensors for that base; `vocabulary`: how many of its tokens it foretells."""
    layer = spec.layers[-1]
    hidden, inner, query = layer.hidden, layer.intermediate, layer.query_width
    return {
        "embedding_norm": (hidden,),
        "state_norm": (hidden,),
        "join": (hidden, 2 * hidden),
        "attention_norm": (hidden,),
        "query": (query, hidden),
        "out": (hidden, query),
        "mlp_norm": (hidden,),
        "gate_up": (2 * inner, hidden),
        "down": (hidden, inner),
        "final_norm": (hidden,),
        "vocabulary": (vocabulary,),
    }


def read_draft_layer(path: Path, spec: DecoderSpec) -> dict[str, Tensor]:
    """The tensors of a file. Raises ModelLoadError when it cannot be read, is something else, or
    is for another base."""
    try:
        with safe_open(path, framework="pt") as file:
            kind = (file.metadata() or {}).get("format")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise ModelLoadError(f"the draft layer {path} could not be read: {error}") from error
    if kind != FORMAT:
        raise ModelLoadError(
            f"{path} is no draft layer: its format is {kind!r}, wanted {FORMAT!r}; "
            "examples/train_draft.py makes one"
        )
    vocabulary = tensors.get("vocabulary", torch.empty(0, dtype=torch.int64))
    wanted = draft_shapes(spec, len(vocabulary))
    for name, shape in wanted.items():
        found = tuple(tensors[name].shape) if name in tensors else None
        if found != shape:
            raise ModelLoadError(
                f"the draft layer {path} is for another base model: {name} is "
                f"{'missing' if found is None else found}, this base needs {shape}"
            )
    ids = vocabulary.to(torch.int64)
    if not 0 < len(ids) <= VOCABULARY_MAX or not bool(((ids >= 0) & (ids < spec.vocab)).all()):
        raise ModelLoadError(
            f"the draft layer {path} is for another base model: its vocabulary is not of 1 to "
            f"{VOCABULARY_MAX} of the {spec.vocab} tokens"
        )
    return {name: tensors[name] for name in wanted}


def load_draft_layer(
    path: Path,
    base: DecoderWeights,
    rope: RopeTable,  # of the base's last layer
) -> DraftLayer:
    """The layer of a file, ready to run beside the base's compiled decoder. Raises ModelLoadError
    when the file is not one for that base, or the base's linears are not packed."""
    if not isinstance(base.head, PackedLinear):
        raise ModelLoadError(
            "a draft layer needs device cpu and the compiled kernels (tenora doctor says why they "
            "are missing); leave draft_layer out"
        )
    spec, dtype = base.spec.layers[-1], base.final_norm.dtype
    tensors = read_draft_layer(path, base.spec)
    vocabulary = tensors.pop("vocabulary").to(torch.int64)
    cast = {name: tensor.to(dtype).contiguous() for name, tensor in tensors.items()}
    lm_head = base.head.projection.weight
    is_even = not spec.hidden % INT8_STEP and not spec.intermediate % INT8_STEP
    pack = quantise_weight if dtype == torch.bfloat16 and is_even else pack_weight
    cos, sin = rope
    weights = DraftWeights(
        embedding=None if base.spec.tied_embeddings else base.embedding,
        lm_head=lm_head,
        base_norm=base.final_norm,
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
        head=pack(unpack_rows(lm_head, vocabulary, dtype)),
        vocabulary=vocabulary,
        cos=cos.contiguous(),
        sin=sin.contiguous(),
    )
    return DraftLayer(
        decoder_sizes(base.spec), weights, spec.norm_eps, 1 / math.sqrt(spec.head_dim)
    )
