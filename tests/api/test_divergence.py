"""The bound of the divergence against the exact divergence of whole distributions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tenora_platform.probing.divergence import kl_at_least


def log_softmax(logits: Any) -> Any:
    shifted = logits - logits.max()
    return shifted - math.log(np.exp(shifted).sum())


def top(logprobs: Any, count: int) -> dict[int, float]:
    return {int(token): float(logprobs[token]) for token in np.argsort(-logprobs)[:count]}


def exact(p: Any, q: Any) -> float:
    return float((np.exp(p) * (p - q)).sum())


@given(
    vocab=st.integers(2, 60),
    count=st.integers(1, 20),
    sharpness=st.floats(0.01, 12),
    apart=st.floats(0, 12),
    seed=st.integers(0, 10**6),
)
def test_it_never_says_more_than_there_is(
    vocab: int, count: int, sharpness: float, apart: float, seed: int
) -> None:
    draw = np.random.default_rng(seed)
    logits = draw.standard_normal(vocab) * sharpness
    p, q = log_softmax(logits), log_softmax(logits + draw.standard_normal(vocab) * apart)
    bound = kl_at_least(top(p, count), top(q, count))
    assert -1e-12 <= bound <= exact(p, q) + 1e-9


@given(vocab=st.integers(2, 20), apart=st.floats(0, 5), seed=st.integers(0, 10**6))
@example(vocab=16, apart=5.0, seed=1)  # a token of e^-30 in q
def test_of_all_tokens_it_is_exact(vocab: int, apart: float, seed: int) -> None:
    draw = np.random.default_rng(seed)
    p = log_softmax(draw.standard_normal(vocab))
    q = log_softmax(draw.standard_normal(vocab) * (1 + apart))
    assert kl_at_least(top(p, 20), top(q, 20)) == pytest.approx(exact(p, q), abs=1e-9)


def test_two_that_share_no_likely_token_are_far_apart() -> None:
    logits = np.zeros(1000)
    p, q = logits.copy(), logits.copy()
    p[:20], q[500:520] = 12, 12
    p, q = log_softmax(p), log_softmax(q)
    assert kl_at_least(top(p, 20), top(q, 20)) > 0.6 * exact(p, q) > 7


def test_the_same_are_not_apart() -> None:
    p = log_softmax(np.random.default_rng(0).standard_normal(50_000) * 3)
    assert kl_at_least(top(p, 20), top(p, 20)) == pytest.approx(0, abs=1e-12)
