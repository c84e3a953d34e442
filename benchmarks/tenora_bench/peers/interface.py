"""What the comparison asks of a system under measurement, and what it gives it to start with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tenora_bench.metrics import RequestRecord

KINDS = ("mixed", "base")  # each request an adapter, in turn; or none


@dataclass(frozen=True)
class Request:
    """Token ids in, exactly `output_tokens` out: greedy, end tokens ignored, unless `more` says
    otherwise."""

    prompt: list[int]
    adapter: str | None  # the name of its folder; None is the base model
    output_tokens: int
    more: Mapping[str, Any] = field(default_factory=dict)  # of the body, where a server is asked


@dataclass(frozen=True)
class Setup:
    """What a system is started with."""

    python: Path  # the interpreter that has the peer's packages
    model: Path
    adapters: tuple[Path, ...]
    dtype: str
    threads: int
    streams_max: int  # most requests in flight
    tokens_max: int  # longest prompt and answer together
    scratch: Path  # a folder for it alone


class System(Protocol):
    """A started system. It is stopped by leaving the context that started it."""

    @property
    def kinds(self) -> Sequence[str]:
        """Which of KINDS it can do."""

    async def run(self, requests: Sequence[Request], streams: int) -> list[RequestRecord]:
        """Send `requests` in order, `streams` of them in flight; failures are recorded."""

    def pause(self) -> None:
        """Use no processor time until `resume`: another system is measured."""

    def resume(self) -> None: ...

    def peak_memory(self) -> dict[str, int]:
        """Peak resident bytes of each of its processes, as the kernel counts them (VmHWM: shared
        pages count in each); empty when they are not ours to see."""


Start = Callable[[Setup], AbstractAsyncContextManager[System]]
