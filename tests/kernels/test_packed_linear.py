"""Products on packed weights against float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from tenora_kernels.compiled.linear import (
    PackedWeight,
    add_packed_linear,
    pack_weight,
    packed_linear,
    quantise_weight,
)
from tenora_kernels.compiled.load import load_extension

# Every height of a tile, and some of several tiles.
ROWS = [*range(1, 14), 16, 19, 24, 25, 31, 64, 97, 300]
SHAPES = [(16, 2), (48, 48), (97, 64), (200, 130), (64, 1536), (7, 576)]


@pytest.fixture(autouse=True)
def _loaded(compiled_library: object) -> None:
    load_extension()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("out", "inputs"), SHAPES)
def test_equals_float64(out: int, inputs: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    weight, bias = torch.randn(out, inputs).to(dtype), torch.randn(out).to(dtype)
    packed = pack_weight(weight)
    # bfloat16 keeps 8 bits of the rounded result; sums in float32 lose less than 1e-5 of the
    # terms' size, which is sqrt(inputs).
    near = {"rtol": 2**-8 if dtype == torch.bfloat16 else 1e-5, "atol": 1e-5 * inputs**0.5}
    for rows in ROWS:
        x, y = torch.randn(rows, inputs + 6).to(dtype)[:, :inputs], torch.randn(rows, out).to(dtype)
        plain = x.double() @ weight.double().T
        torch.testing.assert_close(
            packed_linear(x, packed, bias).double(), plain + bias.double(), **near
        )
        added = y.clone()
        add_packed_linear(added, x, packed)
        torch.testing.assert_close(added.double(), plain + y.double(), **near)


def rounded(values: torch.Tensor) -> torch.Tensor:
    """Each row to whole numbers of its largest value / 127, halves away from zero. In bfloat16 many
    values lie on the border between two numbers: what decides is value * (127 / largest) + 0.5 with
    one rounding to float32 (a fused multiply-add)."""
    most = values.float().abs().amax(1, keepdim=True)
    inverse = torch.div(torch.tensor(127.0), most)  # `127 / most` would be 127 * its reciprocal
    scaled = values.double() * torch.where(most > 0, inverse, 0).double()
    whole = torch.sign(scaled) * (scaled.abs() + 0.5).float().floor()
    return whole.double() * (most / 127).double()


def rounded_in_groups(values: torch.Tensor) -> torch.Tensor:
    """Each 64 neighbours of a row by themselves."""
    return torch.cat([rounded(part) for part in torch.split(values, 64, dim=1)], dim=1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("out", "inputs"), [(48, 48), (97, 64), (200, 132), (64, 1536), (7, 576)])
def test_int8_equals_float64_on_rounded_values(out: int, inputs: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    weight, bias = torch.randn(out, inputs).to(dtype), torch.randn(out).to(dtype)
    weight[out // 2] = 0
    weight[:, :3] *= 20
    quantised = quantise_weight(weight)
    # A group's sum of whole numbers is exact; it is scaled and added to in float32.
    near = {"rtol": 2**-8 if dtype == torch.bfloat16 else 1e-5, "atol": 1e-5 * inputs**0.5}
    for rows in ROWS:
        x, y = torch.randn(rows, inputs).to(dtype), torch.randn(rows, out).to(dtype)
        plain = rounded_in_groups(x) @ rounded(weight).T
        torch.testing.assert_close(
            packed_linear(x, quantised, bias).double(), plain + bias.double(), **near
        )
        added = y.clone()
        add_packed_linear(added, x, quantised)
        torch.testing.assert_close(added.double(), plain + y.double(), **near)


@pytest.mark.parametrize("pack", [pack_weight, quantise_weight])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_has_the_same_bits_in_any_batch_and_on_any_threads(
    dtype: torch.dtype, pack: Callable[[torch.Tensor], PackedWeight]
) -> None:
    weight, x = torch.randn(200, 576).to(dtype), torch.randn(300, 576).to(dtype)
    packed = pack(weight)
    together = packed_linear(x, packed)
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            for rows in ROWS:
                assert torch.equal(packed_linear(x[:rows], packed), together[:rows])
    finally:
        torch.set_num_threads(threads)


def test_nothing_times_something() -> None:
    packed = pack_weight(torch.randn(16, 4))
    assert packed_linear(torch.randn(0, 4), packed).shape == (0, 16)
    assert packed_linear(torch.randn(3, 4), pack_weight(torch.randn(0, 4))).shape == (3, 0)


def test_refuses_what_does_not_fit() -> None:
    packed, x = pack_weight(torch.randn(16, 4)), torch.randn(2, 4)
    quantised = quantise_weight(torch.randn(16, 4))
    with pytest.raises(RuntimeError, match="even number of inputs"):
        pack_weight(torch.randn(16, 3))
    with pytest.raises(RuntimeError, match="multiple of 4"):
        quantise_weight(torch.randn(16, 6))
    for pack in (pack_weight, quantise_weight):
        with pytest.raises(RuntimeError, match="dense"):
            pack(torch.randn(4, 16).t())
        with pytest.raises(RuntimeError, match="float32 or bfloat16"):
            pack(torch.randn(16, 4).double())
    with pytest.raises(RuntimeError, match="another shape"):
        packed_linear(torch.randn(2, 6), packed)
    with pytest.raises(RuntimeError, match="dtypes"):
        packed_linear(x.bfloat16(), packed)
    with pytest.raises(RuntimeError, match="shape or strides of x"):
        packed_linear(torch.randn(4, 2).t(), packed)
    for nothing in (packed, quantised):
        with pytest.raises(RuntimeError, match="shape or strides of x"):
            packed_linear(torch.randn(2, 0), nothing)
    with pytest.raises(RuntimeError, match="shape or strides of x"):  # steps are of four inputs
        packed_linear(torch.randn(2, 6), quantised)
    with pytest.raises(RuntimeError, match="wrong scales"):
        packed_linear(x, replace(quantised, scales=torch.ones(5)))
    with pytest.raises(RuntimeError, match="wrong packed weight"):
        packed_linear(x, replace(packed, packed=packed.packed.view(-1, 4)))
    for bias in (torch.ones(15), torch.ones(16).bfloat16(), torch.ones(32)[::2]):
        with pytest.raises(RuntimeError, match="wrong bias"):
            packed_linear(x, packed, bias)
