"""The typed messages of every hop between a client and the engine process, and the engine's errors
as values. Knows no socket."""

from __future__ import annotations

import msgspec

from tenora_engine import errors
from tenora_engine.client import AbortReason
from tenora_engine.config import EngineConfig, ModelInfo
from tenora_engine.events import (
    AdapterFootprint,
    EngineStats,
    EngineTotals,
    OccupancyRecord,
    Residency,
    SequenceEvent,
    UsageRecord,
)
from tenora_engine.pages import ArenaPages, Pin, PinState
from tenora_engine.request import AdapterRef, GenerationRequest
from tenora_engine.transport.address import EngineAddress


class ErrorInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """One of the named errors of `tenora_engine.errors`, as a value."""

    kind: str
    message: str
    param: str | None = None
    retry_after_ms: int | None = None
    requests: int | None = None


_KINDS: dict[str, type[errors.EngineError]] = {
    kind.__name__: kind
    for kind in (
        errors.EngineError,
        errors.InvalidRequestError,
        errors.ContextLengthError,
        errors.QueueFullError,
        errors.DeadlineError,
        errors.AdapterBusyError,
        errors.AdapterDamagedError,
        errors.AdapterStoreError,
        errors.AdapterLoadError,
        errors.ModelLoadError,
        errors.MemoryBudgetError,
        errors.EngineUnavailableError,
        errors.GrammarsUnavailableError,
        errors.InsecureEndpointError,
    )
}


def error_info(error: BaseException) -> ErrorInfo:
    """An error of this package by its nearest public kind; any other by its own words."""
    for kind in type(error).__mro__:
        if _KINDS.get(kind.__name__) is kind:
            return ErrorInfo(
                kind.__name__,
                str(error),
                getattr(error, "param", None),
                getattr(error, "retry_after_ms", None),
                getattr(error, "requests", None),
            )
    return ErrorInfo("EngineError", f"{type(error).__name__}: {error}")


def to_error(info: ErrorInfo) -> errors.EngineError:
    """The inverse of `error_info`."""
    kind = _KINDS.get(info.kind, errors.EngineError)
    if issubclass(kind, errors.InvalidRequestError):
        return kind(info.message, info.param)
    if issubclass(kind, errors.QueueFullError) and info.retry_after_ms is not None:
        return kind(info.message, info.retry_after_ms)
    if issubclass(kind, errors.AdapterBusyError):
        return kind(info.message, info.requests or 0)
    return kind(info.message)


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """A client's first message. The token is known only to those the owner told."""

    token: str


class Submit(msgspec.Struct, frozen=True, tag="submit"):
    request: GenerationRequest


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    request_id: str
    index: int | None
    reason: AbortReason
    output_tokens: int | None


class Forget(msgspec.Struct, frozen=True, tag="forget"):
    namespace: str
    digest: str
    device_only: bool = False


class ForgetNamespace(msgspec.Struct, frozen=True, tag="forget_namespace"):
    namespace: str


class AskResidency(msgspec.Struct, frozen=True, tag="ask_residency"):
    call: int
    adapter: AdapterRef


class AskResidencies(msgspec.Struct, frozen=True, tag="ask_residencies"):
    call: int
    digests: list[str]


class AskFootprint(msgspec.Struct, frozen=True, tag="ask_footprint"):
    call: int
    ranks: dict[str, list[int]]


class AskStats(msgspec.Struct, frozen=True, tag="ask_stats"):
    call: int


class AskUsage(msgspec.Struct, frozen=True, tag="ask_usage"):
    """Answered once there is a record that no one has acknowledged."""

    call: int


class AskTotals(msgspec.Struct, frozen=True, tag="ask_totals"):
    call: int
    since: str  # YYYY-MM-DD


class AskPages(msgspec.Struct, frozen=True, tag="ask_pages"):
    call: int
    namespace: str


class SetPins(msgspec.Struct, frozen=True, tag="set_pins"):
    call: int
    pins: list[Pin]


class EvictAdapter(msgspec.Struct, frozen=True, tag="evict_adapter"):
    call: int
    namespace: str
    digest: str


class AcknowledgeUsage(msgspec.Struct, frozen=True, tag="acknowledge_usage"):
    event_ids: list[str]


class Ping(msgspec.Struct, frozen=True, tag="ping"):
    """Says that the client lives, and how much it has read since the last Ready. Answered with
    Pong."""

    read_bytes: int | None = None  # None: all; it does not count


class Beat(msgspec.Struct, frozen=True, tag="beat"):
    """Says that a client lives whose own connection is busy. Not answered; anybody with the token
    may say it. One of whom neither came for too long has its requests aborted."""

    token: str
    client: bytes  # as Ready has named it


class Bye(msgspec.Struct, frozen=True, tag="bye"):
    """The client leaves; what it still runs is aborted."""


Question = AskResidency | AskResidencies | AskFootprint | AskStats | SetPins | EvictAdapter
"""What the engine's loop answers."""

ToEngine = (
    Hello
    | Submit
    | Abort
    | Forget
    | ForgetNamespace
    | AskResidency
    | AskResidencies
    | AskFootprint
    | AskStats
    | AskUsage
    | AskTotals
    | AskPages
    | SetPins
    | EvictAdapter
    | AcknowledgeUsage
    | Ping
    | Beat
    | Bye
)


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The answer to Hello, once the engine serves."""

    model: ModelInfo
    client: bytes = b""  # whom the engine takes this one for


class Unknown(msgspec.Struct, frozen=True, tag="unknown"):
    """The engine does not know this client (any more): wrong token, silent too long, or the engine
    is another one than before. The client must begin anew with Hello."""


class Pong(msgspec.Struct, frozen=True, tag="pong"):
    """The engine process lives. Any other message says so as well."""

    refuses: str | None = None  # why it takes no new work, while it does not


class Goodbye(msgspec.Struct, frozen=True, tag="goodbye"):
    """The engine has been stopped; nothing comes after this."""


class Events(msgspec.Struct, frozen=True, tag="events"):
    """All events of one step for one client, in order."""

    events: list[SequenceEvent]


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    request_id: str
    error: ErrorInfo


class ResidencyIs(msgspec.Struct, frozen=True, tag="residency"):
    call: int
    value: Residency


class ResidenciesAre(msgspec.Struct, frozen=True, tag="residencies"):
    call: int
    value: dict[str, Residency]


class FootprintIs(msgspec.Struct, frozen=True, tag="footprint"):
    call: int
    value: AdapterFootprint


class StatsAre(msgspec.Struct, frozen=True, tag="stats"):
    call: int
    value: EngineStats


class UsageIs(msgspec.Struct, frozen=True, tag="usage"):
    call: int
    value: list[UsageRecord]
    occupancy: list[OccupancyRecord] = []


class TotalsAre(msgspec.Struct, frozen=True, tag="totals"):
    call: int
    value: EngineTotals


class PagesAre(msgspec.Struct, frozen=True, tag="pages"):
    call: int
    value: ArenaPages


class PinsAre(msgspec.Struct, frozen=True, tag="pins"):
    call: int
    value: list[PinState]


class Evicted(msgspec.Struct, frozen=True, tag="evicted"):
    call: int
    value: int


class CallFailed(msgspec.Struct, frozen=True, tag="call_failed"):
    call: int
    error: ErrorInfo


FromEngine = (
    Ready
    | Unknown
    | Pong
    | Goodbye
    | Events
    | Refused
    | ResidencyIs
    | ResidenciesAre
    | FootprintIs
    | StatsAre
    | UsageIs
    | TotalsAre
    | PagesAre
    | PinsAre
    | Evicted
    | CallFailed
)


class Boot(msgspec.Struct, frozen=True):
    """What the owner writes on the engine process's standard input: one line of JSON."""

    config: EngineConfig
    address: EngineAddress
    factory: str  # "module:function", makes the Engine from the EngineConfig


class Listening(msgspec.Struct, frozen=True, tag="listening"):
    """First line of the engine process's report (JSON lines on its standard output)."""

    endpoint: str


class Loaded(msgspec.Struct, frozen=True, tag="loaded"):
    """The engine serves."""


class LoadFailed(msgspec.Struct, frozen=True, tag="load_failed"):
    """The engine could not be built; the process ends."""

    error: ErrorInfo


Report = Listening | Loaded | LoadFailed
