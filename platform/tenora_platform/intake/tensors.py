"""The tensors of an upload against its config and the base model, by their header alone. What is
wrong with many tensors alike is said once, with what was found instead."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from tenora_engine.adapters.peft_format import (
    EffectiveLora,
    ModuleKey,
    TensorInfo,
    by_peft_name,
    check_tensors,
    parse_tensor_name,
)
from tenora_engine.config import ModelInfo
from tenora_platform.intake.foreign import foreign_kind
from tenora_platform.intake.header import Header, TensorEntry, show
from tenora_platform.intake.report import Problem

_EXAMPLES = 2
_KINDS_SHOWN = 4
_NUMBER = re.compile(r"\.\d+\.")


def foreign_tensors(header: Header) -> list[Problem]:
    """Tensors of kinds that are known and not supported, each kind named for what it is."""
    problems: dict[str, list[Problem]] = defaultdict(list)
    for entry in header.tensors:
        if problem := foreign_kind(entry.name):
            problems[problem.message].append(problem)
    return [problem for alike in problems.values() for problem in _summed(alike)]


def against_model(
    effective: Mapping[ModuleKey, EffectiveLora], header: Header, model: ModelInfo, max_rank: int
) -> list[Problem]:
    """Every kind of problem once; empty when the adapter fits."""
    tensors = {entry.name: TensorInfo(entry.dtype, entry.shape) for entry in header.tensors}
    problems = [
        Problem(
            field=problem.field,
            code=_code(problem.field, tensors, effective, model),
            message=problem.message,
        )
        for problem in check_tensors(effective, tensors, model, max_rank)
    ]
    missing = [problem for problem in problems if problem.code == "tensor_missing"]
    others = [problem for problem in problems if problem.code != "tensor_missing"]
    return _missing(missing, 2 * len(effective), header.tensors) + _summed(others)


def _code(
    field: str,
    tensors: Mapping[str, TensorInfo],
    effective: Mapping[ModuleKey, EffectiveLora],
    model: ModelInfo,
) -> str:
    if field == "r":
        return "rank_too_large"
    if field == "target_modules":
        return "no_module_matches"
    if field not in tensors:
        return "tensor_missing"
    parsed = parse_tensor_name(field)
    if parsed is None:
        return "unknown_tensor"
    if parsed.layer >= model.num_layers:
        return "layer_out_of_range"
    if (parsed.layer, parsed.module) not in effective:
        return "module_not_targeted"
    if field not in by_peft_name({name: name for name in tensors}).values():
        return "duplicate_tensor"
    return "shape_mismatch"


def _missing(
    missing: Sequence[Problem], wanted: int, found: Sequence[TensorEntry]
) -> list[Problem]:
    if not missing:
        return []
    message = (
        f"{len(missing)} of the {wanted} matrices that adapter_config.json asks for are "
        f"missing, such as {_examples(missing)}; the file contains {_kinds(found)}"
    )
    field = missing[0].field if len(missing) == 1 else "weights"
    return [Problem(field=field, code="tensor_missing", message=message)]


def _kinds(found: Sequence[TensorEntry]) -> str:
    """The file's tensors, layers taken together: `30 x model.layers.N.attn.q.lora_A.weight`."""
    kinds = Counter(_NUMBER.sub(".N.", entry.name) for entry in found)
    shown = [f"{count} x {show(name)}" for name, count in kinds.most_common(_KINDS_SHOWN)]
    more = len(kinds) - len(shown)
    return ", ".join(shown) + (f" and {more} more kinds" if more else "")


def _summed(problems: Iterable[Problem]) -> list[Problem]:
    """Problems of one code as one: the first's words, and how many there are like it."""
    by_code: dict[str, list[Problem]] = defaultdict(list)
    for problem in problems:
        by_code[problem.code].append(problem)
    return [alike[0] if len(alike) == 1 else _as_one(alike) for alike in by_code.values()]


def _as_one(alike: Sequence[Problem]) -> Problem:
    first, second = alike[:2]
    return Problem(
        field="weights",
        code=first.code,
        message=f"{show(first.field)}: {first.message}; the same for {len(alike) - 1} more, such "
        f"as {show(second.field)}",
    )


def _examples(problems: Sequence[Problem]) -> str:
    return " and ".join(show(problem.field) for problem in problems[:_EXAMPLES])
