"""Whether a request can run on this engine at all, and the sequences it becomes. No state."""

from __future__ import annotations

import math
from functools import lru_cache

from tenora_engine.config import ResolvedConfig
from tenora_engine.errors import ContextLengthError, InvalidRequestError
from tenora_engine.events import Residency
from tenora_engine.memory.manager import MemoryManager
from tenora_engine.request import WEIGHT_MAX, WEIGHT_MIN, GenerationRequest, Tenant
from tenora_engine.scheduling.check_sampling import check_sampling
from tenora_engine.sequence import Sequence
from tenora_engine.telemetry import ServiceMeter


def check_request(config: ResolvedConfig, request: GenerationRequest) -> None:
    """Raises InvalidRequestError. Whether it is too long, `check_share` says."""
    sampling, prompt = request.sampling, request.prompt_token_ids
    if not prompt:
        raise InvalidRequestError("the prompt holds no token", param="prompt")
    if min(prompt) < 0 or max(prompt) >= config.model.vocab:
        raise InvalidRequestError(
            f"token ids must lie between 0 and {config.model.vocab - 1}", param="prompt"
        )
    check_sampling(sampling, config.model.vocab)
    _check_tenant(request.tenant)
    if request.adapter is not None and request.adapter.rank > config.engine.max_rank:
        raise InvalidRequestError(
            f"the adapter's rank {request.adapter.rank} exceeds this engine's max_rank "
            f"{config.engine.max_rank}",
            param="model",
        )
    if request.adapter is not None and config.engine.max_adapters < 1:
        raise InvalidRequestError("this engine has no adapter slots (max_adapters)", param="model")


def _check_tenant(tenant: Tenant) -> None:
    """What the order of the queue is computed from must not be able to break it for everybody. NaN
    fails each of these."""
    if not WEIGHT_MIN <= tenant.weight <= WEIGHT_MAX:
        raise InvalidRequestError(
            f"a tenant's weight must lie between {WEIGHT_MIN:g} and {WEIGHT_MAX:g}, it is "
            f"{tenant.weight:g}; change its plan",
            param="tenant",
        )
    for name, target_ms in (("ttft_ms", tenant.ttft_ms), ("tpot_ms", tenant.tpot_ms)):
        if target_ms is not None and not 0 < target_ms < math.inf:
            raise InvalidRequestError(
                f"a tenant's {name} must be above 0 and finite, it is {target_ms:g}; change its "
                "plan",
                param="tenant",
            )
    for name in ("min_memory_share", "max_memory_share"):
        share = getattr(tenant, name)
        if not 0 <= share <= 1:
            raise InvalidRequestError(
                f"a tenant's {name} must lie between 0 and 1, it is {share:g}; change its plan",
                param="tenant",
            )


def check_share(config: ResolvedConfig, request: GenerationRequest, memory: MemoryManager) -> None:
    """Raises ContextLengthError, with the numbers, when prompt and max_tokens fit neither the
    context nor what the tenant can have of the arena, and InvalidRequestError when its share has
    no room for an adapter."""
    if request.adapter is not None and memory.most_adapters(request.tenant) < 1:
        raise InvalidRequestError("the tenant's memory share has no adapter slot", param="model")
    sampling, prompt = request.sampling, request.prompt_token_ids
    pages = memory.most_kv_pages(request.tenant)
    context = min(config.model.context_tokens, pages * config.engine.block_tokens)
    if len(prompt) + sampling.max_tokens > context:
        raise ContextLengthError.of(
            context,
            len(prompt),
            sampling.max_tokens,
            "prompt",
            param="max_tokens" if len(prompt) < context else "prompt",
        )


def stop_ids(config: ResolvedConfig, request: GenerationRequest) -> frozenset[int]:
    """The tokens that end a sequence: the model's end of sequence unless `ignore_eos`, and the
    request's own, always."""
    sampling = request.sampling
    eos = () if sampling.ignore_eos else config.model.eos_token_ids
    return _one_frozenset((*eos, *sampling.stop_token_ids))


@lru_cache(maxsize=1024)
def _one_frozenset(token_ids: tuple[int, ...]) -> frozenset[int]:
    """The same for equal ids: every step looks at that of every sequence."""
    return frozenset(token_ids)


def make_sequences(
    config: ResolvedConfig,
    request: GenerationRequest,
    first_number: int,
    residency: Residency | None,
    meter: ServiceMeter,
    now_s: float,
) -> list[Sequence]:
    """The request's n sequences; `first_number` is where the engine's count of arrivals is."""
    ends = stop_ids(config, request)
    tpot_ms = request.tenant.tpot_ms if config.engine.scheduling_policy == "sla" else None
    length = len(request.prompt_token_ids) + request.sampling.max_tokens
    length = min(length, config.model.context_tokens)
    return [
        Sequence(
            request=request,
            index=index,
            token_ids=list(request.prompt_token_ids),
            num_prompt=len(request.prompt_token_ids),
            residency=residency,
            meter=meter,
            tier=request.tenant.tier,
            number=first_number + index,
            arrival_s=request.arrival_s or now_s,
            stop_ids=ends,
            tpot_s=math.inf if tpot_ms is None else tpot_ms / 1000,
            max_length=length,
        )
        for index in range(request.sampling.n)
    ]
