"""Fixtures for every room's tests."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tenora_engine.model.default_model import ensure_default_model

# Before anything imports torch, and for the processes that tests start. Teams of threads that share
# cores with others' spend most of their time spinning: twice the processor time, thrice the wait.
# What is about several threads says how many itself.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A GPU machine has no web framework and no database; kernels and engine are tested there too.
pytest_plugins = (
    ["platform_fixtures", "limits_harness", "ledger_books", "backup_places"]
    if importlib.util.find_spec("fastapi")
    else []
)

# How long an example takes says more of what else the machine does than of what is tested.
settings.register_profile("tenora", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tenora")

_LONG_FIRST = ("e2e", "browser", "kernels", "engine")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of several processes none should be left alone with a long file at the end."""
    if not hasattr(config, "workerinput"):
        return

    def place(item: pytest.Item) -> int:
        folder = item.path.parent.name
        return _LONG_FIRST.index(folder) if folder in _LONG_FIRST else len(_LONG_FIRST)

    items.sort(key=place)


@pytest.fixture(scope="session")
def base_model_dir() -> Path:
    """The folder of the default base model, converted once and kept between runs."""
    default = Path(__file__).parents[1] / ".data" / "test"
    return ensure_default_model(Path(os.environ.get("TENORA_TEST_DATA", default)))
