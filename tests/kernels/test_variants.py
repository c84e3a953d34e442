"""Every instruction set that the kernels can be compiled for and this machine runs, each in a
process of its own: the ops and whole steps against the same references as the one that serves; and
how one is chosen."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from tests.kernels.variant_runs import OTHERS, run_tests

from tenora_kernels.compiled import variants
from tenora_kernels.compiled.build import build_extension
from tenora_kernels.compiled.library import default_dir, library_path
from tenora_kernels.compiled.variants import (
    NATIVE,
    UnknownKernelsError,
    Variant,
    chosen,
    runnable,
)


@pytest.mark.parametrize("variant", OTHERS, ids=lambda variant: variant.name)
@pytest.mark.usefixtures("compiled_library")
def test_a_variant_passes_the_tests_of_the_one_that_serves(variant: Variant) -> None:
    done = run_tests(variant)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


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
