"""HTTP routes of tokens alone: /v1/tokenize and /v1/detokenize, in vLLM's shapes. Nothing is
generated and nothing is charged; a request counts as one."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Response
from pydantic import BaseModel, BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from tenora_engine.text.chat_template import Renders
from tenora_platform.auth import TenantContext
from tenora_platform.edge import EdgeRoute
from tenora_platform.inference.bounds import (
    TEMPLATE_ARGUMENTS_MAX,
    TOOLS_MAX,
    at_most,
    check_messages,
    token_list,
)
from tenora_platform.inference.chat import chat_tokens
from tenora_platform.inference.given import Given, QuickList, conversion
from tenora_platform.inference.parameters import check_token_ids
from tenora_platform.inference.requests import AdmittedTenant, prompt_characters
from tenora_platform.inference.schemas import (
    TOKEN,
    ChatCompletionRequest,
    ChatMessage,
    MadeChat,
)
from tenora_platform.inference.tokenising import refuse_too_long, tokenised
from tenora_platform.inference.tool_schemas import Tool
from tenora_platform.registry.resolver import ResolvedModel
from tenora_platform.state import AppState, State
from tenora_platform.tenants.key_terms import require_model

router = APIRouter(tags=["inference"], route_class=EdgeRoute)


class TokenizeRequest(Given):
    """POST /v1/tokenize: a `prompt`, or the `messages` of a chat, tokenized exactly as for an
    answer. `add_special_tokens` defaults to true for a prompt and to false for a chat."""

    model: str = Field(min_length=1, max_length=256)
    prompt: str | None = None
    messages: Annotated[
        QuickList[ChatMessage] | None, Field(min_length=1), BeforeValidator(check_messages)
    ] = None
    tools: Annotated[QuickList[Tool] | None, at_most(TOOLS_MAX)] = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    chat_template: str | None = None
    chat_template_kwargs: Annotated[dict[str, Any] | None, at_most(TEMPLATE_ARGUMENTS_MAX)] = None
    return_token_strs: bool = False

    @model_validator(mode="after")
    def one_of_both(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise PydanticCustomError("one_of", "needs either prompt or messages")
        return self

    @conversion
    def as_chat(self) -> MadeChat:
        """The chat whose prompt this is."""
        return MadeChat(
            model=self.model,
            messages=self.messages or [],
            tools=self.tools,
            add_generation_prompt=self.add_generation_prompt,
            continue_final_message=self.continue_final_message,
            chat_template=self.chat_template,
            chat_template_kwargs=self.chat_template_kwargs,
        )


class Tokens(BaseModel):
    """`token_strs` is present only if `return_token_strs` was true: each token as the vocabulary
    spells it."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeRequest(Given):
    """POST /v1/detokenize."""

    model: str = Field(min_length=1, max_length=256)
    tokens: Annotated[QuickList[TOKEN], token_list()]


class Detokenized(BaseModel):
    """The text of all tokens; control tokens appear by name."""

    prompt: str


@router.post("/v1/tokenize", response_model=Tokens)
async def tokenize(body: TokenizeRequest, state: State, tenant: AdmittedTenant) -> Response:
    """Tokenize a prompt or a chat for this model, using the adapter's own chat template if it has
    one. `count` may be larger than `max_model_len`."""
    resolved = await resolved_for_tokens(state, tenant, body.model)
    if body.prompt is not None:
        length = len(body.prompt)
        refuse_too_long(state.engine, length, "prompt")
        work = partial(_prompt_tokens, state, body)
        token_ids = await tokenised(state.long_texts, tenant.tenant_id, length, work)
    else:
        special = bool(body.add_special_tokens)
        token_ids = await chat_token_ids(state, tenant, body.as_chat(), resolved, special=special)
    answer = partial(_answer, state, token_ids, with_strings=body.return_token_strs)
    content = await tokenised(state.long_texts, tenant.tenant_id, len(token_ids), answer)
    return Response(content, media_type="application/json")


@router.post("/v1/detokenize")
async def detokenize(body: DetokenizeRequest, state: State, tenant: AdmittedTenant) -> Detokenized:
    """Convert token ids back to text. Bytes that are not valid UTF-8 become U+FFFD."""
    await resolved_for_tokens(state, tenant, body.model)
    check_token_ids(body.tokens, state.engine.model, "tokens")
    return Detokenized(prompt=state.engine.text.decode(body.tokens, skip_special=False))


async def resolved_for_tokens(state: AppState, tenant: TenantContext, model: str) -> ResolvedModel:
    """Raises ForbiddenError, NotFoundError."""
    require_model(tenant, model)
    return await state.resolver.resolve(
        tenant.tenant_id, model, state.engine.model.id, sticky=tenant.tenant_id
    )


def _prompt_tokens(state: AppState, body: TokenizeRequest) -> list[int]:
    special = True if body.add_special_tokens is None else body.add_special_tokens
    text, control = state.engine.text, state.settings.allow_control_tokens
    return text.encode(body.prompt or "", special, control)


def _answer(state: AppState, token_ids: list[int], *, with_strings: bool) -> bytes:
    """`Tokens` as JSON: a long text is more than a million of them."""
    name = state.engine.text.token_name
    return msgspec.json.encode(
        {
            "count": len(token_ids),
            "max_model_len": state.engine.model.context_tokens,
            "tokens": token_ids,
            "token_strs": [name(each) for each in token_ids] if with_strings else None,
        }
    )


async def chat_token_ids(
    state: AppState,
    tenant: TenantContext,
    chat: ChatCompletionRequest,
    resolved: ResolvedModel,
    *,
    special: bool = False,
) -> list[int]:
    """The tokens of a chat's prompt, whether or not it fits; with `special` also those which the
    tokenizer puts about every text. Raises BadRequestError, InvalidRequestError."""
    length = await prompt_characters(state, tenant, chat)
    template = await state.templates.of(
        tenant.tenant_id, resolved.adapter, state.engine.text, chat.chat_template
    )
    work = partial(_chat_tokens, state, chat, special, template)
    if template is None:
        return await tokenised(state.long_texts, tenant.tenant_id, length, work)
    return await state.templates.run(tenant.tenant_id, work)


def _chat_tokens(
    state: AppState, chat: ChatCompletionRequest, special: bool, template: Renders | None
) -> list[int]:
    """What the tokenizer puts about every text comes before and behind what the template wrote."""
    token_ids = chat_tokens(state, chat, template)
    if not special:
        return token_ids
    mark = state.engine.text.encode("x", add_special_tokens=False)
    around = state.engine.text.encode("x", add_special_tokens=True)
    before = next((at for at in range(len(around)) if around[at : at + len(mark)] == mark), 0)
    return [*around[:before], *token_ids, *around[before + len(mark) :]]
