"""One step as values: what it is to do (`StepPlan`) and what came of it (`StepResult`). They refer
to nothing that lives, so they may go to another process or a file as they are."""

from __future__ import annotations

from array import array
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt

from tenora_engine.events import TokenLogprob

if TYPE_CHECKING:
    Int32s = array[int]
else:  # Python 3.11 has no such thing
    Int32s = array
Int64s = npt.NDArray[np.int64]
Float32s = npt.NDArray[np.float32]
Bits = npt.NDArray[np.int32]


class Rows(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The sequences of a step, those of one adapter slot next to each other, by rising slot (the
    base first). What is of each has `num_rows` entries."""

    sequence: list[int]  # the engine's number of it
    query_len: Int32s  # tokens that the step computes, drafts included
    context_len: Int32s  # tokens of the sequence after it
    adapter_slot: Int32s  # BASE_SLOT for the base model
    num_samples: Int32s
    """How many of its last tokens are followed by a sampled one: none where more of the prompt is
    to come, one as a rule, one more than its drafts where these are to be verified, and one for
    each token of a prompt whose logprobs are wanted."""
    token_ids: Int32s  # [sum of query_len]
    pages: Int32s  # of the arena, for each row as many as its context fills

    def __len__(self) -> int:
        return len(self.sequence)


class InstallAdapter(msgspec.Struct, frozen=True, array_like=True, tag="install"):
    """An adapter's bytes into pages, unless they were copied there before, and where they lie into
    its slot."""

    digest: str  # of a staged adapter
    slot: int
    pages: Int32s
    is_copied: bool = False


class ClearSlot(msgspec.Struct, frozen=True, array_like=True, tag="clear"):
    """There is no adapter in the slot any more."""

    slot: int


class StoreKV(msgspec.Struct, frozen=True, array_like=True, tag="store"):
    """A page of KV to the host."""

    page: int
    host_page: int


class CopyKV(msgspec.Struct, frozen=True, array_like=True, tag="copy_kv"):
    """A page of KV to another, before anything of the step is computed."""

    page: int
    target: int


class FetchKV(msgspec.Struct, frozen=True, array_like=True, tag="fetch"):
    """Begin to copy KV of the host into pages, beside the steps."""

    copy: int  # its number
    host_pages: Int32s
    pages: Int32s


class CopyAdapter(msgspec.Struct, frozen=True, array_like=True, tag="copy"):
    """Begin to copy an adapter's bytes into pages, beside the steps."""

    copy: int  # its number
    digest: str  # of a staged adapter
    pages: Int32s


class CancelCopy(msgspec.Struct, frozen=True, array_like=True, tag="cancel"):
    """Nothing of the copy is written any more. One that has ended stays as it is."""

    copy: int


MemoryOperation = InstallAdapter | ClearSlot | StoreKV | CopyKV | FetchKV | CopyAdapter | CancelCopy


class EndedCopy(msgspec.Struct, frozen=True, array_like=True):
    """A copy that went beside the steps and was not cancelled. What is in the pages of one that
    `failed` is nobody's."""

    copy: int
    seconds: float
    failed: bool = False


class Entries(msgspec.Struct, frozen=True, array_like=True):
    """Single logits to change: `value[i]` is for `place[i]` of the flattened samples, none of them
    twice."""

    place: Int64s  # [num_entries]
    value: Float32s  # [num_entries]


class Masks:
    """Which tokens may follow samples, [num_guided * ceil(vocab / 32)]: a bit each, the first token
    the lowest bit of the first word. They may still be made while the step runs whose samples they
    are of: who reads them waits."""

    __slots__ = ("_made",)

    def __init__(self, made: Bits | Future[Bits]) -> None:
        self._made = made

    @property
    def bits(self) -> Bits:
        """Raises whatever kept them from being made."""
        return self._made.result() if isinstance(self._made, Future) else self._made


class LogitChanges(msgspec.Struct, frozen=True, array_like=True):
    """What the samples of a step change about their logits, sample by sample. Everything is None
    where none asks for it."""

    repetition: Entries | None  # tokens seen in prompt or output, and the row's penalty
    bias: Entries | None  # to add
    penalties: Entries | None  # presence and frequency, to subtract
    allowed_rows: Int64s | None  # samples which only these may follow:
    allowed_places: Int64s | None
    barred: Int64s | None  # places of tokens that may not come now
    mask_rows: Int64s | None = None  # samples that follow grammars, [num_guided]
    masks: Masks | None = None  # of each of these, which tokens may come at all


class Draws(msgspec.Struct, frozen=True, array_like=True):
    """The samples whose token is drawn; the others are greedy. All are [num_draws]."""

    rows: Int64s  # among the samples of the step
    temperature: Float32s  # above 0
    uniform: Float32s  # in [0, 1), of (seed, sequence index, position)
    top_k: Int64s | None  # the vocabulary where off; None where all are
    top_p: Float32s | None  # 1 where off; None where all are
    min_p: Float32s | None  # 0 where off; None where all are
    max_top_k: int  # the largest top_k that is on, 0 where all are off


class Sampling(msgspec.Struct, frozen=True, array_like=True):
    """What is asked of a step's samples, beside the likeliest token of each."""

    changes: LogitChanges | None  # before temperature and filters
    draws: Draws | None
    num_top: dict[int, int]  # sample -> alternatives to report with its token's logprob
    given: dict[int, int] = {}
    """Sample -> the token that follows, whatever its logits: of a prompt whose tokens' logprobs are
    wanted."""
    embedded: list[int] = []  # samples of which the hidden states are wanted
    named: dict[int, list[int]] = {}  # sample -> the alternatives, of those that name them

    @property
    def is_guided(self) -> bool:
        """Whether any sample has a mask."""
        return self.changes is not None and self.changes.masks is not None


class Proposals(msgspec.Struct, frozen=True, array_like=True):
    """What the executor's draft layers are to propose behind what comes of a step."""

    most: dict[int, int]  # row -> tokens
    least_chance: float  # of all of a row's tokens together, as the layer has it
    layers: dict[int, str] = {}  # row -> digest of its adapter's own layer; others: the base's


class StepPlan(msgspec.Struct, frozen=True, array_like=True):
    """All of what one step is to do, the operations on memory first, in order. Empty when there is
    nothing to do.

    `is_preemptible`: another step may be executed before this one has ended.
    """

    number: int
    rows: Rows
    sampling: Sampling | None = None  # None: of each sample the likeliest token
    is_preemptible: bool = False
    memory: list[MemoryOperation] = []
    proposals: Proposals | None = None

    def __bool__(self) -> bool:
        return bool(self.rows.sequence or self.memory)

    @property
    def num_tokens(self) -> int:
        return len(self.rows.token_ids)


class StepResult(msgspec.Struct, frozen=True, array_like=True):
    """What came of a plan, by its rows: new tokens (none where nothing was sampled, several where
    drafts were right, the last NO_NUMBER where its logits were none) and their logprobs where they
    were asked for."""

    token_ids: list[list[int]]
    logprobs: list[list[TokenLogprob] | None]
    seconds: float | None = 0.0
    """That the step was worked on. None where its end was not waited for, since it samples nothing:
    the device works on it while the next plan is made."""
    embeddings: dict[int, list[float]] = {}  # row -> [hidden], where they were asked for
    proposals: dict[int, list[int]] = {}  # row -> tokens that may come next, where asked for
    proposing_s: float = 0.0  # of `seconds`, what these took


def encode(value: StepPlan | StepResult) -> bytes:
    return _encoder.encode(value)


def decode_plan(message: bytes | memoryview) -> StepPlan:
    """Raises msgspec.DecodeError where it is no plan."""
    return _plans.decode(message)


def decode_result(message: bytes | memoryview) -> StepResult:
    """Raises msgspec.DecodeError where it is no result."""
    return _results.decode(message)


def _to_wire(value: Any) -> Any:
    if isinstance(value, Masks):
        value = value.bits
    if isinstance(value, array):
        return memoryview(value).cast("B") if value else b""
    if isinstance(value, np.ndarray):
        return np.ascontiguousarray(value).data.cast("B") if value.size else b""
    raise NotImplementedError(f"{type(value)} does not cross to an executor")


def _from_wire(kind: Any, value: Any) -> Any:
    if kind is array:
        ints = array("i")
        ints.frombytes(value)
        return ints
    if kind is Masks:
        return Masks(np.frombuffer(value, np.int32).copy())
    dtype = kind.__args__[1].__args__[0]
    return np.frombuffer(value, dtype).copy()  # torch wants memory that may be written


_encoder = msgspec.msgpack.Encoder(enc_hook=_to_wire)
_plans = msgspec.msgpack.Decoder(StepPlan, dec_hook=_from_wire)
_results = msgspec.msgpack.Decoder(StepResult)
