"""ModelRunner: one step's plan to tensors (`build_batch`) and tensors to new tokens (`run`)."""

from __future__ import annotations

import torch
from torch import Tensor

from tenora_engine.config import ResolvedConfig
from tenora_engine.model.loader import LoadedModel
from tenora_engine.runner.batch import Batch, BatchBuilder
from tenora_engine.runner.sampling import Sampler
from tenora_engine.scheduling.plan import StepPlan, StepResult
from tenora_kernels.segments import AdapterTable


class ModelRunner:
    """Runs steps of one model over one page arena.

    `pool` is `[num_pages, page_elements]` in the model's dtype on its device; `table` is updated in
    place by whoever loads adapters. The plan's order has the sequences of one adapter slot next to
    each other.
    """

    def __init__(
        self,
        resolved: ResolvedConfig,
        model: LoadedModel,
        pool: Tensor,  # [num_pages, page_elements]
        table: AdapterTable,
    ) -> None:
        self._model = model
        self._pool = pool
        self._table = table
        self._kv = resolved.kv_layout
        self._builder = BatchBuilder(self._kv, table, pool.device)
        self._sampler = Sampler(resolved.model.vocab, resolved.engine.seed, pool.device)

    def build_batch(self, plan: StepPlan) -> Batch:
        """The flat ragged tensors of one step; reads the plan's sequences, changes nothing."""
        return self._builder.build(plan)

    @torch.inference_mode()
    def run(self, batch: Batch) -> StepResult:
        """Write the step's KV into its pages and sample one token for each row that samples.
        Deterministic: a row's result does not depend on what else is in the batch, as far as the
        matrix products of the backend do not."""
        hidden = self._model.decoder.forward(batch, self._pool, self._kv, self._table)
        logits = self._model.decoder.logits(hidden, batch.sample_rows)
        sampled = self._sampler.sample(logits, batch.sampling)
        return batch.result(sampled)
