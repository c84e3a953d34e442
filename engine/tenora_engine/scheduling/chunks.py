"""How many prefill tokens fit beside the decoding sequences of a step without making one of them
late (`ChunkSizer`), who may prefill how many of them (`PrefillRoom`), and the prefills of a step
while it is planned (`StepDraft`)."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterable

from tenora_engine.memory.costs import CostModel
from tenora_engine.request import Tenant
from tenora_engine.scheduling.plan import ScheduledSequence
from tenora_engine.scheduling.queue import WaitingQueue
from tenora_engine.sequence import Sequence, SequenceState

PROMISE_MEMORY_S = 60.0
"""How long a promise, and a tenant, counts after the last request."""


class Promises:
    """As of the requests of the last PROMISE_MEMORY_S. There are as many promises as plans."""

    def __init__(self) -> None:
        self._asked_s: dict[float, float] = {}  # by seconds to the first token: when last promised
        self._tenants: dict[str, float] = {}  # by key, who asked longest ago first

    def observe(self, tenant: Tenant, now_s: float) -> None:
        """A request of the tenant has come."""
        if tenant.ttft_ms is not None:
            self._asked_s[tenant.ttft_ms / 1000] = now_s
        self._tenants.pop(tenant.key, None)
        self._tenants[tenant.key] = now_s

    def least_s(self, now_s: float) -> float:
        """The shortest time to first token; infinite without any."""
        old_s = now_s - PROMISE_MEMORY_S
        self._asked_s = {ttft_s: at_s for ttft_s, at_s in self._asked_s.items() if at_s > old_s}
        return min(self._asked_s, default=math.inf)

    def num_tenants(self, now_s: float) -> int:
        """How many have asked for anything. O(those forgotten)."""
        old_s = now_s - PROMISE_MEMORY_S
        while self._tenants and self._tenants[key := next(iter(self._tenants))] <= old_s:
            del self._tenants[key]
        return len(self._tenants)


MARGIN = 1.2
"""A step is expected to take this much longer than predicted (Niyama)."""

MIN_PREFILL_PART = 8
"""Prefill always goes on by this part of what a step could hold: where the promises cannot be kept
with any step, what waits must not be lost as well."""

STEP_PART = 2
"""No step takes more than this part of a promised time to first token, whoever prefills in it."""

ARRIVAL_PART = 8
"""Nor more than this part for the sake of a tenant that asks for more than its share: who arrives
waits for it."""

MIN_ARRIVAL_PART = 16
"""As MIN_PREFILL_PART, for such a tenant."""

SCORED_TOKENS_MAX = 256
"""Of prompts whose logprobs are wanted, in a step: each takes a row of the vocabulary."""

_MEMORY = 0.9  # weight of the past in the moving averages
_PREFILL_TOKENS = 8  # of a step that says what a prefilled token takes


class ChunkSizer:
    """Slack-sized chunks (Niyama: "Breaking the silos of LLM inference serving", 2025, dynamic
    chunking): the largest whose predicted time, with a margin, fits the least decode slack.

    A step is predicted to take what one that only decodes takes, and the time of a prefilled token
    for each token of prefill. A sequence's n-th token is due at its first plus n times its TPOT
    target: one that is ahead lends its time to prefills. One that is late is not made later, but
    nobody else waits for it to catch up. Nor does a step take more than a part of the least time to
    first token that was lately promised to anybody: what comes meanwhile has to wait for its end.
    """

    def __init__(self, costs: CostModel) -> None:
        self.promises = Promises()
        self._costs = costs
        self._decode_s = 0.0
        self._token_s = 0.0

    def observe_decode(self, step_s: float) -> None:
        """A step in which every sequence decoded one token."""
        if self._decode_s:
            self._decode_s = _MEMORY * self._decode_s + (1 - _MEMORY) * step_s
        else:
            self._decode_s = step_s

    def observe_prefill(self, num_tokens: int, step_s: float) -> None:
        """A step with `num_tokens` more than its sequences. What it took is theirs as far as it is
        beyond a step that decodes, which may be long ago, or its half."""
        if num_tokens >= _PREFILL_TOKENS:
            token_s = max(step_s - self._decode_s, step_s / 2) / num_tokens
            past_s = self._token_s or token_s
            self._token_s = _MEMORY * past_s + (1 - _MEMORY) * token_s

    def prefill_tokens(self, decoding: Iterable[Sequence], now_s: float, most: int) -> int:
        """For the next step; at most `most`, at least its MIN_PREFILL_PART."""
        most_s = self.promises.least_s(now_s) / STEP_PART
        return self._tokens(_slack_s(decoding, now_s, most_s), most, MIN_PREFILL_PART)

    def slack_s(self, decoding: Iterable[Sequence], now_s: float) -> float:
        """How much longer than it takes to decode the next step may be for nobody to be late."""
        return max(_slack_s(decoding, now_s, math.inf) / MARGIN - self._decode_s, 0.0)

    def arrival_tokens(self, now_s: float, most: int) -> int:
        """For the next step, where it is to keep nobody waiting who comes meanwhile."""
        return self._tokens(self.promises.least_s(now_s) / ARRIVAL_PART, most, MIN_ARRIVAL_PART)

    def _tokens(self, slack_s: float, most: int, least_part: int) -> int:
        if slack_s == math.inf:
            return most
        token_s = self._token_s or self._costs.token_s
        tokens = int((slack_s / MARGIN - self._decode_s) / token_s)
        return min(max(tokens, -(-most // least_part)), most)


def _slack_s(decoding: Iterable[Sequence], now_s: float, most_s: float) -> float:
    """The least time until one of them is due, at most so long; what is late already counts as
    having the time between two of its tokens."""
    for sequence in decoding:
        if sequence.service.tpot_s < most_s:
            most_s = min(most_s, max(sequence.next_due_s - now_s, sequence.service.tpot_s))
    return most_s


class PrefillRoom:
    """What is left of a step's tokens, and of one tenant's part of them.

    A tenant's prompts follow one another: the first takes all that the tenant may have, and the
    next gets what is left. The first answers come sooner, and the last no later, than if all were
    computed at once. Who exceeds its share adds nothing beyond the step's first `arrival_tokens`.
    """

    def __init__(
        self,
        num_tokens: int,
        tenant_tokens: int,
        arrival_tokens: int,
        queue: WaitingQueue,
    ) -> None:
        self._left = num_tokens
        self._tenant_left: dict[str, int] = defaultdict(lambda: tenant_tokens)
        self._arrival_left = arrival_tokens
        self._scored_left = SCORED_TOKENS_MAX
        self._queue = queue

    def __bool__(self) -> bool:
        return self._left > 0

    def of(self, sequence: Sequence) -> int:
        """Tokens that the sequence may still prefill in this step."""
        most = min(self._left, self._tenant_left[sequence.request.tenant.key])
        if sequence.num_unscored:
            most = min(most, self._scored_left)
        if most > self._arrival_left and self._queue.exceeds_share(sequence):
            return self._arrival_left
        return most

    def take(self, sequence: Sequence) -> int:
        """As many as there is room for, at most what it has to compute."""
        num_tokens = min(sequence.num_uncomputed, self.of(sequence))
        self._left -= num_tokens
        self._tenant_left[sequence.request.tenant.key] -= num_tokens
        self._arrival_left = max(self._arrival_left - num_tokens, 0)
        if sequence.num_unscored:
            self._scored_left -= num_tokens
        return num_tokens


class StepDraft:
    """The prefills of a step while it is planned, each as much as there is room for. Of those that
    run already `passed` stand behind some of what waits: they come between new ones, in fair
    order."""

    def __init__(
        self, room: PrefillRoom, queue: WaitingQueue, passed: Iterable[Sequence] = ()
    ) -> None:
        self.room = room
        self.chunks: list[ScheduledSequence] = []
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

    def add_before(self, waiting: Sequence) -> None:
        """Those whose turn is before that of one which waits."""
        turn = self._queue.turn
        while self._passed and turn(self._passed[0]) <= turn(waiting):
            self._add_running(self._passed.popleft())

    def add_rest(self) -> None:
        while self._passed:
            self._add_running(self._passed.popleft())

    def _add_running(self, sequence: Sequence) -> None:
        if sequence.state is SequenceState.RUNNING:  # it has not given up its place
            self.add(sequence)


def _scored(sequence: Sequence, num_tokens: int) -> int:
    """How many of its next tokens are followed by one of its prompt whose logprobs are wanted."""
    start = sequence.num_computed
    end = min(start + num_tokens, sequence.num_prompt - 1)
    return max(end - max(start, sequence.first_unscored - 1), 0)
