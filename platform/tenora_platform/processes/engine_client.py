"""The client through which an API process or a worker reaches the engine that all of them share."""

from __future__ import annotations

from tenora_engine.client import EngineClient
from tenora_engine.text.processor import TextProcessor
from tenora_engine.transport.address import EngineAddress
from tenora_engine.transport.remote import RemoteEngineClient
from tenora_platform.settings import Settings

_FOR_EVER_S = 1e8  # an engine that comes late, or is away for long, is waited for


def shared_engine(
    settings: Settings, address: EngineAddress, *, late_text: bool = False
) -> EngineClient:
    """`late_text` spares a tokenizer's 50 MB until it is needed. Raises
    ValueError without a model folder."""
    if settings.model is None:
        raise ValueError("no model folder: resolve the default model first")
    return RemoteEngineClient(
        address, settings.model, TextProcessor, _FOR_EVER_S, late_text=late_text
    )
