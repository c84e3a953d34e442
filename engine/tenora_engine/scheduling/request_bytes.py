"""RequestBytes: host memory that requests in flight take, of each tenant and together, and whether
another one may come. It reckons; what is measured it does not know."""

from __future__ import annotations

import threading
from collections import Counter

from tenora_engine.errors import QueueFullError
from tenora_engine.grammar.limits import states_bytes
from tenora_engine.request import GenerationRequest

PROMPT_TOKEN_BYTES = 52
"""A number and its place in the request's list, its place in the sequences' own, which share the
prompt, and the 4 bytes that the prefix cache is asked with: 6.1 MiB for 120,000 tokens."""

TOKEN_BYTES = 40  # a number and its place, in a prediction or a list of ids
RULE_BYTES = 96  # a token's bias
REQUEST_BYTES = 4096  # its objects, events and records
SEQUENCE_BYTES = 2048  # more of each sequence
TENANT_SHARE = 4  # a tenant has at most this part of the bound, whatever others have
HARD_LIMIT = 2  # bounds together, where many tenants are within their shares


def request_bytes(request: GenerationRequest, characters: int = 0) -> int:
    """Host memory in bytes of a request in flight, whose samples have one prompt, and whose grammar
    counts so many `characters`. That is found where the grammar is checked: before, nobody follows
    it, and of its text nothing is read here but the length."""
    sampling = request.sampling
    num_ids = len(request.prediction_token_ids) + len(sampling.stop_token_ids)
    num_ids += len(sampling.allowed_token_ids or ()) + sum(map(len, sampling.bad_words))
    text = sum(len(key) + len(value) for key, value in request.context.items())
    if sampling.grammar is not None:
        text += len(sampling.grammar.text)
    return (
        REQUEST_BYTES
        + SEQUENCE_BYTES * sampling.n
        + PROMPT_TOKEN_BYTES * len(request.prompt_token_ids)
        + TOKEN_BYTES * num_ids
        + RULE_BYTES * len(sampling.logit_bias)
        + 4 * text  # as characters of several bytes, or twice
        + states_bytes(characters, sampling.max_tokens * sampling.n)
    )


class RequestBytes:
    """Of all requests in flight, at most about `most`: what runs was admitted with its memory. Safe
    in threads: what waits for its grammar, or in the inbox, counts, too."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._by_tenant: Counter[str] = Counter()
        self._lock = threading.Lock()
        self.total = 0

    def reserve(self, request: GenerationRequest) -> None:
        """Count a request that `release` gives back. Raises QueueFullError when the tenant would
        pass its part of the bound, or the bound is reached and the tenant has more than an equal
        share of it, so that no other tenant's bytes refuse the request of one within its share. A
        tenant's only request always has room but where many small shares come to HARD_LIMIT bounds:
        a context bounds it."""
        key, size = request.tenant.key, request_bytes(request)
        with self._lock:
            self._check_room(key, size)
            self._count(key, size)

    def add_states(self, request: GenerationRequest, characters: int) -> None:
        """Count the states of the grammar of a request that is counted, now that it is known how
        many `characters` it counts. Raises QueueFullError as `reserve`, and nothing has changed."""
        key = request.tenant.key
        before, after = request_bytes(request), request_bytes(request, characters)
        with self._lock:
            self._count(key, -before)
            try:
                self._check_room(key, after)
            except QueueFullError:
                self._count(key, before)
                raise
            self._count(key, after)

    def release(self, request: GenerationRequest, characters: int = 0) -> None:
        with self._lock:
            self._count(request.tenant.key, -request_bytes(request, characters))

    def _count(self, key: str, size: int) -> None:
        self.total += size
        self._by_tenant[key] += size
        if not self._by_tenant[key]:
            del self._by_tenant[key]

    def _check_room(self, key: str, size: int) -> None:
        own, total = self._by_tenant[key], self.total
        if total + size > HARD_LIMIT * max(self._most, size):
            raise self._refusal(f"the requests in flight use {_mib(total)}", size)
        if not own:
            return
        if own + size > self._most // TENANT_SHARE:
            raise self._refusal(f"this tenant's requests in flight use {_mib(own)}", size)
        share = self._most // max(len(self._by_tenant), 1)
        if total + size > self._most and own + size > share:
            raise self._refusal(
                f"the requests in flight use {_mib(total)}, this tenant's {_mib(own)}", size
            )

    def _refusal(self, taken: str, size: int) -> QueueFullError:
        return QueueFullError(
            f"{taken} of memory, and {_mib(size)} more would exceed the limit; try again later"
        )


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / 1024**2:.1f} MiB"
