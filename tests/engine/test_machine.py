"""What the process may use, read from made-up files of control groups of both versions."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tenora_engine.config import CPU_MEMORY_BYTES
from tenora_engine.machine import Machine, default_memory_bytes, this_machine
from tenora_engine.threads import call_in_ending_thread, compute_threads, set_compute_threads

GIB = 1024**3
V2 = "30 23 0:26 {top} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"
V1_CPU = "33 31 0:30 {top} /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct"
V1_MEMORY = "35 31 0:32 {top} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory"
V1_NO_LIMIT = "9223372036854771712"


class Files:
    """A root folder with 16 GiB in it and 64 CPUs to run on."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.write("proc/meminfo", f"MemTotal:       {16 * GIB // 1024} kB\nMemFree: 1 kB\n")

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def groups(self, own: str, *mounts: str) -> None:
        self.write("proc/self/cgroup", own)
        self.write("proc/self/mountinfo", "".join(f"{line}\n" for line in mounts))

    def found(self) -> Machine:
        return this_machine(self.root)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Files:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    return Files(tmp_path)


def test_without_groups_it_is_the_affinity_and_what_is_installed(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 128)
    found = files.found()
    assert (found.installed_cpus, found.affinity, found.cpus) == (128, 64, 64)
    assert (found.quota, found.memory_limit, found.memory_bytes) == (None, None, 16 * GIB)
    monkeypatch.delattr(os, "sched_getaffinity")
    assert files.found().cpus == 128


def test_version_2(files: Files) -> None:
    files.groups("0::/app\n", V2.format(top="/"))
    files.write("sys/fs/cgroup/app/cpu.max", "250000 100000\n")
    files.write("sys/fs/cgroup/app/memory.max", f"{2 * GIB}\n")
    files.write("sys/fs/cgroup/app/memory.high", "max\n")
    found = files.found()
    assert (found.quota, found.cpus) == (2.5, 3)
    assert found.memory_bytes == 2 * GIB
    files.write("sys/fs/cgroup/app/memory.high", f"{GIB}\n")
    assert files.found().memory_bytes == GIB
    files.write("sys/fs/cgroup/app/cpu.max", "max 100000\n")
    assert (files.found().quota, files.found().cpus) == (None, 64)
    files.write("sys/fs/cgroup/app/cpu.max", "150000\n")  # the period is 100 ms unless said
    assert files.found().cpus == 2


def test_version_1(files: Files) -> None:
    files.groups(
        "4:memory:/app\n3:cpu,cpuacct:/app\n1:name=systemd:/init\n",
        V1_CPU.format(top="/"),
        V1_MEMORY.format(top="/"),
    )
    files.write("sys/fs/cgroup/cpu,cpuacct/app/cpu.cfs_quota_us", "50000\n")
    files.write("sys/fs/cgroup/cpu,cpuacct/app/cpu.cfs_period_us", "100000\n")
    files.write("sys/fs/cgroup/memory/app/memory.limit_in_bytes", f"{3 * GIB}\n")
    found = files.found()
    assert (found.quota, found.cpus, found.memory_bytes) == (0.5, 1, 3 * GIB)
    files.write("sys/fs/cgroup/cpu,cpuacct/app/cpu.cfs_quota_us", "-1\n")
    files.write("sys/fs/cgroup/memory/app/memory.limit_in_bytes", V1_NO_LIMIT)
    found = files.found()
    assert (found.quota, found.memory_limit, found.memory_bytes) == (None, None, 16 * GIB)


@pytest.mark.parametrize("tightest", ["", "/pod", "/pod/app"])
def test_of_nested_groups_the_least_counts(files: Files, tightest: str) -> None:
    files.groups("0::/pod/app\n", V2.format(top="/"))
    for group in ("", "/pod", "/pod/app"):
        cpus, gib = (2, 1) if group == tightest else (8, 4)
        files.write(f"sys/fs/cgroup{group}/cpu.max", f"{cpus}00000 100000\n")
        files.write(f"sys/fs/cgroup{group}/memory.max", f"{gib * GIB}\n")
    assert (files.found().cpus, files.found().memory_bytes) == (2, GIB)


@pytest.mark.parametrize(
    ("own", "top"),
    [
        ("/", "/"),  # a namespace of its own
        ("/docker/abc", "/docker/abc"),  # the host's path of a mount that begins there
        ("/docker/abc", "/docker/other"),  # a mount of something else: all there is to see
        ("/../../app", "/"),  # a group that lies outside the namespace
    ],
)
def test_in_a_container_the_mount_may_begin_at_the_group(files: Files, own: str, top: str) -> None:
    files.groups(f"3:cpu,cpuacct:{own}\n0::{own}\n", V1_CPU.format(top=top), V2.format(top=top))
    files.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "400000\n")
    files.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n")
    files.write("sys/fs/cgroup/memory.max", f"{5 * GIB}\n")
    assert (files.found().cpus, files.found().memory_bytes) == (4, 5 * GIB)


def test_a_mount_within_the_path_and_one_with_a_space(files: Files) -> None:
    line = "35 31 0:32 /kube /sys/fs/my\\040groups rw - cgroup2 cgroup2 rw"
    files.groups("0::/kube/pod/app\n", line)
    files.write("sys/fs/my groups/pod/cpu.max", "300000 100000\n")
    assert files.found().cpus == 3


@pytest.mark.parametrize(
    "text", ["", "\n", "a lot\n", "0 100000", "-5 100000", "200000 0", "2e5 100000", "9" * 400]
)
def test_what_means_nothing_is_no_limit(files: Files, text: str) -> None:
    files.groups("0::/app\nnonsense\n\n", V2.format(top="/"), "too short", "a b c d e f g")
    files.write("sys/fs/cgroup/app/cpu.max", text)
    files.write("sys/fs/cgroup/app/memory.max", text)
    found = files.found()
    assert (found.quota, found.memory_limit) == (None, None)


def test_files_that_are_missing_are_no_limit(files: Files) -> None:
    files.groups("0::/gone\n", V2.format(top="/"), V1_CPU.format(top="/"))
    assert files.found().cpus == 64
    (files.root / "proc/meminfo").write_bytes(b"\xff\xfe MemTotal nothing")
    assert files.found().memory_bytes > 0, "the system itself was asked"


def test_this_process_can_be_asked() -> None:
    found = this_machine()
    assert 1 <= found.cpus <= found.affinity <= found.installed_cpus
    assert 0 < found.memory_bytes <= found.installed_bytes


def limited(cpus: float, memory_bytes: int = 16 * GIB) -> Machine:
    return Machine(64, 64, cpus, 16 * GIB, memory_bytes)


def test_threads_are_no_more_than_the_process_may_use() -> None:
    assert compute_threads(None, 64, limited(2)) == 2
    assert compute_threads(None, 64, limited(1.5)) == 2
    assert compute_threads(None, 1, limited(2)) == 1, "OMP_NUM_THREADS says so"
    assert compute_threads(16, 64, limited(2)) == 16, "so says the operator"


@pytest.fixture
def torch_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("torch_threads")
def test_an_operator_who_wants_too_many_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tenora_engine.threads.this_machine", lambda: limited(2))
    with caplog.at_level(logging.WARNING):
        assert set_compute_threads(2) == 2
        assert not caplog.records
        assert set_compute_threads(3) == 3
    assert torch.get_num_threads() == call_in_ending_thread(torch.get_num_threads) == 3
    assert "3 compute threads (TENORA_THREADS) share 2 CPUs" in caplog.text
    assert "a quota of 2" in caplog.text


def test_the_default_budget_fits_a_small_container() -> None:
    assert default_memory_bytes(limited(2)) == CPU_MEMORY_BYTES
    assert default_memory_bytes(limited(2, GIB)) == GIB * 3 // 4
