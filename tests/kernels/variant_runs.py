"""The tests of every instruction set but the one that serves, each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

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
    "test_draft_layer.py",
    "test_compiled.py::test_same_bits_for_any_number_of_threads",
    "test_compiled.py::test_a_row_has_the_same_bits_in_any_batch",
    "test_compiled.py::test_a_row_has_the_same_bits_in_a_run_of_any_length",
    "test_compiled.py::test_long_and_short_runs_in_one_batch",
)


IN_SHORT = ("test_sgmv.py", "test_packed_linear.py", "test_compiled_decoder.py")
"""Products and whole steps, of which all ops are a part: for what is far from the one that serves,
since all of them would take minutes without its vectors."""

OF_THE_PLATFORM = ("platform_fixtures", "limits_harness", "ledger_books")
"""Plugins of tests/conftest.py that take seconds to import."""

# Not the richest: it is the code of the variant that serves, which all other tests run.
OTHERS = runnable()[:-1]


def run_tests(variant: Variant) -> subprocess.CompletedProcess[str]:
    """Compiles the variant where that has not been done; its failure is the result then."""
    environment = {**os.environ, "TENORA_KERNELS": variant.name}
    built = subprocess.run(
        [sys.executable, "-m", "tenora_kernels.compiled.build"],
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
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"),
            *(word for plugin in OF_THE_PLATFORM for word in ("-p", f"no:{plugin}")),
            *("-k", "compiled or packed or decoder or draft"),
            *(str(TESTS / name) for name in files),
        ],
        env=environment,
        cwd=TESTS.parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
