"""What a token id is: a whole number of the model's vocabulary. Every id that a request can carry
is checked here, at the API and again in the engine, which trusts no process that it is sent by."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import takewhile

from tenora_engine.errors import InvalidRequestError


def are_token_ids(token_ids: Collection[object], vocab: int) -> bool:
    """Whether each is an `int`, which `True` is not, from 0 to `vocab` - 1. Padding rows of the
    logits are tokens without text."""
    if not token_ids:
        return True
    if set(map(type, token_ids)) != {int}:
        return False
    return min(token_ids) >= 0 and max(token_ids) < vocab  # type: ignore[operator, type-var]


def check_token_ids(token_ids: Collection[object], vocab: int, param: str) -> None:
    """Raises InvalidRequestError that names the parameter."""
    if not are_token_ids(token_ids, vocab):
        raise InvalidRequestError(f"{param} names a token id outside 0 to {vocab - 1}", param)


def known_tokens(token_ids: Iterable[int], vocab: int) -> list[int]:
    """Those before the first that is no token: of drafts, which may come from anywhere."""
    return list(takewhile(lambda token_id: 0 <= token_id < vocab, token_ids))
