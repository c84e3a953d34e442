"""What a step on CUDA reads, made from its plan on the host, beside what the CPU's batch is; and
the one copy that takes it there."""

from __future__ import annotations

from array import array

import hypothesis.strategies as st
import numpy as np
import torch
from hypothesis import given

from engine_fakes import make_config
from tenora_engine.executor.batch import BatchBuilder
from tenora_engine.executor.cuda_inputs import NOWHERE, Bucket, CudaInputs, StepArrays
from tenora_engine.executor.device_memory import allocate_table
from tenora_engine.executor.staging import Staging
from tenora_engine.model.inputs import ForwardInputs
from tenora_engine.step import Rows, StepPlan
from tenora_kernels.tiles import ContextParts, RowTiles

BLOCK_TOKENS, PARTS = 4, 8
CONFIG = make_config(block_tokens=BLOCK_TOKENS)
TABLE = allocate_table(CONFIG)
INPUTS = CudaInputs(BLOCK_TOKENS, TABLE, PARTS)
CPU = torch.device("cpu")


@st.composite
def rows(draw: st.DrawFn, max_query: int = 9) -> Rows:
    """Sequences of any lengths, prompts, decode and drafts, on any pages and slots."""
    shape = st.tuples(st.integers(1, max_query), st.integers(0, 20), st.integers(-1, 3))
    drawn = draw(st.lists(shape, min_size=1, max_size=6))
    query, before, slots = zip(*sorted(drawn, key=lambda each: each[2]), strict=True)
    context = [tokens + earlier for tokens, earlier in zip(query, before, strict=True)]
    samples = [draw(st.integers(0, min(3, tokens))) for tokens in query]
    blocks = sum(-(-tokens // BLOCK_TOKENS) for tokens in context)
    ids = st.lists(st.integers(0, 95), min_size=sum(query), max_size=sum(query))
    pages = st.lists(st.integers(0, 31), min_size=blocks, max_size=blocks)
    return Rows(
        sequence=list(range(len(query))),
        query_len=array("i", query),
        context_len=array("i", context),
        adapter_slot=array("i", slots),
        num_samples=array("i", samples),
        token_ids=array("i", draw(ids)),
        pages=array("i", draw(pages)),
    )


def columns(inputs: ForwardInputs) -> list[list[int]]:
    of_tokens = (inputs.token_ids, inputs.positions, inputs.slots, inputs.segments.row_slot)
    return [tensor.tolist() for tensor in of_tokens]


@given(rows())
def test_a_step_is_what_the_cpu_makes_of_it(planned: Rows) -> None:
    batch = BatchBuilder(BLOCK_TOKENS, TABLE).build(StepPlan(1, planned))
    step = StepArrays.of(planned, BLOCK_TOKENS)
    inputs = INPUTS.build(step)
    assert columns(inputs) == columns(batch.inputs)
    assert step.sampled().tolist() == batch.sample_rows.tolist()
    assert step.is_decode == (max(planned.query_len) == 1)
    mine, theirs = inputs.attention, batch.inputs.attention
    assert mine.query_start.tolist() == theirs.query_start.tolist()
    assert mine.context_len.tolist() == theirs.context_len.tolist()
    assert mine.block_start is not None
    for sequence, start in enumerate(mine.block_start.tolist()):
        count = -(-planned.context_len[sequence] // BLOCK_TOKENS)
        expected = theirs.block_table[sequence, :count].tolist()
        assert mine.block_table[start : start + count].tolist() == expected
    assert inputs.segments.any_adapter == batch.inputs.segments.any_adapter


@given(rows(max_query=4))
def test_drafts_have_rows_of_their_own(planned: Rows) -> None:
    """The same tokens at the same places, each behind as many as before; prompts whose tokens are
    given stay whole."""
    firsts = np.cumsum([0, *planned.num_samples]).tolist()
    given_of = {firsts[place]: 3 for place in range(0, len(planned), 2)}
    whole = StepArrays.of(planned, BLOCK_TOKENS)
    split = whole.drafts_in_rows(given_of, BLOCK_TOKENS)
    assert columns(INPUTS.build(split)) == columns(INPUTS.build(whole))
    assert split.sampled().tolist() == whole.sampled().tolist()
    expected: list[tuple[int, int, int, list[int]]] = []
    ends = whole.num_blocks.cumsum()
    for place, (query, context, samples) in enumerate(
        zip(planned.query_len, planned.context_len, planned.num_samples, strict=True)
    ):
        table = whole.pages[ends[place] - whole.num_blocks[place] : ends[place]].tolist()
        if query == samples and firsts[place] not in given_of:
            for seen in range(context - query + 1, context + 1):
                expected.append((1, seen, 1, table[: -(-seen // BLOCK_TOKENS)]))
        else:
            expected.append((query, context, samples, table))
    ends = split.num_blocks.cumsum()
    tables = [
        split.pages[end - count : end].tolist()
        for end, count in zip(ends, split.num_blocks, strict=True)
    ]
    found = zip(
        split.query.tolist(),
        split.context.tolist(),
        split.num_samples.tolist(),
        tables,
        strict=True,
    )
    assert list(found) == expected


@given(rows(), st.integers(0, 9), st.integers(0, 3))
def test_any_step_fills_a_bucket_of_one_form(planned: Rows, tokens: int, seqs: int) -> None:
    """Its tokens and sequences are the step's, what fills up has no KV, no adapter and no sequence,
    and every tensor but the blocks has the sizes that it has in any step of the bucket."""
    step = StepArrays.of(planned, BLOCK_TOKENS)
    count = len(step.token_ids)
    bucket = Bucket(count + tokens, step.num_seqs + seqs, False)
    plain, inputs = INPUTS.build(step), INPUTS.build_in(step, bucket)
    assert sizes(inputs) == sizes(INPUTS.build_in(StepArrays.idle(), bucket))
    for mine, theirs in zip(columns(inputs), columns(plain), strict=True):
        assert mine[:count] == theirs
    assert set(inputs.slots[count:].tolist()) <= {NOWHERE}
    assert set(inputs.segments.row_slot[count:].tolist()) <= {-1}
    filled, whole = inputs.attention, plain.attention
    assert filled.num_rows == bucket.tokens
    for name in ("query_start", "context_len", "block_start", "block_table"):
        expected = getattr(whole, name).tolist()
        assert getattr(filled, name).tolist()[: len(expected)] == expected
    assert used(filled.decode) == used(whole.decode)
    assert used(filled.prefill) == used(whole.prefill)
    assert used(inputs.segments.tiles) == used(plain.segments.tiles)


def used(cut: RowTiles | ContextParts | None) -> list[list[int]]:
    """The entries that are meant."""
    assert cut is not None
    count = int(cut.count) if cut.room else 0
    return cut.packed[:-1, :count].tolist()


@given(rows(max_query=1), st.integers(1, 4))
def test_parts_of_a_decode_step_fill_buckets_of_one_form(planned: Rows, bucket: int) -> None:
    """Their rows are the step's, what fills up has no KV and no adapter, and every tensor but the
    blocks has the sizes that it has in any step of the bucket."""
    whole = StepArrays.of(planned, BLOCK_TOKENS)
    expected = columns(INPUTS.build(whole))
    found: list[list[int]] = [[] for _ in expected]
    form = Bucket(bucket, bucket, True)
    idle = sizes(INPUTS.build_in(StepArrays.idle(), form))
    for part in whole.split(bucket):
        inputs = INPUTS.build_in(part, form)
        assert sizes(inputs) == idle
        for column, values in zip(found, columns(inputs), strict=True):
            column += values[: part.num_seqs]
        assert set(inputs.slots[part.num_seqs :].tolist()) <= {NOWHERE}
        assert set(inputs.segments.row_slot[part.num_seqs :].tolist()) <= {-1}
        assert inputs.attention.decode is not None
        used = inputs.attention.decode.sequence[: int(inputs.attention.decode.count)]
        assert used.tolist() == list(range(part.num_seqs))  # contexts too short to be cut
    assert found == expected


def sizes(inputs: ForwardInputs) -> list[torch.Size]:
    """In the order in which they are moved; of the blocks there is any number, at the end."""
    moved: list[torch.Size] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        moved.append(tensor.shape)
        return tensor

    inputs.moved(note)
    assert moved == [tensor.shape for tensor in inputs.tensors()]
    return moved[:-1]


@given(
    st.lists(st.tuples(st.integers(1, 60), st.integers(0, 3)), min_size=1, max_size=40),
    st.integers(0, 900),
)
def test_the_largest_steps_find_room(queries: list[tuple[int, int]], before: int) -> None:
    """Each in the room for just as many sequences, tokens and blocks as it has."""
    query = np.array([tokens for tokens, _ in queries])
    num_blocks = -(-(query + before) // BLOCK_TOKENS)
    step = StepArrays(
        query=query,
        context=query + before,
        num_samples=np.zeros(len(query), np.int64),
        adapter_slot=np.array([slot for _, slot in queries], np.int32),
        token_ids=np.zeros(query.sum(), np.int32),
        num_blocks=num_blocks,
        pages=np.zeros(num_blocks.sum(), np.int32),
    )
    room = INPUTS.num_bytes(len(query), int(query.sum()), int(num_blocks.max()))
    staging = Staging(room, CPU)
    staging.begin()
    assert None not in [staging.write(tensor) for tensor in INPUTS.build(step).tensors()]
    if step.is_decode:
        staging.begin()
        filled = INPUTS.build_in(step, Bucket(len(query), len(query), True))
        assert None not in [staging.write(tensor) for tensor in filled.tensors()]
    staging.begin()
    filled = INPUTS.build_in(step, Bucket(int(query.sum()), len(query), False))
    assert None not in [staging.write(tensor) for tensor in filled.tensors()]


tensors = st.lists(
    st.tuples(st.sampled_from([torch.int32, torch.int64, torch.float32]), st.integers(0, 40)),
    max_size=8,
)


@given(tensors, st.integers(0, 2000))
def test_what_is_put_arrives(kinds: list[tuple[torch.dtype, int]], room: int) -> None:
    """At aligned addresses, those of the last step where the sizes are the same, and also what
    finds no room any more."""
    staging = Staging(room, CPU)
    addresses: list[list[int]] = []
    for step in range(2):
        put = [torch.arange(size).to(dtype) + step for dtype, size in kinds]
        staging.begin()
        there = [staging.put(tensor) for tensor in put]
        staging.send()
        for mine, theirs in zip(there, put, strict=True):
            torch.testing.assert_close(mine, theirs, atol=0, rtol=0)
        inside = sum(-(-tensor.nbytes // 64) * 64 for tensor in put) <= room
        addresses.append([tensor.data_ptr() % 64 for tensor in there if tensor.numel()])
        if inside:
            addresses[-1] = [tensor.data_ptr() for tensor in there if tensor.numel()]
    assert addresses[0] == addresses[1]
    assert all(address % 16 == 0 for address in addresses[0])
