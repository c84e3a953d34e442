"""Fixtures: each op as plain torch on the CPU, compiled where there is a compiler, as Triton
through its interpreter, as Triton on a GPU where there is one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import pytest
import torch
from tests.kernels.triton_worker import receive, send
from torch import Tensor

from tenora_kernels.backend import (
    compiled_implementation,
    torch_implementation,
    triton_implementation,
)
from tenora_kernels.compiled.build import COMPILERS, build_extension
from tenora_kernels.compiled.variants import NATIVE, chosen

WORKER = Path(__file__).with_name("triton_worker.py")


class TritonInterpreter:
    """Calls an op in the worker process; tensors the op changed in place are changed here too."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        )

    def call(self, op: str, *arguments: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        send((op, arguments), cast(BinaryIO, self._process.stdin))
        error, changed, result = receive(cast(BinaryIO, self._process.stdout))
        if error is not None:
            raise AssertionError(f"the Triton kernel failed in its worker:\n{error}")
        for mine, theirs in zip(arguments, changed, strict=True):
            if isinstance(mine, Tensor):
                mine.copy_(theirs)
        return result

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)
        self._process.stdout.close()


@pytest.fixture(scope="session")
def triton_interpreter() -> Iterator[TritonInterpreter]:
    pytest.importorskip("triton", reason="triton is not installed on this machine")
    interpreter = TritonInterpreter()
    yield interpreter
    interpreter.close()


@dataclass(frozen=True)
class Ops:
    """One way to run the ops. `call(op, *arguments)` as the implementation's own signature."""

    name: str
    dtypes: tuple[torch.dtype, ...]
    device: str
    tiles: bool | None
    call: Callable[..., Any]

    def place(self, value: Any) -> Any:
        """A tensor, or a dataclass of tensors, on this device."""
        if isinstance(value, Tensor):
            return value.to(self.device)
        if is_dataclass(value) and not isinstance(value, type):
            moved = {f.name: self.place(getattr(value, f.name)) for f in fields(value)}
            return type(value)(**moved)
        return value


@pytest.fixture(scope="session")
def compiled_library() -> Path:
    """The library of the compiled ops, built where the package looks for it."""
    if not any(map(shutil.which, COMPILERS)):
        pytest.skip("this machine has no C++ compiler")
    return build_extension(variant=chosen() or NATIVE)


@pytest.fixture(
    params=["torch", "compiled", "interpreter", pytest.param("gpu", marks=pytest.mark.gpu)]
)
def ops(request: pytest.FixtureRequest) -> Ops:
    if request.param == "torch":

        def call_torch(op: str, *arguments: Any) -> Any:
            return getattr(torch_implementation(), op)(*arguments)

        return Ops("torch", (torch.float32, torch.bfloat16), "cpu", None, call_torch)
    if request.param == "compiled":
        request.getfixturevalue("compiled_library")

        def call_compiled(op: str, *arguments: Any) -> Any:
            return getattr(compiled_implementation(), op)(*arguments)

        return Ops("compiled", (torch.float32, torch.bfloat16), "cpu", None, call_compiled)
    if request.param == "interpreter":
        interpreter: TritonInterpreter = request.getfixturevalue("triton_interpreter")
        # Not bfloat16: the interpreter's tl.dot of bfloat16 operands is wrong.
        return Ops("interpreter", (torch.float32, torch.float16), "cpu", True, interpreter.call)
    if not torch.cuda.is_available():
        pytest.skip("this machine has no CUDA device")

    def call_gpu(op: str, *arguments: Any) -> Any:
        return getattr(triton_implementation(), op)(*arguments)

    kinds = (torch.float32, torch.float16, torch.bfloat16)
    return Ops("gpu", kinds, "cuda", None, call_gpu)
