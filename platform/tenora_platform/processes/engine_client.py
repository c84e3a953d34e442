"""The client through which an API process or a worker reaches the engine that all of them share."""

from __future__ import annotations

from tenora_engine.client import EngineClient
from tenora_engine.text.processor import TextProcessor
from tenora_engine.transport.address import EngineAddress
from tenora_engine.transport.remote import RemoteEngineClient
from tenora_platform.settings import Settings

_FOR_EVER_S = 1e8  # an engine that comes late, or is away for long, is waited for


def shared_engine(
    settings: Settings, address: EngineAddress, *, with_text: bool = True
) -> EngineClient:
    """`with_text` False spares a tokenizer's 50 MB. Raises ValueError without a model folder."""
    if settings.model is None:
        raise ValueError("no model folder: resolve the default model first")
    text = TextProcessor if with_text else None
    return RemoteEngineClient(address, settings.model, text, start_timeout_s=_FOR_EVER_S)
