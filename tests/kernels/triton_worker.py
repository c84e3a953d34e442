"""Runs Triton kernels on CPU tensors: a process of its own, because TRITON_INTERPRET must be set
before triton is first imported, which another test of the same run may have done.

Reads pickled (op name, arguments) from standard input, writes the pickled arguments and result."""

from __future__ import annotations

import pickle
import sys
import traceback

import torch

from tenora_kernels.backend import triton_implementation


def main() -> None:
    torch.set_num_threads(1)
    answers = sys.stdout.buffer
    sys.stdout = sys.stderr  # whatever else prints must not break into the answers
    while True:
        try:
            op, arguments = pickle.load(sys.stdin.buffer)  # noqa: S301 - the parent's own bytes
        except EOFError:
            return
        try:
            result = getattr(triton_implementation(), op)(*arguments)
            error = None
        except Exception:
            result, error = None, traceback.format_exc()
        pickle.dump((error, arguments, result), answers)
        answers.flush()


if __name__ == "__main__":
    main()
