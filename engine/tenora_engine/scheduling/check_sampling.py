"""Which sampling parameters are valid, whoever sends them: numbers that leave float32's range or
name tokens that there are not would harm more than their own request. No state."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from tenora_engine.errors import InvalidRequestError
from tenora_engine.request import (
    REPETITION_PENALTY_MAX,
    REPETITION_PENALTY_MIN,
    SamplingParams,
)

TOP_LOGPROBS_MAX = 20
LARGEST = 2**63 - 1
TEMPERATURE_MAX = 100.0
PENALTY_MAX = 100.0  # of presence, frequency and a bias: far beyond what decides any choice
RULE_TOKENS_MAX = 8192
"""Ids in all lists of a request together: a step looks at them for each of its rows."""


def check_sampling(sampling: SamplingParams, vocab: int) -> None:
    """Raises InvalidRequestError that names the parameter."""
    ranges = {
        "temperature": (sampling.temperature, 0.0, TEMPERATURE_MAX),
        "top_p": (sampling.top_p, 0.0, 1.0),
        "min_p": (sampling.min_p, 0.0, 1.0),
        "top_k": (sampling.top_k, 0, LARGEST),
        "presence_penalty": (sampling.presence_penalty, -PENALTY_MAX, PENALTY_MAX),
        "frequency_penalty": (sampling.frequency_penalty, -PENALTY_MAX, PENALTY_MAX),
        "repetition_penalty": (
            sampling.repetition_penalty,
            REPETITION_PENALTY_MIN,
            REPETITION_PENALTY_MAX,
        ),
        "max_tokens": (sampling.max_tokens, 1, LARGEST),
        "min_tokens": (sampling.min_tokens, 0, sampling.max_tokens),
        "n": (sampling.n, 1, LARGEST),
        "logprobs": (sampling.logprobs or 0, 0, TOP_LOGPROBS_MAX),
    }
    for name, (value, least, most) in ranges.items():
        if not least <= value <= most:  # as NaN is not
            raise InvalidRequestError(f"{name} must lie between {least:g} and {most:g}", name)
    if any(not abs(add) <= PENALTY_MAX for add in sampling.logit_bias.values()):
        raise InvalidRequestError(
            f"each logit_bias must lie between {-PENALTY_MAX:g} and {PENALTY_MAX:g}", "logit_bias"
        )
    _check_tokens(sampling, vocab)


def _check_tokens(sampling: SamplingParams, vocab: int) -> None:
    allowed = sampling.allowed_token_ids
    if allowed is not None and not allowed:
        raise InvalidRequestError("allowed_token_ids holds no token", "allowed_token_ids")
    if not all(sampling.bad_words):
        raise InvalidRequestError("a bad word has no token", "bad_words")
    lists: dict[str, Iterable[int]] = {
        "allowed_token_ids": allowed or (),
        "bad_words": chain.from_iterable(sampling.bad_words),
        "stop_token_ids": sampling.stop_token_ids,
        "logit_bias": sampling.logit_bias,
    }
    count = 0
    for name, token_ids in lists.items():
        for token in token_ids:
            count += 1
            if not 0 <= token < vocab:
                raise InvalidRequestError(f"{name} names a token id outside 0 to {vocab - 1}", name)
            if count > RULE_TOKENS_MAX:
                raise InvalidRequestError(
                    f"the lists of token ids hold more than {RULE_TOKENS_MAX} together", name
                )
