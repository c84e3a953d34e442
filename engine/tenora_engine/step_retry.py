"""What becomes of a step that raised: its rows are run again in parts, until those stand alone that
it raises by. A row's KV goes to the same places and its sample has the same number, so what the
others get is what they would have got without them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tenora_engine.events import TokenLogprob
from tenora_engine.step import StepResult

RETRIES_MAX = 64
"""Parts of one step that are run. Halving finds one row of 256 in 16, and four in at most 58; what
has not been run alone by then fails with its part."""

Owner = tuple[str, str]
"""Of a row: its tenant, and its request."""


@dataclass
class StepRetry:
    """Runs parts of a step by `execute`, which raises what a part raises. `failed` has what each of
    the rows raised that could not be run. Parts are divided between tenants first, then between
    requests: whoever has many rows that cannot be run shares few parts with others."""

    execute: Callable[[Sequence[int]], StepResult]
    failed: dict[int, Exception] = field(default_factory=dict)
    _token_ids: dict[int, list[int]] = field(default_factory=dict)
    _logprobs: dict[int, list[TokenLogprob] | None] = field(default_factory=dict)
    _embeddings: dict[int, list[float]] = field(default_factory=dict)

    def run(self, owners: Sequence[Owner], is_fatal: Callable[[Exception], bool]) -> None:
        """`owners` has one for each row. Raises the error of a part that `is_fatal`; nothing can be
        run after it."""
        rows = sorted(range(len(owners)), key=lambda row: owners[row])
        parts = _halves(rows, owners)
        for _ in range(RETRIES_MAX):
            if not parts:
                return
            divided = parts.pop(0)
            part = sorted(divided)
            try:
                self._take(part, self.execute(part))
            except Exception as error:
                if is_fatal(error):
                    raise
                self.failed |= dict.fromkeys(part, error)
                if len(part) > 1:
                    parts += _halves(divided, owners)
        return

    def result(self) -> StepResult:
        """Of the rows that did not fail, in order."""
        rows = sorted(self._token_ids)
        places = {row: place for place, row in enumerate(rows)}
        return StepResult(
            [self._token_ids[row] for row in rows],
            [self._logprobs[row] for row in rows],
            None,
            {places[row]: values for row, values in self._embeddings.items()},
        )

    def _take(self, part: Sequence[int], result: StepResult) -> None:
        self._token_ids |= zip(part, result.token_ids, strict=True)
        self._logprobs |= zip(part, result.logprobs, strict=True)
        self._embeddings |= {part[place]: values for place, values in result.embeddings.items()}
        for row in part:
            self.failed.pop(row, None)


def _halves(rows: Sequence[int], owners: Sequence[Owner]) -> list[Sequence[int]]:
    """Of rows in the order of their owners. One row is a part by itself."""
    middle = len(rows) // 2
    if rows and owners[rows[0]] != owners[rows[-1]]:
        # Where the tenants differ that is more than that their requests do.
        level = 1 if owners[rows[0]][0] != owners[rows[-1]][0] else 2
        names = [owners[row][:level] for row in rows]
        ends = (end for end in range(1, len(rows)) if names[end - 1] != names[end])
        middle = min(ends, key=lambda end: abs(end - middle))
    return [half for half in (rows[:middle], rows[middle:]) if half]


def messages(failed: Mapping[int, Exception]) -> dict[int, str]:
    """What the sequences of rows that failed end with."""
    return {
        row: f"the step failed: {type(error).__name__}: {error}" for row, error in failed.items()
    }
