"""What a step runs, as the scheduler has it (`ScheduledStep`, of sequences), and how it is said to
an executor (`StepPlan`, of numbers)."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Items
from functools import cached_property

import msgspec

from tenora_engine.scheduling.sampling import plan_sampling
from tenora_engine.sequence import Sequence
from tenora_engine.step import MemoryOperation, Proposals, Rows, Sampling, StepPlan
from tenora_kernels.segments import BASE_SLOT


class ScheduledSequence(msgspec.Struct, frozen=True, gc=False):
    """One sequence in a step: its next `num_tokens` uncomputed tokens run, and its next token is
    sampled when that is all of them; so is the one after each of its `drafts`, which run too. The
    last `num_scored` before that one are looked at for the logprobs of what follows them."""

    sequence: Sequence
    num_tokens: int
    samples: bool
    drafts: tuple[int, ...] = ()
    num_scored: int = 0

    @property
    def num_samples(self) -> int:
        return self.num_scored + self.samples + len(self.drafts)

    def without_drafts(self) -> ScheduledSequence:
        return msgspec.structs.replace(self, drafts=()) if self.drafts else self


class ScheduledStep:
    """The sequences of a step, in the order of its plan's rows."""

    def __init__(
        self, items: Items[ScheduledSequence] = (), proposals: Proposals | None = None
    ) -> None:
        self.items = items
        self.proposals = proposals  # of its plan

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[ScheduledSequence]:
        return iter(self.items)

    @cached_property
    def num_tokens(self) -> int:
        return sum([item.num_tokens for item in self.items])

    @cached_property
    def num_drafts(self) -> int:
        return sum(len(item.drafts) for item in self.items)

    @cached_property
    def samples_once(self) -> bool:
        """Whether no sequence has more samples than the one of its next token."""
        return not any(item.drafts or item.num_scored for item in self.items)

    @cached_property
    def is_decode(self) -> bool:
        """Whether every sequence runs one token, and its drafts, and samples what comes next."""
        return self.num_tokens == len(self.items) and all(item.samples for item in self.items)


class PlanWriter:
    """Writes steps as plans, each with a number of its own."""

    def __init__(self, block_tokens: int, vocab: int, engine_seed: int) -> None:
        self._block_tokens = block_tokens
        self._vocab = vocab
        self._seed = engine_seed
        self._number = 0

    def write(
        self,
        step: ScheduledStep,
        is_preemptible: bool = False,
        memory: Iterable[MemoryOperation] = (),
    ) -> StepPlan:
        """The step's sequences have the pages that its tokens need. O(their tokens and pages)."""
        self._number += 1
        is_plain = step.is_decode and not step.num_drafts
        rows = self._decode_rows(step) if is_plain else self._rows(step)
        asked = self._sampling(step)
        return StepPlan(self._number, rows, asked, is_preemptible, list(memory), step.proposals)

    def probe(self, item: ScheduledSequence) -> StepPlan:
        """One token of the base model, at the beginning of the page into which the sequence's next
        one would go: nobody else reads that page, and the sequence ends."""
        self._number += 1
        sequence, one = item.sequence, array("i", [1])
        page = sequence.block_table[sequence.num_computed // self._block_tokens]
        rows = Rows(
            sequence=[sequence.number],
            query_len=one,
            context_len=one,
            adapter_slot=array("i", [BASE_SLOT]),
            num_samples=one,
            token_ids=array("i", [0]),
            pages=array("i", [page]),
        )
        return StepPlan(self._number, rows)

    def _sampling(self, step: ScheduledStep) -> Sampling | None:
        if step.samples_once:
            sampling = [item.sequence for item in step.items if item.samples]
            return plan_sampling(sampling, self._vocab, self._seed)
        items = [item for item in step.items if item.num_samples]
        return plan_sampling(
            [item.sequence for item in items],
            self._vocab,
            self._seed,
            [item.drafts if item.samples else None for item in items],
            [_given(item) for item in items],
        )

    def _decode_rows(self, step: ScheduledStep) -> Rows:
        """The same as `_rows`, of steps in which nearly all that takes time is to begin a row."""
        sequences = [item.sequence for item in step.items]
        contexts = [sequence.num_computed + 1 for sequence in sequences]
        ones = array("i", [1]) * len(sequences)
        return Rows(
            sequence=[sequence.number for sequence in sequences],
            query_len=ones,
            context_len=array("i", contexts),
            adapter_slot=array("i", [sequence.adapter_slot for sequence in sequences]),
            num_samples=ones,
            token_ids=array("i", [sequence.token_ids[-1] for sequence in sequences]),
            pages=self._pages(sequences, contexts),
        )

    def _rows(self, step: ScheduledStep) -> Rows:
        sequences = [item.sequence for item in step.items]
        query = [item.num_tokens for item in step.items]
        num_samples: list[int] = [item.samples for item in step.items]
        if not step.samples_once:
            query = [item.num_tokens + len(item.drafts) for item in step.items]
            num_samples = [item.num_samples for item in step.items]
        tokens: list[int] = []
        for item, sequence, count in zip(step.items, sequences, query, strict=True):
            start = sequence.num_computed
            if count == 1:
                tokens.append(sequence.token_ids[start])
            else:
                tokens += sequence.token_ids[start : start + item.num_tokens]
                tokens += item.drafts
        contexts = [s.num_computed + count for s, count in zip(sequences, query, strict=True)]
        return Rows(
            sequence=[sequence.number for sequence in sequences],
            query_len=array("i", query),
            context_len=array("i", contexts),
            adapter_slot=array("i", [sequence.adapter_slot for sequence in sequences]),
            num_samples=array("i", num_samples),
            token_ids=array("i", tokens),
            pages=self._pages(sequences, contexts),
        )

    def _pages(self, sequences: Items[Sequence], contexts: Items[int]) -> array[int]:
        size, pages = self._block_tokens, array("i")
        for sequence, context in zip(sequences, contexts, strict=True):
            table, num_blocks = sequence.block_table, -(-context // size)
            pages += table if len(table) == num_blocks else table[:num_blocks]
        return pages


def _given(item: ScheduledSequence) -> list[int]:
    """The tokens of its prompt whose logprobs are wanted of the step."""
    sequence = item.sequence
    end = sequence.num_computed + item.num_tokens - item.samples
    return sequence.token_ids[end - item.num_scored + 1 : end + 1]
