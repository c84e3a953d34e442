"""Whether a version on its way does worse than those before it. Pure: what is known of both comes
as `Evidence`, and each check of CHECKS says what is wrong by it, or nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tenora_platform.evaluations.comparison import Compared
from tenora_platform.rollouts.outcomes import Tally
from tenora_platform.rollouts.schemas import Guard, Numbers, RolloutNumbers


@dataclass(frozen=True)
class Evidence:
    """Of the version that is rolled out, and of those before it. What another check looks at
    becomes a field here."""

    version: Tally
    before: Tally
    scores: Compared | None = None  # where an evaluation has both

    def numbers(self) -> RolloutNumbers:
        return RolloutNumbers(version=_numbers(self.version), before=_numbers(self.before))


Check = Callable[[Guard, Evidence], str | None]


def breach(guard: Guard, evidence: Evidence) -> str | None:
    """The first reason to go back, in words; None if there is none."""
    return next((said for check in CHECKS if (said := check(guard, evidence))), None)


def _fails_more(guard: Guard, evidence: Evidence) -> str | None:
    of, before = evidence.version, evidence.before
    if guard.error_rate is None or of.requests < guard.min_requests:
        return None
    if of.error_rate - before.error_rate <= guard.error_rate:
        return None
    return (
        f"{of.errors} of {of.requests} requests failed ({of.error_rate:.1%}), compared to "
        f"{before.error_rate:.1%} with the earlier versions; at most {guard.error_rate:.1%} "
        "more is allowed"
    )


def _answers_later(guard: Guard, evidence: Evidence) -> str | None:
    of, before = evidence.version, evidence.before
    most, least = guard.ttft_ratio, guard.min_requests
    if most is None or min(of.times.total(), before.times.total()) < least:
        return None
    ms, before_ms = of.ttft_ms, before.ttft_ms
    if ms is None or before_ms is None or ms <= most * before_ms:
        return None
    return (
        f"the median time to the first token is {ms:.0f} ms, compared to {before_ms:.0f} ms "
        f"with the earlier versions; at most {most:g} times as long is allowed"
    )


def _scores_less(guard: Guard, evidence: Evidence) -> str | None:
    scores = evidence.scores
    if guard.score_drop is None or scores is None:
        return None
    if scores.before - scores.version <= guard.score_drop:
        return None
    return (
        f"its score in {scores.evaluation_id} is {scores.version:.4g}, compared to "
        f"{scores.before:.4g} for the earlier versions; at most {guard.score_drop:g} less is "
        "allowed"
    )


CHECKS: tuple[Check, ...] = (_fails_more, _answers_later, _scores_less)


def _numbers(tally: Tally) -> Numbers:
    ms = tally.ttft_ms
    return Numbers(
        requests=tally.requests,
        errors=tally.errors,
        error_rate=round(tally.error_rate, 6),
        ttft_ms=None if ms is None else round(ms, 1),
    )
