"""What is counted of requests, and what a guard makes of it."""

from __future__ import annotations

import statistics
from collections import Counter
from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.asyncio import Redis
from redis.exceptions import ConnectionError

from tenora_engine.errors import (
    EngineUnavailableError,
    GrammarsUnavailableError,
    InvalidRequestError,
    QueueFullError,
)
from tenora_platform.errors import ApiError, ForbiddenError, UnavailableError
from tenora_platform.evaluations.comparison import Compared
from tenora_platform.inference.stream import ClientGoneError
from tenora_platform.registry.resolver import ResolvedAdapter, ResolvedModel
from tenora_platform.rollouts.guard import Evidence, breach
from tenora_platform.rollouts.outcomes import OfAlias, Outcomes, Tally, time_bucket
from tenora_platform.rollouts.schemas import Guard

OF = OfAlias("tenant_x", "adp_x", "prod")
ADAPTER = ResolvedAdapter("adv_x", "bot", 7, "sha256:x", 8, OF.adapter_id)


def tally(requests: int, errors: int = 0, ms: float = 100.0) -> Tally:
    return Tally(requests, errors, Counter({time_bucket(ms): requests - errors}))


@given(st.lists(st.floats(1.5, 100_000), min_size=1, max_size=60))
def test_medians_are_near(times: list[float]) -> None:
    found = Tally(len(times), 0, Counter(map(time_bucket, times))).ttft_ms
    assert found is not None
    low, high = statistics.median_low(times), statistics.median_high(times)
    assert low / 1.1 <= found <= high * 1.1


@pytest.mark.parametrize(
    ("version", "before", "goes_back"),
    [
        (tally(20, 1), tally(400), False),  # 5%, and 5% more are allowed
        (tally(20, 2), tally(400), True),
        (tally(19, 19), tally(400), False),  # too few to say
        (tally(100, 30), tally(400, 110), False),  # they fail, too
        (tally(100, 33), tally(400, 110), True),
        (tally(20, 2), tally(0), True),  # nobody before it: none of theirs failed
        (tally(20, ms=140), tally(400, ms=100), False),
        (tally(20, ms=170), tally(400, ms=100), True),
        (tally(19, ms=1000), tally(400, ms=100), False),
        (tally(20, ms=1000), tally(19, ms=100), False),
    ],
)
def test_thresholds(version: Tally, before: Tally, goes_back: bool) -> None:
    assert (breach(Guard(), Evidence(version, before)) is not None) == goes_back


@pytest.mark.parametrize(
    ("drop", "scores", "goes_back"),
    [
        (0.02, (0.90, 0.93), True),
        (0.25, (0.50, 0.75), False),  # so much is allowed
        (0.0, (0.93, 0.90), False),
        (None, (0.0, 1.0), False),
    ],
)
def test_scores(drop: float | None, scores: tuple[float, float], goes_back: bool) -> None:
    evidence = Evidence(tally(0), tally(0), Compared("eval_x", *scores))
    said = breach(Guard(score_drop=drop), evidence)
    assert (said is not None) == goes_back
    assert said is None or "eval_x" in said


def test_what_is_null_is_not_looked_at() -> None:
    bad = Evidence(tally(100, 90, ms=9000), tally(100))
    assert breach(Guard(error_rate=None, ttft_ratio=None), bad) is None


@pytest.mark.parametrize(
    ("error", "requests", "errors"),
    [
        (None, 1, 0),
        (ApiError("it broke", code="engine_error"), 1, 1),
        (UnavailableError("aborted", code="request_aborted"), 1, 1),
        (EngineUnavailableError("away"), 1, 1),
        (ZeroDivisionError(), 1, 1),
        (ClientGoneError("gone"), 1, 0),
        (GeneratorExit(), 1, 0),
        (InvalidRequestError("wrong"), 0, 0),
        (QueueFullError("full", retry_after_ms=5), 0, 0),
        (ForbiddenError("suspended"), 0, 0),
        (UnavailableError("stopping", code="server_stopping"), 0, 0),
        (GrammarsUnavailableError("no process"), 0, 0),
    ],
)
async def test_what_counts(
    redis_url: str, error: BaseException | None, requests: int, errors: int
) -> None:
    redis = Redis.from_url(redis_url)
    await redis.flushdb()
    outcomes = Outcomes(redis)
    expected = nullcontext() if error is None else pytest.raises(type(error))
    with expected, outcomes.watch(OF.tenant_id, ResolvedModel("bot", ADAPTER, OF.alias)):
        if error is not None:
            raise error
    with outcomes.watch(OF.tenant_id, ResolvedModel("bot@7", ADAPTER)) as watch:
        watch.piece()  # not by an alias
    await outcomes.flush()
    found = (await outcomes.between(OF, 0, 0)).get(7)
    assert found is None  # long ago
    now = [await redis.hgetall(key) for key in await redis.keys(f"{OF.key}:*")]
    counted = Counter({name: int(n) for fields in now for name, n in fields.items()})
    assert (counted[b"7:n"], counted[b"7:e"]) == (requests, errors)
    assert await outcomes.answered(OF, 7) == requests
    await redis.aclose()


async def test_what_redis_does_not_take_waits(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    redis = Redis.from_url(redis_url)
    await redis.flushdb()
    outcomes = Outcomes(redis)
    outcomes.note(OF, 1, failed=False, first_token_ms=5)
    with monkeypatch.context() as patch:

        def away(*_: object, **__: object) -> None:
            raise ConnectionError("away")

        patch.setattr(redis, "pipeline", away)
        with pytest.raises(ConnectionError):
            await outcomes.flush()
    outcomes.note(OF, 1, failed=True, first_token_ms=None)
    await outcomes.flush()
    assert await outcomes.answered(OF, 1) == 2
    await outcomes.flush()
    assert await outcomes.answered(OF, 1) == 2
    await redis.aclose()
