"""The check of a draft layer that comes with an adapter: header, shapes against the base model,
then every value. What is wrong is a problem of the field `draft_layer`. Knows no tenant and no
store."""

from __future__ import annotations

import math
import os
from typing import BinaryIO

import numpy as np

from tenora_engine.adapters.draft_format import (
    FORMAT,
    VOCABULARY,
    VOCABULARY_MAX,
    tensor_shapes,
)
from tenora_engine.config import ModelInfo
from tenora_platform.intake.header import (
    HEADER_BYTES_MAX,
    IDS_BYTES,
    Header,
    IntakeError,
    TensorEntry,
    read_header,
    show,
)
from tenora_platform.intake.report import Problem
from tenora_platform.intake.values import VALUE_MAX, scan_values

FIELD = "draft_layer"


def check_draft_layer(file: BinaryIO, model: ModelInfo) -> list[Problem]:
    """What is wrong with the file; nothing where it is a layer for that base model. Never raises
    for what the tenant sent. Raises OSError."""
    header, problems = _examined(file, os.fstat(file.fileno()).st_size, model)
    return problems if header is None else _value_problems(file, header, model)


def examine_draft_header(file: BinaryIO, file_bytes: int, model: ModelInfo) -> list[Problem]:
    """What is wrong as far as the header of a file of so many bytes says, of which `file` need hold
    no more. Never raises for what the tenant sent."""
    return _examined(file, file_bytes, model)[1]


def _examined(
    file: BinaryIO, file_bytes: int, model: ModelInfo
) -> tuple[Header | None, list[Problem]]:
    """Without problems the header."""
    most = draft_layer_bytes_max(model)
    if file_bytes > most:
        return None, [
            _problem("", "file_too_large", f"has {file_bytes} bytes; at most {most} are allowed")
        ]
    try:
        header = read_header(file, file_bytes, IDS_BYTES)
    except IntakeError as error:
        return None, [of_the_layer(error.problem)]
    problems = _against_model(header, model)
    return (None, problems) if problems else (header, [])


def draft_layer_bytes_max(model: ModelInfo) -> int:
    """Of a file for that base model: all in float32, as many ids as there may be, and a header."""
    shapes = tensor_shapes(*_sizes(model), VOCABULARY_MAX)
    ids = math.prod(shapes.pop(VOCABULARY)) * IDS_BYTES["I64"]
    weights = sum(math.prod(shape) for shape in shapes.values()) * IDS_BYTES["F32"]
    return 8 + HEADER_BYTES_MAX + weights + ids


def _sizes(model: ModelInfo) -> tuple[int, int, int]:
    return model.hidden, model.intermediate, model.heads * model.head_dim


def _against_model(header: Header, model: ModelInfo) -> list[Problem]:
    kind = header.metadata.get("format")
    if kind != FORMAT:
        found = "names no format" if kind is None else f"has the format {show(kind)}"
        return [_problem("", "no_draft_layer", f"{found}; it must be '{FORMAT}'")]
    known = {entry.name: entry for entry in header.tensors}
    vocabulary = known.get(VOCABULARY)
    num_tokens = vocabulary.shape[0] if vocabulary is not None else 0
    problems: list[Problem] = []
    for name, shape in tensor_shapes(*_sizes(model), num_tokens).items():
        entry = known.pop(name, None)
        if entry is None:
            problems.append(_problem(name, "tensor_missing", "is missing from the file"))
        elif entry.shape != shape:
            problems.append(
                _problem(
                    name,
                    "shape_mismatch",
                    f"has shape {list(entry.shape)}; this base model needs {list(shape)}",
                )
            )
        elif (entry.dtype == "I64") != (name == VOCABULARY):
            wanted = "I64" if name == VOCABULARY else "F32, F16 or BF16"
            problems.append(
                _problem(name, "unsupported_dtype", f"has dtype {entry.dtype}; use {wanted}")
            )
    if num_tokens > VOCABULARY_MAX:
        message = f"lists {num_tokens} tokens; at most {VOCABULARY_MAX} are allowed"
        problems.append(_problem(VOCABULARY, "vocabulary_too_large", message))
    unknown = [
        _problem(name, "unknown_tensor", "does not belong to a draft layer") for name in known
    ]
    return problems + unknown[:1]


def _value_problems(file: BinaryIO, header: Header, model: ModelInfo) -> list[Problem]:
    problems = []
    for tensor in scan_values(file, header).tensors:
        if tensor.name == VOCABULARY:
            continue
        if not tensor.finite:
            problems.append(_problem(tensor.name, "not_finite", "contains NaN or infinity"))
        elif tensor.largest > VALUE_MAX:
            problems.append(
                _problem(
                    tensor.name,
                    "value_out_of_range",
                    "contains a value outside +-65504 (the range of 16-bit floats)",
                )
            )
    [entry] = [entry for entry in header.tensors if entry.name == VOCABULARY]
    if not _are_tokens(file, entry, model.vocab):
        problems.append(
            _problem(
                VOCABULARY,
                "token_out_of_range",
                f"lists a token id outside the base model's vocabulary of {model.vocab}",
            )
        )
    return problems


def _are_tokens(file: BinaryIO, entry: TensorEntry, vocab: int) -> bool:
    file.seek(entry.begin)
    ids = np.frombuffer(file.read(entry.end - entry.begin), "<i8")
    return bool(((ids >= 0) & (ids < vocab)).all())


def _problem(part: str, code: str, message: str) -> Problem:
    return Problem(field=f"{FIELD}.{part}" if part else FIELD, code=code, message=message)


def of_the_layer(problem: Problem) -> Problem:
    """One that was found where weights are read, or is one of the layer's already."""
    whole, _, part = problem.field.partition(".")
    if whole == FIELD:
        return problem
    name = part if whole == "weights" else problem.field
    return _problem(name, problem.code, problem.message)
