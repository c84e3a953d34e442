"""From a step's plan to the flat tensors of one forward pass, and from sampled tokens back to the
plan's rows, on the CPU (`cuda_inputs` for CUDA). Steps of decode alone have a short way
(`decode_inputs`)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tenora_engine.events import TokenLogprob
from tenora_engine.executor.decode_inputs import DecodeInputs
from tenora_engine.executor.sampling import Sampled
from tenora_engine.model.inputs import ForwardInputs
from tenora_engine.step import Proposals, Rows, Sampling, StepPlan, StepResult
from tenora_kernels import build_attention_layout, build_segments
from tenora_kernels.compiled.decoder import Masks, Progress
from tenora_kernels.compiled.draft_layer import Seeds
from tenora_kernels.segments import AdapterTable

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Batch:
    """One step, ready to run; valid until the next is built, or for good if it can be paused."""

    inputs: ForwardInputs
    sample_rows: Tensor  # [num_samples] int64, the rows whose next token is wanted
    sampling: Sampling | None  # of those rows, in that order
    rows: Rows
    progress: Progress | None = None  # of a step that can be paused, or whose states are read
    proposals: Proposals | None = None


def result_of(rows: Rows, sampled: Sampled, seconds: float | None) -> StepResult:
    """The tokens of each of the plan's rows: what was sampled after its last token, or, where
    several were, those up to the first that a draft had not foretold."""
    token_ids: list[list[int]] = [[] for _ in range(len(rows))]
    logprobs: list[list[TokenLogprob] | None] = [None] * len(rows)
    embeddings: dict[int, list[float]] = {}
    end, first = 0, 0
    for place, count in enumerate(rows.num_samples):
        end += rows.query_len[place]
        if not count:
            continue
        drafts = rows.token_ids[end - count + 1 : end]
        right = 0
        while right < len(drafts) and drafts[right] == sampled.token_ids[first + right]:
            right += 1
        token_ids[place] = sampled.token_ids[first : first + right + 1]
        found = sampled.logprobs[first : first + right + 1]
        if found[0] is not None:
            logprobs[place] = [each for each in found if each is not None]
        if first + count - 1 in sampled.embeddings:
            embeddings[place] = sampled.embeddings[first + count - 1]
        first += count
    return StepResult(token_ids, logprobs, seconds, embeddings)


def seeds(rows: Rows, wanted: list[int], token_ids: list[list[int]]) -> Seeds:
    """Of some of the rows, whose new tokens are given by row, where drafts of theirs go on. What
    was computed for drafts that came to nothing is passed over."""
    ends = list(accumulate(rows.query_len))
    wrong = [rows.num_samples[row] - len(token_ids[row]) for row in wanted]
    each = list(zip(wanted, wrong, strict=True))
    return Seeds(
        last=[ends[row] - 1 - count for row, count in each],
        token_ids=[token_ids[row][-1] for row in wanted],
        positions=[rows.context_len[row] - count for row, count in each],
        table_rows=wanted,
    )


class BatchBuilder:
    """Builds batches for one adapter table. `pause` stops what can be paused, see `Progress`; None
    where nothing can."""

    def __init__(
        self,
        block_tokens: int,
        table: AdapterTable,
        pause: Tensor | None = None,  # [1] int32
    ) -> None:
        self._block_tokens = block_tokens
        self._table = table
        self._pause = pause
        self._never = torch.zeros(1, dtype=torch.int32)
        self._decode = DecodeInputs(block_tokens, table)

    def build(self, plan: StepPlan) -> Batch:
        """The plan is not empty, and its pages hold its rows' contexts."""
        rows = plan.rows
        can_pause = plan.is_preemptible and self._pause is not None
        if not can_pause and is_decode(rows):
            inputs, sample_rows = self._decode.write(rows)
        else:
            inputs, sample_rows = self._ragged(rows)
        return Batch(inputs, sample_rows, plan.sampling, rows, self._progress(plan), plan.proposals)

    def _progress(self, plan: StepPlan) -> Progress | None:
        if plan.is_preemptible and self._pause is not None:
            return Progress(self._pause)
        embeds = plan.sampling is not None and bool(plan.sampling.embedded)
        return Progress(self._never) if embeds or plan.proposals is not None else None

    def _ragged(self, rows: Rows) -> tuple[ForwardInputs, Tensor]:
        """Inputs, and [num_samples] int64: the rows that sample."""
        query = np.frombuffer(rows.query_len, np.int32).astype(np.int64)
        context = np.frombuffer(rows.context_len, np.int32).astype(np.int64)
        samples = np.frombuffer(rows.num_samples, np.int32)
        blocks = -(-context // self._block_tokens)
        table = np.zeros((len(rows), blocks.max()), np.int32)
        table[np.arange(table.shape[1]) < blocks[:, None]] = np.frombuffer(rows.pages, np.int32)
        per_token = torch.from_numpy(self._per_token(rows, query, context, table))
        token_ids, positions, slots = per_token.unbind(0)
        adapter_slot = np.frombuffer(rows.adapter_slot, np.int32)
        inputs = ForwardInputs(
            token_ids=token_ids,
            positions=positions,
            slots=slots,
            attention=build_attention_layout(query, context, torch.from_numpy(table), "cpu"),
            segments=build_segments(torch.from_numpy(adapter_slot.repeat(query)), self._table),
        )
        ends = query.cumsum()
        if samples.max() <= 1:
            sampled = ends[samples > 0] - 1
        else:
            spans = zip(ends.tolist(), samples.tolist(), strict=True)
            sampled = np.concatenate([np.arange(end - count, end) for end, count in spans])
        return inputs, torch.from_numpy(sampled)

    def _per_token(
        self,
        rows: Rows,
        query: Int64s,  # [num_seqs]
        context: Int64s,  # [num_seqs]
        table: Int32s,  # [num_seqs, max_blocks]
    ) -> Int64s:  # [3, num_tokens]: token ids, positions, KV slots
        per_token = np.empty((3, len(rows.token_ids)), np.int64)
        token_ids, positions, slots = per_token
        token_ids[:] = np.frombuffer(rows.token_ids, np.int32)
        positions[:] = np.arange(len(token_ids)) + (context - query.cumsum()).repeat(query)
        block, offset = np.divmod(positions, self._block_tokens)
        slots[:] = table[np.arange(len(rows)).repeat(query), block]
        slots *= self._block_tokens
        slots += offset
        return per_token


def is_decode(rows: Rows) -> bool:
    """Whether each row runs one token and its drafts, and samples what follows them."""
    return rows.query_len == rows.num_samples


def is_likeliest(sampling: Sampling | None) -> bool:
    """Whether of each sample the likeliest token is all that is wanted, at most of those that its
    mask allows."""
    if sampling is None:
        return True
    if sampling.draws is not None or sampling.num_top or sampling.embedded:
        return False
    if sampling.changes is None:
        return True
    changes = sampling.changes
    others = (changes.repetition, changes.bias, changes.penalties, changes.allowed_rows)
    return changes.barred is None and all(each is None for each in others)


def masks_of(sampling: Sampling | None, num_samples: int) -> Masks | None:
    """Of samples of which `is_likeliest` holds; they are waited for."""
    changes = None if sampling is None else sampling.changes
    if changes is None or changes.mask_rows is None or changes.masks is None:
        return None
    mask_of = np.full(num_samples, -1, np.int32)
    mask_of[changes.mask_rows] = np.arange(len(changes.mask_rows))
    return Masks(torch.from_numpy(mask_of), torch.from_numpy(changes.masks.bits))
