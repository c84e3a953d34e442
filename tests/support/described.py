"""The description of the API, made once for all modules that read it while tests are collected."""

from __future__ import annotations

from functools import cache
from typing import Any

from tenora_platform.app import openapi_document


@cache
def document() -> dict[str, Any]:
    """To be read only."""
    return openapi_document()
