"""HTTP route of embeddings: /v1/embeddings in OpenAI's shape. A text's embedding is the hidden
state of its last token, of the base model or by the adapter that is asked, scaled to length 1."""

from __future__ import annotations

import base64
import contextlib
from functools import partial
from typing import Annotated, Literal

import numpy as np
from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from tenora_engine.config import ModelInfo
from tenora_engine.errors import ContextLengthError
from tenora_engine.request import SamplingParams
from tenora_platform.auth import TenantContext
from tenora_platform.edge import EdgeRoute
from tenora_platform.errors import ApiError, BadRequestError
from tenora_platform.inference.bounds import INPUTS_MAX, METADATA_MAX, at_most, prompts
from tenora_platform.inference.given import Given, QuickList
from tenora_platform.inference.parameters import Generation, given_prompts, kept_tokens
from tenora_platform.inference.requests import (
    AdmittedTenant,
    make_session,
    resolved_model,
    whole,
)
from tenora_platform.inference.schemas import (
    TOKEN,
    MetadataName,
    MetadataText,
    RequestId,
    ServiceTier,
    TruncationSide,
)
from tenora_platform.inference.session import InferenceSession, Prompt, require_engine
from tenora_platform.inference.tokenising import prompt_lengths, refuse_too_long, tokenised
from tenora_platform.limits.uses import capped
from tenora_platform.state import AppState, State
from tenora_platform.tenants.key_terms import require_model

router = APIRouter(tags=["inference"], route_class=EdgeRoute)
AT_ONCE_MAX = 16
_GENERATION = Generation(
    SamplingParams(temperature=0.0, max_tokens=0, embeds=True),
    stop=(),
    include_stop=False,
    skip_special=True,
)


class EmbeddingRequest(Given):
    """POST /v1/embeddings. `input` is a string, an array of strings, an array of token ids, or an
    array of arrays of token ids. `truncate_prompt_tokens` (as in vLLM) keeps that many tokens of a
    text, its last ones unless `truncation_side` is right; -1: as many as fit."""

    model: str = Field(min_length=1, max_length=256)
    input: Annotated[
        str | QuickList[str] | QuickList[TOKEN] | QuickList[QuickList[TOKEN]],
        prompts(INPUTS_MAX),
    ]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(default=None, ge=1, le=2**20)
    user: str | None = Field(default=None, max_length=512)

    service_tier: ServiceTier | None = None
    metadata: Annotated[dict[MetadataName, MetadataText] | None, at_most(METADATA_MAX)] = None
    prompt_cache_key: str | None = Field(default=None, max_length=512)
    truncate_prompt_tokens: int | None = Field(default=None, ge=-1, le=2**31)
    truncation_side: TruncationSide = "left"
    request_id: RequestId = None
    add_special_tokens: bool = True


class Embedding(BaseModel):
    """`embedding` is an array of numbers, or base64 of little-endian float32."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingUsage(BaseModel):
    prompt_tokens: int
    total_tokens: int


class Embeddings(BaseModel):
    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage


@router.post("/v1/embeddings", response_model=Embeddings)
async def create_embeddings(
    body: EmbeddingRequest, request: Request, state: State, tenant: AdmittedTenant
) -> Response:
    """Create embeddings, as OpenAI's API: one vector of length 1 for each text, from the base model
    or an adapter (the hidden state at the last token). Only prompt tokens are charged."""
    require_engine(state)
    require_model(tenant, body.model)
    model = state.engine.model
    if body.dimensions not in (None, model.hidden):
        raise BadRequestError(
            f"This model's embeddings always have {model.hidden} dimensions, not "
            f"{body.dimensions}. Leave dimensions out.",
            param="dimensions",
            code="unsupported_value",
        )
    lengths = prompt_lengths(body.input)
    refuse_too_long(state.engine, max(lengths, default=0), "input")
    work = partial(_prompts, state, body, model)
    inputs = await tokenised(state.long_texts, tenant.tenant_id, sum(lengths), work)
    resolved = await resolved_model(state, tenant, body)
    session = make_session(
        request,
        tenant,
        body,
        resolved,
        inputs,
        kind="embd",
        open_ended=False,
        transcript=None,
    )
    session.shadow = session.answer = None  # there is no answer to compare
    session.at_once = _at_once(tenant)
    return await whole(session, request, _embeddings(session, body))


def _at_once(tenant: TenantContext) -> int:
    """Texts of one request that run together: of a long list half of what the tenant may run in
    parallel, so that it leaves room for another request."""
    most = [caps.parallel_requests // 2 for _, caps in capped(tenant) if caps.parallel_requests]
    return max(min([AT_ONCE_MAX, *most]), 1)


def _prompts(state: AppState, body: EmbeddingRequest, model: ModelInfo) -> list[Prompt]:
    """Raises BadRequestError, ContextLengthError."""
    text, made = state.engine.text, []
    for given in given_prompts(body.input, model, "input", INPUTS_MAX):
        token_ids = (
            given
            if isinstance(given, list)
            else text.encode(given, body.add_special_tokens, state.settings.allow_control_tokens)
        )
        token_ids = kept_tokens(token_ids, body, 0, model)
        if len(token_ids) > model.context_tokens:
            raise ContextLengthError.of(
                model.context_tokens, len(token_ids), None, "input", param="input"
            )
        made.append(Prompt(token_ids, _GENERATION))
    return made


async def _embeddings(session: InferenceSession, body: EmbeddingRequest) -> Embeddings:
    ended = 0
    async with contextlib.aclosing(session.pieces()) as pieces:
        async for piece in pieces:
            ended += piece.finish_reason is not None
    if ended < len(session.prompts):
        raise ApiError(
            "The engine stopped before the answer was complete; send the request again.",
            code="engine_error",
        )
    found = [
        Embedding(index=place, embedding=_encoded(session.embedding(place), body.encoding_format))
        for place in range(len(session.prompts))
    ]
    tokens = session.usage().prompt_tokens
    usage = EmbeddingUsage(prompt_tokens=tokens, total_tokens=tokens)
    return Embeddings(data=found, model=body.model, usage=usage)


def _encoded(values: list[float], encoding: str) -> list[float] | str:
    wide = np.array(values, np.float64)  # the engine gives none without a length
    vector = (wide / np.linalg.norm(wide)).astype("<f4")
    if encoding == "base64":
        return base64.b64encode(vector.tobytes()).decode()
    scaled: list[float] = vector.tolist()
    return scaled
