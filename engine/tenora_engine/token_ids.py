"""What a token id is: a whole number of the model's vocabulary. Every id that a request can carry
is checked here, at the API and again in the engine, which trusts no process that it is sent by."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import lru_cache
from itertools import takewhile
from typing import Annotated, Any

import msgspec

from tenora_engine.errors import InvalidRequestError

IDS_AT_ONCE = 8192
"""Looked at in one call, behind which other threads of the process may go on."""


def are_token_ids(token_ids: Collection[object], vocab: int) -> bool:
    """Whether each is an `int`, which `True` is not, from 0 to `vocab` - 1. Padding rows of the
    logits are tokens without text. 120,000 take 1.1 ms."""
    kind, ids = _ids_below(vocab), token_ids if isinstance(token_ids, list) else list(token_ids)
    try:
        for start in range(0, len(ids), IDS_AT_ONCE):
            msgspec.convert(ids[start : start + IDS_AT_ONCE], kind)
    except msgspec.ValidationError:
        return False
    return True


@lru_cache(maxsize=16)
def _ids_below(vocab: int) -> Any:
    return list[Annotated[int, msgspec.Meta(ge=0, lt=vocab)]]


def check_token_ids(token_ids: Collection[object], vocab: int, param: str) -> None:
    """Raises InvalidRequestError that names the parameter."""
    if not are_token_ids(token_ids, vocab):
        raise InvalidRequestError(not_in_vocabulary(token_ids, vocab, param), param)


def not_in_vocabulary(token_ids: Collection[object], vocab: int, param: str) -> str:
    """Return the error for ids that are not all of the vocabulary. It names the first other one,
    unless that is no number, or one that cannot be written out."""
    known = range(vocab)
    wrong = next((each for each in token_ids if type(each) is not int or each not in known), None)
    is_shown = type(wrong) is int and abs(wrong) < 2**63
    name = f"the token id {wrong}" if is_shown else "a token id"
    return f"{param} contains {name}, out of vocabulary: the model's {vocab} are 0 to {vocab - 1}"


def known_tokens(token_ids: Iterable[int], vocab: int) -> list[int]:
    """Those before the first that is no token: of drafts, which may come from anywhere."""
    return list(takewhile(lambda token_id: 0 <= token_id < vocab, token_ids))
