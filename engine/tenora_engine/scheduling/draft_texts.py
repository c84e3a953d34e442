"""Text that drafts are looked up in: a request's own, what it predicts, what its tenant was
answered before (prompt lookup: Saxena, 2023)."""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Items
from typing import NamedTuple

from tenora_engine.fair_cache import FairCache
from tenora_engine.memory.prefix import BASE
from tenora_engine.request import GenerationRequest
from tenora_engine.sequence import Sequence

MATCHES = (16, 8, 4, 3, 2)
"""Tokens at the end of a sequence that are looked for, the longest first."""

SEARCHED_TOKENS = 16384
"""Of a text: the last ones are searched."""

_TOKEN = array("i").itemsize


class Found(NamedTuple):
    """Tokens behind a run of others."""

    token_ids: list[int]
    length: int  # of the run, one of MATCHES


NOTHING = Found([], 0)


class Text:
    """Token ids as bytes, in which a run of them is found at the speed of memory."""

    def __init__(self, token_ids: Items[int] = ()) -> None:
        self._bytes = bytearray(array("i", token_ids).tobytes())

    def __len__(self) -> int:
        return len(self._bytes) // _TOKEN

    def append(self, token_ids: Items[int]) -> None:
        self._bytes += array("i", token_ids).tobytes()

    def after(
        self, tail: bytes, most: int, is_own: bool = False, lengths: Items[int] = MATCHES
    ) -> Found:
        """Up to `most` tokens behind the last place where the longest of `lengths` last tokens of
        `tail` stand. `is_own`: the tail is this text's own end, and not meant."""
        text, end = self._bytes, len(self._bytes)
        first = max(end - SEARCHED_TOKENS * _TOKEN, 0)
        for length in lengths:
            wanted = tail[-length * _TOKEN :]
            if len(wanted) < length * _TOKEN:
                continue
            stop = end - _TOKEN if is_own else end
            while (place := text.rfind(wanted, first, stop)) >= 0:
                begin = place + len(wanted)
                if place % _TOKEN == 0 and begin < end:
                    found = array("i")
                    found.frombytes(text[begin : begin + most * _TOKEN])
                    return Found(found.tolist(), length)
                stop = place + len(wanted) - 1
        return NOTHING

    def behind(self, begin: Items[int], most: int) -> Found:
        """Up to `most` tokens behind these, if the text begins with them; as good as the longest
        run."""
        wanted = array("i", begin).tobytes()
        if not self._bytes.startswith(wanted):
            return NOTHING
        found = array("i")
        found.frombytes(self._bytes[len(wanted) : len(wanted) + most * _TOKEN])
        return Found(found.tolist(), MATCHES[0])

    def tail(self) -> bytes:
        return bytes(self._bytes[-MATCHES[0] * _TOKEN :])

    def cut(self, most_tokens: int) -> None:
        """Keep the last ones."""
        del self._bytes[: max(len(self._bytes) - most_tokens * _TOKEN, 0)]


_Key = tuple[str, str, str]  # namespace, digest, tenant


class Answers:
    """What a tenant's requests under one adapter were lately answered, for those tenants who want
    it. Nobody else's requests are drafted from it, also of those with whom it shares a namespace;
    it is forgotten with either, and when the tenant wants it no more."""

    KEPT_TOKENS = 32768  # of a tenant and adapter
    KEPT_TEXTS = 256

    def __init__(self) -> None:
        self._texts: FairCache[_Key, Text] = FairCache(self.KEPT_TEXTS)

    def of(self, request: GenerationRequest) -> Text | None:
        kept = self._texts.look(_key(request))
        return None if kept is None else kept.value

    def add(self, sequence: Sequence) -> None:
        """A sequence has ended: the end of its prompt, and its output."""
        key = _key(sequence.request)
        text = self._texts.remove(key) or Text()
        self._texts.put(key, text, key[2])
        begin = max(sequence.num_prompt - MATCHES[0], 0)
        text.append(sequence.token_ids[begin:])
        text.cut(self.KEPT_TOKENS)

    def forget(self, namespace: str, digest: str) -> None:
        for key in [key for key in self._texts if key[:2] == (namespace, digest)]:
            self._texts.remove(key)

    def forget_namespace(self, namespace: str) -> None:
        for key in [key for key in self._texts if key[0] == namespace]:
            self._texts.remove(key)

    def forget_tenant(self, tenant_key: str) -> None:
        for key in [key for key in self._texts if key[2] == tenant_key]:
            self._texts.remove(key)


def _key(request: GenerationRequest) -> _Key:
    adapter, tenant = request.adapter, request.tenant
    return tenant.namespace, BASE if adapter is None else adapter.digest, tenant.key
