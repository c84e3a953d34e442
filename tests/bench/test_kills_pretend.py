"""The pretend engine of `tenora bench kills` is held up like the real one, and ends with its
owner."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from tenora_bench.api.pretend_engine import FACTORY
from tenora_bench.client import BenchError
from tenora_bench.kills.platform import children
from tenora_bench.kills.pretend import held_engine
from tenora_engine.config import EngineConfig
from tenora_engine.transport.address import EngineAddress
from tenora_engine.transport.messages import Boot

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="finds the processes in /proc")
PATIENCE_S = 60.0


def boot(model: Path, folder: Path) -> Boot:
    config = EngineConfig(model=str(model), served_name="base", outbox_dir=str(folder / "outbox"))
    return Boot(config, EngineAddress(f"ipc://{folder}/engine.sock", "token"), FACTORY)


def engine_of(holder: int, *, after: int | None = None) -> int:
    """The engine's process, another than `after`."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        found = [pid for pid in children(holder, "tenora-engine") if pid != after]
        if found:
            return found[0]
        time.sleep(0.05)
    raise AssertionError("no engine")


def test_one_that_is_killed_is_followed_by_another(base_model_dir: Path, tmp_path: Path) -> None:
    with held_engine(boot(base_model_dir, tmp_path), tmp_path / "log") as holder:
        first = engine_of(holder)
        os.kill(first, signal.SIGKILL)
        second = engine_of(holder, after=first)
    for pid in (holder, first, second):
        assert not Path(f"/proc/{pid}").exists(), "it ended with the block"


def test_one_that_cannot_start_says_why(tmp_path: Path) -> None:
    with (
        pytest.raises(BenchError, match="no pretend engine"),
        held_engine(boot(tmp_path / "nothing", tmp_path), tmp_path / "log"),
    ):
        raise AssertionError("it serves no model")
