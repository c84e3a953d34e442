"""rms_norm and silu_mul in Triton: one program per row, or per piece of a row."""

# A kernel's parameters get their types at launch.
# mypy: disable-error-code="untyped-decorator,no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tenora_kernels.gpu.launch import power_of_two


@triton.jit
def _rms_norm(
    x, residual, weight, out, total_out, x_stride, group_stride, residual_stride, eps,
    HIDDEN: tl.constexpr, ROOM: tl.constexpr, ADD: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    """GROUPS: parts of a row that are normed each by itself, wherever they lie in x."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, ROOM)
    real = columns < HIDDEN
    kind = x.dtype.element_ty
    source = x + row // GROUPS * x_stride + row % GROUPS * group_stride
    wide = tl.load(source + columns, mask=real, other=0.0).to(tl.float32)
    if ADD:
        wide += tl.load(residual + row * residual_stride + columns, mask=real, other=0.0).to(
            tl.float32
        )
        # The sum is rounded before the norm reads it, as when it is a tensor of its own.
        wide = wide.to(kind).to(tl.float32)
        tl.store(total_out + row * HIDDEN + columns, wide.to(kind), mask=real)
    mean_square = tl.sum(wide * wide, axis=0) / HIDDEN
    factor = 1.0 / tl.sqrt(mean_square + eps) + (mean_square - mean_square)  # NaN where infinite
    normed = (wide * factor).to(kind).to(tl.float32)
    scaled = normed * tl.load(weight + columns, mask=real, other=0.0).to(tl.float32)
    tl.store(out + row * HIDDEN + columns, scaled.to(kind), mask=real)


@triton.jit
def _silu_mul(gate_up, out, stride, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real = columns < WIDTH
    kind = gate_up.dtype.element_ty
    source = gate_up + row * stride + columns
    gate = tl.load(source, mask=real, other=0.0).to(tl.float32)
    up = tl.load(source + WIDTH, mask=real, other=0.0).to(tl.float32)
    activated = (gate / (1.0 + tl.exp(-gate))).to(kind).to(tl.float32)
    tl.store(out + row * WIDTH + columns, (activated * up).to(kind), mask=real)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See tenora_kernels.rms_norm."""
    return _launch(x, weight, eps, None)[0]


def add_rms_norm(x: Tensor, weight: Tensor, eps: float, residual: Tensor) -> tuple[Tensor, Tensor]:
    """See tenora_kernels.rms_norm with a residual."""
    return _launch(x, weight, eps, residual)


def _launch(
    x: Tensor, weight: Tensor, eps: float, residual: Tensor | None
) -> tuple[Tensor, Tensor]:
    hidden = x.shape[-1]
    # Heads within the rows of a wider tensor are read where they lie.
    groups = x.shape[1] if x.dim() == 3 and residual is None and x.stride(2) == 1 else 1
    rows = x if groups > 1 else x.reshape(-1, hidden)
    added = rows if residual is None else residual.reshape(-1, hidden)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    total = out if residual is None else torch.empty_like(out)
    count = rows.shape[0] * groups
    if count:
        room = power_of_two(hidden, 1)
        _rms_norm[(count,)](
            rows, added, weight, out, total,
            rows.stride(0), rows.stride(1) if groups > 1 else 0, added.stride(0), eps,
            HIDDEN=hidden, ROOM=room, ADD=residual is not None, GROUPS=groups,
            num_warps=min(16, max(1, room // 512)),
        )  # fmt: skip
    return out, total


def silu_mul(gate_up: Tensor) -> Tensor:
    """See tenora_kernels.silu_mul."""
    num_rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty(num_rows, width, dtype=gate_up.dtype, device=gate_up.device)
    if num_rows:
        block = min(1024, power_of_two(width, 16))
        _silu_mul[(num_rows, triton.cdiv(width, block))](
            gate_up, out, gate_up.stride(0), WIDTH=width, BLOCK=block, num_warps=4
        )
    return out
