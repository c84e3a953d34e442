"""`make gpu` runs through where there is no GPU: each section at tiny sizes, in the interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tenora_bench.gpu.measure import Machine, Report
from tenora_engine.executor.device_memory import DeviceMemory
from tenora_engine.executor.page_copier import PageCopier, PageCopy
from tenora_engine.step import StepResult
from tenora_kernels.backend import torch_implementation

ROOT = Path(__file__).parents[2]
CACHE = Path(os.environ.get("TENORA_TEST_DATA", ROOT / ".data/test")) / "triton"


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    paths = [str(ROOT / part) for part in ("kernels", "engine")]
    return subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "gpu.py"), *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}
        | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_smoke(tmp_path: Path) -> None:
    """Every section, in one process."""
    pytest.importorskip("triton", reason="triton is not installed on this machine")
    result, rows = tmp_path / "gpu.json", tmp_path / "rows"
    finished = run(
        *("--smoke", "--in-process", "--json", str(result), "--rows", str(rows)),
        TRITON_INTERPRET="1",
        TRITON_CACHE_DIR=str(CACHE),
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    found = json.loads(result.read_text())["rows"]
    assert found == [json.loads(line) for line in rows.read_text().splitlines()]
    kinds = {row["kind"] for row in found}
    assert kinds == {"check", "fact", "profile", "timing"}
    assert all(row["right"] for row in found if row["kind"] == "check")
    cases = {row["case"].split()[0] for row in found if row["kind"] == "timing"}
    assert cases == {"attention", "decode", "fixed_linear", "host", "sgmv"}
    checked = {row["section"] for row in found if row["kind"] == "check"}
    assert {"layer", "decode", "engine"} <= checked


def test_a_section_is_a_process(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="triton is not installed on this machine")
    rows = tmp_path / "rows"
    finished = run("--smoke", "--only", "environment", "--rows", str(rows), TRITON_INTERPRET="1")
    assert finished.returncode == 0, finished.stdout + finished.stderr
    facts = [json.loads(line)["fact"] for line in rows.read_text().splitlines()]
    assert facts == ["environment", "ceilings"]


@pytest.mark.parametrize(
    ("end", "error"),
    [("os.abort()", "ended with -6"), ("threading.Event().wait()", "killed after 3 s")],
)
def test_what_ends_a_section_leaves_what_it_had_found(tmp_path: Path, end: str, error: str) -> None:
    """And what others had, whole; half a row is none."""
    pytest.importorskip("triton", reason="triton is not installed on this machine")
    from tenora_bench.gpu.sections import read_rows, run_apart

    rows = tmp_path / "rows"
    rows.write_text('{"kind": "check", "check": "before"}\n')
    write = f'open({str(rows)!r}, \'a\').write(\'{{"kind": "check", "check": "own"}}\\n\')'
    command = [sys.executable, "-c", f"import os, threading; {write}; {end}"]
    run_apart("wild", command, 3.0, rows)
    with rows.open("a") as file:
        file.write('{"kind": "che')
    found = read_rows(rows)
    assert [row.get("check") for row in found] == ["before", "own", None]
    assert found[-1]["error"] == error


def test_a_dead_gpu_ends_a_section_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an illegal access every call raises, those that clean up, too."""

    def dead(*_: object) -> None:
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", dead)
    monkeypatch.setattr(torch.cuda, "empty_cache", dead)
    reached: list[str] = []
    report = Report(60.0, tmp_path / "rows")
    with report.section("first"):
        report.attempt("wrong", dead)
        reached.append("behind it")
    with report.section("second"):
        reached.append("second")
    assert reached == ["second"]
    assert [row["what"] for row in report.errors] == ["wrong", "first"]
    assert len((tmp_path / "rows").read_text().splitlines()) == 2


def test_an_error_in_a_case_costs_no_other(tmp_path: Path) -> None:
    report, reached = Report(60.0, tmp_path / "rows"), []
    with report.section("one"):
        report.attempt("wrong", lambda: 1 // 0)
        report.attempt("next", lambda: reached.append("next"))
    assert reached == ["next"]
    assert [row["what"] for row in report.errors] == ["wrong"]


def test_the_first_results_come_within_three_minutes() -> None:
    pytest.importorskip("triton", reason="triton is not installed on this machine")
    from tenora_bench.gpu.sections import SECTIONS

    names = [section.name for section in SECTIONS]
    assert names[:3] == ["compile", "environment", "layer"]
    assert names[-1] == "sanitizer"
    assert sum(section.limit_s for section in SECTIONS[:2]) < 180
    assert sum(section.limit_s for section in SECTIONS) <= 900


def test_the_engine_section_sees_a_page_that_did_not_come_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from tenora_bench.gpu import engine

    whole, report = engine.answers, Report(60.0)

    def lossy(folder: str, device: str, given: list[StepResult] | None) -> list[StepResult]:
        if given is not None:
            monkeypatch.setattr(DeviceMemory, "_start", lose_fetches)
        return whole(folder, device, given)

    start = DeviceMemory._start

    def lose_fetches(memory: DeviceMemory, copier: PageCopier, number: int, copy: PageCopy) -> None:
        if number == 2:
            copy.host = torch.zeros_like(copy.host)
        start(memory, copier, number, copy)

    monkeypatch.setattr(engine, "answers", lossy)
    machine = Machine(torch.device("cpu"), torch_implementation(), torch.float32, smoke=True)
    engine.check_engine(report, machine)
    right = {check["check"]: check["right"] for check in report.checks}
    assert right["engine, step 4"]
    assert not right["engine, step 7"]


def test_says_that_there_is_no_gpu() -> None:
    finished = run("--allow-no-gpu", CUDA_VISIBLE_DEVICES="")
    assert finished.returncode == 0, finished.stderr
    assert "No NVIDIA GPU" in finished.stdout


def test_needs_nothing_of_the_platform() -> None:
    """What the GPU's machine lacks is hidden from the imports, the engine section's among them."""
    missing = (
        "zmq",
        "obstore",
        "redis",
        "fastapi",
        "sqlalchemy",
        "pydantic",
        "structlog",
        "tenora_platform",
    )
    hide = f"import sys; sys.modules.update(dict.fromkeys({missing!r}))"
    script = f"{hide}; sys.path.insert(0, {str(ROOT / 'benchmarks')!r}); import gpu; "
    script += "import tenora_bench.gpu.engine, tenora_bench.gpu.tune, tenora_bench.gpu.offline"
    finished = subprocess.run(
        [sys.executable, "-c", script],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT / "kernels"), str(ROOT / "engine")]),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
