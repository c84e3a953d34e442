"""Checks run in processes apart: what one does to itself refuses its adapter by name and nothing
else, what is done to it from outside refuses nothing, and it reaches nothing but its file."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import BinaryIO

import pytest

from adapter_files import adapter_config, adapter_tensors, safetensors
from fake_engine import FakeEngine
from tenora_engine.config import ModelInfo
from tenora_platform.embedded.process import is_alive
from tenora_platform.intake.check import check_open_adapter
from tenora_platform.intake.checker import Checker, CheckLostError, CheckReadingError, confinement
from tenora_platform.intake.nursery import Limits

LIMITS = Limits(memory_bytes=512 * 1024**2, cpu_s=20, wall_s=20.0)
CONFIG = json.dumps(adapter_config()).encode()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelInfo:
    return FakeEngine(tmp_path_factory.mktemp("model")).model


@pytest.fixture(scope="module")
def weights(model: ModelInfo) -> Iterator[BinaryIO]:
    with tempfile.TemporaryFile() as file:
        file.write(safetensors(adapter_tensors(model)))
        file.flush()
        yield file


@pytest.fixture(scope="module")
async def checker() -> AsyncIterator[Checker]:
    """Runs the checks of `sick_checks`, and the true one for any true config."""
    made = Checker("sick_checks:chosen", LIMITS)
    yield made
    made.close()


async def test_it_finds_what_the_check_finds(model: ModelInfo, weights: BinaryIO) -> None:
    checker = Checker()
    with contextlib.closing(checker):
        for config in (CONFIG, b"{}", b"no json"):
            elsewhere = await checker.check(config, weights, model, 16)
            here = check_open_adapter(config, weights, model, 16)
            assert elsewhere.digest == here.digest
            assert elsewhere.config == here.config
            assert elsewhere.report.problems == here.report.problems
        assert checker.last is not None
        assert checker.last.status == 0


async def test_it_stands_behind_requests(model: ModelInfo, weights: BinaryIO) -> None:
    checker = Checker()
    with contextlib.closing(checker):
        await checker.check(CONFIG, weights, model, 16)
        assert checker.pid is not None
        behind = os.getpriority(os.PRIO_PROCESS, 0) + 10
        assert os.getpriority(os.PRIO_PROCESS, checker.pid) == behind
        assert _niceness_of_session(checker.pid) in (None, behind)


def _niceness_of_session(pid: int) -> int | None:
    """Where the kernel shares the cores among sessions."""
    group = Path(f"/proc/{pid}/autogroup")
    return int(group.read_text().split()[-1]) if group.exists() else None


@pytest.mark.parametrize(
    ("kind", "code", "words"),
    [
        ("bomb", "check_out_of_memory", "needed more than"),
        ("crash", "check_crashed", "save_pretrained"),
        ("abort", "check_crashed", "tell the operator"),
        ("raised", "check_crashed", "tell the operator"),
        ("garbage", "check_crashed", "tell the operator"),
        ("flood", "check_crashed", "tell the operator"),
    ],
)
async def test_what_a_check_does_to_itself(
    checker: Checker, model: ModelInfo, weights: BinaryIO, kind: str, code: str, words: str
) -> None:
    checked = await checker.check(kind.encode(), weights, model, 16)
    assert [problem.code for problem in checked.report.problems] == [code]
    assert words in checked.report.problems[0].message
    assert checked.digest is None
    nursery = checker.pid
    assert (await checker.check(CONFIG, weights, model, 16)).report.accepted, "the next is checked"
    assert checker.pid == nursery, "by the same process"


@pytest.mark.parametrize(
    ("kind", "limits"),
    [
        ("spin", Limits(memory_bytes=1024**3, cpu_s=1, wall_s=20.0)),
        ("sleep", Limits(memory_bytes=1024**3, cpu_s=20, wall_s=0.3)),
    ],
)
async def test_what_does_not_end(
    model: ModelInfo, weights: BinaryIO, kind: str, limits: Limits
) -> None:
    checker = Checker("sick_checks:chosen", limits)
    with contextlib.closing(checker):
        began_s = time.monotonic()
        checked = await checker.check(kind.encode(), weights, model, 16)
        assert [problem.code for problem in checked.report.problems] == ["check_timed_out"]
        assert "did not finish in time" in checked.report.problems[0].message
        assert time.monotonic() - began_s < 15


@pytest.mark.parametrize("kind", ["killed", "terminated"])
async def test_what_is_done_to_it_from_outside_says_nothing_of_the_adapter(
    checker: Checker, model: ModelInfo, weights: BinaryIO, kind: str
) -> None:
    with pytest.raises(CheckLostError, match="was killed"):
        await checker.check(kind.encode(), weights, model, 16)
    assert (await checker.check(CONFIG, weights, model, 16)).report.accepted


async def test_a_file_that_cannot_be_read_is_no_adapters_fault(
    checker: Checker, model: ModelInfo, weights: BinaryIO
) -> None:
    with pytest.raises(CheckReadingError):
        await checker.check(b"unreadable", weights, model, 16)


async def test_its_process_is_begun_anew(
    checker: Checker, model: ModelInfo, weights: BinaryIO
) -> None:
    await checker.check(CONFIG, weights, model, 16)
    first = checker.pid
    assert first is not None
    asking = asyncio.create_task(checker.check(b"sleep", weights, model, 16))
    await asyncio.sleep(0.3)
    os.kill(first, signal.SIGKILL)
    with pytest.raises(CheckLostError):
        await asking
    assert (await checker.check(CONFIG, weights, model, 16)).report.accepted
    assert checker.pid != first


async def test_who_is_cancelled_leaves_no_check(model: ModelInfo, weights: BinaryIO) -> None:
    checker = Checker("sick_checks:chosen", LIMITS)
    asking = asyncio.create_task(checker.check(b"sleep", weights, model, 16))
    while checker.pid is None:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    pid = checker.pid
    await asyncio.sleep(0.3)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert not is_alive(pid)
    checker.close()


async def test_a_check_cannot_change_what_it_checks(
    checker: Checker, model: ModelInfo, weights: BinaryIO
) -> None:
    await checker.check(b"change", weights, model, 16)
    assert (await checker.check(CONFIG, weights, model, 16)).report.accepted


@pytest.mark.skipif(sys.platform != "linux", reason="what other systems take is less")
async def test_what_is_within_its_reach(
    checker: Checker, model: ModelInfo, weights: BinaryIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENORA_SECRET", "this secret is not for checks at all")
    taken = confinement()
    checked = await checker.check(b"reach", weights, model, 16)
    found = ast.literal_eval(checked.report.problems[0].message)
    assert found["environment"] == {}
    assert found["core"] == (0, 0)
    assert found["write"] != "done", "not even where all may write"
    assert found["fork"] != "done"
    if taken.network == "none":
        assert found["network"] is False
    if taken.network != "open":
        assert found["tcp"] in ("PermissionError", "OSError")
    if taken.files == "none":
        assert {found["passwd"], found["list"], found["exec"]} == {"PermissionError"}
    if os.geteuid() == 0:
        assert taken.user == "nobody"
        assert found["uid"] == 65534
