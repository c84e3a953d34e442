"""From a step's plan to the flat tensors of one forward pass, and from sampled tokens back to the
plan's order. Reads sequences, changes none."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tenora_engine.config import ResolvedConfig
from tenora_engine.model.inputs import ForwardInputs
from tenora_engine.runner.sampling import Sampled
from tenora_engine.runner.sampling_inputs import SamplingInputs, build_sampling_inputs
from tenora_engine.scheduling.plan import StepPlan, StepResult
from tenora_engine.sequence import Sequence
from tenora_kernels import build_attention_layout, build_segments
from tenora_kernels.segments import AdapterTable


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
        rows = _Rows(self._block_tokens)
        for place, item in enumerate(plan.scheduled):
            rows.add(place, item.sequence, item.num_tokens, item.samples)
        flat = torch.tensor([rows.tokens, rows.positions, rows.slots], dtype=torch.int64)
        token_ids, positions, slots = flat.to(self._device).unbind(0)
        return Batch(
            inputs=ForwardInputs(
                token_ids=token_ids,
                positions=positions,
                slots=slots,
                attention=build_attention_layout(
                    rows.query_lens, rows.context_lens, rows.block_tables, self._device
                ),
                segments=build_segments(
                    torch.tensor(rows.row_slot, dtype=torch.int32), self._table
                ),
            ),
            sample_rows=torch.tensor(rows.sample_rows, dtype=torch.int64, device=self._device),
            sampling=build_sampling_inputs(
                [plan.scheduled[place].sequence for place in rows.sampled_items],
                self._vocab,
                self._seed,
                self._device,
            ),
            sampled_items=tuple(rows.sampled_items),
            num_items=len(plan.scheduled),
        )


class _Rows:
    """Collects the rows of a step in plain lists."""

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self.tokens: list[int] = []
        self.positions: list[int] = []
        self.slots: list[int] = []
        self.row_slot: list[int] = []
        self.query_lens: list[int] = []
        self.context_lens: list[int] = []
        self.block_tables: list[list[int]] = []
        self.sample_rows: list[int] = []
        self.sampled_items: list[int] = []

    def add(self, place: int, sequence: Sequence, num_tokens: int, samples: bool) -> None:
        block = self._block_tokens
        start = sequence.num_computed
        end = start + num_tokens
        pages = sequence.block_table
        self.tokens += sequence.token_ids[start:end]
        self.positions += range(start, end)
        self.slots += [
            pages[position // block] * block + position % block for position in range(start, end)
        ]
        self.row_slot += [sequence.adapter_slot] * num_tokens
        self.query_lens.append(num_tokens)
        self.context_lens.append(end)
        self.block_tables.append(pages[: -(-end // block)])
        if samples:
            self.sample_rows.append(len(self.tokens) - 1)
            self.sampled_items.append(place)
