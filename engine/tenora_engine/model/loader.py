"""From a folder (or a config alone) to a model on its device: `read_model_info` before there is any
memory for it, `load_model` when there is. Knows nothing of pages or requests."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from tenora_engine.config import LORA_MODULES, EngineConfig, ModelInfo
from tenora_engine.errors import ModelLoadError
from tenora_engine.model.compiled_decoder import CompiledDecoder, can_compile
from tenora_engine.model.decoder import Decoder
from tenora_engine.model.layers import WeightReader
from tenora_engine.model.linear import can_block
from tenora_engine.model.spec import DecoderSpec, read_spec
from tenora_engine.model.weights import RandomWeights, SafetensorsFolder, WeightSource
from tenora_kernels.backend import why_not_compiled
from tenora_kernels.compiled.variants import UnknownKernelsError

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


@dataclass(frozen=True)
class LoadedModel:
    """The base model, ready to run, and what the rest of Tenora needs to know about it."""

    info: ModelInfo
    spec: DecoderSpec
    decoder: Decoder | CompiledDecoder
    load_s: float


def read_model_info(config: EngineConfig) -> ModelInfo:
    """What `config.json` of the model folder says, without reading a weight.

    Raises ModelLoadError when the folder is missing or its architecture is not supported.
    """
    spec = read_spec(config.model)
    return _info(config, spec)


def load_model(config: EngineConfig) -> LoadedModel:
    """The decoder with its weights on `config.device` in `config.dtype`.

    Raises ModelLoadError when the folder is missing, incomplete or of an unsupported kind.
    """
    started = time.perf_counter()
    spec = read_spec(config.model)
    info = _info(config, spec)
    if config.load_format == "dummy":
        weights: WeightSource = RandomWeights(config.seed)
    else:
        weights = SafetensorsFolder(config.model)
        weights.require(spec.tensor_shapes())
    reader = WeightReader(spec, weights, torch.device(config.device), DTYPES[config.dtype])
    decoder: Decoder | CompiledDecoder
    if can_compile(spec, torch.device(config.device)):
        int8 = config.weight_dtype == "int8"
        decoder = CompiledDecoder.load(spec, reader, info.context_tokens, int8=int8)
    else:
        decoder = Decoder.load(spec, reader, info.context_tokens)
    return LoadedModel(
        info=info,
        spec=spec,
        decoder=decoder,
        load_s=time.perf_counter() - started,
    )


def _info(config: EngineConfig, spec: DecoderSpec) -> ModelInfo:
    warnings = _kernel_warnings(config)
    context = spec.context_tokens
    if config.max_context_tokens is not None:
        context = min(context, config.max_context_tokens)
    if spec.sliding_window is not None and spec.sliding_window < context:
        raise ModelLoadError(
            f"this model attends to a sliding window of {spec.sliding_window} tokens, which is not "
            f"supported; set max_context_tokens to {spec.sliding_window} or less"
        )
    if config.weight_dtype == "int8":
        _check_int8(config, spec)
    if config.kv_dtype == "fp8" and config.device != "cuda":
        raise ModelLoadError("kv_dtype fp8 needs device cuda; set kv_dtype to auto on the CPU")
    if config.adapter_dtype == "int8" and config.device != "cpu":
        raise ModelLoadError("adapter_dtype int8 needs device cpu; set adapter_dtype to auto")
    return ModelInfo(
        id=config.served_name,
        architecture=spec.architecture,
        num_layers=spec.num_layers,
        hidden=spec.hidden,
        intermediate=spec.intermediate,
        heads=spec.heads,
        kv_heads=spec.kv_heads,
        head_dim=spec.head_dim,
        vocab=spec.vocab,
        context_tokens=context,
        dtype=config.dtype,
        weight_bytes=_weight_bytes(config, spec),
        modules={name: spec.module_shape(name) for name in LORA_MODULES},
        eos_token_ids=spec.eos_token_ids,
        warnings=warnings,
    )


def _kernel_warnings(config: EngineConfig) -> tuple[str, ...]:
    try:
        reason = why_not_compiled()
    except UnknownKernelsError as error:
        raise ModelLoadError(str(error)) from error
    if config.device != "cpu" or reason is None:
        return ()
    return (f"plain torch serves, several times slower than the compiled kernels: {reason}",)


def _check_int8(config: EngineConfig, spec: DecoderSpec) -> None:
    if not can_compile(spec, torch.device(config.device)):
        raise ModelLoadError(
            "weight_dtype int8 needs device cpu and the compiled kernels (tenora doctor says why "
            "they are missing); use weight_dtype auto"
        )
    odd = [name for name in LORA_MODULES if spec.module_shape(name)[0] % 4]
    if odd:
        raise ModelLoadError(
            f"weight_dtype int8 needs linears with a multiple of 4 inputs, {odd[0]} has "
            f"{spec.module_shape(odd[0])[0]}; use weight_dtype auto"
        )


def _weight_bytes(config: EngineConfig, spec: DecoderSpec) -> int:
    device, dtype = torch.device(config.device), DTYPES[config.dtype]
    elements = spec.num_parameters
    if config.weight_dtype == "int8":
        linears = spec.num_linear_parameters
        scales = spec.num_linear_outputs * 4
        return linears + scales + (elements - linears) * dtype.itemsize
    if spec.tied_embeddings and can_block(device, dtype) and not can_compile(spec, device):
        elements += spec.vocab * spec.hidden  # the LM head's own, blocked copy of the embedding
    return elements * dtype.itemsize
