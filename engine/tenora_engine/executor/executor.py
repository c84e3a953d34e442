"""ModelExecutor: executes the plans of steps with one model over one page arena. It keeps tensors;
sequences, requests and their order it does not know."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterable

import msgspec
import torch
from torch import Tensor

from tenora_engine.adapters.packed import PackedAdapter
from tenora_engine.config import ResolvedConfig
from tenora_engine.executor.batch import (
    Batch,
    BatchBuilder,
    is_likeliest,
    masks_of,
    result_of,
    seeds,
)
from tenora_engine.executor.cuda import CudaSteps
from tenora_engine.executor.device_memory import DeviceMemory
from tenora_engine.executor.draft_layers import DraftLayers
from tenora_engine.executor.sampling import Sampled, sample
from tenora_engine.model.compiled_decoder import CompiledDecoder
from tenora_engine.model.decoder import Decoder
from tenora_engine.model.inputs import Arena
from tenora_engine.model.loader import LoadedModel
from tenora_engine.step import EndedCopy, StepPlan, StepResult
from tenora_kernels.compiled.decoder import NO_NUMBER
from tenora_kernels.compiled.draft_layer import DraftLayer
from tenora_kernels.gpu.tuning import decode_parts
from tenora_kernels.segments import fixed_tile_queries


class ModelExecutor:
    """An `Executor` for one process and one device.

    On CUDA all that can be is captured and compiled here.
    """

    def __init__(
        self,
        resolved: ResolvedConfig,
        model: LoadedModel,
        memory: DeviceMemory,
        layers: DraftLayers | None = None,  # of adapters
    ) -> None:
        self._decoder, self._draft, self._layers = model.decoder, model.draft, layers
        self.memory = memory
        pool, table = memory.arena.pool, memory.table
        kv_pool = pool.view(torch.float8_e4m3fn) if resolved.engine.kv_dtype == "fp8" else pool
        adapters = memory.arena.adapters.view(-1)
        self._arena = Arena(pool=kv_pool, flat=adapters, kv=resolved.kv_layout, table=table)
        self.can_preempt = isinstance(self._decoder, CompiledDecoder)
        self.is_exact = self.can_preempt or resolved.engine.batch_invariant
        self._pause = array("i", [0])
        pause = torch.frombuffer(self._pause, dtype=torch.int32) if self.can_preempt else None
        self._builder = BatchBuilder(resolved.engine.block_tokens, table, pause)
        self._preempted: dict[int, tuple[float, Batch]] = {}
        self._cuda: CudaSteps | None = None
        if isinstance(self._decoder, Decoder) and pool.device.type == "cuda":
            self._cuda = _cuda_steps(resolved, self._decoder, self._arena)

    def preempt(self, wanted: bool) -> None:
        """The step that runs or runs next, if its plan may be; from any thread. Holds until it is
        asked otherwise."""
        self._pause[0] = wanted

    @property
    def on_copy_ended(self) -> Callable[[], None] | None:
        return self.memory.on_copy_ended

    @on_copy_ended.setter
    def on_copy_ended(self, call: Callable[[], None] | None) -> None:
        self.memory.on_copy_ended = call

    def stage(self, adapters: Iterable[PackedAdapter]) -> None:
        """See `Executor.stage`."""
        self.memory.stage(adapters)

    def take_ended_copies(self) -> list[EndedCopy]:
        """See `Executor.take_ended_copies`."""
        return self.memory.take_ended_copies()

    def close(self) -> None:
        """See `Executor.close`."""
        self.memory.close()

    def execute(self, plan: StepPlan) -> StepResult | None:
        """Do what the plan says of memory, write the step's KV into its pages and sample what its
        rows ask for. None: it was preempted, and goes on when the same plan is executed again;
        others may be before.

        What a row gets depends on its own sequence only: where this `is_exact` down to the bits,
        else up to the rounding of matrix products, which libraries block differently for
        different numbers of rows.
        """
        started = time.perf_counter()
        before_s, batch = self._preempted.pop(plan.number, (0.0, None))
        if batch is None:
            self.memory.apply(plan.memory)
            if not plan.rows:
                return StepResult([], [], time.perf_counter() - started)
            if self._cuda is not None:
                done = self._cuda.run(plan.rows, plan.sampling)
                waited_s = time.perf_counter() - started if any(plan.rows.num_samples) else None
                return result_of(plan.rows, done, waited_s)
            batch = self._builder.build(plan)
        sampled = self._run(batch)
        if sampled is None:
            self._preempted[plan.number] = before_s + time.perf_counter() - started, batch
            return None
        result = result_of(plan.rows, sampled, 0.0)
        sampled_s = time.perf_counter()
        proposals = self._propose(batch, result.token_ids)
        ended_s = time.perf_counter()
        return msgspec.structs.replace(
            result,
            seconds=before_s + ended_s - started,
            proposals=proposals,
            proposing_s=ended_s - sampled_s if proposals else 0.0,
        )

    def _run(self, batch: Batch) -> Sampled | None:
        if isinstance(self._decoder, CompiledDecoder) and is_likeliest(batch.sampling):
            chosen = self._next_tokens(self._decoder, batch)
            return None if chosen is None else Sampled(chosen, [None] * len(chosen))
        computed = self._next_logits(batch)
        if computed is None:
            return None
        logits, hidden = computed
        if not logits.shape[0]:
            return Sampled([], [])
        sampled = sample(logits, batch.sampling)
        if hidden is not None and batch.sampling is not None:
            states = hidden.float().tolist()
            sampled.embeddings.update(zip(batch.sampling.embedded, states, strict=True))
        return sampled

    def _propose(self, batch: Batch, token_ids: list[list[int]]) -> dict[int, list[int]]:
        """By row, what its draft layer takes to come behind its new tokens; the rows of one layer
        in one call."""
        if batch.proposals is None:
            return {}
        by_layer: dict[str | None, list[int]] = {}
        for row in batch.proposals.most:
            if token_ids[row] and token_ids[row][-1] != NO_NUMBER:
                by_layer.setdefault(batch.proposals.layers.get(row), []).append(row)
        found: dict[int, list[int]] = {}
        for digest, rows in by_layer.items():
            if digest is None:
                if self._draft is not None:
                    found |= self._proposed_by(self._draft, batch, rows, token_ids)
                continue
            layer = None if self._layers is None else self._layers.get(digest)
            if self._layers is None or layer is None:
                continue  # it has left memory meanwhile
            try:
                found |= self._proposed_by(layer, batch, rows, token_ids)
            except RuntimeError as error:  # an adapter's own costs nobody a step
                self._layers.fail(digest, error)
        return found

    def _proposed_by(
        self, layer: DraftLayer, batch: Batch, rows: list[int], token_ids: list[list[int]]
    ) -> dict[int, list[int]]:
        asked, progress = batch.proposals, batch.progress
        if asked is None or progress is None:
            return {}
        chains = layer.propose(
            progress,
            seeds(batch.rows, rows, token_ids),
            batch.inputs.attention.block_table,
            self._arena.pool,
            self._arena.kv,
            max(asked.most.values()),
            asked.least_chance,
        )
        return {row: chain[: asked.most[row]] for row, chain in zip(rows, chains, strict=True)}

    def _next_tokens(self, decoder: CompiledDecoder, batch: Batch) -> list[int] | None:
        step = (batch.inputs, self._arena, batch.sample_rows)
        masks = masks_of(batch.sampling, len(batch.sample_rows))
        if batch.progress is None:
            return decoder.next_tokens(*step, masks)
        return decoder.advance_tokens(*step, batch.progress, masks)

    def _next_logits(self, batch: Batch) -> tuple[Tensor, Tensor | None] | None:
        """[num_samples, vocab], and [num_embedded, hidden] where hidden states are wanted."""
        rows, decoder = batch.sample_rows, self._decoder
        embedded = None
        if batch.sampling is not None and batch.sampling.embedded:
            embedded = rows[batch.sampling.embedded]
        if isinstance(decoder, Decoder):
            every = decoder.forward(batch.inputs, self._arena)
            logits = decoder.logits(every, rows)
            return logits, None if embedded is None else every.index_select(0, embedded)
        progress = batch.progress
        if progress is None:
            return decoder.next_logits(batch.inputs, self._arena, rows), None
        found = decoder.advance_logits(batch.inputs, self._arena, rows, progress)
        if found is None:
            return None
        return found, None if embedded is None else decoder.hidden(progress, embedded)


def _cuda_steps(resolved: ResolvedConfig, decoder: Decoder, arena: Arena) -> CudaSteps:
    steps = CudaSteps(
        decoder,
        arena,
        parts=decode_parts(arena.pool.device, arena.kv.kv_heads),
        max_seqs=resolved.engine.max_running,
        max_tokens=resolved.engine.max_step_tokens,
        max_context=resolved.model.context_tokens,
        fixed_tile=_fixed_tile(resolved),
    )
    steps.prepare()
    return steps


def _fixed_tile(resolved: ResolvedConfig) -> int | None:
    model = resolved.model
    if not resolved.engine.batch_invariant:
        return None
    return fixed_tile_queries(model.heads, model.kv_heads)
