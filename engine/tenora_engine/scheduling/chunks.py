"""ChunkSizer: how many prefill tokens fit beside the decoding sequences of a step without making
one of them late."""

from __future__ import annotations

import math
from collections.abc import Iterable

from tenora_engine.memory.costs import CostModel
from tenora_engine.scheduling.promises import Promises
from tenora_engine.sequence import Sequence

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
        slack_s = self.promises.least_s(now_s) / STEP_PART
        for sequence in decoding:
            if sequence.tpot_s < slack_s:
                slack_s = min(slack_s, max(sequence.next_due_s - now_s, sequence.tpot_s))
        return self._tokens(slack_s, most, MIN_PREFILL_PART)

    def arrival_tokens(self, now_s: float, most: int) -> int:
        """For the next step, where it is to keep nobody waiting who comes meanwhile."""
        return self._tokens(self.promises.least_s(now_s) / ARRIVAL_PART, most, MIN_ARRIVAL_PART)

    def _tokens(self, slack_s: float, most: int, least_part: int) -> int:
        if slack_s == math.inf:
            return most
        token_s = self._token_s or self._costs.token_s
        tokens = int((slack_s / MARGIN - self._decode_s) / token_s)
        return min(max(tokens, -(-most // least_part)), most)
