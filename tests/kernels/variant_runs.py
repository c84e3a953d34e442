"""The tests of every instruction set but the one that serves, each in a process of its own, while
the session's other tests run."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tenora_kernels.compiled.variants import Variant, runnable

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
LAST = "nice", "-n", "19"  # they use what the tests before them leave of the processor


class Runs:
    """The others' tests, begun when the session has been collected (`conftest.py`), for they take
    minutes: most tests before these wait for something else than the processor."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="variants")
        self._runs = {variant.name: self._pool.submit(_run_tests, variant) for variant in OTHERS}

    def result(self, name: str) -> subprocess.CompletedProcess[str]:
        return self._runs[name].result()

    def end(self) -> None:
        self._pool.shutdown(cancel_futures=True)


def _run_tests(variant: Variant) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TENORA_KERNELS": variant.name, "OMP_NUM_THREADS": "2"}
    built = subprocess.run(
        [*LAST, sys.executable, "-m", "tenora_kernels.compiled.build"],
        env=environment,
        cwd=TESTS.parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    if built.returncode != 0:
        return built
    files = OF_COMPILED if variant is OTHERS[-1] else IN_SHORT
    return subprocess.run(
        [
            *(*LAST, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"),
            *("-k", "compiled or packed or decoder"),
            *(str(TESTS / name) for name in files),
        ],
        env=environment,
        cwd=TESTS.parents[1],
        capture_output=True,
        text=True,
        check=False,
    )


RUNS = pytest.StashKey[Runs]()
