"""CudaSteps: runs steps on a GPU by captured graphs: of decode, in several parts where it has more
rows than the largest of them, and of steps with prompts. What no graph is for runs eagerly, by
kernels which were all compiled at the start. Metadata goes over in one copy, and the host waits for
nothing but tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tenora_engine.executor.cuda_inputs import NOWHERE, CudaInputs, StepArrays
from tenora_engine.executor.graphs import LARGEST_BUCKET, Capture, GraphRunner, token_buckets
from tenora_engine.executor.sampling import Asked, Sampled, choose
from tenora_engine.executor.staging import Staging
from tenora_engine.executor.warmup import ask_everything
from tenora_engine.model.decoder import Decoder
from tenora_engine.model.inputs import Arena
from tenora_kernels.segments import BASE_SLOT

if TYPE_CHECKING:
    from tenora_engine import step


class CudaSteps:
    """For one model and one arena; steps have at most `max_seqs` sequences of `max_context` tokens
    and `max_tokens` tokens."""

    def __init__(
        self,
        decoder: Decoder,
        arena: Arena,
        *,
        parts: int,  # that contexts of decode rows are cut into
        max_seqs: int,
        max_tokens: int,
        max_context: int,
        fixed_tile: int | None = None,  # see CudaInputs
        largest_bucket: int = LARGEST_BUCKET,
        tokens: Sequence[int] | None = None,  # buckets of steps with prompts; None: by max_tokens
        capture: Capture | None = None,  # None: CUDA graphs
    ) -> None:
        self._decoder = decoder
        self._arena = arena
        self._max_seqs = max_seqs
        self._max_tokens = max_tokens
        self._max_context = max_context
        self._inputs = CudaInputs(arena.kv.block_tokens, arena.table, parts, fixed_tile)
        max_blocks = -(-max_context // arena.kv.block_tokens)
        buckets = token_buckets(max_tokens) if tokens is None else tokens
        seqs = max(max_seqs, largest_bucket)
        most = max(max_tokens, largest_bucket, *buckets)
        size = self._inputs.num_bytes(seqs, most, max_blocks)
        self._staging = Staging(size, arena.pool.device)
        words = -(-decoder.vocab // 32)
        self._late = Staging(seqs * words * 4, arena.pool.device)  # a mask of each sequence
        self._graphs = GraphRunner(
            decoder,
            arena,
            self._inputs,
            self._staging,
            min(max_seqs, largest_bucket),
            max_seqs=max_seqs,
            tokens=buckets,
            capture=capture,
        )

    @torch.inference_mode()
    def prepare(self) -> None:
        """Capture what is replayed, and run what is not once at each of its sizes, so that kernels
        are compiled and libraries have chosen theirs before anybody waits. No page is written."""
        self._graphs.capture_all()
        for num_tokens in (3, *(1 << i for i in range(2, self._max_tokens.bit_length()))):
            for adapter in (BASE_SLOT, 0):
                self._try(StepArrays.trial(num_tokens, self._max_context, adapter))
        for num_samples in sorted({1, self._max_seqs}):
            self._try_choices(num_samples)

    def _try_choices(self, num_samples: int) -> None:
        rows = torch.zeros(num_samples, dtype=torch.int64, device=self._arena.pool.device)
        logits = self._decoder.logits(self._graphs.any_hidden, rows)
        asked = ask_everything(num_samples, self._decoder.vocab, logits.device)
        unlisted = replace(asked, changes=None)
        for each in (None, asked, unlisted):
            choose(torch.zeros_like(logits), each)

    def _try(self, arrays: StepArrays) -> None:
        inputs = self._inputs.build(arrays)
        inputs.slots.fill_(NOWHERE)
        self._staging.begin()
        inputs = inputs.moved(self._staging.put)
        last_row = self._put(np.array([len(arrays.token_ids) - 1]))
        self._staging.send()
        hidden = self._decoder.forward(inputs, self._arena)
        choose(self._decoder.logits(hidden, last_row), None)

    def run(self, rows: step.Rows, sampling: step.Sampling | None) -> Sampled:
        """Compute the rows, write their KV and sample what they ask for. Drafts to be verified are
        rows of decode, which replays its graphs."""
        block_tokens, given = self._inputs.block_tokens, () if sampling is None else sampling.given
        arrays = StepArrays.of(rows, block_tokens).drafts_in_rows(given, block_tokens)
        return self.run_arrays(arrays, sampling)

    @torch.inference_mode()
    def run_arrays(self, arrays: StepArrays, sampling: step.Sampling | None = None) -> Sampled:
        """The same of rows that no plan has brought."""
        every, sample_rows, asked = self._compute(arrays, sampling)
        if not sample_rows.shape[0]:
            return Sampled([], [])
        sampled = choose(self._decoder.logits(every, sample_rows), asked)
        if sampling is not None and sampling.embedded:
            states = every.index_select(0, sample_rows[sampling.embedded]).float().tolist()
            sampled.embeddings.update(zip(sampling.embedded, states, strict=True))
        return sampled

    @torch.inference_mode()
    def next_logits(
        self, arrays: StepArrays, sampling: step.Sampling | None = None
    ) -> tuple[Tensor, Asked | None]:  # [num_samples, vocab], and what they ask for
        """Compute the rows and write their KV; nothing is waited for."""
        every, sample_rows, asked = self._compute(arrays, sampling)
        return self._decoder.logits(every, sample_rows), asked

    def _compute(
        self, arrays: StepArrays, sampling: step.Sampling | None
    ) -> tuple[Tensor, Tensor, Asked | None]:
        """[num_tokens, hidden], [num_samples] of these, and what they ask for."""
        parts = [arrays]
        if arrays.is_decode:
            parts = list(arrays.split(self._graphs.max_rows))
        hidden = [self._forward(part) for part in parts[:-1]]
        self._staging.begin()
        launch = self._put_inputs(parts[-1])
        sample_rows = self._put(arrays.sampled())
        asked = None if sampling is None else Asked.of(sampling, self._put)
        self._staging.send()
        hidden.append(launch())
        if asked is not None and sampling is not None and sampling.is_guided:
            self._late.begin()
            asked = asked.with_masks(sampling, self._put_late)  # made beside what was launched
            self._late.send()
        every = hidden[0] if len(hidden) == 1 else torch.cat(hidden)
        return every, sample_rows, asked

    def _forward(self, part: StepArrays) -> Tensor:  # [num_tokens, hidden]
        self._staging.begin()
        launch = self._put_inputs(part)
        self._staging.send()
        return launch().clone()  # the next replay may write over it

    def _put_inputs(self, part: StepArrays) -> Callable[[], Tensor]:
        """What computes the hidden states once the inputs have been sent."""
        replay = self._graphs.put(part)
        if replay is None:
            inputs = self._inputs.build(part).moved(self._staging.put)
            return lambda: self._decoder.forward(inputs, self._arena)

        def run() -> Tensor:
            replay.run()
            return replay.hidden[: len(part.token_ids)]

        return run

    def _put_late(self, values: npt.NDArray[Any]) -> Tensor:
        return self._late.put(torch.from_numpy(values))

    def _put(self, values: npt.NDArray[Any]) -> Tensor:
        return self._staging.put(torch.from_numpy(values))
