"""What no engine should be asked to sample by is refused before it is queued, by name."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tenora_engine.errors import InvalidRequestError
from tenora_engine.request import SamplingParams
from tenora_engine.scheduling.admission import RULE_TOKENS_MAX, check_sampling

VOCAB = 100_000


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("temperature", [math.nan, math.inf, -1.0, 1e300]),
        ("top_p", [math.nan, -0.1, 1.1]),
        ("min_p", [math.nan, 2.0]),
        ("top_k", [-1, 2**64]),
        ("presence_penalty", [math.nan, -math.inf, 1e9]),
        ("frequency_penalty", [math.nan, math.inf, -1e9]),
        ("repetition_penalty", [math.nan, 0.0, 1e-38, 1e-3, 1e30]),
        ("max_tokens", [0, -1]),
        ("min_tokens", [-1, 17]),
        ("n", [0]),
        ("logprobs", [-1, 21]),
        ("logit_bias", [{1: math.nan}, {1: math.inf}, {-1: 1.0}, {VOCAB: 1.0}]),
        ("stop_token_ids", [(-1,), (VOCAB,), (2**40,)]),
        ("bad_words", [((),), ((1, VOCAB),), ((3,), ())]),
        ("allowed_token_ids", [(), (VOCAB,), tuple(range(RULE_TOKENS_MAX + 1))]),
    ],
)
def test_the_parameter_is_named(name: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(InvalidRequestError) as caught:
            check_sampling(SamplingParams(**{name: value}), VOCAB)
        assert caught.value.param == name


def test_what_is_valid_passes() -> None:
    check_sampling(SamplingParams(), VOCAB)
    check_sampling(
        SamplingParams(
            temperature=1e-40,
            top_k=2**62,
            repetition_penalty=0.01,
            logit_bias={0: -100.0, VOCAB - 1: 100.0},
            bad_words=((1,), (2, 3)),
            allowed_token_ids=tuple(range(4096)),
            min_tokens=16,
        ),
        VOCAB,
    )
