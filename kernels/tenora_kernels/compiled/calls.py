"""What all calls into the compiled library share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from tenora_kernels.checks import KernelInputError

DTYPES = frozenset((torch.float32, torch.bfloat16))
"""What the library computes in; other dtypes go to plain torch."""


@contextmanager
def named_errors(op: str) -> Iterator[None]:
    """Raises the library's refusal of an input, which has changed nothing, as KernelInputError."""
    try:
        yield
    except (RuntimeError, ValueError) as refusal:
        raise KernelInputError(f"{op}: {str(refusal).splitlines()[0]}") from None
