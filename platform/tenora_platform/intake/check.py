"""The first intake check of an uploaded adapter: config, header, tensors against the base model,
then every value. It reads files and knows the base model's shapes; it knows no tenant and no store.

The platform speaks to the engine through EngineClient only, with one exception: the adapter format
(`tenora_engine.adapters.peft_format` and `identity`, pure functions) has one owner, the engine.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from tenora_engine.adapters.config_fields import (
    AdapterFormatError,
    FieldProblem,
    ignored_fields,
)
from tenora_engine.adapters.identity import adapter_digest, normalise_config
from tenora_engine.adapters.peft_format import (
    EffectiveLora,
    LoraConfig,
    ModuleKey,
    effective_modules,
    parse_adapter_config,
    parse_tensor_name,
)
from tenora_engine.config import LORA_MODULES, ModelInfo
from tenora_platform.intake.foreign import foreign_kind
from tenora_platform.intake.header import Header, IntakeError, read_header, show, strict_json
from tenora_platform.intake.picture import draw
from tenora_platform.intake.report import AdapterFacts, ModuleFacts, Problem, ValidationReport
from tenora_platform.intake.tensors import against_model, foreign_tensors
from tenora_platform.intake.values import VALUE_MAX, TensorValues, scan_values

CONFIG_BYTES_MAX = 256 * 1024
PROBLEMS_MAX = 100

STATE_MAX = 2.0**64
"""Hidden states of bfloat16 and of float32 are added up as squares in float32, which overflows
where a state is larger."""

_CONFIG_CODES = {
    "peft_type": "unsupported_peft_type",
    "num_virtual_tokens": "unsupported_peft_type",
    "task_type": "unsupported_task_type",
    "bias": "unsupported_bias",
    "use_dora": "unsupported_dora",
    "modules_to_save": "unsupported_modules_to_save",
    "trainable_token_indices": "unsupported_embeddings",
    "lora_bias": "unsupported_bias",
    "layer_replication": "unsupported_layer_replication",
    "target_parameters": "unsupported_target_parameters",
    "alora_invocation_tokens": "unsupported_alora",
    "use_qalora": "unsupported_qalora",
    "init_lora_weights": "unsupported_initialisation",
}


@dataclass(frozen=True)
class CheckedAdapter:
    """The verdict. `digest` and `config` (normalised) are set when it was accepted; `rank` is the
    largest of any module. `weights_sha256` is of the bytes that were examined. `ranks` are set
    where the header alone was: by module, of each layer, 0 where a layer lacks it."""

    report: ValidationReport
    digest: str | None
    config: bytes | None
    rank: int | None
    target_modules: tuple[str, ...]
    weights_sha256: str | None
    ranks: dict[str, list[int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Examined:
    """What config and header say. Without problems, `header` and `effective` are set, and the
    config is a LoRA's."""

    problems: list[Problem]
    warnings: list[Problem]
    raw_config: Mapping[str, object]
    config: LoraConfig | None = None
    header: Header | None = None
    effective: Mapping[ModuleKey, EffectiveLora] = field(default_factory=dict)

    @property
    def rank(self) -> int | None:
        """The largest of any module."""
        return max((lora.rank for lora in self.effective.values()), default=None)

    @property
    def target_modules(self) -> tuple[str, ...]:
        targeted = {module for _, module in self.effective}
        return tuple(module for module in LORA_MODULES if module in targeted)

    def report(self) -> ValidationReport:
        return ValidationReport(problems=_capped(self.problems), warnings=self.warnings)


def examine_header(
    config_bytes: bytes, weights: BinaryIO, file_bytes: int, model: ModelInfo, max_rank: int
) -> Examined:
    """All that can be known before the first value: config, and header of a file of `file_bytes`
    bytes, of which `weights` need hold no more than the header. Never raises for what the tenant
    sent: that becomes a problem."""
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
    warnings = _config_warnings(raw_config, model)
    try:
        header = read_header(weights, file_bytes)
    except IntakeError as error:
        # A dtype or shape that is refused may be one of a kind of tensor that has a name.
        named = foreign_kind(error.problem.field) or error.problem
        return Examined([*problems, named], warnings, raw_config)
    foreign = foreign_tensors(header)
    problems += foreign
    if config is None or foreign:
        return Examined(problems, warnings, raw_config)
    effective = effective_modules(config, model)
    problems += against_model(effective, header, model, max_rank)
    return Examined(problems, warnings, raw_config, config, header, effective)


def check_header(
    config_bytes: bytes, header: BinaryIO, file_bytes: int, model: ModelInfo, max_rank: int
) -> CheckedAdapter:
    """What `examine_header` finds. A config's patterns may take seconds, in which Python's lock is
    kept: it is called in a process apart."""
    found = examine_header(config_bytes, header, file_bytes, model, max_rank)
    ranks = {
        module: [
            found.effective[layer, module].rank if (layer, module) in found.effective else 0
            for layer in range(model.num_layers)
        ]
        for module in found.target_modules
    }
    report = found.report()
    return CheckedAdapter(report, None, None, found.rank, found.target_modules, None, ranks)


def check_adapter(
    config_bytes: bytes, weights: Path, model: ModelInfo, max_rank: int
) -> CheckedAdapter:
    """`check_open_adapter` of a file that has a name."""
    with weights.open("rb") as file:
        return check_open_adapter(config_bytes, file, model, max_rank)


def check_open_adapter(
    config_bytes: bytes, weights: BinaryIO, model: ModelInfo, max_rank: int
) -> CheckedAdapter:
    """Examines an upload, its bytes twice. It blocks and may meet anything, so workers
    call it in a process apart (`checker`). Never raises for what the tenant sent: that becomes a
    problem of the report."""
    file_bytes = os.fstat(weights.fileno()).st_size
    examined = examine_header(config_bytes, weights, file_bytes, model, max_rank)
    if examined.problems:
        return CheckedAdapter(examined.report(), None, None, None, (), None)
    assert examined.config is not None  # there are no problems
    assert examined.header is not None
    values = scan_values(weights, examined.header)
    if problems := _value_problems(values.tensors):
        report = ValidationReport(problems=_capped(problems), warnings=examined.warnings)
        return CheckedAdapter(report, None, None, None, (), values.sha256)
    facts = _facts(examined.config, examined.effective, examined.header, values.tensors)
    facts.picture = draw(weights, examined.header, examined.effective)
    normalised = normalise_config(examined.raw_config)
    warnings = examined.warnings + _no_effect_warning(facts)
    warnings += _range_warning(examined.effective, values.tensors, model)
    return CheckedAdapter(
        report=ValidationReport(problems=[], warnings=warnings, facts=facts),
        digest=adapter_digest(normalised, values.sha256),
        config=normalised,
        rank=examined.rank,
        target_modules=examined.target_modules,
        weights_sha256=values.sha256,
    )


def read_config(config_bytes: bytes) -> Mapping[str, object]:
    """adapter_config.json as an object. Raises IntakeError."""
    if len(config_bytes) > CONFIG_BYTES_MAX:
        raise IntakeError(
            "adapter_config",
            "config_too_large",
            f"adapter_config.json has {len(config_bytes)} bytes; at most {CONFIG_BYTES_MAX} "
            "are allowed",
        )
    parsed = strict_json(config_bytes, "adapter_config")
    if not isinstance(parsed, dict):
        raise IntakeError(
            "adapter_config", "invalid_json", "adapter_config.json must be a JSON object"
        )
    return parsed


def _capped(problems: list[Problem]) -> list[Problem]:
    kept = problems[:PROBLEMS_MAX]
    if len(problems) > PROBLEMS_MAX:
        more = len(problems) - PROBLEMS_MAX
        kept.append(
            Problem(field="weights", code="more_problems", message=f"and {more} more problems")
        )
    return kept


def _config_problem(problem: FieldProblem) -> Problem:
    return Problem(
        field=f"adapter_config.{show(problem.field)[1:-1]}",
        code=_CONFIG_CODES.get(problem.field, "invalid_config"),
        message=problem.message,
    )


def _value_problems(tensors: Iterable[TensorValues]) -> list[Problem]:
    problems = []
    for tensor in tensors:
        if not tensor.finite:
            problems.append(
                Problem(field=tensor.name, code="not_finite", message="contains NaN or infinity")
            )
        elif tensor.largest > VALUE_MAX:
            problems.append(
                Problem(
                    field=tensor.name,
                    code="value_out_of_range",
                    message="contains a value outside +-65504 (the range of 16-bit floats)",
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


def _config_warnings(config: Mapping[str, object], model: ModelInfo) -> list[Problem]:
    found = [
        ("base_model_name_or_path", "other_base_model", _other_base_model(config, model)),
        ("bias", "bias_without_effect", _bias_without_effect(config)),
    ]
    warnings = [
        Problem(field=f"adapter_config.{field}", code=code, message=message)
        for field, code, message in found
        if message
    ]
    if ignored := ignored_fields(config):
        warnings.append(
            Problem(
                field="adapter_config",
                code="ignored_fields",
                message="this version of Tenora does not know "
                f"{', '.join(map(show, ignored[:8]))}{' and more' * (len(ignored) > 8)}; "
                "they are ignored, because they are switched off",
            )
        )
    return warnings


def _other_base_model(config: Mapping[str, object], model: ModelInfo) -> str:
    """By the last part of the name: the rest is an owner, or somebody's folder."""
    named = config.get("base_model_name_or_path")
    if not isinstance(named, str) or not named.strip("/"):
        return ""
    if _last_part(named) == _last_part(model.id):
        return ""
    return (
        f"names the base model {show(named)}, but this server runs {show(model.id)}; an adapter "
        "works only on the base model it was trained on"
    )


def _bias_without_effect(config: Mapping[str, object]) -> str:
    if config.get("bias") in (None, "none"):
        return ""
    return "asks for trained biases, but the file contains none; they are ignored"


def _last_part(name: str) -> str:
    return name.replace("\\", "/").rstrip("/").rsplit("/", 1)[-1].lower()


def _no_effect_warning(facts: AdapterFacts) -> list[Problem]:
    if any(module.norm_a * module.norm_b > 0 for module in facts.modules):
        return []
    return [
        Problem(
            field="weights",
            code="no_effect",
            message=(
                "every product of the matrices is zero, so answers will be the same as the "
                "base model's"
            ),
        )
    ]


def _range_warning(
    effective: Mapping[ModuleKey, EffectiveLora], tensors: Iterable[TensorValues], model: ModelInfo
) -> list[Problem]:
    """Of modules whose matrices could by themselves bring hidden states to be no numbers."""
    largest: dict[ModuleKey, float] = defaultdict(lambda: 1.0)
    for tensor in tensors:
        name = parse_tensor_name(tensor.name)
        assert name is not None  # check_tensors has mapped every one
        largest[name.layer, name.module] *= tensor.largest
    added = {
        key: abs(lora.scale) * largest[key] * model.modules[key[1]][0]
        for key, lora in effective.items()
    }
    beyond = [key for key, value in added.items() if value > STATE_MAX]
    if not beyond:
        return []
    layer, module = max(beyond, key=lambda key: added[key])
    return [
        Problem(
            field="weights",
            code="may_overflow",
            message=f"{len(beyond)} modules can produce values up to {added[layer, module]:.1e} "
            f"({module} of layer {layer}: scaling x largest of A x largest of B x "
            f"inputs), above the maximum of {STATE_MAX:.1e} for hidden states; a request "
            "that exceeds it ends with an error",
        )
    ]
