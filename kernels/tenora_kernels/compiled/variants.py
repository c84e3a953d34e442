"""The instruction sets that the C++ ops can be compiled for, which of them this machine runs, and
which one TENORA_KERNELS asks for."""

from __future__ import annotations

import functools
import os
import platform
from dataclasses import dataclass
from pathlib import Path

CHOICE_VARIABLE = "TENORA_KERNELS"
"""What the CPU runs: `compiled` (the default) or a variant's name, or `torch` for plain torch."""

COMPILED, TORCH = "compiled", "torch"


class UnknownKernelsError(RuntimeError):
    """TENORA_KERNELS names nothing that there is; the message lists what there is."""


@dataclass(frozen=True)
class Variant:
    """Compiler flags, and the features (as /proc/cpuinfo names them) that their code asks for."""

    name: str
    flags: tuple[str, ...]
    needs: frozenset[str] = frozenset()


_V2 = frozenset(("sse4_1", "sse4_2", "ssse3", "popcnt"))
_V3 = _V2 | {"avx2", "fma", "f16c", "bmi1", "bmi2", "movbe"}
_V4 = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512_vnni"}
_TUNED = "-mtune=native"

NATIVE = Variant("native", ("-march=native",))
"""All that this machine has: what serves unless something else is asked for."""
_NAMED = (
    Variant("portable", ("-march=x86-64-v2", _TUNED), _V2),
    Variant("avx2", ("-march=x86-64-v3", _TUNED), _V3),
    Variant("avx512", ("-march=x86-64-v4", "-mavx512vnni", _TUNED), _V4),
    Variant(
        "avx512bf16",
        ("-march=x86-64-v4", "-mavx512vnni", "-mavx512bf16", _TUNED),
        _V4 | {"avx512_bf16"},
    ),
)


def runnable() -> tuple[Variant, ...]:
    """The named variants that this machine runs, the poorest first. The last is NATIVE but for its
    scheduling; none on machines that are no x86-64."""
    return tuple(variant for variant in _NAMED if variant.needs <= _features())


def chosen() -> Variant | None:
    """What TENORA_KERNELS asks for; None is plain torch.

    Raises UnknownKernelsError for a name that is none, or one that this processor cannot run.
    """
    choice = os.environ.get(CHOICE_VARIABLE, "")
    if choice == TORCH:
        return None
    if choice in ("", COMPILED):
        return NATIVE
    found = {variant.name: variant for variant in (NATIVE, *runnable())}
    if choice in found:
        return found[choice]
    known = ", ".join((COMPILED, TORCH, *found))
    lacking = next((v.needs - _features() for v in _NAMED if v.name == choice), None)
    if lacking is not None:
        raise UnknownKernelsError(
            f"{CHOICE_VARIABLE}={choice} needs a processor with {', '.join(sorted(lacking))}; "
            f"this one runs: {known}"
        )
    raise UnknownKernelsError(f"{CHOICE_VARIABLE}={choice} is none of: {known}")


def cpu() -> str:
    """The CPU's model and features, as far as the system tells them."""
    try:
        info = Path("/proc/cpuinfo").read_text()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    wanted = ("model name", "flags", "Features", "CPU part")
    first = info.split("\n\n", 1)[0].splitlines()
    return "\n".join(line for line in first if line.startswith(wanted))


@functools.cache
def _features() -> frozenset[str]:
    return frozenset(
        word for line in cpu().splitlines() if line.startswith("flags") for word in line.split()
    )
