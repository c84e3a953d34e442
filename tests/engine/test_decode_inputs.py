"""Decode steps are written over the tensors of those before: nothing of them may be left."""

from __future__ import annotations

from array import array

import hypothesis.strategies as st
from hypothesis import given
from torch import Tensor

from batch_reference import check_batch
from engine_fakes import make_config, make_request
from tenora_engine.executor.batch import BatchBuilder
from tenora_engine.executor.device_memory import allocate_table
from tenora_engine.scheduling.plan import PlanWriter, ScheduledSequence, ScheduledStep
from tenora_engine.sequence import Sequence

BLOCK_TOKENS = 4
CONFIG = make_config(block_tokens=BLOCK_TOKENS)
WRITER = PlanWriter(BLOCK_TOKENS, CONFIG.model.vocab, 0)


@st.composite
def decoding(draw: st.DrawFn) -> ScheduledSequence:
    """A sequence of any length at its last token, with drafts or none, on any pages and slot; it
    may hold more pages than it needs."""
    token_ids = draw(st.lists(st.integers(0, 95), min_size=1, max_size=24))
    drafts = draw(st.lists(st.integers(0, 95), max_size=5))
    blocks = -(-(len(token_ids) + len(drafts)) // BLOCK_TOKENS) + draw(st.integers(0, 2))
    sequence = Sequence(
        request=make_request("r", token_ids),
        index=0,
        token_ids=token_ids,
        num_prompt=len(token_ids),
        num_computed=len(token_ids) - 1,
        block_table=array("i", draw(st.permutations(range(32)))[:blocks]),
        adapter_slot=draw(st.integers(-1, 3)),
    )
    return ScheduledSequence(sequence, 1, True, tuple(drafts))


def builder() -> BatchBuilder:
    return BatchBuilder(BLOCK_TOKENS, allocate_table(CONFIG))


def check(used: BatchBuilder, items: list[ScheduledSequence]) -> None:
    step = ScheduledStep(items)
    check_batch(used.build(WRITER.write(step)), step, BLOCK_TOKENS)


@given(steps=st.lists(st.lists(decoding(), min_size=1, max_size=4), min_size=2, max_size=6))
def test_a_step_does_not_depend_on_those_before(steps: list[list[ScheduledSequence]]) -> None:
    used = builder()
    for items in [*steps, *steps]:
        check(used, items)


@given(item=decoding(), page=st.integers(0, 31), slot=st.integers(-1, 3))
def test_what_changes_between_two_steps_of_a_sequence_is_seen(
    item: ScheduledSequence, page: int, slot: int
) -> None:
    used = builder()
    check(used, [item])
    item.sequence.block_table[0] = page  # another sequence was first with this block
    item.sequence.adapter_slot = slot
    check(used, [item])


def test_steps_of_one_shape_share_their_memory() -> None:
    def step(length: int, count: int) -> list[Tensor]:
        sequences = [
            Sequence(make_request("r", [1] * length), 0, [1] * length, length, length - 1)
            for _ in range(count)
        ]
        for sequence in sequences:
            sequence.block_table = array("i", range(8))
        step = ScheduledStep([ScheduledSequence(sequence, 1, True) for sequence in sequences])
        inputs = used.build(WRITER.write(step)).inputs
        return [inputs.token_ids, inputs.slots, inputs.attention.block_table]

    used = builder()
    first = step(5, 2)
    assert all(mine is theirs for mine, theirs in zip(step(8, 2), first, strict=True))
    assert all(mine is not theirs for mine, theirs in zip(step(9, 2), first, strict=True))
    assert all(mine is theirs for mine, theirs in zip(step(7, 2), first, strict=True))
    assert first[0].tolist() == [1, 1], "memory that a tensor sees lives as long as the tensor"
