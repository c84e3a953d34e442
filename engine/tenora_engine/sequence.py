"""One running or waiting sequence: its tokens, its pages, its adapter slot; and the request in
flight that it is of.

The scheduler owns and changes it; an executor is told of it by plans (`step`)."""

from __future__ import annotations

import enum
import math
from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tenora_engine.events import Residency
from tenora_engine.request import GenerationRequest
from tenora_engine.telemetry import ServiceMeter, WaitPart
from tenora_kernels.segments import BASE_SLOT

if TYPE_CHECKING:
    from tenora_engine.grammar.guide import Guide
    from tenora_engine.memory.host_kv import KVFetch
    from tenora_engine.memory.prefix import PrefixNode, PrefixRoot
    from tenora_engine.scheduling.beam_search import BeamGroup
    from tenora_engine.scheduling.bills import Bill
    from tenora_engine.scheduling.drafts import Drafting
    from tenora_engine.scheduling.sampling import Sampler
    from tenora_engine.scheduling.wait_accounts import Float64s
    from tenora_engine.scheduling.waits import Wait


class SequenceState(enum.Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(eq=False, slots=True)
class CachedPrefix:
    """What the memory manager knows of one sequence: its place among what is cached, and what is on
    its way for it."""

    root: PrefixRoot | None = None
    end: PrefixNode | None = None  # of what the tree has of its blocks, pinned
    wanted_end: PrefixNode | None = None  # of what is cached of it, while it waits
    encoded: bytes = b""  # `token_ids` when it last waited, as the prefix tree compares them
    fetch: KVFetch | None = None  # for which it waits
    num_fetches: int = 0  # that have come or were cancelled, since it began to wait
    looked_ahead: bool = False  # whether a fetch was considered before its turn
    unpaid_pages: int = 0  # fetched for it; charged when it starts
    lacked: int = 0  # pages of which there were fewer when it was last to start


@dataclass(eq=False, slots=True)
class Usage:
    """What its usage record will say, and the meter of its tenant and class."""

    meter: ServiceMeter = field(default_factory=ServiceMeter)
    residency: Residency | None = None
    admitted_s: float | None = None
    first_token_s: float | None = None
    cached_tokens: int = 0  # of the prompt, found in the prefix cache at first admission
    adapter_load_ms: float = 0.0
    cold_load: bool = False  # the load it waited for is metered with it
    preemptions: int = 0


@dataclass(eq=False, slots=True)
class Service:
    """What it is owed and what it has been charged, in the scheduler's order of service."""

    tier: str = "default"  # that it asked for, or to which it was relegated
    class_name: str = "default"  # in which it waits and is charged
    token_cost: float = 1.0  # of a token, in tokens of the base model (scheduling.meters)
    work: float = 0.0  # expected cost until its first token, when it entered the queue
    due_s: float = 0.0  # its place in its tenant's line: deadline plus that cost
    tpot_s: float = math.inf  # promised between two tokens
    settled_length: int = 0  # tokens for which its tenant has been charged
    settled_kv: float = 0.0  # the price of KV (`Charges.kv_price`) up to which it has been
    stays_until: int = 0  # tokens, before which its place is not given to others
    slot_step: int = 0  # since which it could have run but for an adapter slot
    page_waits: int = 0  # steps in which it was the first to find no pages
    short_walk: int = 0  # of the intake, in which it first found no pages


@dataclass(eq=False, slots=True)
class Waited:
    """What it waits for and has waited for (scheduling.waits)."""

    now: Wait | None = None  # while it waits
    first: Float64s | None = None  # until it first ran, by what took the time
    again: Float64s | None = None  # after it had run
    parts: list[WaitPart] | None = None  # of both, once it has ended


@dataclass(eq=False, slots=True, weakref_slot=True)
class Sequence:
    """`token_ids` is prompt plus output; until it first runs, the list is its request's (see
    `own_tokens`). KV of the first `num_computed` of them lies in the pages of `block_table`. After
    preemption `num_computed` is 0 and the output is part of what is prefilled again. What others
    than the scheduler's steps know of it is in parts of its own.

    A page of `block_table` may be exchanged between two steps for another which holds the same
    KV (when two sequences computed the same block at once), so it must be read in every step.
    """

    request: GenerationRequest
    index: int
    token_ids: list[int]
    num_prompt: int
    num_computed: int = 0
    block_table: array[int] = field(default_factory=lambda: array("i"))  # arena page numbers
    adapter_slot: int = BASE_SLOT
    state: SequenceState = SequenceState.WAITING
    number: int = 0  # order of arrival in this engine
    arrival_s: float = 0.0  # by the engine's clock, what it had waited before it taken off
    stop_ids: frozenset[int] = frozenset()  # end of sequence and the request's stop tokens
    max_length: int = 0  # tokens at which it ends by "length"
    num_unscored: int = 0  # last tokens of its prompt whose logprobs are wanted and not known yet
    is_plain: bool = False  # of each sample the likeliest token is all that is wanted
    num_uneventful: int = 0  # tokens that it may decode before one means more than itself
    sampler: Sampler | None = None  # made when it is first sampled, unless it is plain
    guide: Guide | None = None  # in its grammar, advanced by its output
    beams: BeamGroup | None = None  # of whose beams it computes one
    drafting: Drafting | None = None  # made when drafts are first looked for
    prefix: CachedPrefix = field(default_factory=CachedPrefix)
    usage: Usage = field(default_factory=Usage)
    service: Service = field(default_factory=Service)
    waits: Waited = field(default_factory=Waited)

    def own_tokens(self) -> None:
        """It runs: from now on tokens may be added to its own list."""
        if self.token_ids is self.request.prompt_token_ids:
            self.token_ids = self.token_ids.copy()

    @property
    def num_output(self) -> int:
        return len(self.token_ids) - self.num_prompt

    @property
    def characters(self) -> int:
        """That its grammar counts."""
        return 0 if self.guide is None else self.guide.characters

    @property
    def num_generated(self) -> int:
        """Tokens that it is metered for: of a beam search each step's, whatever became of them."""
        return self.num_output if self.beams is None else self.beams.num_steps

    @property
    def num_uncomputed(self) -> int:
        return len(self.token_ids) - self.num_computed

    @property
    def first_unscored(self) -> int:
        """The token of its prompt from which on logprobs are wanted."""
        return self.num_prompt - self.num_unscored

    @property
    def page_owner(self) -> int:
        """What the pool is told of whose its pages are."""
        return 0 if self.prefix.root is None else self.prefix.root.number

    @property
    def next_due_s(self) -> float:
        """When its next token is due by the promise that came with it."""
        if self.usage.first_token_s is None:
            return math.inf
        return self.usage.first_token_s + self.num_output * self.service.tpot_s


@dataclass
class Flight:
    """`sequences` have not ended; of these `held` wait until the blocks of their common prompt,
    which sequence 0 computes, are in the prefix tree, or in a beam search for the others' next
    tokens. When several end together sequence 0 goes last, so that it knows whether the prompt was
    ever computed."""

    request: GenerationRequest
    sequences: list[Sequence]
    held: list[Sequence]
    bill: Bill
    ran: bool = False  # whether any of them was ever admitted

    @property
    def is_whole(self) -> bool:
        """Whether none of its sequences has run or ended."""
        return not self.ran and len(self.sequences) == self.request.sampling.n
