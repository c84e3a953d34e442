"""EngineClient: the one interface through which the platform reaches an engine, wherever it runs.

Forms: in this process (`transport.inprocess`, for tests), in a local process
(`transport.process`), and later a fleet. The platform imports this file, `request`, `events`,
`pages`, `errors`, `config` and `text`; nothing deeper.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Protocol

from tenora_engine.config import ModelInfo
from tenora_engine.events import (
    AdapterFootprint,
    EngineStats,
    EngineTotals,
    Metered,
    Residency,
    SequenceEvent,
)
from tenora_engine.pages import ArenaPages, Pin, PinState
from tenora_engine.request import AdapterRef, GenerationRequest

if TYPE_CHECKING:  # who holds an engine up must not pay for the tokenizer
    from tenora_engine.text.processor import TextProcessor

AbortReason = Literal["client_gone", "stop", "invalid", "cut_off"]
RESIDENCIES_MAX = 1000


class EngineClient(Protocol):
    """Submit requests, read events, abort, and settle usage."""

    @property
    def model(self) -> ModelInfo: ...

    @property
    def text(self) -> TextProcessor:
        """Tokenizer, chat template and incremental detokenizer of the base model; runs here, in
        the caller's process, so that text costs the engine nothing."""
        ...

    async def start(self) -> None:
        """Start the engine and wait until it can serve. Raises ModelLoadError,
        MemoryBudgetError or EngineUnavailableError, with the engine's own words."""
        ...

    async def stop(self) -> None: ...

    @property
    def ready(self) -> bool:
        """Whether the engine lives and has loaded its model."""
        ...

    @property
    def refuses(self) -> str | None:
        """Why a ready engine takes no new work, in words for a person: what it used could not be
        recorded. What runs ends as ever."""
        ...

    def submit(self, request: GenerationRequest) -> AsyncIterator[SequenceEvent]:
        """Events of all n sequences, ending after the last FinishEvent. Closing the iterator
        early aborts what still runs. Raises InvalidRequestError, ContextLengthError,
        QueueFullError (DeadlineError perhaps only after it has waited for a while) or
        EngineUnavailableError on the first `anext`, and EngineUnavailableError later too, when the
        engine dies: then there is no FinishEvent and no usage."""
        ...

    async def abort(
        self,
        request_id: str,
        index: int | None = None,
        reason: AbortReason = "client_gone",
        output_tokens: int | None = None,
    ) -> None:
        """End one sequence (or all) within one step. `reason="stop"` is a stop string met in the
        text: the sequence finishes as "stop", metered at `output_tokens`; also where it had ended
        by itself, if its request `ends_by_text`. Of such a request the client says the same without
        a number, and without an index, when it has read the last FinishEvent: the text of the
        others ended where they did. "invalid": what it is a part of cannot be answered; it ends in
        an error, and nothing of it is metered. "cut_off": the platform ends what the client still
        wants; nothing of it is metered."""
        ...

    async def forget_adapter(
        self, namespace: str, digest: str, *, device_only: bool = False
    ) -> None:
        """Give back the adapter's pages and the namespace's cached KV under it, as soon as its
        running requests have ended; and its copies in host memory and Redis, unless
        `device_only`."""
        ...

    async def forget_namespace(self, namespace: str) -> None:
        """Give back all that is cached of a namespace, the base model's KV included: nobody asks
        for it any more."""
        ...

    async def residency(self, adapter: AdapterRef) -> Residency: ...

    async def residencies(self, digests: Sequence[str]) -> Mapping[str, Residency]:
        """Where each of at most RESIDENCIES_MAX adapters is now. Redis is waited for, unlike by
        `residency`: for pages, not for requests. Raises EngineUnavailableError."""
        ...

    async def footprint(self, ranks: Mapping[str, Sequence[int]]) -> AdapterFootprint:
        """What an adapter will take; `ranks` has for each module the rank in each layer, 0 where it
        lacks it. Raises AdapterLoadError for one whose rows no page can hold,
        EngineUnavailableError."""
        ...

    async def stats(self) -> EngineStats: ...

    async def pages(self, namespace: str = "") -> ArenaPages:
        """What each page of the arena holds, and what would go next if the namespace needed room.
        Costs the steps a copy of the bookkeeping."""
        ...

    async def set_pins(self, pins: Sequence[Pin]) -> Sequence[PinState]:
        """From now on these adapters stay on the device, and no others: those that are not there
        are brought, as far as there is room. To be told again after a restart."""
        ...

    async def evict_adapter(self, namespace: str, digest: str) -> int:
        """Take an adapter from the device; returns the pages that are free then. Raises
        AdapterBusyError while requests run on it or it is pinned."""
        ...

    async def unacknowledged_usage(self) -> Sequence[Metered]:
        """Wait for usage records that no one has acknowledged, oldest first (at most 256). A
        record is given again, after a restart too, until `acknowledge_usage` names it. Waits while
        the engine is away; raises EngineUnavailableError once this client has been stopped."""
        ...

    async def acknowledge_usage(self, event_ids: Sequence[str]) -> None: ...

    async def usage_totals(self, since: str) -> EngineTotals:
        """All that this engine has metered, by tenant and UTC day, from that day (YYYY-MM-DD) on;
        what was acknowledged counts too. Raises EngineUnavailableError."""
        ...
