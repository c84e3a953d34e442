"""Runs Triton kernels on CPU tensors: a process of its own, because TRITON_INTERPRET must be set
before triton is first imported, which another test of the same run may have done.

Reads (op name, arguments) from standard input, writes (error, arguments, result)."""

from __future__ import annotations

import io
import pickle
import sys
import traceback
from typing import Any, BinaryIO

import torch

from tenora_kernels.backend import triton_implementation


def send(message: Any, stream: BinaryIO) -> None:
    """As torch.save writes it: tensors of fp8 do not come out of a plain pickle."""
    packed = io.BytesIO()
    torch.save(message, packed)
    pickle.dump(packed.getvalue(), stream)
    stream.flush()


def receive(stream: BinaryIO) -> Any:
    """Raises EOFError when the other side has ended."""
    packed = io.BytesIO(pickle.load(stream))  # noqa: S301 - our own bytes
    return torch.load(packed, weights_only=False)


def main() -> None:
    torch.set_num_threads(1)
    answers = sys.stdout.buffer
    sys.stdout = sys.stderr  # whatever else prints must not break into the answers
    while True:
        try:
            op, arguments = receive(sys.stdin.buffer)
        except EOFError:
            return
        try:
            result = getattr(triton_implementation(), op)(*arguments)
            error = None
        except Exception:
            result, error = None, traceback.format_exc()
        send((error, arguments, result), answers)


if __name__ == "__main__":
    main()
