"""What the prefix cache knows tokens by where a request has a salt: its first block is another than
without it, and so is all that lies behind."""

from __future__ import annotations

from collections import abc
from hashlib import sha256

from tenora_engine.memory.prefix import TOKEN_BYTES, encode_tokens
from tenora_engine.sequence import Sequence


def salted_tokens(token_ids: abc.Sequence[int], salt: str, begin: int = 0) -> bytes:
    """As `encode_tokens` has them, which are the tokens from `begin` on of their sequence."""
    encoded = encode_tokens(token_ids)
    if not salt:
        return encoded
    mask = sha256(salt.encode(errors="surrogatepass")).digest()[begin * TOKEN_BYTES :]
    head = bytes(one ^ other for one, other in zip(encoded, mask, strict=False))
    return head + encoded[len(head) :]


def encoded_of(sequence: Sequence, begin: int = 0, stop: int | None = None) -> bytes:
    """Of these of its tokens."""
    return salted_tokens(sequence.token_ids[begin:stop], sequence.request.cache_salt, begin)
