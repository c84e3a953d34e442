"""How much of an adapter sits where: of every adapted module in every layer its rank and the norms
of A, of B and of what is added to the base model's weight. Reads a checked file; judges nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from tenora_engine.adapters.peft_format import EffectiveLora, ModuleKey, parse_tensor_name
from tenora_engine.config import LORA_MODULES
from tenora_platform.intake.header import ITEM_BYTES, Header, TensorEntry
from tenora_platform.intake.report import LayerPicture
from tenora_platform.intake.values import as_float64

BLOCK_BYTES = 4 * 1024 * 1024  # widened at once
_DIGITS = 4  # significant; a picture needs two

Gram = NDArray[np.float64]  # [rank, rank]


def draw(
    file: BinaryIO, header: Header, effective: Mapping[ModuleKey, EffectiveLora]
) -> LayerPicture | None:
    """All norms are Frobenius norms, `product` of `scale * B @ A` ([out, in]), which is never made:

        |BA|^2 = tr(A^T B^T B A) = tr((B^T B)(A A^T)),

    two matrices of [rank, rank]. None for an adapter without such modules. Raises OSError."""
    grams: dict[tuple[ModuleKey, str], Gram] = {}
    for entry in header.tensors:
        name = parse_tensor_name(entry.name)
        if name is None or (name.layer, name.module) not in effective:
            continue
        file.seek(entry.begin)
        data = file.read(entry.end - entry.begin)
        grams[(name.layer, name.module), name.matrix] = _gram(data, entry, name.matrix)
    layers = sorted({layer for layer, _ in effective})
    modules = [name for name in LORA_MODULES if any(name == module for _, module in effective)]
    cells = {
        key: _norms(grams[key, "A"], grams[key, "B"], lora.scale)
        for key, lora in effective.items()
        if (key, "A") in grams and (key, "B") in grams
    }
    if not cells:
        return None

    def rows(place: int) -> list[list[float | None]]:
        return [
            [cells[layer, name][place] if (layer, name) in cells else None for layer in layers]
            for name in modules
        ]

    return LayerPicture(
        modules=modules,
        layers=layers,
        rank=[
            [effective[layer, name].rank if (layer, name) in cells else None for layer in layers]
            for name in modules
        ],
        norm_a=rows(0),
        norm_b=rows(1),
        product=rows(2),
    )


def _gram(data: bytes, entry: TensorEntry, matrix: str) -> Gram:
    """A A^T of A [rank, in], or B^T B of B [out, rank], in float64, some of the long side at a
    time."""
    stored = np.frombuffer(data, f"<u{ITEM_BYTES[entry.dtype]}").reshape(entry.shape)
    tall = stored.T if matrix == "A" else stored  # [long, rank], bits as they are in the file
    length, rank = tall.shape
    step = max(BLOCK_BYTES // (8 * rank), 1)
    total = np.zeros((rank, rank))
    for begin in range(0, length, step):
        bits = tall[begin : begin + step]
        block = as_float64(bits.tobytes(), entry.dtype).reshape(-1, rank)
        total += block.T @ block
    return total


def _norms(a: Gram, b: Gram, scale: float) -> tuple[float, float, float]:
    # Rounding may leave a product that is zero a little below it.
    product = max(float(np.sum(a * b)), 0.0)
    return (
        _short(float(np.trace(a)) ** 0.5),
        _short(float(np.trace(b)) ** 0.5),
        _short(abs(scale) * product**0.5),
    )


def _short(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
