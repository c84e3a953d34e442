"""PrefillRoom: who may prefill how many tokens of one step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from tenora_engine.scheduling.plan import ScheduledSequence
from tenora_engine.sequence import Sequence


class PrefillRoom:
    """What is left of a step's tokens, and of one tenant's part of them.

    A tenant's prompts follow one another: the first takes all that the tenant may have, and the
    next gets what is left. The first answers come sooner, and the last no later, than if all were
    computed at once. Who `exceeds` its share adds nothing beyond the step's first `arrival_tokens`.
    """

    def __init__(
        self,
        num_tokens: int,
        tenant_tokens: int,
        arrival_tokens: int,
        exceeds: Callable[[Sequence], bool],
    ) -> None:
        self._left = num_tokens
        self._tenant_left: dict[str, int] = defaultdict(lambda: tenant_tokens)
        self._arrival_left = arrival_tokens
        self._exceeds = exceeds

    def __bool__(self) -> bool:
        return self._left > 0

    def of(self, sequence: Sequence) -> int:
        """Tokens that the sequence may still prefill in this step."""
        most = min(self._left, self._tenant_left[sequence.request.tenant.key])
        if most > self._arrival_left and self._exceeds(sequence):
            return self._arrival_left
        return most

    def take(self, sequence: Sequence) -> int:
        """As many as there is room for, at most what it has to compute."""
        num_tokens = min(sequence.num_uncomputed, self.of(sequence))
        self._left -= num_tokens
        self._tenant_left[sequence.request.tenant.key] -= num_tokens
        self._arrival_left = max(self._arrival_left - num_tokens, 0)
        return num_tokens


def plan_chunk(chunks: list[ScheduledSequence], sequence: Sequence, room: PrefillRoom) -> None:
    """Add to `chunks` what the sequence has room to prefill, if any."""
    left = sequence.num_uncomputed
    num_tokens = room.take(sequence)
    if num_tokens:
        chunks.append(ScheduledSequence(sequence, num_tokens, num_tokens == left))
