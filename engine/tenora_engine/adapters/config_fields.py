"""Reads single fields of an adapter_config.json and names those that cannot be served. Knows types
and switches, not what a LoRA is."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import cast

from tenora_engine.errors import AdapterLoadError

_MAX_NAMES = 4096
"""Entries of any list or pattern table: more than seven modules of 500 layers."""


@dataclass(frozen=True)
class FieldProblem:
    """One reason to refuse an adapter: the field (or tensor) and what is wrong with it."""

    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


class AdapterFormatError(AdapterLoadError):
    """The adapter cannot be served; `problems` says why, field by field."""

    def __init__(self, problems: Iterable[FieldProblem]) -> None:
        self.problems = tuple(problems)
        shown = "; ".join(str(problem) for problem in self.problems[:8])
        more = len(self.problems) - 8
        super().__init__(shown + (f"; and {more} more" if more > 0 else ""))


_UNSUPPORTED = {
    "use_dora": "DoRA is not supported, because it rescales the output of the base model's own "
    "weights; train with use_dora=False (use_rslora=True is often as good)",
    "modules_to_save": "whole trained modules are not supported, because all tenants share the "
    "base model's; train without modules_to_save (LLaMA-Factory: "
    "additional_target; axolotl: lora_modules_to_save)",
    "trainable_token_indices": "trained embedding rows are not supported, because all tenants "
    "share the base model's; train without new tokens",
    "lora_bias": "biases of LoRA matrices are not supported; train with lora_bias=False",
    "layer_replication": "replicated layers are not supported; train the base model's own layers",
    "target_parameters": "LoRA on bare parameters, such as the experts of a mixture, is not "
    "supported; train with target_modules only",
    "alora_invocation_tokens": "activated LoRA, which starts in the middle of a prompt, is not "
    "supported; train without alora_invocation_tokens",
    "use_qalora": "QA-LoRA is not supported; train with use_qalora=False",
    "use_bdlora": "block-diagonal LoRA is not supported; train without use_bdlora",
    "arrow_config": "Arrow routing is not supported; upload the routed adapters one by one",
    "kasa_config": "KaSA is not supported; train without kasa_config",
    "monteclora_config": "MonteCLoRA is not supported; train without monteclora_config",
    "num_virtual_tokens": "prompt tuning is not supported; train with peft.LoraConfig",
}
_WITHOUT_EFFECT = frozenset(
    {
        # About the file and its training; serving is the same whatever they say.
        "base_model_name_or_path",
        "auto_mapping",  # the base model's Python class; PEFT writes it when task_type is not given
        "revision",
        "peft_version",
        "inference_mode",
        "lora_dropout",
        "fan_in_fan_out",  # PEFT itself turns it off for linear layers
        "megatron_config",
        "megatron_core",
        "loftq_config",
        "eva_config",
        "corda_config",
        "lora_ga_config",
        "velora_config",
        "qalora_group_size",
        "ensure_weight_tying",
        "runtime_config",
        "merge_weights",  # of PEFT before 0.4: merged when it is loaded
        "transformers_version",
        "library_name",
        "torch_dtype",
        "dtype",
        "unsloth_fixed",
        "unsloth_version",
    }
)
_READ = frozenset(
    {
        "r",
        "lora_alpha",
        "target_modules",
        "exclude_modules",
        "rank_pattern",
        "alpha_pattern",
        "use_rslora",
        "layers_to_transform",
        "layers_pattern",
    }
)
_CHOICES: dict[str, tuple[tuple[object, ...], str]] = {
    "peft_type": (("LORA",), "only LoRA adapters can be served; train with peft.LoraConfig"),
    "task_type": (
        (None, "CAUSAL_LM"),
        "only CAUSAL_LM adapters can be served; train a model that generates text",
    ),
    # A trained bias is a tensor of its own, which nothing maps: the Llama family has none.
    "bias": ((None, "none", "all", "lora_only"), "must be none, all or lora_only"),
    "init_lora_weights": (
        (None, True, False, "gaussian", "eva", "orthogonal", "mica"),
        "this initialisation changes the base weights; save with "
        "path_initial_model_for_weight_conversion, which converts the adapter to plain LoRA",
    ),
}
_MLX_FIELDS = ("fine_tune_type", "lora_parameters")
_MLX = (
    "is missing, and the other fields are MLX's: use `tenora adapter push`, which converts such "
    "a folder; by hand, transpose lora_a and lora_b into lora_A and lora_B, with lora_alpha = "
    "scale x rank"
)


def _is_off(value: object) -> bool:
    return value is None or value is False or value in ([], {}, "")


def unsupported_fields(config: Mapping[str, object]) -> list[FieldProblem]:
    """Fields that would change what the adapter does in a way that is not served here."""
    if "peft_type" not in config and any(name in config for name in _MLX_FIELDS):
        return [FieldProblem("peft_type", _MLX)]
    problems = []
    for name, (allowed, message) in _CHOICES.items():
        value = config.get(name)
        if name == "peft_type" and name not in config and _looks_like_lora(config):
            continue
        if not any(value is choice or value == choice for choice in allowed):
            problems.append(FieldProblem(name, f"is {_short(value)}: {message}"))
    for name, value in config.items():
        if _is_off(value) or _is_known(name):
            continue
        unknown = (
            "is not known to this version of Tenora, which cannot tell what it changes; set it "
            "to null if the adapter was trained without it"
        )
        problems.append(FieldProblem(_short(name), _UNSUPPORTED.get(name, unknown)))
    return problems


def _looks_like_lora(config: Mapping[str, object]) -> bool:
    """torchtune wrote these fields alone."""
    return "r" in config and "target_modules" in config


def ignored_fields(config: Mapping[str, object]) -> list[str]:
    """Fields that this version does not know and passes over, because they are off (null, false or
    empty): those of newer PEFT versions, and of tools that add their own."""
    return [
        _short(name)
        for name, value in config.items()
        if _is_off(value) and not _is_known(name) and name not in _UNSUPPORTED
    ]


def _is_known(name: str) -> bool:
    return name in _CHOICES or name in _READ or name in _WITHOUT_EFFECT


def _short(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text[:80]


class FieldReader:
    """Typed access to the fields; what does not fit becomes a problem and a harmless value."""

    def __init__(self, config: Mapping[str, object]) -> None:
        self._config = config
        self.problems: list[FieldProblem] = []

    def _problem(self, name: str, wanted: str) -> None:
        message = f"must be {wanted}, not {repr(self._config.get(name))[:80]}"
        self.problems.append(FieldProblem(name, message))

    def positive_int(self, name: str, default: int) -> int:
        value = self._config.get(name, default)
        if _is_positive_int(value):
            return cast(int, value)
        self._problem(name, "a positive integer")
        return default

    def number(self, name: str, default: float) -> float:
        value = self._config.get(name, default)
        if _is_number(value):
            return cast(float, value)
        self._problem(name, "a finite number")
        return default

    def flag(self, name: str) -> bool:
        value = self._config.get(name)
        if value is None or isinstance(value, bool):
            return bool(value)
        self._problem(name, "true or false")
        return False

    def names(self, name: str) -> tuple[str, ...]:
        """A list of names; a single string is a list of one."""
        value = self._config.get(name)
        if value is None:
            return ()
        if isinstance(value, str):
            return (value,) if value else ()
        if _is_name_list(value):
            return tuple(cast(list[str], value))
        self._problem(name, "an array of names")
        return ()

    def names_or_pattern(self, name: str, required: bool = False) -> tuple[str, ...] | str:
        """A list of names as a tuple, or a regular expression as a string."""
        value = self._config.get(name)
        if required and _is_off(value):
            self._problem(name, "an array of module names, or a regular expression")
            return ()
        if value is None:
            return ()
        if isinstance(value, str):
            return value
        if _is_name_list(value):
            return tuple(cast(list[str], value))
        self._problem(name, "an array of module names, or a regular expression")
        return ()

    def rank_pattern(self, name: str) -> tuple[tuple[str, int], ...]:
        value = self._pattern_table(name)
        if not all(_is_positive_int(rank) for rank in value.values()):
            self._problem(name, "an object of module names and positive integers")
            return ()
        return tuple(cast(dict[str, int], value).items())

    def number_pattern(self, name: str) -> tuple[tuple[str, float], ...]:
        value = self._pattern_table(name)
        if not all(_is_number(number) for number in value.values()):
            self._problem(name, "an object of module names and finite numbers")
            return ()
        return tuple(cast(dict[str, float], value).items())

    def _pattern_table(self, name: str) -> dict[str, object]:
        value = self._config.get(name)
        if value is None:
            return {}
        if isinstance(value, dict) and len(value) <= _MAX_NAMES:
            return value
        self._problem(name, f"an object of at most {_MAX_NAMES} entries")
        return {}

    def layer_numbers(self, name: str) -> tuple[int, ...] | None:
        """Layer indices; a single number is a list of one; None and [] are all layers."""
        value = self._config.get(name)
        if value is None or value == []:
            return None
        numbers = value if isinstance(value, list) else [value]
        if len(numbers) <= _MAX_NAMES and all(_is_layer(number) for number in numbers):
            return tuple(cast(list[int], numbers))
        self._problem(name, "a layer number, or an array of layer numbers")
        return None


def _is_positive_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**31


def _is_layer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) < 2**53 and math.isfinite(value)


def _is_name_list(value: object) -> bool:
    return (
        isinstance(value, list)
        and len(value) <= _MAX_NAMES
        and all(isinstance(name, str) and 0 < len(name) <= 256 for name in value)
    )
