"""From a step's plan to the flat tensors of one forward pass, and from sampled tokens back to the
plan's order. Reads sequences, changes none. Steps of decode alone have a short way on the CPU
(`decode_inputs`)."""

from __future__ import annotations

from collections.abc import Sequence as Rows
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tenora_engine.config import ResolvedConfig
from tenora_engine.model.inputs import ForwardInputs
from tenora_engine.runner.decode_inputs import DecodeInputs
from tenora_engine.runner.sampling import Sampled
from tenora_engine.runner.sampling_inputs import SamplingInputs, build_sampling_inputs
from tenora_engine.scheduling.plan import StepPlan, StepResult
from tenora_engine.sequence import Sequence
from tenora_kernels import build_attention_layout, build_segments
from tenora_kernels.compiled.decoder import Progress
from tenora_kernels.segments import AdapterTable, stack_block_tables

Places = Rows[int]
Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Batch:
    """One step, ready to run; valid until the next is built, or for good if it can be paused."""

    inputs: ForwardInputs
    sample_rows: Tensor  # [num_samples] int64, the rows whose next token is wanted
    sampling: SamplingInputs  # of those rows, in that order
    sampled_items: Places  # their places in the plan
    num_items: int
    progress: Progress | None = None  # of a step that can be paused

    def result(self, sampled: Sampled) -> StepResult:
        """The sampled tokens by place in the plan."""
        result = StepResult([[] for _ in range(self.num_items)], [None] * self.num_items)
        rows = zip(self.sampled_items, sampled.token_ids, sampled.logprobs, strict=True)
        for item, token_id, logprob in rows:
            result.token_ids[item].append(token_id)
            result.logprobs[item] = None if logprob is None else [logprob]
        return result


class BatchBuilder:
    """Builds batches for one arena and one adapter table. `pause` stops what can be paused, see
    `Progress`; None where nothing can."""

    def __init__(
        self,
        resolved: ResolvedConfig,
        table: AdapterTable,
        device: torch.device,
        pause: Tensor | None = None,  # [1] int32
    ) -> None:
        self._block_tokens = resolved.engine.block_tokens
        self._vocab = resolved.model.vocab
        self._seed = resolved.engine.seed
        self._table = table
        self._device = device
        self._pause = pause
        self._decode = DecodeInputs(self._block_tokens, table)

    def build(self, plan: StepPlan) -> Batch:
        """The plan is not empty, and its sequences have the pages their tokens need."""
        sequences = [item.sequence for item in plan.scheduled]
        if self._device.type == "cpu" and plan.is_decode and not plan.is_pausable:
            inputs, rows = self._decode.write(sequences)
            sampled: Places = range(len(sequences))
        else:
            sampled = [place for place, item in enumerate(plan.scheduled) if item.samples]
            inputs, rows = self._ragged(plan, sequences, sampled)
        return Batch(
            inputs=inputs,
            sample_rows=rows,
            sampling=build_sampling_inputs(
                [sequences[place] for place in sampled], self._vocab, self._seed, self._device
            ),
            sampled_items=sampled,
            num_items=len(sequences),
            progress=Progress(self._pause)
            if plan.is_pausable and self._pause is not None
            else None,
        )

    def _ragged(
        self, plan: StepPlan, sequences: list[Sequence], sampled: Places
    ) -> tuple[ForwardInputs, Tensor]:  # inputs, [num_samples] int64: the rows that sample
        computed = np.array([sequence.num_computed for sequence in sequences])
        query = np.array([item.num_tokens for item in plan.scheduled])
        context = computed + query
        blocks = -(-context // self._block_tokens)  # a prefill has pages beyond them already
        table = stack_block_tables(
            [
                sequence.block_table[:count]
                for sequence, count in zip(sequences, blocks.tolist(), strict=True)
            ]
        )
        rows = torch.from_numpy(self._rows(sequences, computed, query, table.numpy()))
        token_ids, positions, slots = rows.to(self._device).unbind(0)  # one copy for all three
        adapter_slot = np.array([sequence.adapter_slot for sequence in sequences], np.int32)
        inputs = ForwardInputs(
            token_ids=token_ids,
            positions=positions,
            slots=slots,
            attention=build_attention_layout(query, context, table, self._device),
            segments=build_segments(torch.from_numpy(adapter_slot.repeat(query)), self._table),
        )
        return inputs, torch.from_numpy(query.cumsum()[sampled] - 1).to(self._device)

    def _rows(
        self,
        sequences: list[Sequence],
        computed: Int64s,  # [num_seqs]
        query: Int64s,  # [num_seqs]
        table: npt.NDArray[np.int32],  # [num_seqs, max_blocks]
    ) -> Int64s:  # [3, num_tokens]: token ids, positions, KV slots
        tokens: list[int] = []
        for sequence, start, count in zip(
            sequences, computed.tolist(), query.tolist(), strict=True
        ):
            tokens += sequence.token_ids[start : start + count]
        rows = np.empty((3, len(tokens)), np.int64)
        token_ids, positions, slots = rows
        token_ids[:] = tokens
        first_row = query.cumsum() - query
        positions[:] = np.arange(len(tokens)) + (computed - first_row).repeat(query)
        block, offset = np.divmod(positions, self._block_tokens)
        slots[:] = table[np.arange(len(sequences)).repeat(query), block]
        slots *= self._block_tokens
        slots += offset
        return rows
