"""An adapter as PEFT writes it: what adapter_config.json says, which tensor is which, and the rank
and scale of each module. Pure functions; reads no file and knows no page."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from tenora_engine.adapters.config_fields import (
    AdapterFormatError,
    FieldProblem,
    FieldReader,
    unsupported_fields,
)
from tenora_engine.adapters.patterns import PatternCompiler, PatternError
from tenora_engine.config import LORA_MODULES, ModelInfo

__all__ = [
    "AdapterFormatError",
    "EffectiveLora",
    "FieldProblem",
    "LoraConfig",
    "ModuleKey",
    "TensorInfo",
    "TensorName",
    "by_peft_name",
    "check_tensors",
    "effective_modules",
    "module_path",
    "parse_adapter_config",
    "parse_tensor_name",
    "tensor_name",
]

Number = TypeVar("Number", int, float)
T = TypeVar("T")
ModuleKey = tuple[int, str]
"""(layer, one of LORA_MODULES)."""

_BLOCK = {
    "q_proj": "self_attn",
    "k_proj": "self_attn",
    "v_proj": "self_attn",
    "o_proj": "self_attn",
    "gate_proj": "mlp",
    "up_proj": "mlp",
    "down_proj": "mlp",
}
# PEFT's save_pretrained writes the prefix and leaves the adapter's name ("default") out; other
# tools, and model.state_dict(), do otherwise. Of a LlamaModel the inner `model.` is missing.
_TENSOR = re.compile(
    r"(?:base_model\.model\.)?(?:model\.)?layers\.(0|[1-9][0-9]{0,4})\."
    r"(self_attn|mlp)\.([a-z]+_proj)\.lora_(A|B)(?:\.default)?\.weight"
)
# What DDP, FSDP, activation checkpointing and torch.compile put into names: no module of its own.
_WRAPPERS = re.compile(
    r"\Amodule\.|_fsdp_wrapped_module\.|_checkpoint_wrapped_module\.|_orig_mod\."
)
_SUFFIX = r"(.*\.)?({})$"  # how PEFT matches keys of rank_pattern and alpha_pattern
_LAYER = r"(?:^|.*?\.){}\.(?P<idx>\d+)\."
_FIRST_INDEX = re.compile(r".*?\.[^.]*\.(?P<idx>\d+)\.")
_EMBEDDINGS = ("model.embed_tokens", "lm_head")
WEIGHT_DTYPES = ("F32", "F16", "BF16")
"""Safetensors dtypes an adapter may have."""


@dataclass(frozen=True)
class LoraConfig:
    """The fields of adapter_config.json that change what the adapter does, checked."""

    r: int
    lora_alpha: float
    target_modules: tuple[str, ...] | str  # names, a regular expression, or "all-linear"
    exclude_modules: tuple[str, ...] | str = ()
    rank_pattern: tuple[tuple[str, int], ...] = ()  # in the file's order: the first match counts
    alpha_pattern: tuple[tuple[str, float], ...] = ()
    use_rslora: bool = False
    layers_to_transform: tuple[int, ...] | None = None
    layers_pattern: tuple[str, ...] = ()

    @property
    def max_rank(self) -> int:
        """An upper bound from the config alone; the model decides which patterns apply."""
        return max([self.r, *(rank for _, rank in self.rank_pattern)])


@dataclass(frozen=True)
class EffectiveLora:
    """What one module of one layer gets."""

    rank: int
    scale: float  # alpha / rank, or alpha / sqrt(rank) for rsLoRA


@dataclass(frozen=True)
class TensorName:
    """Which matrix of which module a tensor is: A is `[rank, in]`, B is `[out, rank]`."""

    layer: int
    module: str
    matrix: Literal["A", "B"]


@dataclass(frozen=True)
class TensorInfo:
    """A tensor as a safetensors header describes it."""

    dtype: str  # safetensors' names: F32, F16, BF16, ...
    shape: tuple[int, ...]


def parse_adapter_config(config: Mapping[str, object]) -> LoraConfig:
    """Read an adapter_config.json. Raises AdapterFormatError with every problem found, each with
    its field; a field this version does not know is refused unless it is off."""
    read = FieldReader(config)
    problems = unsupported_fields(config)
    parsed = LoraConfig(
        r=read.positive_int("r", default=8),
        lora_alpha=read.number("lora_alpha", default=8),
        target_modules=read.names_or_pattern("target_modules", required=True),
        exclude_modules=read.names_or_pattern("exclude_modules"),
        rank_pattern=read.rank_pattern("rank_pattern"),
        alpha_pattern=read.number_pattern("alpha_pattern"),
        use_rslora=read.flag("use_rslora"),
        layers_to_transform=read.layer_numbers("layers_to_transform"),
        layers_pattern=read.names("layers_pattern"),
    )
    problems += read.problems
    if isinstance(parsed.target_modules, str) and parsed.layers_to_transform is not None:
        problems.append(
            FieldProblem(
                "layers_to_transform", "works in PEFT only if target_modules is an array of names"
            )
        )
    if not problems:
        problems += _pattern_problems(parsed)
    if problems:
        raise AdapterFormatError(problems)
    return parsed


def _pattern_problems(config: LoraConfig) -> list[FieldProblem]:
    """Every pattern must compile and be quick; embeddings must not be targeted."""
    compiler = PatternCompiler()
    problems = []
    for field, pattern, wrap in _patterns(config):
        try:
            compiler.compile(pattern, wrap)
        except PatternError as error:
            problems.append(FieldProblem(field, f"{pattern[:80]!r} {error}"))
    if not problems:
        matcher = _Matcher(config)
        problems += [
            FieldProblem(
                "target_modules",
                f"matches {path}, but LoRA on embeddings and lm_head is not supported; train "
                "without it",
            )
            for path in _EMBEDDINGS
            if not matcher.all_linear and matcher.targets(path)
        ]
    return problems


def _patterns(config: LoraConfig) -> Iterator[tuple[str, str, str]]:
    """(field, pattern, wrap) of every regular expression of the config."""
    for key, _ in config.rank_pattern:
        yield "rank_pattern", key, _SUFFIX
    for key, _ in config.alpha_pattern:
        yield "alpha_pattern", key, _SUFFIX
    for name in config.layers_pattern:
        yield "layers_pattern", name, _LAYER
    if isinstance(config.target_modules, str):
        yield "target_modules", config.target_modules, "{}"
    if isinstance(config.exclude_modules, str):
        yield "exclude_modules", config.exclude_modules, "{}"


class _Matcher:
    """PEFT's matching rules (`check_target_module_exists`, `get_pattern_key`), compiled once."""

    def __init__(self, config: LoraConfig) -> None:
        self._config = config
        targets, excluded = config.target_modules, config.exclude_modules
        self.all_linear = isinstance(targets, str) and targets.lower() == "all-linear"
        compile_ = PatternCompiler().compile
        self._target = compile_(targets) if isinstance(targets, str) else None
        self._excluded = compile_(excluded) if isinstance(excluded, str) else None
        self._ranks = [(compile_(key, _SUFFIX), rank) for key, rank in config.rank_pattern]
        self._alphas = [(compile_(key, _SUFFIX), alpha) for key, alpha in config.alpha_pattern]
        self._layers = [compile_(name, _LAYER) for name in config.layers_pattern] or [_FIRST_INDEX]

    def targets(self, path: str) -> bool:
        """Whether PEFT would put LoRA on the module at `path` (`model.layers.0.mlp.up_proj`)."""
        if self._is_excluded(path):
            return False
        if self.all_linear:
            return True
        names = self._config.target_modules
        if self._target is not None:
            return self._target.fullmatch(path) is not None
        if path in names:
            return True
        if not any(path.endswith(f".{name}") for name in names):
            return False
        return self._in_layers(path)

    def _is_excluded(self, path: str) -> bool:
        if self._excluded is not None:
            return self._excluded.fullmatch(path) is not None
        names = self._config.exclude_modules
        return path in names or any(path.endswith(f".{name}") for name in names)

    def _in_layers(self, path: str) -> bool:
        wanted = self._config.layers_to_transform
        if not wanted:
            return True
        for pattern in self._layers:
            match = pattern.match(path)
            if match is not None:
                return int(match["idx"]) in wanted
        return False

    def lora(self, path: str) -> EffectiveLora:
        rank = _first_match(self._ranks, path, self._config.r)
        alpha = _first_match(self._alphas, path, self._config.lora_alpha)
        return EffectiveLora(rank, alpha / (math.sqrt(rank) if self._config.use_rslora else rank))


def _first_match(
    patterns: Sequence[tuple[re.Pattern[str], Number]], path: str, default: Number
) -> Number:
    return next((value for pattern, value in patterns if pattern.match(path)), default)


def module_path(layer: int, module: str) -> str:
    """The module's path in the base model, as PEFT's patterns see it."""
    return f"model.layers.{layer}.{_BLOCK[module]}.{module}"


def tensor_name(layer: int, module: str, matrix: Literal["A", "B"]) -> str:
    """The tensor's name in adapter_model.safetensors."""
    return f"base_model.model.{module_path(layer, module)}.lora_{matrix}.weight"


def parse_tensor_name(name: str) -> TensorName | None:
    """The inverse of `tensor_name`, for names without PEFT's prefix, with `.default.` or with what
    wrappers add to them too; None for any other text."""
    match = _TENSOR.fullmatch(_WRAPPERS.sub("", name))
    if match is None or _BLOCK.get(match[3]) != match[2]:
        return None
    return TensorName(int(match[1]), match[3], "A" if match[4] == "A" else "B")


def by_peft_name(tensors: Mapping[str, T]) -> dict[str, T]:
    """The same tensors under the names that `tensor_name` gives; others keep theirs."""
    named = {}
    for name, tensor in tensors.items():
        parsed = parse_tensor_name(name)
        known = parsed and tensor_name(parsed.layer, parsed.module, parsed.matrix)
        named[known or name] = tensor
    return named


def effective_modules(config: LoraConfig, model: ModelInfo) -> dict[ModuleKey, EffectiveLora]:
    """Rank and scale of every module of `model` the config puts LoRA on, as PEFT decides it, by
    (layer, module) in order."""
    matcher = _Matcher(config)
    found = {}
    for layer in range(model.num_layers):
        for module in LORA_MODULES:
            path = module_path(layer, module)
            if module in model.modules and matcher.targets(path):
                found[layer, module] = matcher.lora(path)
    return found


def check_tensors(
    effective: Mapping[ModuleKey, EffectiveLora],
    tensors: Mapping[str, TensorInfo],
    model: ModelInfo,
    max_rank: int,
) -> list[FieldProblem]:
    """Every problem of the tensors against the config and the model: unknown names, missing ones,
    dtypes, shapes, ranks above `max_rank`. Empty when the adapter can be served as it is.

    A problem's `field` is the tensor's name, or the config field that is at odds."""
    if not effective:
        message = f"matches no module of {model.id}; its modules are {', '.join(model.modules)}"
        return [FieldProblem("target_modules", message)]
    problems = []
    largest = max(lora.rank for lora in effective.values())
    if largest > max_rank:
        problems.append(
            FieldProblem("r", f"rank {largest} is above this server's maximum of {max_rank}")
        )
    expected = {
        tensor_name(layer, module, matrix): shape
        for (layer, module), lora in effective.items()
        for matrix, shape in _shapes(lora.rank, *model.modules[module])
    }
    found = by_peft_name({name: name for name in tensors})
    problems += [
        FieldProblem(
            name, f"is missing; adapter_config.json puts LoRA there, with shape {list(shape)}"
        )
        for name, shape in expected.items()
        if name not in found
    ]
    for known, name in found.items():
        problems += _tensor_problems(name, tensors[name], expected.get(known), model)
    doubled = tensors.keys() - found.values()
    problems += [
        FieldProblem(
            name, "exists under another name too; each matrix can be in the file only once"
        )
        for name in tensors
        if name in doubled
    ]
    return problems


def _shapes(
    rank: int, features_in: int, features_out: int
) -> tuple[tuple[Literal["A", "B"], tuple[int, int]], ...]:
    return ("A", (rank, features_in)), ("B", (features_out, rank))


def _tensor_problems(
    name: str, info: TensorInfo, shape: tuple[int, int] | None, model: ModelInfo
) -> list[FieldProblem]:
    if shape is None:
        return [FieldProblem(name, _why_unexpected(name, model))]
    problems = []
    if info.dtype not in WEIGHT_DTYPES:
        allowed = ", ".join(WEIGHT_DTYPES)
        problems.append(FieldProblem(name, f"has dtype {info.dtype}; allowed are {allowed}"))
    if info.shape != shape:
        problems.append(
            FieldProblem(
                name, f"has shape {list(info.shape)}; adapter_config.json asks for {list(shape)}"
            )
        )
    return problems


def _why_unexpected(name: str, model: ModelInfo) -> str:
    parsed = parse_tensor_name(name)
    if parsed is None:
        return "is not a LoRA matrix of a module that can have adapters"
    if parsed.layer >= model.num_layers:
        return (
            f"belongs to layer {parsed.layer}, but {model.id} has layers 0 to "
            f"{model.num_layers - 1}"
        )
    return "belongs to a module that adapter_config.json does not target"
