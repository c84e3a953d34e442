"""The decoder of the CPU: the kernels' compiled library runs all layers of a step in one call."""

from __future__ import annotations

from torch import Tensor

from tenora_engine.model.inputs import Arena, ForwardInputs
from tenora_engine.model.layers import DecoderWeights, Layer
from tenora_engine.model.linear import Linear, PackedLinear
from tenora_engine.model.rope import RopeTable, rope_tables
from tenora_engine.model.spec import DecoderSpec
from tenora_kernels import rms_norm
from tenora_kernels.compiled.decoder import (
    DecoderSizes,
    Masks,
    PackedLayer,
    PackedProjection,
    Progress,
    StepDecoder,
    StepRows,
)


def can_compile(form: type[Linear]) -> bool:
    """Whether this decoder serves linears of that form; `Decoder` serves all."""
    return issubclass(form, PackedLinear)


def decoder_sizes(spec: DecoderSpec) -> DecoderSizes:
    layer = spec.layer
    return DecoderSizes(
        hidden=layer.hidden,
        intermediate=layer.intermediate,
        heads=layer.heads,
        kv_heads=layer.kv_heads,
        head_dim=layer.head_dim,
        vocab=spec.vocab,
    )


class CompiledDecoder:
    """As `Decoder`, on weights packed for the CPU. A tied embedding is kept once."""

    def __init__(self, weights: DecoderWeights, max_positions: int) -> None:
        """Raises ModelLoadError for a rotary embedding that is not supported."""
        spec, layer = weights.spec, weights.spec.layer
        tables = rope_tables(spec, max_positions, weights.embedding.device)
        self._steps = StepDecoder(
            sizes=decoder_sizes(spec),
            layers=[_packed(*pair) for pair in zip(weights.layers, tables, strict=True)],
            embedding=None if spec.tied_embeddings else weights.embedding,
            final_norm=weights.final_norm,
            head=_projection(weights.head).weight,
            norm_eps=layer.norm_eps,
            attention_scale=layer.attention_scale,
        )
        self._final_norm, self._norm_eps = weights.final_norm, layer.norm_eps
        self._arena: Arena | None = None  # the one that `steps` uses

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
        masks: Masks | None = None,
    ) -> list[int]:
        """As `next_logits`, and of each row the likeliest token that its mask allows, the first of
        equals."""
        return self._steps.next_tokens(self._rows(inputs, arena, rows), masks)

    def advance_logits(
        self, inputs: ForwardInputs, arena: Arena, rows: Tensor, progress: Progress
    ) -> Tensor | None:  # [num_samples, vocab]
        """As `next_logits`, of a step that may be paused: then None, and the next call with the
        same `progress` goes on."""
        return self._steps.advance_logits(self._rows(inputs, arena, rows), progress)

    def hidden(self, progress: Progress, rows: Tensor) -> Tensor:  # [num_rows, hidden]
        """The normed hidden states of some rows, int64, of a step that has ended."""
        assert progress.residual is not None, "the step has ended"
        return rms_norm(progress.residual.index_select(0, rows), self._final_norm, self._norm_eps)

    def advance_tokens(
        self,
        inputs: ForwardInputs,
        arena: Arena,
        rows: Tensor,
        progress: Progress,
        masks: Masks | None = None,
    ) -> list[int] | None:
        """As `next_tokens` and `advance_logits`."""
        return self._steps.advance_tokens(self._rows(inputs, arena, rows), progress, masks)

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


def _packed(layer: Layer, table: RopeTable) -> PackedLayer:
    cos, sin = table
    return PackedLayer(
        attention_in=layer.attention_in,
        attention_out=layer.attention_out,
        mlp_in=layer.mlp_in,
        mlp_out=layer.mlp_out,
        query_norm=layer.query_norm,
        key_norm=layer.key_norm,
        cos=cos.contiguous(),
        sin=sin.contiguous(),
        qkv=_projection(layer.qkv),
        out=_projection(layer.out),
        gate_up=_projection(layer.gate_up),
        down=_projection(layer.down),
    )


def _projection(linear: Linear) -> PackedProjection:
    assert isinstance(linear, PackedLinear), "as can_compile says"
    return linear.projection
