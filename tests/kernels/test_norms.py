"""rms_norm and silu_mul against the float32 reference."""

from __future__ import annotations

import pytest
import torch
from tests.kernels.cases import assert_near
from tests.kernels.conftest import Ops

from tenora_kernels import reference, rms_norm, silu_mul
from tenora_kernels.checks import KernelInputError

SHAPES = [(0, 576), (1, 1), (1, 576), (5, 37), (3, 1536)]


@pytest.mark.parametrize(("rows", "hidden"), SHAPES)
def test_rms_norm(ops: Ops, rows: int, hidden: int) -> None:
    for dtype in ops.dtypes:
        x = torch.randn(rows, hidden + 3).to(dtype)[:, :hidden]  # rows that are not adjacent
        weight = torch.randn(hidden).to(dtype)
        result = ops.call("rms_norm", ops.place(x), ops.place(weight), 1e-5)
        assert result.dtype == dtype
        assert_near(result.cpu(), reference.rms_norm(x, weight, 1e-5), dtype)


def test_rms_norm_of_heads_within_rows(ops: Ops) -> None:
    for dtype in ops.dtypes:
        heads = torch.randn(5, 9, 24).to(dtype)[:, 3:7]
        weight = torch.randn(24).to(dtype)
        result = ops.call("rms_norm", ops.place(heads), ops.place(weight), 1e-5)
        assert result.shape == heads.shape
        assert_near(result.cpu(), reference.rms_norm(heads, weight, 1e-5), dtype)


@pytest.mark.parametrize(("rows", "hidden"), SHAPES)
def test_rms_norm_with_residual(ops: Ops, rows: int, hidden: int) -> None:
    for dtype in ops.dtypes:
        x, residual = torch.randn(2, rows, hidden).to(dtype).unbind(0)
        weight = torch.randn(hidden).to(dtype)
        arguments = (ops.place(x), ops.place(weight), 1e-5, ops.place(residual))
        normed, total = ops.call("add_rms_norm", *arguments)
        torch.testing.assert_close(total.cpu(), x + residual)
        assert_near(normed.cpu(), reference.rms_norm(x + residual, weight, 1e-5), dtype)


@pytest.mark.parametrize("value", [3e19, -1e38, torch.inf, torch.nan])
def test_a_row_whose_squares_overflow_is_no_number(ops: Ops, value: float) -> None:
    """A row of zeros is one of numbers, as for a token whose embedding is zero."""
    for dtype in ops.dtypes:
        x, weight = torch.randn(3, 40).to(dtype), torch.randn(40).to(dtype)
        x[1, 7] = torch.tensor(value)
        x[2] = 0
        arguments = (ops.place(x), ops.place(weight), 1e-5)
        normed, total = ops.call("add_rms_norm", *arguments, ops.place(torch.zeros_like(x)))
        for found in (ops.call("rms_norm", *arguments), normed):
            assert found[1].isnan().all()
            assert_near(found[::2].cpu(), reference.rms_norm(x[::2], weight, 1e-5), dtype)
        torch.testing.assert_close(total.cpu(), x, equal_nan=True)


@pytest.mark.parametrize(("rows", "hidden"), SHAPES)
def test_silu_mul(ops: Ops, rows: int, hidden: int) -> None:
    for dtype in ops.dtypes:
        gate_up = torch.randn(rows, 2 * hidden + 1).to(dtype)[:, : 2 * hidden]
        result = ops.call("silu_mul", ops.place(gate_up))
        assert_near(result.cpu(), reference.silu_mul(gate_up), dtype)


def test_matches_transformers_in_bfloat16() -> None:
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    theirs = LlamaRMSNorm(64, eps=1e-5).to(torch.bfloat16)
    theirs.weight.data.copy_(torch.randn(64))
    x = torch.randn(7, 64).bfloat16()
    torch.testing.assert_close(
        rms_norm(x, theirs.weight.data, 1e-5), theirs(x), atol=0, rtol=0, check_stride=False
    )


def test_public_ops() -> None:
    x = torch.randn(4, 8)
    weight = torch.randn(8)
    normed, total = rms_norm(x, weight, 1e-6, x)
    assert_near(total, 2 * x, torch.float32)
    assert_near(normed, rms_norm(2 * x, weight, 1e-6), torch.float32)
    assert_near(silu_mul(x), reference.silu_mul(x), torch.float32)


def test_bad_inputs_are_named() -> None:
    x = torch.randn(4, 8)
    with pytest.raises(KernelInputError, match=r"weight has shape \[7\], needs \[8\]"):
        rms_norm(x, torch.randn(7), 1e-6)
    with pytest.raises(KernelInputError, match=r"weight is torch\.bfloat16"):
        rms_norm(x, torch.randn(8).bfloat16(), 1e-6)
    with pytest.raises(KernelInputError, match="residual has shape"):
        rms_norm(x, torch.randn(8), 1e-6, torch.randn(3, 8))
    with pytest.raises(KernelInputError, match="odd width 7"):
        silu_mul(torch.randn(2, 7))
    with pytest.raises(KernelInputError, match="last stride of 1"):
        silu_mul(torch.randn(8, 4).t())
