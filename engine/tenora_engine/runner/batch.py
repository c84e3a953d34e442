"""From a step's plan to the flat tensors of one forward pass, and from sampled tokens back to the
plan's order. Reads sequences, changes none."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tenora_engine.config import ResolvedConfig
from tenora_engine.model.inputs import ForwardInputs
from tenora_engine.runner.sampling import Sampled
from tenora_engine.runner.sampling_inputs import SamplingInputs, build_sampling_inputs
from tenora_engine.scheduling.plan import StepPlan, StepResult
from tenora_engine.sequence import Sequence
from tenora_kernels import build_attention_layout, build_segments
from tenora_kernels.segments import AdapterTable, stack_block_tables

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Batch:
    """One step, ready to run."""

    inputs: ForwardInputs
    sample_rows: Tensor  # [num_samples] int64, the rows whose next token is wanted
    sampling: SamplingInputs  # of those rows, in that order
    sampled_items: tuple[int, ...]  # their places in the plan
    num_items: int

    def result(self, sampled: Sampled) -> StepResult:
        """The sampled tokens by place in the plan."""
        result = StepResult([[] for _ in range(self.num_items)], [None] * self.num_items)
        rows = zip(self.sampled_items, sampled.token_ids, sampled.logprobs, strict=True)
        for item, token_id, logprob in rows:
            result.token_ids[item].append(token_id)
            result.logprobs[item] = None if logprob is None else [logprob]
        return result


class BatchBuilder:
    """Builds batches for one arena and one adapter table."""

    def __init__(self, resolved: ResolvedConfig, table: AdapterTable, device: torch.device) -> None:
        self._block_tokens = resolved.engine.block_tokens
        self._vocab = resolved.model.vocab
        self._seed = resolved.engine.seed
        self._table = table
        self._device = device

    def build(self, plan: StepPlan) -> Batch:
        """The plan is not empty, and its sequences have the pages their tokens need."""
        sequences = [item.sequence for item in plan.scheduled]
        computed = np.array([sequence.num_computed for sequence in sequences])
        query = np.array([item.num_tokens for item in plan.scheduled])
        context = computed + query
        first_row = query.cumsum() - query
        owner = np.repeat(np.arange(len(sequences)), query)  # [num_tokens], the row's sequence

        table = self._block_table(sequences, context)
        adapter_slot = np.array([sequence.adapter_slot for sequence in sequences], np.int32)
        sampled = [place for place, item in enumerate(plan.scheduled) if item.samples]
        return Batch(
            inputs=ForwardInputs(
                *self._rows(sequences, computed, context, first_row, owner, table),
                attention=build_attention_layout(query, context, table, self._device),
                segments=build_segments(torch.from_numpy(adapter_slot[owner]), self._table),
            ),
            sample_rows=torch.from_numpy((first_row + query - 1)[sampled]).to(self._device),
            sampling=build_sampling_inputs(
                [sequences[place] for place in sampled], self._vocab, self._seed, self._device
            ),
            sampled_items=tuple(sampled),
            num_items=len(sequences),
        )

    def _block_table(self, sequences: list[Sequence], context: Int64s) -> Tensor:
        """The pages up to each context's end; a prefill has more of them already."""
        blocks = (-(-context // self._block_tokens)).tolist()
        return stack_block_tables(
            [
                sequence.block_table[:count]
                if count < len(sequence.block_table)
                else sequence.block_table
                for sequence, count in zip(sequences, blocks, strict=True)
            ]
        )

    def _rows(
        self,
        sequences: list[Sequence],
        computed: Int64s,  # [num_seqs]
        context: Int64s,  # [num_seqs]
        first_row: Int64s,  # [num_seqs]
        owner: Int64s,  # [num_tokens]
        table: Tensor,  # [num_seqs, max_blocks] int32
    ) -> tuple[Tensor, Tensor, Tensor]:  # each [num_tokens] int64
        """Token ids, positions and KV slots, in one copy to the device."""
        tokens: list[int] = []
        for sequence, start, end in zip(
            sequences, computed.tolist(), context.tolist(), strict=True
        ):
            tokens += sequence.token_ids[start:end]
        flat = np.empty((3, len(tokens)), np.int64)
        flat[0] = tokens
        positions = flat[1]
        positions[:] = np.arange(len(tokens)) + (computed - first_row)[owner]
        pages = table.numpy()[owner, positions // self._block_tokens].astype(np.int64)
        flat[2] = pages * self._block_tokens + positions % self._block_tokens
        token_ids, positions_, slots = torch.from_numpy(flat).to(self._device).unbind(0)
        return token_ids, positions_, slots
