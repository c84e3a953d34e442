"""Fixtures for every room's tests."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

from tenora_engine.model.default_model import ensure_default_model

# A GPU machine has no web framework and no database; kernels and engine are tested there too.
pytest_plugins = (
    ["platform_fixtures", "limits_harness", "ledger_books"]
    if importlib.util.find_spec("fastapi")
    else []
)


@pytest.fixture(scope="session")
def base_model_dir() -> Path:
    """The folder of the default base model, converted once and kept between runs."""
    default = Path(__file__).parents[1] / ".data" / "test"
    return ensure_default_model(Path(os.environ.get("TENORA_TEST_DATA", default)))
