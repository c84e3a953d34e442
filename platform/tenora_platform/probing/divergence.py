"""How far two next-token distributions are apart, by the likeliest tokens of each: what is certain
of their Kullback-Leibler divergence. Pure; knows no model."""

from __future__ import annotations

import math
from collections.abc import Mapping

Top = Mapping[int, float]
"""Log probabilities (natural) of a distribution's likeliest tokens; no other token is likelier."""


ROUNDING = 1e-6
"""Of what is left of 1 beside named tokens: their logprobs are float32. What is left of q counts as
so much more, which makes the bound smaller."""


def kl_at_least(p: Top, q: Top) -> float:
    """A lower bound of KL(p || q) in nats, of two distributions over the same vocabulary.

    Tokens are put into cells, and KL of the cells' masses is at most KL of the tokens' (the data
    processing inequality; Cover and Thomas, Elements of Information Theory, 2.8). A token that both
    name is a cell of its own. Of the tokens that p alone names, p's mass is known, and q's is at
    most what q does not name, and as many times q's least likely named token as they are: of all
    masses that q may then have there, the one of the least divergence counts. The other way round
    for what q alone names. Each of the two is a bound; the larger is returned."""
    both = p.keys() & q.keys()
    shared = math.fsum(math.exp(p[token]) * (p[token] - q[token]) for token in both)
    p_left, q_left = _left(p, both), _left(q, both) + ROUNDING
    p_only, q_only = _mass(p, p.keys() - both), _mass(q, q.keys() - both)
    q_there = min(q_left * _share(p_only, p_left), _most(q, len(p) - len(both)))
    p_there = min(p_left * _share(q_only, q_left), _most(p, len(q) - len(both)))
    by_p = _term(p_only, q_there) + _term(p_left - p_only, q_left - q_there)
    by_q = _term(p_there, q_only) + _term(p_left - p_there, q_left - q_only)
    return max(shared + max(by_p, by_q), 0.0)


def _most(of: Top, count: int) -> float:
    """The most mass on `count` tokens that are not named."""
    least = math.exp(min(of.values())) if of else 1.0
    return min(count * least, _left(of, set(of)) + ROUNDING)


def _share(part: float, whole: float) -> float:
    """The same split on both sides is the least apart."""
    return min(part / whole, 1.0) if whole > 0.0 else 0.0


def _left(of: Top, named: set[int]) -> float:
    return max(1.0 - _mass(of, named), 0.0)


def _mass(of: Top, tokens: set[int]) -> float:
    return math.fsum(math.exp(of[token]) for token in tokens)


def _term(p: float, q: float) -> float:
    """p log(p/q) of masses that were added up: where rounding has left p below 0, nothing, and of
    q no less than could be told from 0."""
    return p * math.log(p / max(q, ROUNDING**2)) if p > 0.0 else 0.0
