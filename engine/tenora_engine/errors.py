"""The engine's named errors. Each message says what was wrong and what to do."""

from __future__ import annotations

from typing import Literal

from tenora_engine.printable import MESSAGE_MAX, brief


class EngineError(Exception):
    """Anything the engine refuses or fails at; never raised as itself for a user's mistake. However
    long what it tells of is, its message is short and can be printed."""

    def __init__(self, message: object = "") -> None:
        super().__init__(brief(message, MESSAGE_MAX))


class InvalidRequestError(EngineError):
    """The request cannot run on this engine. `param` names the field."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class ContextLengthError(InvalidRequestError):
    """Prompt and max_tokens do not fit the model's context or the arena."""

    @classmethod
    def of(
        cls,
        context_tokens: int,
        prompt_tokens: int,
        wanted_tokens: int | None,  # None: no maximum was named
        prompt_name: str,
        *,
        param: str,
    ) -> ContextLengthError:
        """In the words that clients look for in order to shorten a conversation."""
        asked = f"{prompt_tokens} tokens in the {prompt_name}"
        shorten = f"the length of the {prompt_name}"
        if wanted_tokens is not None:
            asked = (
                f"{prompt_tokens + wanted_tokens} tokens ({prompt_tokens} in the {prompt_name}, "
                f"{wanted_tokens} in the completion)"
            )
        if prompt_tokens > context_tokens:
            asked += ". The prompt is longer than the model's context length"
        if prompt_tokens >= context_tokens:  # a shorter completion would not help
            shorten += ", which leaves no room for a completion"
        elif wanted_tokens is not None:
            shorten += " or completion"
        return cls(
            f"This model's maximum context length is {context_tokens} tokens. However, you "
            f"requested {asked}. Please reduce {shorten}.",
            param,
        )


class QueueFullError(EngineError):
    """The bounded queue is full; try again after `retry_after_ms`."""

    def __init__(self, message: str, retry_after_ms: int = 1000) -> None:
        super().__init__(message)
        self.retry_after_ms = retry_after_ms


class DeadlineError(QueueFullError):
    """The first token cannot be expected within the tenant's TTFT target, and its plan refuses what
    would be late; after `retry_after_ms` it may be in time."""


class AdapterLoadError(EngineError):
    """An adapter could not be read or does not fit; only its own requests fail. `fault`: see
    `events.Fault`."""

    fault: Literal["engine", "damage", "store"] = "engine"


class AdapterDamagedError(AdapterLoadError):
    """Raised where the stored content of an adapter is not what was uploaded, or is gone."""

    fault = "damage"


class AdapterStoreError(AdapterLoadError):
    """The object store did not give an adapter; later it may."""

    fault = "store"


class AdapterBusyError(EngineError):
    """An adapter cannot be taken from the device: `requests` run on it, or, 0, it is pinned."""

    def __init__(self, message: str, requests: int = 0) -> None:
        super().__init__(message)
        self.requests = requests


class ModelLoadError(EngineError):
    """The model folder is missing, incomplete or of an unsupported kind."""


class MemoryBudgetError(EngineError):
    """The memory budget is too small; the message gives the numbers."""


class EngineUnavailableError(EngineError):
    """The engine process is not there (yet, or any more)."""


class GrammarsUnavailableError(EngineUnavailableError):
    """Whether a grammar can be followed could not be found out: nothing is said about it."""


class EngineFailedError(EngineError):
    """The engine cannot run steps any more; its process must end and another be started."""


class MemoryOperationError(EngineError):
    """An operation on the device's memory was not done; the engine that asked for it must end."""


class RecordingError(EngineError):
    """A recording of steps cannot be written or read."""


class InsecureEndpointError(EngineError):
    """Strangers could listen or speak at an engine's address."""
