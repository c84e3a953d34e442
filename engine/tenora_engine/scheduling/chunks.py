"""ChunkSizer: how many prefill tokens fit beside the decoding sequences of a step without making
one of them late."""

from __future__ import annotations

from collections.abc import Iterable

from tenora_engine.memory.costs import CostModel
from tenora_engine.sequence import Sequence

MARGIN = 1.2
"""A step is expected to take this much longer than predicted (Niyama)."""

MIN_PREFILL_TOKENS = 16
"""Prefill goes on by this much in every step, however late the decoding sequences are."""

_MEMORY = 0.9  # weight of the past in the moving average


class ChunkSizer:
    """Slack-sized chunks (Niyama: "Breaking the silos of LLM inference serving", 2025, dynamic
    chunking): the largest whose predicted time, with a margin, fits the least decode slack.

    A step is predicted to take what one that only decodes takes, and the time of a prefilled token
    for each token of prefill. A sequence's n-th token is due at its first plus n times its TPOT
    target: one that is ahead lends its time to prefills.
    """

    def __init__(self, costs: CostModel) -> None:
        self._costs = costs
        self._decode_s = 0.0

    def observe_decode(self, step_s: float) -> None:
        """A step in which every sequence decoded one token."""
        if self._decode_s:
            self._decode_s = _MEMORY * self._decode_s + (1 - _MEMORY) * step_s
        else:
            self._decode_s = step_s

    def prefill_tokens(self, decoding: Iterable[Sequence], now_s: float, most: int) -> int:
        """For the next step; from MIN_PREFILL_TOKENS to `most`."""
        slack_s = min(
            (slack for s in decoding if (slack := _slack_s(s, now_s)) is not None), default=None
        )
        if slack_s is None:
            return most
        tokens = int((slack_s / MARGIN - self._decode_s) / self._costs.token_s)
        return min(max(tokens, MIN_PREFILL_TOKENS), most)


def _slack_s(sequence: Sequence, now_s: float) -> float | None:
    """Seconds until the sequence's next token is due; None where nothing was promised."""
    tpot_ms = sequence.request.tenant.tpot_ms
    if tpot_ms is None or sequence.first_token_s is None:
        return None
    return sequence.first_token_s + sequence.num_output * tpot_ms / 1000 - now_s
