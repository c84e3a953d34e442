"""The events of one stream as bytes: what all of its chunks say alike is encoded once, what differs
is put between. It knows how a chunk begins and ends, not what a choice says."""

from __future__ import annotations

from typing import Any

import msgspec

from tenora_platform.inference.schemas import SamplingFields
from tenora_platform.inference.session import InferenceSession
from tenora_platform.inference.stream import sse

encode = msgspec.json.Encoder().encode


class Chunks:
    """`kind` is the chunks' `object`. A chunk made here is, parsed, what `session.chunk` gives."""

    def __init__(self, session: InferenceSession, kind: str, body: SamplingFields) -> None:
        self._session = session
        self._kind = kind
        self._body = body
        options = body.stream_options
        self.counts = bool(options and options.include_usage and options.continuous_usage_stats)
        self._tier = session.tier
        self._head, self._tail = self._ends()

    def of(self, choice: bytes) -> bytes:
        """A chunk of one choice, which is JSON already."""
        if self.counts or self._tier != self._session.tier:
            self._tier = self._session.tier
            self._head, self._tail = self._ends()
        return b"".join((self._head, choice, self._tail))

    def rare(self, choices: list[dict[str, Any]], **more: Any) -> bytes:
        """A chunk that says `more` beside its choices."""
        return sse({**self._session.chunk(self._kind, self._body, choices), **more})

    def _ends(self) -> tuple[bytes, bytes]:
        whole = self._session.chunk(self._kind, self._body, [])
        names = list(whole)
        before = names[: names.index("choices")]
        after = names[names.index("choices") + 1 :]
        head = encode({name: whole[name] for name in before})[:-1] + b',"choices":['
        tail = b"]," + encode({name: whole[name] for name in after})[1:]
        return b"data: " + head, tail + b"\n\n"
