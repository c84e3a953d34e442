"""From a folder (or a config alone) to a model on its device: `read_model_info` before there is any
memory for it, `load_model` when there is. Knows nothing of pages or requests."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from tenora_engine.config import EngineConfig, ModelInfo
from tenora_engine.errors import ModelLoadError
from tenora_engine.model.compiled_decoder import CompiledDecoder, can_compile
from tenora_engine.model.decoder import Decoder
from tenora_engine.model.draft_layer import DraftMaker, draft_bytes, load_draft_layer
from tenora_engine.model.families import read_spec
from tenora_engine.model.layers import DecoderWeights, read_weights
from tenora_engine.model.linear import Int8Linear, Linear, PlainLinear, choose_form
from tenora_engine.model.rope import rope_tables
from tenora_engine.model.spec import EMBEDDING, HEAD, DecoderSpec
from tenora_engine.model.weights import RandomWeights, SafetensorsFolder, WeightSource
from tenora_kernels.backend import why_not_compiled
from tenora_kernels.compiled.draft_layer import DraftLayer
from tenora_kernels.compiled.variants import UnknownKernelsError
from tenora_kernels.gpu.tuning import capability, has_fp8

_log = logging.getLogger(__name__)

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


@dataclass(frozen=True)
class LoadedModel:
    """The base model, ready to run, and what the rest of Tenora needs to know about it."""

    info: ModelInfo
    spec: DecoderSpec
    decoder: Decoder | CompiledDecoder
    load_s: float
    draft: DraftLayer | None = None
    draft_maker: DraftMaker | None = None  # of layers of adapters; None where none can run


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
    _info(config, spec)  # fail before the weights are looked at
    device, dtype = torch.device(config.device), DTYPES[config.dtype]
    source: WeightSource
    if config.load_format == "dummy":
        source = RandomWeights(config.seed)
    else:
        source, spec = _checkpoint(spec)
    info = _info(config, spec)
    form = _form(config, spec)
    weights = read_weights(spec, source, device, dtype, form)
    decoder = CompiledDecoder if can_compile(form) else Decoder
    maker = _draft_maker(config, weights, info.context_tokens)
    return LoadedModel(
        info=info,
        spec=spec,
        decoder=decoder(weights, info.context_tokens),
        load_s=time.perf_counter() - started,
        draft=_draft_layer(config, maker),
        draft_maker=maker,
    )


def _checkpoint(spec: DecoderSpec) -> tuple[SafetensorsFolder, DecoderSpec]:
    """The weights of the folder, all of them accounted for, and the spec as they are: where a model
    says that it ties its embeddings and brings another head, that head is used, and where it brings
    the head alone, that is both. So does transformers. Raises ModelLoadError."""
    source = SafetensorsFolder(spec.folder)
    if spec.tied_embeddings:
        source.stand_in(HEAD, for_missing=EMBEDDING)
        if source.has_another(HEAD, than=EMBEDDING):
            _log.warning(
                "config.json ties the embeddings, but the weights contain a separate %s, which "
                "is used (as in transformers); set tie_word_embeddings to false",
                HEAD,
            )
            spec = spec.untied()
    shapes = spec.tensor_shapes()
    if HEAD in source:
        shapes[HEAD] = shapes[EMBEDDING]
    source.require(shapes)
    return source, spec


def _draft_maker(
    config: EngineConfig, weights: DecoderWeights, max_positions: int
) -> DraftMaker | None:
    if config.draft_layer is None and not config.adapter_draft_bytes:
        return None
    spec, device = weights.spec, weights.final_norm.device
    return DraftMaker.of(weights, rope_tables(spec, max_positions, device)[-1])


def _draft_layer(config: EngineConfig, maker: DraftMaker | None) -> DraftLayer | None:
    if config.draft_layer is None or (maker is None and config.draft_layer_optional):
        return None
    return load_draft_layer(Path(config.draft_layer), maker)


def _info(config: EngineConfig, spec: DecoderSpec) -> ModelInfo:
    warnings = _kernel_warnings(config)
    context = spec.context_tokens
    if config.max_context_tokens is not None:
        context = min(context, config.max_context_tokens)
    if spec.window is not None and spec.window < context:
        raise ModelLoadError(
            f"this model has a sliding attention window of {spec.window} tokens, which is not "
            f"supported; set max_context_tokens to {spec.window} or less"
        )
    if config.kv_dtype == "fp8" and config.device != "cuda":
        raise ModelLoadError("kv_dtype fp8 needs device cuda; set kv_dtype to auto on the CPU")
    if config.kv_dtype == "fp8":
        _check_fp8(torch.device(config.device))
    if config.adapter_dtype == "int8" and config.device != "cpu":
        raise ModelLoadError("adapter_dtype int8 needs device cpu; set adapter_dtype to auto")
    layer = spec.layer
    return ModelInfo(
        id=config.served_name,
        architecture=spec.architecture,
        num_layers=spec.num_layers,
        hidden=layer.hidden,
        intermediate=layer.intermediate,
        heads=layer.heads,
        kv_heads=layer.kv_heads,
        head_dim=layer.head_dim,
        vocab=spec.vocab,
        context_tokens=context,
        dtype=config.dtype,
        weight_bytes=_weight_bytes(config, spec),
        modules={name: linear.shape for name, linear in layer.linears.items()},
        eos_token_ids=spec.eos_token_ids,
        warnings=warnings,
    )


def _check_fp8(device: torch.device) -> None:
    """Raises ModelLoadError where the GPU has no numbers of 8 bits."""
    if has_fp8(device):
        return
    major, minor = capability(device)
    raise ModelLoadError(
        "kv_dtype fp8 needs a GPU of compute capability 8.9 (Ada, Hopper) or later, but "
        f"{torch.cuda.get_device_name(device)} has {major}.{minor}; set kv_dtype to auto"
    )


def _kernel_warnings(config: EngineConfig) -> tuple[str, ...]:
    try:
        reason = why_not_compiled()
    except UnknownKernelsError as error:
        raise ModelLoadError(str(error)) from error
    if config.device != "cpu" or reason is None:
        return ()
    return (
        "plain torch is used instead of the compiled kernels, so steps are several times "
        f"slower: {reason}",
    )


def _form(config: EngineConfig, spec: DecoderSpec) -> type[Linear]:
    device, dtype = torch.device(config.device), DTYPES[config.dtype]
    return choose_form(
        spec.layer,
        device,
        dtype,
        int8=config.weight_dtype == "int8",
        batch_invariant=config.batch_invariant,
    )


def _weight_bytes(config: EngineConfig, spec: DecoderSpec) -> int:
    form, item = _form(config, spec), DTYPES[config.dtype].itemsize
    elements = spec.num_parameters
    has_draft = config.draft_layer is not None and can_compile(form)
    draft = draft_bytes(spec, item) if has_draft else 0
    if spec.tied_embeddings and not issubclass(form, PlainLinear) and not can_compile(form):
        elements += spec.vocab * spec.layer.hidden  # the embedding, beside the LM head's own form
    if form is not Int8Linear:
        return elements * item + draft
    linears = spec.num_linear_parameters
    return linears + 4 * spec.num_linear_outputs + (elements - linears) * item + draft
