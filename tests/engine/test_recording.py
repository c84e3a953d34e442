"""Recordings: what an executor did is in the file, and another process does the same from it."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest

from engine_fakes import Rig, fails_with, make_config, make_ref, make_request, run
from tenora_bench.adapters import publish_adapters
from tenora_bench.recorded.replay import replay
from tenora_engine.config import EngineConfig
from tenora_engine.engine import Engine, build_engine
from tenora_engine.errors import RecordingError
from tenora_engine.events import FinishEvent
from tenora_engine.executor.recording import (
    Adapter,
    Done,
    Failed,
    Planned,
    Recording,
    RecordingExecutor,
)
from tenora_engine.request import GenerationRequest, SamplingParams, Tenant
from tenora_engine.step import FetchKV, InstallAdapter, StepPlan, StepResult, StoreKV, encode
from tiny_llama import PAGE_BYTES, write_tiny_llama

Frames = list[Adapter | Planned | Done | Failed]


PREFIXES = [[(number * 37 + place) % 256 for place in range(64)] for number in range(4)]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Steps in which adapters and KV come and go, of greedy and of drawn tokens."""
    folder = tmp_path_factory.mktemp("recorded")
    model = write_tiny_llama(folder / "model")
    refs = publish_adapters(folder / "adapters", folder / "store", model, 3, [4, 8])
    config = EngineConfig(
        model=str(model),
        served_name="tiny",
        dtype="float32",
        threads=1,
        arena_bytes=24 * PAGE_BYTES,
        host_kv_bytes=64 * PAGE_BYTES,
        max_running=3,
        max_adapters=2,
        object_store=str(folder / "store"),
        record=str(folder / "steps"),
    )
    engine = build_engine(config)
    engine._memory.costs.observe_step = lambda *_: None  # type: ignore[method-assign]
    fail_once(engine)
    woken = threading.Event()
    engine.on_wake = woken.set
    for turn in range(3):
        for number, prefix in enumerate(PREFIXES):
            sampling = SamplingParams(
                temperature=0.8 * (number % 2), seed=number, max_tokens=12, ignore_eos=True
            )
            for adapter in (None, refs[(turn + number) % 3]):
                name = f"{turn} {number} {adapter}"
                tenant = Tenant(key=f"t{number}", namespace=f"t{number}")
                engine.submit(
                    GenerationRequest(
                        request_id=name,
                        tenant=tenant,
                        prompt_token_ids=prefix,
                        sampling=sampling,
                        adapter=adapter,
                    )
                )
        ended = 0
        while ended < 2 * len(PREFIXES):
            if not engine.has_work:
                assert woken.wait(20), "nothing comes"
            woken.clear()
            ended += sum(isinstance(event, FinishEvent) for event in engine.step())
    engine.close()
    return folder / "steps"


def fail_once(engine: Engine) -> None:
    """A step of several rows raises when it has been computed; its parts do not."""
    assert isinstance(engine._executor, RecordingExecutor)
    executor = engine._executor._executor
    execute, failed = executor.execute, list[int]()

    def fails(plan: StepPlan) -> StepResult | None:
        result = execute(plan)
        if not failed and len(plan.rows) > 2:
            failed.append(plan.number)
            raise ValueError("once")
        return result

    executor.execute = fails  # type: ignore[method-assign]


def test_another_process_gets_the_same_tokens(recorded: Path, tmp_path: Path) -> None:
    operations = [
        type(operation)
        for frame in Recording(recorded).frames()
        if isinstance(frame, Planned)
        for operation in frame.plan.memory
    ]
    assert {FetchKV, InstallAdapter, StoreKV} <= set(operations)
    command = [sys.executable, "-m", "tenora_bench.cli", "replay", str(recorded)]
    done = subprocess.run(
        [*command, "--json", str(tmp_path / "out.json")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((tmp_path / "out.json").read_text())
    assert summary["differing_rows"] == 0
    assert summary["tokens"] == 24 * 12
    assert summary["plans"] > 40
    assert summary["failed_plans"] == 1


def test_a_wrong_answer_is_found_where_it_is(recorded: Path, tmp_path: Path) -> None:
    """One token of the recording is changed."""
    copy, changed = tmp_path / "changed", None
    with open(copy, "wb") as file:
        begin = next(Recording(recorded)._frames())
        frames: list[object] = [begin, *Recording(recorded).frames()]
        for frame in frames:
            if isinstance(frame, Done) and changed is None and frame.result.token_ids[-1:] > [[]]:
                result = frame.result
                result.token_ids[-1][0] += 1
                changed = frame.number
                frame = Done(frame.number, encode(result))
            content = msgspec.msgpack.encode(frame)
            file.write(len(content).to_bytes(4, "little") + content)
        file.write(b"\x10")  # of an engine that was killed while it wrote
    report = replay(copy)
    assert report.differing_rows == 1
    assert report.first[0].plan == changed
    assert report.first[0].recorded[0] == report.first[0].replayed[0] + 1


def record(rig: Rig, path: Path) -> RecordingExecutor:
    recording = RecordingExecutor(rig.executor, path, rig.config)
    rig.engine._executor = recording
    return recording


def test_each_plan_and_adapter_is_written_once(tmp_path: Path) -> None:
    rig = Rig.build(make_config())
    recording = record(rig, tmp_path / "steps")
    for turn in range(2):
        request = make_request(str(turn), [1, 2, 3], adapter=make_ref("a"), max_tokens=3)
        rig.engine.submit(request)
        run(rig)
        rig.engine.evict_adapter("", make_ref("a").digest)
    rig.executor.fails = fails_with("bad")
    for name in ("good", "bad", "fine"):
        rig.engine.submit(make_request(name, [1, 2, 3], max_tokens=3))
    run(rig)
    recording.close()
    frames: Frames = list(Recording(tmp_path / "steps").frames())
    assert sum(isinstance(frame, Adapter) for frame in frames) == 1
    executed = [executed.plan for executed in rig.executor.plans]
    plans = [frame.plan for frame in frames if isinstance(frame, Planned)]
    assert [plan for plan in plans if plan.rows] == executed
    failed = [frame for frame in frames if isinstance(frame, Failed)]
    assert {frame.error for frame in failed} == {"RuntimeError: bad is in it"}
    ended = [frame.number for frame in frames if isinstance(frame, Done | Failed)]
    assert ended == [plan.number for plan in plans]
    assert len(failed) < len(set(ended)), "its parts are plans of their own"


def test_a_full_disk_ends_the_recording_and_not_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tenora_engine.executor.recording.MAX_BYTES", 4000)
    rig = Rig.build(make_config())
    recording = record(rig, tmp_path / "steps")
    rig.engine.submit(make_request("a", [1, 2, 3], max_tokens=40, ignore_eos=True))
    run(rig)
    recording.close()
    assert (tmp_path / "steps").stat().st_size <= 4000
    assert sum("recording of steps stops" in line for line in caplog.messages) == 1
    assert len(rig.executor.plans) == 40
    assert isinstance(next(Recording(tmp_path / "steps").frames()), Planned)


def test_nothing_is_written_over(tmp_path: Path) -> None:
    rig = Rig.build(make_config())
    for name in ("steps", "steps.1", "steps.2"):
        record(rig, tmp_path / "steps").close()
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600
    with pytest.raises(RecordingError, match="choose a file in an existing folder"):
        record(rig, tmp_path / "missing" / "steps")


def test_secrets_stay_where_they_are(tmp_path: Path) -> None:
    config = make_config()
    engine = msgspec.structs.replace(config.engine, redis_url="redis://:hunter2@there")
    rig = Rig.build(msgspec.structs.replace(config, engine=engine))
    record(rig, tmp_path / "steps").close()
    assert b"hunter2" not in (tmp_path / "steps").read_bytes()


def test_what_is_no_recording_is_refused(tmp_path: Path) -> None:
    (tmp_path / "none").write_bytes(b"")
    (tmp_path / "other").write_bytes(b"\x05\x00\x00\x00hello")
    for name in ("none", "other", "missing"):
        with pytest.raises(RecordingError):
            Recording(tmp_path / name)
