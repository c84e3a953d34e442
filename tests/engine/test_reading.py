"""How much code there is to read to follow a request: the files that one enters are traced."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest

import tenora_engine
from engine_fakes import Rig, make_config, make_ref, make_request, run
from tenora_engine.events import TokenEvent

ENGINE = Path(tenora_engine.__file__).parent
MEMORY = ENGINE / "memory"


def entered(rig: Rig, with_adapter: bool, folder: Path = MEMORY) -> set[str]:
    """Files of a folder from `submit` to the first token."""
    files: set[str] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.parent == folder:
            files.add(path.stem)

    adapter = make_ref("a") if with_adapter else None
    sys.setprofile(note)
    try:
        rig.engine.submit(make_request("r", list(range(2, 12)), adapter=adapter))
        while not any(isinstance(event, TokenEvent) for event in rig.engine.step()):
            pass
    finally:
        sys.setprofile(None)
    return files


@pytest.mark.parametrize("with_adapter", [False, True])
def test_a_request_enters_few_files_of_the_memory(with_adapter: bool) -> None:
    own = {"manager", "allocator", "partitions", "pool", "prefix", "costs", "operations", "salts"}
    own |= {"adapter_cache", "kv_fetches"}  # whether they keep or fetch anything
    if with_adapter:  # what is on the device may go, so it is valued
        own |= {"adapter_arrivals", "evictor", "eviction_queue", "policies"}
    rig = Rig.build(make_config())
    for _ in range(2):  # the second finds something in the cache
        assert entered(rig, with_adapter) <= own
        run(rig)


@pytest.mark.parametrize(("with_adapter", "most"), [(False, 36), (True, 41)])
def test_a_request_enters_few_files(with_adapter: bool, most: int) -> None:
    """Of scheduling/ and memory/ (docs/limits.md says why these are not 15)."""
    rig = Rig.build(make_config())
    for _ in range(2):
        found = entered(rig, with_adapter)
        run(rig)
        found |= entered(rig, with_adapter, ENGINE / "scheduling")
        run(rig)
        assert len(found) <= most, sorted(found)


def imports(path: Path) -> Iterator[str]:
    """Of other files of memory/, those for types too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            package, _, name = node.module.rpartition(".")
            if package == "tenora_engine.memory":
                yield name


def test_files_of_the_memory_import_in_one_direction() -> None:
    left = {path.stem: set(imports(path)) for path in MEMORY.glob("*.py")}
    while left:
        ready = {name for name, needs in left.items() if not needs & left.keys()}
        assert ready, f"a circle among {sorted(left)}"
        left = {name: needs for name, needs in left.items() if name not in ready}
