"""The decoder of the CPU: the kernels' compiled library runs all layers of a step in one call."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tenora_engine.model.inputs import Arena, ForwardInputs
from tenora_engine.model.layers import LayerWeights, LinearWeights, WeightReader
from tenora_engine.model.rope import rope_table
from tenora_engine.model.spec import DecoderSpec
from tenora_kernels.backend import has_compiled_ops
from tenora_kernels.compiled.decoder import (
    DecoderSizes,
    PackedLayer,
    PackedProjection,
    Progress,
    StepDecoder,
    StepRows,
)
from tenora_kernels.compiled.linear import PackedWeight, pack_weight, quantise_weight


def can_compile(spec: DecoderSpec, device: torch.device) -> bool:
    """Whether this decoder serves the model here; `Decoder` serves all others."""
    widths = (spec.hidden, spec.intermediate, spec.heads * spec.head_dim)
    return device.type == "cpu" and has_compiled_ops() and all(width % 2 == 0 for width in widths)


class CompiledDecoder:
    """As `Decoder`, on weights packed for the CPU. A tied embedding is kept once."""

    def __init__(self, steps: StepDecoder) -> None:
        self._steps = steps
        self._arena: Arena | None = None  # the one that `steps` uses

    @classmethod
    def load(
        cls, spec: DecoderSpec, reader: WeightReader, max_positions: int, *, int8: bool = False
    ) -> CompiledDecoder:
        """`int8` rounds the linears' weights and a tied embedding to 8 bits. Raises ModelLoadError
        when a tensor cannot be read or has another shape."""
        pack = quantise_weight if int8 else pack_weight
        embedding = reader.embedding()
        head = reader.head()
        cos, sin = rope_table(spec, max_positions, embedding.device)
        return cls(
            StepDecoder(
                sizes=DecoderSizes(
                    hidden=spec.hidden,
                    intermediate=spec.intermediate,
                    heads=spec.heads,
                    kv_heads=spec.kv_heads,
                    head_dim=spec.head_dim,
                    vocab=spec.vocab,
                ),
                layers=[_pack_layer(reader.layer(index), pack) for index in range(spec.num_layers)],
                embedding=None if head is None else embedding,
                final_norm=reader.final_norm(),
                head=pack(embedding if head is None else head),
                cos=cos.contiguous(),
                sin=sin.contiguous(),
                norm_eps=spec.norm_eps,
                attention_scale=spec.head_dim**-0.5,
            )
        )

    def next_logits(
        self,
        inputs: ForwardInputs,
        arena: Arena,
        rows: Tensor,  # [num_samples] int64
    ) -> Tensor:  # [num_samples, vocab]
        """Run all rows through all layers, `rows` through the LM head too, in the model's dtype.
        The KV of all is in the arena afterwards."""
        return self._steps.next_logits(self._rows(inputs, arena, rows))

    def next_tokens(
        self,
        inputs: ForwardInputs,
        arena: Arena,
        rows: Tensor,  # [num_samples] int64
    ) -> list[int]:
        """As `next_logits`, and of each row the likeliest token, the first of equals."""
        return self._steps.next_tokens(self._rows(inputs, arena, rows))

    def advance_logits(
        self, inputs: ForwardInputs, arena: Arena, rows: Tensor, progress: Progress
    ) -> Tensor | None:  # [num_samples, vocab]
        """As `next_logits`, of a step that may be paused: then None, and the next call with the
        same `progress` goes on."""
        return self._steps.advance_logits(self._rows(inputs, arena, rows), progress)

    def advance_tokens(
        self, inputs: ForwardInputs, arena: Arena, rows: Tensor, progress: Progress
    ) -> list[int] | None:
        """As `next_tokens` and `advance_logits`."""
        return self._steps.advance_tokens(self._rows(inputs, arena, rows), progress)

    def _rows(self, inputs: ForwardInputs, arena: Arena, rows: Tensor) -> StepRows:
        if arena is not self._arena:
            self._steps.use_arena(arena.pool, arena.flat, arena.kv, arena.table)
            self._arena = arena
        attention = inputs.attention
        return StepRows(
            inputs.token_ids,
            inputs.positions,
            inputs.slots,
            attention.query_start,
            attention.context_len,
            attention.block_table,
            inputs.segments.row_slot,
            rows,
        )

    def take_seconds(self) -> dict[str, float]:
        """Where the time of steps went since the last call, see StepDecoder."""
        return self._steps.take_seconds()


def _pack_layer(layer: LayerWeights, pack: Callable[[Tensor], PackedWeight]) -> PackedLayer:
    def packed(linear: LinearWeights) -> PackedProjection:
        return PackedProjection(pack(linear.weight), linear.bias)

    return PackedLayer(
        input_norm=layer.input_norm,
        query_norm=layer.query_norm,
        key_norm=layer.key_norm,
        post_norm=layer.post_norm,
        qkv=packed(layer.qkv),
        out=packed(layer.out),
        gate_up=packed(layer.gate_up),
        down=packed(layer.down),
    )
