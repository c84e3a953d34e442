"""How long the prefill of a step may take beside the decoding sequences without making one of them
late (`ChunkSizer`), who may prefill how many tokens in that time (`PrefillRoom`), and the prefills
of a step while it is planned (`StepDraft`)."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from tenora_engine.memory.costs import CostModel
from tenora_engine.request import Tenant
from tenora_engine.scheduling.forecast import StepForecast, StepLoad
from tenora_engine.scheduling.plan import ScheduledSequence
from tenora_engine.scheduling.queue import WaitingQueue
from tenora_engine.scheduling.tpot_promises import MARGIN, TpotPromises
from tenora_engine.sequence import Sequence, SequenceState

PROMISE_MEMORY_S = 60.0
"""How long a promise of a first token, and a tenant, counts after the last request."""


class Promises:
    """As of the requests of the last PROMISE_MEMORY_S. There are as many promises as plans."""

    def __init__(self) -> None:
        self._ttfts = _Times()
        self._tenants: dict[str, float] = {}  # by key, who asked longest ago first

    def observe(self, tenant: Tenant, now_s: float, *, is_relegated: bool = False) -> None:
        """A request of the tenant has come. To one that is relegated nothing is promised."""
        if tenant.ttft_ms is not None and not is_relegated:
            self._ttfts.observe(tenant.ttft_ms / 1000, now_s)
        self._tenants.pop(tenant.key, None)
        self._tenants[tenant.key] = now_s

    def least_s(self, now_s: float) -> float:
        """The shortest time to first token; infinite without any."""
        return self._ttfts.least_s(now_s)

    def num_tenants(self, now_s: float) -> int:
        """How many have asked for anything. O(those forgotten)."""
        old_s = now_s - PROMISE_MEMORY_S
        while self._tenants and self._tenants[key := next(iter(self._tenants))] <= old_s:
            del self._tenants[key]
        return len(self._tenants)


class _Times:
    """Of promises of one kind, the seconds and when each was last given. A step asks for the least
    many times, so it is kept until one is forgotten or comes."""

    def __init__(self) -> None:
        self._given: dict[float, float] = {}
        self._least_s = math.inf
        self._oldest_s = math.inf  # when that was given which is forgotten first

    def observe(self, seconds: float, now_s: float) -> None:
        self._given[seconds] = now_s
        self._oldest_s = -math.inf

    def least_s(self, now_s: float) -> float:
        old_s = now_s - PROMISE_MEMORY_S
        if old_s >= self._oldest_s:
            self._given = {each: at_s for each, at_s in self._given.items() if at_s > old_s}
            self._least_s = min(self._given, default=math.inf)
            self._oldest_s = min(self._given.values(), default=math.inf)
        return self._least_s


LATE_PART = 0.85
"""Steps beside one that is late are shorter by this, so that it catches up."""

MIN_PREFILL_PART = 8
"""Prefill always goes on by this part of what a step could hold without any context, or by its part
of a promised time between two tokens that binds (`TpotPromises`): where the promises cannot be kept
with any step, what waits must not be lost as well."""

STEP_PART = 2
"""No step takes more than this part of a promised time to first token, whoever prefills in it."""

ARRIVAL_PART = 8
"""Nor more than this part for the sake of a tenant that asks for more than its share, or of a long
prompt: who arrives waits for it."""

ARRIVAL_STEPS = 14
"""Where nothing shorter was promised, it takes at least as long as so many empty steps: a machine
whose steps are dear loses about a tenth of its throughput by short ones."""

MIN_ARRIVAL_PART = 16
"""As MIN_PREFILL_PART, for such a tenant or prompt."""

LONG_PROMISES = 2
"""A prompt is long that takes this many times the shortest time to first token lately promised."""

LONG_S = 1.0
"""The same, at most: where nothing is promised, or more than a person waits for. In any case it is
longer than a whole step without any context, so that not every prompt is on a slow machine."""

BESIDE_S = 0.1
"""A step with a long prompt's chunk takes no longer than this beside those who were not promised a
time between two tokens, or than twice what it takes them to decode."""

SCORED_TOKENS_MAX = 256
"""Of prompts whose logprobs are wanted, in a step: each takes a row of the vocabulary."""


@dataclass(frozen=True)
class PrefillTimes:
    """Seconds of a step that prefills may take: all together, those of one tenant, and until when
    who asks for more than its share, or a long prompt, may add something."""

    step_s: float = math.inf
    tenant_s: float = math.inf
    arrival_s: float = math.inf
    long_s: float = math.inf


class ChunkSizer:
    """Slack-sized chunks (Niyama: "Breaking the silos of LLM inference serving", 2025, dynamic
    chunking): the largest whose predicted time, with a margin, fits the least decode slack. What is
    predicted is a time, not a number of tokens: a token is the dearer the more context it attends
    to (`StepForecast`).

    A sequence's n-th token is due at its first plus n times its TPOT target: one that is ahead
    lends its time to prefills, one that is late catches up slowly (LATE_PART). Nor does a step take
    more than a part of the least time to first token that was lately promised to anybody: what
    comes meanwhile has to wait for its end.
    """

    def __init__(
        self, costs: CostModel, *, max_step_tokens: int = 1, is_cuda: bool = False
    ) -> None:
        self._max_step_tokens = max_step_tokens
        self.promises = Promises()
        self.forecast = StepForecast(costs, is_cuda)
        self.tpots = TpotPromises(self.forecast)
        self._tpot_s = math.inf

    def begin_step(
        self, decoding: Collection[float], now_s: float, *, is_first_at_risk: bool = False
    ) -> None:
        """A step is to be planned. `decoding`: the times between two tokens, in seconds, that are
        promised to those that decode. Prefills keep those that bind (`TpotPromises`), unless
        somebody's promised first token `is_first_at_risk`."""
        self.tpots.begin_step(decoding, is_alone=self.promises.num_tenants(now_s) < 2)
        self._tpot_s = math.inf if is_first_at_risk else self.tpots.binding_s

    def observe(self, load: StepLoad, step_s: float) -> None:
        """A step with this load took so long."""
        self.forecast.observe(load, step_s)
        self.tpots.observe(load, step_s)

    def step_s(
        self, decoding: Iterable[Sequence], num_decoding: int, now_s: float, most: int
    ) -> float:
        """For the prefills of the next step; at least for a MIN_PREFILL_PART of `most` tokens."""
        most_s = self.promises.least_s(now_s) / STEP_PART
        slack_s = _slack_s(self._kept(decoding), now_s, most_s)
        return self._beside(num_decoding, slack_s, most, MIN_PREFILL_PART)

    def arrival_s(self, num_decoding: int, now_s: float, most: int) -> float:
        """For the next step, where it is to keep nobody waiting who comes meanwhile: no longer than
        a part of what was lately promised, or of what a person waits for."""
        patience_s = max(LONG_S / ARRIVAL_PART, ARRIVAL_STEPS * self.forecast.decode_s(0))
        arrival_s = min(self.promises.least_s(now_s) / ARRIVAL_PART, patience_s)
        return self._beside(num_decoding, arrival_s, most, MIN_ARRIVAL_PART)

    def beside_s(self, num_decoding: int, most: int) -> float:
        """For a long prompt's chunk in the next step, where others are at work."""
        beside_s = max(BESIDE_S, 2 * MARGIN * self.forecast.decode_s(num_decoding))
        return self._beside(num_decoding, beside_s, most, MIN_ARRIVAL_PART)

    def tenant_s(self, max_chunk: int) -> float:
        """For one tenant beside others: so many tokens without any context."""
        return self.forecast.prefill_s(max_chunk)

    def slack_s(self, decoding: Iterable[Sequence], num_decoding: int, now_s: float) -> float:
        """How much longer than it takes to decode the next step may be for nobody to be late."""
        slack_s = _slack_s(self._kept(decoding), now_s, math.inf)
        return max(slack_s / MARGIN - self.forecast.decode_s(num_decoding), 0.0)

    def express_s(
        self, decoding: Iterable[Sequence], num_decoding: int, now_s: float, most: int
    ) -> float:
        """For a step of nothing but prefills: beside promises of a time between two tokens, what
        those that decode are ahead of them, since a step of everybody's takes all of such a time.
        0: there is no time for a step that does more than begin."""
        if self._tpot_s == math.inf:
            return self.step_s(decoding, num_decoding, now_s, most)
        due_s = min((each.next_due_s for each in self._kept(decoding)), default=math.inf)
        begin_s = self.forecast.decode_s(0)
        ahead_s = (due_s - now_s - self._tpot_s) / MARGIN - begin_s
        return ahead_s if ahead_s > begin_s else 0.0

    def long_s(self, now_s: float) -> float:
        """A prompt that takes more than this is one that others are not to wait for."""
        long_s = min(LONG_PROMISES * self.promises.least_s(now_s), LONG_S)
        return max(long_s, self.forecast.prefill_s(self._max_step_tokens))

    def is_long(self, sequence: Sequence, now_s: float) -> bool:
        """Whether the prompt takes so long that others are not to wait for it."""
        return self.forecast.prompt_s(sequence) > self.long_s(now_s)

    def is_slow(self, num_decoding: int, now_s: float) -> bool:
        """Whether the rows of a step that only decodes keep who arrives waiting for too long."""
        slow_s = self.forecast.decode_s(num_decoding) - self.forecast.decode_s(1)
        return slow_s > min(self.promises.least_s(now_s), LONG_S) / ARRIVAL_PART

    def _kept(self, decoding: Iterable[Sequence]) -> Iterable[Sequence]:
        """Those whose promise is not too short to be kept beside others."""
        unkept = self.tpots.unkept
        return [each for each in decoding if each.service.tpot_s not in unkept]

    def _beside(self, num_decoding: int, seconds: float, most: int, least_part: int) -> float:
        if seconds == math.inf:
            return math.inf
        decode_s = self.forecast.decode_s(num_decoding)
        least_s = self.forecast.prefill_s(-(-most // least_part))
        if self._tpot_s < math.inf:
            kept_s = LATE_PART * self._tpot_s / MARGIN - decode_s
            least_s = min(least_s, max(kept_s, self.tpots.prefill_s))
        return max(seconds / MARGIN - decode_s, least_s)


def _slack_s(decoding: Iterable[Sequence], now_s: float, most_s: float) -> float:
    """The least time until one of them is due, at most so long; what is late counts as having
    LATE_PART of the time between two of its tokens."""
    for sequence in decoding:
        if LATE_PART * sequence.service.tpot_s < most_s:
            most_s = min(
                most_s, max(sequence.next_due_s - now_s, LATE_PART * sequence.service.tpot_s)
            )
    return most_s


class PrefillRoom:
    """What is left of a step's tokens and time, and of one tenant's part of it.

    A tenant's prompts follow one another: the first takes all that the tenant may have, and the
    next gets what is left. The first answers come sooner, and the last no later, than if all were
    computed at once. Who exceeds its share, and a long prompt, adds nothing beyond the step's first
    `arrival_s` and `long_s`. Whatever is left of the time, the first chunk has a token.
    """

    def __init__(
        self,
        num_tokens: int,
        times: PrefillTimes,
        chunks: ChunkSizer,
        queue: WaitingQueue,
        now_s: float,
    ) -> None:
        self._left = num_tokens
        self._times = times
        self._chunks = chunks
        self._taken_s = 0.0
        self._tenant_s: dict[str, float] = defaultdict(float)  # taken
        self._scored_left = SCORED_TOKENS_MAX
        self._queue = queue
        self._long_s = math.inf if times.long_s == math.inf else chunks.long_s(now_s)

    def __bool__(self) -> bool:
        left_s = self._times.step_s - self._taken_s
        return self._left > 0 and (not self._taken_s or left_s >= self._chunks.forecast.token_s)

    def of(self, sequence: Sequence) -> int:
        """Tokens that the sequence may still prefill in this step."""
        most = self._left
        if sequence.num_unscored:
            most = min(most, self._scored_left)
        seconds = self._seconds(sequence)
        if most <= 0 or seconds == math.inf:
            return most
        forecast, start = self._chunks.forecast, sequence.num_computed
        fit = forecast.tokens_within(seconds, start, forecast.token_cost(sequence))
        return min(most, fit if self._taken_s else max(fit, 1))

    def take(self, sequence: Sequence) -> int:
        """As many as there is room for, at most what it has to compute."""
        num_tokens = min(sequence.num_uncomputed, self.of(sequence))
        if num_tokens <= 0:
            return 0
        forecast = self._chunks.forecast
        token_cost = forecast.token_cost(sequence)
        seconds = forecast.prefill_s(num_tokens, sequence.num_computed, token_cost)
        self._left -= num_tokens
        self._taken_s += seconds
        self._tenant_s[sequence.request.tenant.key] += seconds
        if sequence.num_unscored:
            self._scored_left -= num_tokens
        return num_tokens

    def _seconds(self, sequence: Sequence) -> float:
        times, taken_s = self._times, self._taken_s
        tenant_left_s = times.tenant_s - self._tenant_s[sequence.request.tenant.key]
        most_s = min(times.step_s - taken_s, tenant_left_s)
        if most_s > times.arrival_s - taken_s and self._queue.exceeds_share(sequence):
            most_s = times.arrival_s - taken_s
        prompt_s = self._chunks.forecast.prompt_s
        if most_s > times.long_s - taken_s and prompt_s(sequence) > self._long_s:
            most_s = times.long_s - taken_s
        return most_s


class StepDraft:
    """The prefills of a step while it is planned, each as much as there is room for. Of those that
    run already `passed` stand behind some of what waits: they come between new ones, in fair
    order."""

    def __init__(
        self, room: PrefillRoom, queue: WaitingQueue, passed: Iterable[Sequence] = ()
    ) -> None:
        self.room = room
        self.chunks: list[ScheduledSequence] = []
        self.planned: set[Sequence] = set()  # of these
        self._queue = queue
        self._passed = deque(passed)

    def add(self, sequence: Sequence) -> None:
        """What the sequence has room to prefill, if any."""
        left = sequence.num_uncomputed
        num_tokens = self.room.take(sequence)
        if num_tokens:
            scored = _scored(sequence, num_tokens) if sequence.num_unscored else 0
            chunk = ScheduledSequence(sequence, num_tokens, num_tokens == left, (), scored)
            self.chunks.append(chunk)
            self.planned.add(sequence)

    def add_before(self, waiting: Sequence) -> None:
        """Those whose turn is before that of one which waits."""
        turn = self._queue.turn
        while self._passed and turn(self._passed[0]) <= turn(waiting):
            self._add_running(self._passed.popleft())

    def add_rest(self) -> None:
        while self._passed:
            self._add_running(self._passed.popleft())

    def _add_running(self, sequence: Sequence) -> None:
        has_gone_on = sequence.state is SequenceState.RUNNING  # it has not given up its pages
        if has_gone_on and all(chunk.sequence is not sequence for chunk in self.chunks):
            self.add(sequence)


def _scored(sequence: Sequence, num_tokens: int) -> int:
    """How many of its next tokens are followed by one of its prompt whose logprobs are wanted."""
    start = sequence.num_computed
    end = min(start + num_tokens, sequence.num_prompt - 1)
    return max(end - max(start, sequence.first_unscored - 1), 0)
