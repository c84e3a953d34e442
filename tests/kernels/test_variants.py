"""Every instruction set that the kernels can be compiled for and this machine runs, each in a
process of its own: the ops and whole steps against the same references as the one that serves; and
how one is chosen."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tenora_kernels.compiled import variants
from tenora_kernels.compiled.build import build_extension
from tenora_kernels.compiled.library import default_dir, library_path
from tenora_kernels.compiled.variants import NATIVE, UnknownKernelsError, Variant, chosen, runnable

TESTS = Path(__file__).parent
OF_COMPILED = (
    "test_paged_attention.py",
    "test_kv_write.py",
    "test_norms.py",
    "test_sgmv.py",
    "test_packed_linear.py",
    "test_compiled_layer.py",
    "test_compiled_decoder.py",
    "test_decoder_adapters.py",
    "test_compiled.py::test_same_bits_for_any_number_of_threads",
    "test_compiled.py::test_a_row_has_the_same_bits_in_any_batch",
    "test_compiled.py::test_a_row_has_the_same_bits_in_a_run_of_any_length",
    "test_compiled.py::test_long_and_short_runs_in_one_batch",
)


IN_SHORT = ("test_sgmv.py", "test_packed_linear.py", "test_compiled_decoder.py")
"""Products and whole steps, of which all ops are a part: for what is far from the one that serves,
since all of them would take minutes without its vectors."""

# Not the richest: it is the code of the variant that serves, which all other tests run.
OTHERS = runnable()[:-1]
AT_ONCE = 2  # neither compiling nor these tests use two cores all the time

Run = subprocess.CompletedProcess[str]


def run_tests(variant: Variant) -> Run:
    build_extension(variant=variant)
    files = OF_COMPILED if variant is OTHERS[-1] else IN_SHORT
    return subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"),
            *("-k", "compiled or packed or decoder"),
            *(str(TESTS / name) for name in files),
        ],
        env={**os.environ, "TENORA_KERNELS": variant.name},
        cwd=TESTS.parents[1],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def runs(compiled_library: Path) -> Iterator[dict[str, Future[Run]]]:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield {variant.name: pool.submit(run_tests, variant) for variant in OTHERS}


@pytest.mark.parametrize("name", [variant.name for variant in OTHERS])
def test_a_variant_passes_the_tests_of_the_one_that_serves(
    name: str, runs: dict[str, Future[Run]]
) -> None:
    done = runs[name].result()
    assert done.returncode == 0, done.stdout[-4000:]


@pytest.mark.skipif(not runnable(), reason="the variants are those of x86-64")
@pytest.mark.usefixtures("compiled_library")
def test_a_variant_is_chosen_by_name() -> None:
    name = runnable()[0].name
    build_extension(variant=runnable()[0])
    told = subprocess.run(
        [sys.executable, "-c", "import tenora_kernels as k; print(k.describe()['cpu'])"],
        env={**os.environ, "TENORA_KERNELS": name},
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.startswith(f"compiled ({name}), torch 2")
    assert library_path(default_dir(), NATIVE).exists()  # one does not replace another


@pytest.mark.parametrize("choice", ["", "compiled", "native"])
def test_the_machines_own_is_the_default(choice: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENORA_KERNELS", choice)
    assert chosen() is NATIVE


def test_a_misspelt_choice_lists_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENORA_KERNELS", "compield")
    with pytest.raises(UnknownKernelsError, match=r"=compield is none of: compiled, torch, native"):
        chosen()


def test_what_the_processor_lacks_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variants, "cpu", lambda: "flags\t: sse4_1 sse4_2 ssse3 popcnt avx512f")
    variants._features.cache_clear()
    try:
        assert [variant.name for variant in runnable()] == ["portable"]
        monkeypatch.setenv("TENORA_KERNELS", "avx512bf16")
        with pytest.raises(UnknownKernelsError, match=r"needs .* avx512_bf16.*runs: .*portable$"):
            chosen()
    finally:
        variants._features.cache_clear()
