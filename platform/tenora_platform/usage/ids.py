"""What usage events are called: `<request id>:<sequence>` outside, the 128 bits of the request's
ULID and a number inside. The only place that turns one into the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from uuid import UUID

from tenora_platform.ids import split_id, ulid_text

OTHER = "other"
"""The kind of requests whose ids are not of our making."""


class BadSequenceError(ValueError):
    """Not the place of a sequence; the message says what was given."""


@dataclass(frozen=True, slots=True)
class EventId:
    """One event: a request of a client's, and which of all its sequences."""

    kind: str  # chatcmpl, cmpl, ...
    request: UUID
    sequence: int

    @property
    def request_id(self) -> str:
        return request_text(self.kind, self.request)

    @property
    def text(self) -> str:
        return event_text(self.kind, self.request, self.sequence)

    @property
    def key(self) -> tuple[UUID, int]:
        """By which it is stored."""
        return (self.request, self.sequence)


def request_text(kind: str, request: UUID) -> str:
    return f"{kind}_{ulid_text(request.int)}"


def event_text(kind: str, request: UUID, sequence: int) -> str:
    return f"{kind}_{ulid_text(request.int)}:{sequence}"


def request_of(request_id: str) -> tuple[str, UUID]:
    """(kind, bits). An id that is not of our making gets bits of its digest, under a time long
    before there was any request, so that the time of all others is what it seems."""
    found = split_id(request_id)
    if found is not None:
        return found[0], UUID(int=found[1])
    digest = sha256(request_id.encode(errors="surrogatepass")).digest()
    return OTHER, UUID(bytes=bytes(6) + digest[:10])


def event_of(text: str) -> EventId:
    """Raises BadSequenceError where the text does not end in a sequence."""
    request_id, _, sequence = text.rpartition(":")
    return EventId(*request_of(request_id), checked_sequence(sequence))


def event_of_run(request_id: str, context: Mapping[str, str], index: int) -> EventId:
    """The event of sequence `index` of an engine's request. The client's request may have been
    several of the engine's, one for each of its prompts: its context says which sequence came
    first. Raises BadSequenceError."""
    first = checked_sequence(context.get("first_sequence", "0"))
    sequence = first + index
    if index < 0 or sequence >= 2**31:
        raise BadSequenceError(f"{first} and {index}")
    return EventId(*request_of(context.get("request_id") or request_id), sequence)


def occupancy_text(id_: UUID) -> str:
    """What an event of occupancy is called."""
    return f"occupancy:{id_}"


def occupancy_of(text: str) -> UUID | None:
    """None where it is called otherwise."""
    kind, _, id_ = text.partition(":")
    return UUID(id_) if kind == "occupancy" else None


def is_event_text(text: str) -> bool:
    """Whether an event can be called so, of a request or of occupancy."""
    try:
        return occupancy_of(text) is not None or event_of(text) is not None
    except ValueError:
        return False


def checked_sequence(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise BadSequenceError(repr(text[:20]))
    return int(text)


def x_request_id_of(request: UUID, stored: str | None) -> str | None:
    """The HTTP answer's: that of the server's making is not stored, for it is of the same ULID;
    None of events from before it was kept."""
    if stored is None:
        return f"req_{ulid_text(request.int)}"
    return stored or None


def stored_x_request_id(request: UUID, told: str | None) -> str | None:
    """The opposite."""
    if told == f"req_{ulid_text(request.int)}":
        return None
    return told or ""
