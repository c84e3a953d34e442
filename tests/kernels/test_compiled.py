"""The compiled library: what builds it, what happens where it cannot be built, and that its
results depend neither on the number of threads nor on the rest of the batch."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.kernels.cases import RANKS, Adapters, assert_near, mix_rows, mixed_ranks, pack_adapters
from torch import Tensor

from tenora_kernels import build_segments
from tenora_kernels.backend import compiled_implementation, torch_implementation
from tenora_kernels.compiled.build import BuildError, build_extension
from tenora_kernels.compiled.library import is_whole, library_path, reason_path, seal
from tenora_kernels.compiled.load import NotLoadedError, load_extension

SHAPES = [(576, 576), (576, 192), (576, 200)]
WIDTHS = (576, 192, 200)


@pytest.fixture
def threads() -> Iterator[None]:
    """Gives the number of threads back as it was."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def compiled_sgmv(adapters: Adapters, x: Tensor, y: Tensor, row_slot: Tensor) -> Tensor:
    result = y.clone()
    segments = build_segments(row_slot, adapters.table)
    compiled_implementation().sgmv(
        result, x, adapters.pool, adapters.table, segments, 1, (0, 1, 2), WIDTHS
    )
    return result


@pytest.mark.usefixtures("compiled_library", "threads")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("mix", ["distinct", "identical", "skewed"])
def test_same_bits_for_any_number_of_threads(mix: str, dtype: torch.dtype) -> None:
    adapters = pack_adapters(mixed_ranks(len(RANKS), 2, 3), SHAPES, dtype)
    row_slot = mix_rows(mix, 19, len(RANKS))
    x, y = torch.randn(19, 576).to(dtype), torch.randn(19, sum(WIDTHS)).to(dtype)
    results: list[Tensor] = []
    for count in (1, 2, 3, 8):
        torch.set_num_threads(count)
        results.append(compiled_sgmv(adapters, x, y, row_slot))
    assert all(torch.equal(results[0], other) for other in results[1:])


@pytest.mark.usefixtures("compiled_library")
def test_a_row_has_the_same_bits_in_any_batch() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        adapters = pack_adapters(mixed_ranks(len(RANKS), 2, 3), SHAPES, dtype)
        row_slot = mix_rows("zipf", 30, len(RANKS))
        x, y = torch.randn(30, 576).to(dtype), torch.randn(30, sum(WIDTHS)).to(dtype)
        together = compiled_sgmv(adapters, x, y, row_slot)
        for row in (0, 7, 29):
            part = slice(row, row + 1)
            alone = compiled_sgmv(adapters, x[part], y[part], row_slot[part])
            assert torch.equal(alone, together[part])


@pytest.mark.usefixtures("compiled_library")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("pages", ["as activations", "int8"])
def test_a_row_has_the_same_bits_in_a_run_of_any_length(dtype: torch.dtype, pages: str) -> None:
    kind = torch.int8 if pages == "int8" else dtype
    adapters = pack_adapters([[[12, 5, 33]] * 2], SHAPES, kind)
    x, y = torch.randn(150, 576).to(dtype), torch.randn(150, sum(WIDTHS)).to(dtype)
    row_slot = torch.zeros(150, dtype=torch.int32)
    alone = [compiled_sgmv(adapters, x[i : i + 1], y[i : i + 1], row_slot[:1]) for i in range(150)]
    for length in (2, 5, 6, 23, 64, 65, 150):
        together = compiled_sgmv(adapters, x[:length], y[:length], row_slot[:length])
        assert torch.equal(together, torch.cat(alone[:length]))


@pytest.mark.usefixtures("compiled_library")
def test_long_and_short_runs_in_one_batch() -> None:
    """Runs that are computed in other ways: one row, few, more than a segment."""
    adapters = pack_adapters(mixed_ranks(5, 2, 3, (4, 17)), SHAPES, torch.float32)
    runs = [(0, 3), (1, 50), (-1, 2), (2, 32), (1, 1), (3, 33), (4, 200), (0, 40)]
    row_slot = torch.tensor([slot for slot, n in runs for _ in range(n)], dtype=torch.int32)
    rows = row_slot.shape[0]
    x, y = torch.randn(rows, 576), torch.randn(rows, sum(WIDTHS))
    expected = y.clone()
    segments = build_segments(row_slot, adapters.table)
    torch_implementation().sgmv(
        expected, x, adapters.pool, adapters.table, segments, 1, (0, 1, 2), WIDTHS
    )
    assert_near(compiled_sgmv(adapters, x, y, row_slot), expected, torch.float32)


@pytest.mark.usefixtures("compiled_library")
@pytest.mark.parametrize(
    ("field", "index", "value"),
    [
        ("rank", (1, 1, 0), 6),
        ("rank", (1, 1, 0), -1),
        ("granule_offset", (1, 1, 4), -1),
        ("granule_offset", (1, 1, 4), 10**9),
        ("a_offset", (1, 1, 2), -(10**9)),
        ("b_offset", (1, 1, 1), 10**9),
    ],
)
@pytest.mark.parametrize("kind", [torch.float32, torch.int8])
def test_adapters_that_lie_elsewhere_are_refused(
    kind: torch.dtype, field: str, index: tuple[int, int, int], value: int
) -> None:
    adapters = pack_adapters([[[5, 5, 5]] * 2] * 2, SHAPES, kind)
    getattr(adapters.table, field)[index] = value
    x, y = torch.randn(3, 576), torch.randn(3, sum(WIDTHS))
    with pytest.raises((RuntimeError, ValueError), match="lie outside the arena"):
        compiled_sgmv(adapters, x, y, torch.tensor([0, 1, -1], dtype=torch.int32))
    assert compiled_sgmv(adapters, x, y, torch.zeros(3, dtype=torch.int32)).isfinite().all()


@pytest.mark.usefixtures("compiled_library")
def test_rows_of_nothing_are_refused() -> None:
    adapters = pack_adapters([[[2]]], [(0, 8)], torch.float32)
    segments = build_segments(torch.zeros(3, dtype=torch.int32), adapters.table)
    arguments = (adapters.pool, adapters.table, segments, 0, (0,), (8,))
    with pytest.raises(RuntimeError, match="sgmv: wrong shape"):
        compiled_implementation().sgmv(torch.zeros(3, 8), torch.zeros(3, 0), *arguments)


def test_without_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TENORA_KERNELS", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    target = tmp_path / "built"
    with pytest.raises(NotLoadedError, match=r"not built; run: python -m tenora_kernels"):
        load_extension(target)
    with pytest.raises(BuildError, match=r"no C\+\+ compiler on PATH \(looked for c\+\+"):
        build_extension(target)
    with pytest.raises(NotLoadedError, match=r"build failed: no C\+\+ compiler on PATH"):
        load_extension(target)


def test_a_compiler_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "c++"
    compiler.write_text("#!/bin/sh\necho 'x.cpp:1: error: no such header' >&2\nexit 3\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("TENORA_KERNELS", raising=False)
    target = tmp_path / "built"
    with pytest.raises(BuildError, match=r"c\+\+ failed \(3\): x\.cpp:1: error: no such header"):
        build_extension(target)
    with pytest.raises(NotLoadedError, match=r"build failed: .*no such header"):
        load_extension(target)
    assert [path.name for path in target.iterdir()] == [reason_path(target).name]


def fake_compiler(folder: Path) -> None:
    """Writes its process id to the file after -o, slowly enough for two to meet."""
    folder.mkdir()
    compiler = folder / "c++"
    compiler.write_text(
        '#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\nsleep 0.3\necho $$ > "$2"\n'
    )
    compiler.chmod(0o755)


def test_stale_libraries_and_reasons_are_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_compiler(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    target = tmp_path / "built"
    target.mkdir()
    (target / "tenora_ops-0123456789abcdef.so").write_text("of another torch")
    reason_path(target).write_text("an earlier failure")
    library = build_extension(target)
    assert library == library_path(target)
    assert list(target.iterdir()) == [library]
    made = library.read_text()
    assert build_extension(target).read_text() == made  # kept
    assert build_extension(target, force=True).read_text() != made


def test_a_broken_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TENORA_KERNELS", raising=False)
    library_path(tmp_path).write_text("not a library")
    seal(library_path(tmp_path))
    with pytest.raises(NotLoadedError, match=r"tenora_ops-native-\w+\.so cannot be loaded: .*"):
        load_extension(tmp_path)


def test_half_a_library_is_not_loaded_but_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TENORA_KERNELS", raising=False)
    fake_compiler(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    target = tmp_path / "built"
    target.mkdir()
    library_path(target).write_text("the first half")
    with pytest.raises(NotLoadedError, match=r"so is damaged; run: python -m tenora_kernels"):
        load_extension(target)
    assert is_whole(build_extension(target))


def test_concurrent_builds(tmp_path: Path) -> None:
    fake_compiler(tmp_path / "bin")
    target = tmp_path / "built"
    code = (
        "import sys; from pathlib import Path; "
        "from tenora_kernels.compiled.build import build_extension; "
        "print(build_extension(Path(sys.argv[1])))"
    )
    environment = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    builds = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(target)],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    said = [build.communicate(timeout=60)[0].strip() for build in builds]
    assert [build.returncode for build in builds] == [0, 0, 0]
    assert set(said) == {str(library_path(target))}
    assert list(target.iterdir()) == [library_path(target)]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("torch", "torch torch, torch 2"),
        ("compiled", "compiled compiled (native), torch 2"),
        ("native", "compiled compiled (native), torch 2"),
    ],
)
@pytest.mark.usefixtures("compiled_library")
def test_choice_by_environment(choice: str, expected: str) -> None:
    code = (
        "import torch; from tenora_kernels.backend import describe, implementation; "
        "print(implementation(torch.device('cpu')).name, describe()['cpu'])"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "TENORA_KERNELS": choice},
        capture_output=True,
        text=True,
        check=True,
    )
    assert expected in run.stdout
