"""Admission: whether a request may wait at all, in which class, and until when. It looks at what is
asked for, at the length of the queue and at the deadline; the queue orders what has been let in."""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection
from collections.abc import Sequence as Items
from functools import lru_cache
from itertools import chain, count
from typing import TYPE_CHECKING

from tenora_engine.config import ResolvedConfig
from tenora_engine.errors import (
    ContextLengthError,
    DeadlineError,
    InvalidRequestError,
    QueueFullError,
)
from tenora_engine.events import Residency
from tenora_engine.grammar.limits import check_size
from tenora_engine.memory.costs import CostModel
from tenora_engine.memory.manager import MemoryManager
from tenora_engine.request import (
    REPETITION_PENALTY_MAX,
    REPETITION_PENALTY_MIN,
    WEIGHT_MAX,
    WEIGHT_MIN,
    AdapterRef,
    GenerationRequest,
    SamplingParams,
    Tenant,
)
from tenora_engine.scheduling.beam_search import BeamGroup, check_beams
from tenora_engine.scheduling.class_queue import LOWEST_CLASS, service_class
from tenora_engine.scheduling.meters import Charges
from tenora_engine.scheduling.queue import WaitingQueue
from tenora_engine.scheduling.sampling import is_plain
from tenora_engine.sequence import CachedPrefix, Sequence, SequenceState, Service, Usage
from tenora_engine.telemetry import ServiceMeter
from tenora_engine.token_ids import check_token_ids

if TYPE_CHECKING:
    from tenora_engine.grammar.guide import Guide

TOP_LOGPROBS_MAX = 20
NAMED_LOGPROBS_MAX = 128
LARGEST = 2**63 - 1
TEMPERATURE_MAX = 100.0
PENALTY_MAX = 100.0  # of presence, frequency and a bias: far beyond what decides any choice
RULE_TOKENS_MAX = 8192
"""Ids in all lists of a request together: a step looks at them for each of its rows."""


def check_sampling(sampling: SamplingParams, vocab: int) -> None:
    """Raises InvalidRequestError that names the parameter."""
    may_end = sampling.embeds or sampling.prompt_logprobs is not None  # with its prompt
    ranges = {
        "temperature": (sampling.temperature, 0.0, TEMPERATURE_MAX),
        "top_p": (sampling.top_p, 0.0, 1.0),
        "min_p": (sampling.min_p, 0.0, 1.0),
        "top_k": (sampling.top_k, 0, LARGEST),
        "presence_penalty": (sampling.presence_penalty, -PENALTY_MAX, PENALTY_MAX),
        "frequency_penalty": (sampling.frequency_penalty, -PENALTY_MAX, PENALTY_MAX),
        "repetition_penalty": (
            sampling.repetition_penalty,
            REPETITION_PENALTY_MIN,
            REPETITION_PENALTY_MAX,
        ),
        "max_tokens": (sampling.max_tokens, 0 if may_end else 1, LARGEST),
        "min_tokens": (sampling.min_tokens, 0, sampling.max_tokens),
        "n": (sampling.n, 1, LARGEST),
        "logprobs": (sampling.logprobs or 0, 0, TOP_LOGPROBS_MAX),
        "prompt_logprobs": (sampling.prompt_logprobs or 0, 0, TOP_LOGPROBS_MAX),
    }
    for name, (value, least, most) in ranges.items():
        if not least <= value <= most:  # as NaN is not
            raise InvalidRequestError(f"{name} must be between {least:g} and {most:g}", name)
    if any(not abs(add) <= PENALTY_MAX for add in sampling.logit_bias.values()):
        raise InvalidRequestError(
            f"each value of logit_bias must be between {-PENALTY_MAX:g} and {PENALTY_MAX:g}",
            "logit_bias",
        )
    _check_tokens(sampling, vocab)


def _check_tokens(sampling: SamplingParams, vocab: int) -> None:
    allowed = sampling.allowed_token_ids
    if allowed is not None and not allowed:
        raise InvalidRequestError("allowed_token_ids is empty", "allowed_token_ids")
    if not all(sampling.bad_words):
        raise InvalidRequestError("an entry of bad_words has no token", "bad_words")
    lists: dict[str, Collection[int]] = {
        "allowed_token_ids": allowed or (),
        "bad_words": list(chain.from_iterable(sampling.bad_words)),
        "stop_token_ids": sampling.stop_token_ids,
        "logit_bias": sampling.logit_bias,
        "logprob_token_ids": sampling.logprob_token_ids,
    }
    if len(sampling.logprob_token_ids) > NAMED_LOGPROBS_MAX:
        raise InvalidRequestError(
            f"at most {NAMED_LOGPROBS_MAX} of logprob_token_ids", "logprob_token_ids"
        )
    count = 0
    for name, token_ids in lists.items():
        count += len(token_ids)
        if count > RULE_TOKENS_MAX:
            raise InvalidRequestError(
                f"the lists of token ids contain more than {RULE_TOKENS_MAX} together", name
            )
        check_token_ids(token_ids, vocab, name)


def check_texts(config: ResolvedConfig, request: GenerationRequest) -> None:
    """Raises InvalidRequestError where a prompt or prediction holds what is no token. O(tokens)."""
    check_token_ids(request.prompt_token_ids, config.model.vocab, "prompt")
    check_token_ids(request.prediction_token_ids, config.model.vocab, "prediction")


def check_request(config: ResolvedConfig, request: GenerationRequest) -> None:
    """Raises InvalidRequestError for anything but the tokens of its texts (`check_texts`), however
    long these are. Whether it is too long, `check_share` says."""
    sampling, vocab = request.sampling, config.model.vocab
    if sampling.grammar is not None:
        check_size(sampling.grammar, config.engine.max_grammar_bytes)
    if not request.prompt_token_ids:
        raise InvalidRequestError("the prompt contains no token", param="prompt")
    if len(request.prediction_token_ids) > config.model.context_tokens:
        raise InvalidRequestError("the prediction is longer than the model's context", "prediction")
    check_sampling(sampling, vocab)
    most = min(config.engine.max_waiting, config.engine.max_tenant_waiting)
    if sampling.n > most:
        raise InvalidRequestError(
            f"n can be at most {most}, the number of sequences that can wait at once", "n"
        )
    if sampling.beams is not None:
        check_beams(sampling, vocab, stop_ids(config, request))
    _check_tenant(request.tenant)
    if request.adapter is not None:
        _check_adapter(config, request.adapter)


def _check_adapter(config: ResolvedConfig, adapter: AdapterRef) -> None:
    if not 1 <= adapter.rank <= config.engine.max_rank:
        raise InvalidRequestError(
            f"the adapter's rank is {adapter.rank}; this engine allows 1 to "
            f"{config.engine.max_rank} (max_rank)",
            param="model",
        )
    if config.engine.max_adapters < 1:
        raise InvalidRequestError(
            "this engine has no adapter slots; raise max_adapters", param="model"
        )


def _check_tenant(tenant: Tenant) -> None:
    """What the order of the queue is computed from must not be able to break it for everybody. NaN
    fails each of these."""
    if not WEIGHT_MIN <= tenant.weight <= WEIGHT_MAX:
        raise InvalidRequestError(
            f"a tenant's weight must be between {WEIGHT_MIN:g} and {WEIGHT_MAX:g}, but it is "
            f"{tenant.weight:g}; change its plan",
            param="tenant",
        )
    for name, target_ms in (("ttft_ms", tenant.ttft_ms), ("tpot_ms", tenant.tpot_ms)):
        if target_ms is not None and not 0 < target_ms < math.inf:
            raise InvalidRequestError(
                f"a tenant's {name} must be above 0 and finite, but it is {target_ms:g}; change "
                "its plan",
                param="tenant",
            )
    for name in ("min_memory_share", "max_memory_share"):
        share = getattr(tenant, name)
        if not 0 <= share <= 1:
            raise InvalidRequestError(
                f"a tenant's {name} must be between 0 and 1, but it is {share:g}; change its plan",
                param="tenant",
            )


def check_share(config: ResolvedConfig, request: GenerationRequest, memory: MemoryManager) -> None:
    """Raises ContextLengthError, with the numbers, when prompt and max_tokens fit neither the
    context nor what the tenant can have of the arena, and InvalidRequestError when its share has
    no room for an adapter."""
    if request.adapter is not None and memory.most_adapters(request.tenant) < 1:
        raise InvalidRequestError(
            "the tenant's memory share is too small for an adapter", param="model"
        )
    sampling, prompt = request.sampling, request.prompt_token_ids
    pages = memory.most_kv_pages(request.tenant)
    context = min(config.model.context_tokens, pages * config.engine.block_tokens)
    if len(prompt) + sampling.max_tokens > context:
        raise ContextLengthError.of(
            context,
            len(prompt),
            sampling.max_tokens,
            "prompt",
            param="max_tokens" if len(prompt) < context else "prompt",
        )


def stop_ids(config: ResolvedConfig, request: GenerationRequest) -> frozenset[int]:
    """The tokens that end a sequence: the model's end of sequence unless `ignore_eos`, and the
    request's own, always. A grammar says itself where the end may come."""
    sampling = request.sampling
    ignores = sampling.ignore_eos and sampling.grammar is None
    eos = () if ignores else config.model.eos_token_ids
    return _one_frozenset((*eos, *sampling.stop_token_ids))


@lru_cache(maxsize=1024)
def _one_frozenset(token_ids: tuple[int, ...]) -> frozenset[int]:
    """The same for equal ids: every step looks at that of every sequence."""
    return frozenset(token_ids)


WAITED_MAX_S = 86_400.0
"""What a request says to have waited before it came counts up to a day; what is no number, for
nothing."""


def make_sequences(
    config: ResolvedConfig,
    request: GenerationRequest,
    first_number: int,
    residency: Residency | None,
    meter: ServiceMeter,
    now_s: float,
    guides: Items[Guide] = (),
    encoded: bytes = b"",
) -> list[Sequence]:
    """The request's n sequences, or beams of one search; `first_number` is where the engine's count
    of arrivals is, `guides` has one for each where there is a grammar, `encoded` is the prompt as
    the prefix tree compares it, if somebody has made that."""
    ends = stop_ids(config, request)
    length = len(request.prompt_token_ids) + request.sampling.max_tokens
    length = min(length, config.model.context_tokens)
    tpot_ms = request.tenant.tpot_ms if config.engine.scheduling_policy == "sla" else None
    if length < len(request.prompt_token_ids) + 2:
        tpot_ms = None  # there is no time between two tokens
    scores = request.sampling.prompt_logprobs is not None
    unscored = len(request.prompt_token_ids) - 1 if scores else 0
    beams = _beams(request, length - len(request.prompt_token_ids), ends)
    return [
        Sequence(
            request=request,
            index=index,
            token_ids=request.prompt_token_ids,
            num_prompt=len(request.prompt_token_ids),
            usage=Usage(meter=meter, residency=residency),
            service=Service(
                tier=request.tenant.tier, tpot_s=math.inf if tpot_ms is None else tpot_ms / 1000
            ),
            number=first_number + index,
            arrival_s=now_s - min(max(0.0, request.waited_s), WAITED_MAX_S),
            stop_ids=ends,
            max_length=length,
            num_unscored=0 if index else unscored,
            is_plain=is_plain(request.sampling),
            guide=guides[index] if guides else None,
            beams=beams,
            prefix=CachedPrefix(encoded=encoded),
        )
        for index in range(request.sampling.n)
    ]


def _beams(request: GenerationRequest, max_tokens: int, ends: frozenset[int]) -> BeamGroup | None:
    sampling = request.sampling
    if sampling.beams is None:
        return None
    return BeamGroup(
        params=sampling.beams,
        width=sampling.n,
        max_tokens=max_tokens,
        min_tokens=sampling.min_tokens,
        stop_ids=ends,
        num_logprobs=sampling.logprobs,
    )


_MEMORY_S = 10.0  # time in which an observation loses 63% of its weight
_RETRY_MS_MAX = 60_000


class Feasibility:
    """Predictions from the rate at which work (in tokens, see `charges`) has lately left the queue
    while something waited. That rate falls whatever the queue waits for: compute, pages, places in
    the batch."""

    def __init__(self, costs: CostModel) -> None:
        self._costs = costs
        self._started = 0.0  # faded sum of work that left the queue
        self._seconds = 0.0  # in this faded time

    def observe_drain(self, work: float, seconds: float) -> None:
        """`work` has left the queue in `seconds` in which the queue was never empty."""
        past = math.exp(-seconds / _MEMORY_S)
        self._started = past * self._started + work
        self._seconds = past * self._seconds + seconds

    @property
    def work_per_s(self) -> float:
        """As observed; what has been seen for less than a second counts in part, the rate at which
        prompts are prefilled in its stead."""
        unseen_s = max(1.0 - self._seconds, 0.0)
        seen = self._started + unseen_s / self._costs.token_s
        return max(seen / (self._seconds + unseen_s), 1e-3)

    def ttft_s(self, work_before: float, load_s: float, work: float) -> float:
        """Seconds until the first token of a request of `work`: it waits for the work before it
        and, at the same time, for its adapter; then it is prefilled."""
        return max(work_before / self.work_per_s, load_s) + work * self._costs.token_s

    def retry_after_ms(self, seconds: float) -> int:
        return min(max(math.ceil(seconds * 1000), 1), _RETRY_MS_MAX)

    def drain_ms(self, work: float) -> int:
        """Until this much work has left the queue."""
        return self.retry_after_ms(work / self.work_per_s)


NO_TARGET_S = 10.0
"""Where no TTFT was promised, the queue orders by this one."""


LEAST_PART = 64
"""One part of the queue in so many may wait of each tenant, though the queue is full."""


class Gate:
    def __init__(
        self, config: ResolvedConfig, memory: MemoryManager, queue: WaitingQueue, charges: Charges
    ) -> None:
        self._limit = config.engine.max_waiting
        self._tenant_limit = config.engine.max_tenant_waiting
        self.keeps_promises = config.engine.scheduling_policy == "sla"
        self._memory = memory
        self._queue = queue
        self._charges = charges
        self.feasibility = Feasibility(memory.costs)

    def check_room(
        self, tenant: Tenant, num_sequences: int, held: int = 0, tenant_held: int = 0
    ) -> None:
        """Raises QueueFullError unless `num_sequences` more of the tenant may wait; `held` others
        count as waiting, `tenant_held` of them its own.

        A tenant that has no more waiting than one part of the queue in LEAST_PART is never refused
        for others' sake: however many fill the queue, each other one's requests come to it.
        """
        waiting = len(self._queue) + held
        own = self._queue.waiting_of(tenant.key) + tenant_held
        if own + num_sequences > self._tenant_limit:
            raise QueueFullError(
                f"{own} sequences of this tenant are waiting, and {num_sequences} more would "
                f"exceed its limit of {self._tenant_limit}; try again later",
                self._room_ms(own + num_sequences - self._tenant_limit, waiting, own),
            )
        least = max(self._limit // LEAST_PART, 1)
        if waiting + num_sequences > self._limit and own + num_sequences > least:
            raise QueueFullError(
                f"{waiting} sequences are waiting, and {num_sequences} more would exceed the "
                f"limit of {self._limit}; try again later",
                self._room_ms(waiting + num_sequences - self._limit, waiting, waiting),
            )

    def appraise(self, sequence: Sequence, residency: Residency | None, now_s: float) -> None:
        """Fill in a new sequence's class, cost and place in line. Raises DeadlineError when its
        first token cannot be expected in time and its plan refuses what is late."""
        tenant, adapter = sequence.request.tenant, sequence.request.adapter
        costs, load_s = self._memory.costs, self._load_s(adapter, residency)
        fetched, fetch_s = self._memory.estimate_fetch(sequence)
        computed = len(sequence.token_ids) - self._memory.cached_tokens(sequence) - fetched
        sequence.service.token_cost = self._charges.token(adapter)
        sequence.service.work = computed * sequence.service.token_cost + fetch_s / costs.token_s
        if not self.keeps_promises:
            return
        sequence.service.class_name = service_class(tenant.tier)
        target_s = NO_TARGET_S if tenant.ttft_ms is None else tenant.ttft_ms / 1000
        sequence.service.due_s = (
            sequence.arrival_s + target_s + load_s + sequence.service.work * costs.token_s
        )
        if tenant.ttft_ms is None or tenant.late == "best_effort":
            return
        expected_s = self._expected_s(sequence, load_s)
        late_s = now_s + expected_s - (sequence.arrival_s + target_s)
        if late_s > 0 and tenant.late == "relegate":
            self.relegate(sequence)
        elif late_s > 0:
            raise DeadlineError(
                f"the first token is expected after {expected_s * 1000:.0f} ms, but this plan "
                f"promises it within {tenant.ttft_ms:.0f} ms and refuses requests that would be "
                "late; try again later",
                self.feasibility.retry_after_ms(late_s),
            )

    def relegate(self, sequence: Sequence) -> None:
        """A sequence which does not stand in the queue goes to the lowest class, without a promise;
        what it has been charged so far stays with its own."""
        sequence.service.class_name = sequence.service.tier = LOWEST_CLASS
        sequence.service.due_s += NO_TARGET_S
        sequence.service.tpot_s = math.inf

    def retry_after_ms(self, sequence: Sequence, residency: Residency | None) -> int:
        """When a request like this one, which does not wait any more, may be in time."""
        target_s = (sequence.request.tenant.ttft_ms or 0.0) / 1000
        load_s = self._load_s(sequence.request.adapter, residency)
        return self.feasibility.retry_after_ms(self._expected_s(sequence, load_s) - target_s)

    def _expected_s(self, sequence: Sequence, load_s: float) -> float:
        """Until the first token of a sequence that does not wait yet."""
        before = self._queue.work_before(sequence)
        return self.feasibility.ttft_s(before, load_s, sequence.service.work)

    def _load_s(self, adapter: AdapterRef | None, residency: Residency | None) -> float:
        if adapter is None or residency in (None, "device", "host"):
            return 0.0
        return self._memory.costs.adapter_s(self._charges.adapter_bytes(adapter), residency)

    def _room_ms(self, excess: int, waiting: int, own: int) -> int:
        """Until `excess` of a tenant's `own` sequences have left, if they leave evenly."""
        mean = self._queue.work() / max(len(self._queue), 1)
        return self.feasibility.drain_ms(excess * mean * waiting / max(own, 1))


_SPARE_ENTRIES = 64


class Deadlines:
    """Sequences that wait for the first time, of plans that refuse or relegate what is late, by the
    latest time at which they could start. Among the entries are such as wait no more, but never the
    first, and never more of them than of the others and a few."""

    def __init__(self, costs: CostModel) -> None:
        self._costs = costs
        self._heap: list[tuple[float, int, Sequence]] = []
        self._numbers = count()
        self._pruned_to = 0

    @property
    def next_s(self) -> float:
        """Before this time none is missed; infinite where none can be."""
        while self._heap and not _is_kept(self._heap[0][2]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else math.inf

    def watch(self, sequence: Sequence) -> None:
        """It waits. O(log n)."""
        if not _is_kept(sequence):
            return
        if len(self._heap) > 2 * self._pruned_to + _SPARE_ENTRIES:
            self._heap = [entry for entry in self._heap if _is_kept(entry[2])]
            heapq.heapify(self._heap)
            self._pruned_to = len(self._heap)
        entry = (self._latest_start_s(sequence), next(self._numbers), sequence)
        heapq.heappush(self._heap, entry)

    def take_missed(self, now_s: float) -> list[Sequence]:
        """Those whose first token would be late if they started now; they are not watched any
        more."""
        missed = []
        while self.next_s < now_s:
            sequence = heapq.heappop(self._heap)[2]
            if self._latest_start_s(sequence) < now_s:
                missed.append(sequence)
            else:  # a token takes less than when it came
                self.watch(sequence)
        return missed

    def _latest_start_s(self, sequence: Sequence) -> float:
        ttft_ms = sequence.request.tenant.ttft_ms
        assert ttft_ms is not None
        return sequence.arrival_s + ttft_ms / 1000 - sequence.service.work * self._costs.token_s


def _is_kept(sequence: Sequence) -> bool:
    """Whether something would become of it if it missed its deadline."""
    tenant = sequence.request.tenant
    if sequence.state is not SequenceState.WAITING or sequence.usage.admitted_s is not None:
        return False
    if tenant.ttft_ms is None or tenant.late == "best_effort":
        return False
    return tenant.late == "refuse" or sequence.service.class_name != LOWEST_CLASS
