"""A step's batch as plain lists, one token after another: what `BatchBuilder` must arrive at."""

from __future__ import annotations

from tenora_engine.executor.batch import Batch
from tenora_engine.scheduling.plan import ScheduledStep


def check_batch(batch: Batch, step: ScheduledStep, block_tokens: int) -> None:
    """Assert that every tensor which the model and the sampler read is the step's."""
    rows: list[tuple[int, int, int, int]] = []  # token id, position, KV slot, adapter slot
    query_start, context_lens, tables, samples = [0], [], [], []
    sample_rows: list[int] = []
    for item in step:
        sequence = item.sequence
        end = sequence.num_computed + item.num_tokens + len(item.drafts)
        tokens = [*sequence.token_ids, *item.drafts]
        for position in range(sequence.num_computed, end):
            page = sequence.block_table[position // block_tokens]
            slot = page * block_tokens + position % block_tokens
            rows.append((tokens[position], position, slot, sequence.adapter_slot))
        query_start.append(len(rows))
        context_lens.append(end)
        tables.append(sequence.block_table[: -(-end // block_tokens)].tolist())
        samples.append(item.samples + len(item.drafts))
        sample_rows += range(len(rows) - samples[-1], len(rows))
    inputs, layout = batch.inputs, batch.inputs.attention
    columns = (inputs.token_ids, inputs.positions, inputs.slots, inputs.segments.row_slot)
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == rows
    assert layout.query_start.tolist() == query_start
    assert layout.context_len.tolist() == context_lens
    width = max(map(len, tables))
    assert layout.block_table.tolist() == [table + [0] * (width - len(table)) for table in tables]
    assert layout.max_context_len == max(context_lens)
    assert layout.max_query_len == max(item.num_tokens + len(item.drafts) for item in step)
    assert layout.num_rows == inputs.segments.num_rows == len(rows)
    assert inputs.segments.any_adapter == any(adapter >= 0 for *_, adapter in rows)
    assert batch.sample_rows.tolist() == sample_rows
    assert batch.rows.num_samples.tolist() == samples
