"""The first intake check of an uploaded adapter: config, header, tensors against the base model,
then every value. It reads files and knows the base model's shapes; it knows no tenant and no store.

The platform speaks to the engine through EngineClient only, with one exception: the adapter format
(`tenora_engine.adapters.peft_format` and `identity`, pure functions) has one owner, the engine.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tenora_engine.adapters.config_fields import AdapterFormatError, FieldProblem
from tenora_engine.adapters.identity import adapter_digest, normalise_config
from tenora_engine.adapters.peft_format import (
    EffectiveLora,
    LoraConfig,
    TensorInfo,
    check_tensors,
    effective_modules,
    parse_adapter_config,
    parse_tensor_name,
)
from tenora_engine.config import LORA_MODULES, ModelInfo
from tenora_platform.intake.header import Header, IntakeError, read_header, show, strict_json
from tenora_platform.intake.report import AdapterFacts, ModuleFacts, Problem, ValidationReport
from tenora_platform.intake.values import TensorValues, scan_values

CONFIG_BYTES_MAX = 256 * 1024
PROBLEMS_MAX = 100

_CONFIG_CODES = {
    "peft_type": "unsupported_peft_type",
    "task_type": "unsupported_task_type",
    "bias": "unsupported_bias",
    "use_dora": "unsupported_dora",
    "modules_to_save": "unsupported_modules_to_save",
    "trainable_token_indices": "unsupported_embeddings",
    "lora_bias": "unsupported_bias",
    "auto_mapping": "unsupported_auto_mapping",
    "layer_replication": "unsupported_layer_replication",
    "target_parameters": "unsupported_target_parameters",
    "alora_invocation_tokens": "unsupported_alora",
    "use_qalora": "unsupported_qalora",
    "init_lora_weights": "unsupported_initialisation",
}
_FOREIGN_TENSORS = (
    ("lora_magnitude_vector", "unsupported_dora", "belongs to DoRA, which is not supported"),
    ("lora_embedding_", "unsupported_embeddings", "adapts an embedding, which is not supported"),
    ("modules_to_save", "unsupported_modules_to_save", "is a whole trained module, not LoRA"),
    ("embed_tokens", "unsupported_embeddings", "adapts an embedding, which is not supported"),
    ("lm_head", "unsupported_lm_head", "adapts the output head, which is not supported"),
    (".bias", "unsupported_bias", "is a bias, which is not supported"),
)


@dataclass(frozen=True)
class CheckedAdapter:
    """The verdict. `digest` and `config` (normalised) are set when it was accepted; `rank` is the
    largest of any module. `weights_sha256` is of the bytes that were examined."""

    report: ValidationReport
    digest: str | None
    config: bytes | None
    rank: int | None
    target_modules: tuple[str, ...]
    weights_sha256: str | None


def check_adapter(
    config_bytes: bytes, weights: Path, model: ModelInfo, max_rank: int
) -> CheckedAdapter:
    """Examines an upload in one pass over its bytes; blocks, so call it in a thread. Never raises
    for what the tenant sent: that becomes a problem of the report."""
    problems: list[Problem] = []
    config: LoraConfig | None = None
    raw_config: Mapping[str, object] = {}
    try:
        raw_config = read_config(config_bytes)
        config = parse_adapter_config(raw_config)
    except IntakeError as error:
        problems.append(error.problem)
    except AdapterFormatError as error:
        problems += [_config_problem(problem) for problem in error.problems]
    try:
        with weights.open("rb") as file:
            header = read_header(file, weights.stat().st_size)
    except IntakeError as error:
        return _refused([*problems, error.problem])
    foreign = _foreign_tensors(header)
    problems += foreign
    if config is None or foreign:
        return _refused(problems)
    effective = effective_modules(config, model)
    problems += _against_model(effective, header, model, max_rank)
    if problems:
        return _refused(problems)
    values = scan_values(weights, header)
    problems += _value_problems(values.tensors)
    if problems:
        return _refused(problems, values.sha256)
    facts = _facts(config, effective, header, values.tensors)
    normalised = normalise_config(raw_config)
    return CheckedAdapter(
        report=ValidationReport(problems=[], warnings=_warnings(facts), facts=facts),
        digest=adapter_digest(normalised, values.sha256),
        config=normalised,
        rank=facts.rank,
        target_modules=tuple(module.module for module in facts.modules),
        weights_sha256=values.sha256,
    )


def read_config(config_bytes: bytes) -> Mapping[str, object]:
    """adapter_config.json as an object. Raises IntakeError."""
    if len(config_bytes) > CONFIG_BYTES_MAX:
        raise IntakeError(
            "adapter_config",
            "config_too_large",
            f"adapter_config.json has {len(config_bytes)} bytes; at most {CONFIG_BYTES_MAX}",
        )
    parsed = strict_json(config_bytes, "adapter_config")
    if not isinstance(parsed, dict):
        raise IntakeError("adapter_config", "invalid_json", "adapter_config.json is not an object")
    return parsed


def _refused(problems: list[Problem], sha256: str | None = None) -> CheckedAdapter:
    kept = problems[:PROBLEMS_MAX]
    if len(problems) > PROBLEMS_MAX:
        more = len(problems) - PROBLEMS_MAX
        kept.append(
            Problem(field="weights", code="more_problems", message=f"and {more} problems more")
        )
    report = ValidationReport(problems=kept)
    return CheckedAdapter(report, None, None, None, (), sha256)


def _config_problem(problem: FieldProblem) -> Problem:
    return Problem(
        field=f"adapter_config.{show(problem.field)[1:-1]}",
        code=_CONFIG_CODES.get(problem.field, "invalid_config"),
        message=problem.message,
    )


def _foreign_tensors(header: Header) -> list[Problem]:
    """Tensors of kinds that are known and not supported, each named for what it is."""
    return [
        Problem(field=entry.name, code=code, message=f"this tensor {what}")
        for entry in header.tensors
        for code, what in [_foreign_kind(entry.name)]
        if code
    ]


def _foreign_kind(name: str) -> tuple[str, str]:
    for part, code, what in _FOREIGN_TENSORS:
        if part in name:
            return code, what
    return "", ""


def _against_model(
    effective: Mapping[tuple[int, str], EffectiveLora],
    header: Header,
    model: ModelInfo,
    max_rank: int,
) -> list[Problem]:
    tensors = {entry.name: TensorInfo(entry.dtype, entry.shape) for entry in header.tensors}
    return [
        Problem(
            field=problem.field,
            code=_tensor_code(problem.field, tensors, effective, model),
            message=problem.message,
        )
        for problem in check_tensors(effective, tensors, model, max_rank)
    ]


def _tensor_code(
    field: str,
    tensors: Mapping[str, TensorInfo],
    effective: Mapping[tuple[int, str], EffectiveLora],
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
    return "shape_mismatch"


def _value_problems(tensors: Iterable[TensorValues]) -> list[Problem]:
    problems = []
    for tensor in tensors:
        if not tensor.finite:
            problems.append(
                Problem(field=tensor.name, code="not_finite", message="holds NaN or infinity")
            )
        elif tensor.too_large:
            problems.append(
                Problem(
                    field=tensor.name,
                    code="value_out_of_range",
                    message="holds a value beyond +-65504 (what 16 bits can hold)",
                )
            )
    return problems


def _facts(
    config: LoraConfig,
    effective: Mapping[tuple[int, str], EffectiveLora],
    header: Header,
    tensors: Iterable[TensorValues],
) -> AdapterFacts:
    squares: dict[tuple[str, str], float] = defaultdict(float)
    parameters = 0
    for tensor in tensors:
        name = parse_tensor_name(tensor.name)
        assert name is not None  # check_tensors has mapped every one
        squares[name.module, name.matrix] += tensor.sum_of_squares
        parameters += tensor.elements
    modules = []
    for module in LORA_MODULES:
        ranks = [lora.rank for (_, name), lora in effective.items() if name == module]
        if ranks:
            modules.append(
                ModuleFacts(
                    module=module,
                    layers=len(ranks),
                    rank_min=min(ranks),
                    rank_max=max(ranks),
                    norm_a=squares[module, "A"] ** 0.5,
                    norm_b=squares[module, "B"] ** 0.5,
                )
            )
    return AdapterFacts(
        tensors=len(header.tensors),
        tensors_applied=2 * len(effective),
        parameters=parameters,
        weight_bytes=header.file_bytes,
        rank=max(lora.rank for lora in effective.values()),
        modules=modules,
        layers=sorted({layer for layer, _ in effective}),
        dtypes=sorted({entry.dtype for entry in header.tensors}),
        scaling=config.lora_alpha / (config.r**0.5 if config.use_rslora else config.r),
    )


def _warnings(facts: AdapterFacts) -> list[Problem]:
    if any(module.norm_a * module.norm_b > 0 for module in facts.modules):
        return []
    return [
        Problem(
            field="weights",
            code="no_effect",
            message="every product of the matrices is zero: answers will equal the base model's",
        )
    ]
