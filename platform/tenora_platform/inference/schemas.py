"""The OpenAI-shaped bodies of /v1/chat/completions, /v1/completions and /v1/models, as they cross
the wire. Knows no engine; what a field means is decided in `inference.parameters`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Role = Literal["system", "developer", "user", "assistant", "tool"]
ServiceTier = Literal["auto", "default", "priority", "flex"]
FinishReasonText = Literal["stop", "length"]
COUNT_MAX = 2**31 - 1


class StrictModel(BaseModel):
    """A request body: an unknown or misspelled field is an error that names it, and so is a number
    that is none (Infinity, NaN) or beyond what the engine counts in."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class TextPart(StrictModel):
    """One piece of a message's content. Only text is supported; others are refused by name."""

    type: str
    text: str | None = None
    image_url: Any = None
    input_audio: Any = None
    file: Any = None
    refusal: str | None = None


class ChatMessage(BaseModel):
    """One message. Keys beyond these (tool calls, audio) are refused in `inference.parameters`."""

    model_config = ConfigDict(extra="allow")

    role: Role
    content: str | list[TextPart] | None = None
    name: str | None = None


class StreamOptions(StrictModel):
    """`include_usage` asks for a last chunk with the usage of the whole request."""

    include_usage: bool = False
    include_obfuscation: bool = False  # accepted; chunks are never padded


class SamplingFields(StrictModel):
    """What both APIs share. Fields after the blank line are Tenora's additions (as in vLLM)."""

    model: str = Field(min_length=1, max_length=256)
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = Field(default=None, ge=1, le=COUNT_MAX)
    n: int = Field(default=1, ge=1, le=128)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    logit_bias: dict[str, float] | None = None
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    stop: str | list[str] | None = None
    user: str | None = Field(default=None, max_length=512)
    service_tier: ServiceTier | None = None
    metadata: dict[str, str] | None = None
    prompt_cache_key: str | None = Field(default=None, max_length=512)
    safety_identifier: str | None = Field(default=None, max_length=512)

    top_k: int | None = Field(default=None, ge=-1, le=COUNT_MAX)
    min_p: float | None = Field(default=None, ge=0, le=1)
    repetition_penalty: float | None = Field(default=None, gt=0, le=10)
    ignore_eos: bool = False
    stop_token_ids: list[int] | None = Field(default=None, max_length=64)


class ChatCompletionRequest(SamplingFields):
    """POST /v1/chat/completions."""

    messages: list[ChatMessage] = Field(min_length=1, max_length=4096)
    max_completion_tokens: int | None = Field(default=None, ge=1, le=COUNT_MAX)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    response_format: dict[str, Any] | None = None

    # Known to OpenAI's API, not to this one: any value but the neutral one is refused by name.
    tools: Any = None
    tool_choice: Any = None
    parallel_tool_calls: Any = None
    functions: Any = None
    function_call: Any = None
    modalities: Any = None
    audio: Any = None
    prediction: Any = None
    web_search_options: Any = None
    reasoning_effort: Any = None
    verbosity: Any = None
    store: Any = None


class CompletionRequest(SamplingFields):
    """POST /v1/completions. `prompt` is a text, texts, token ids, or lists of token ids."""

    prompt: str | list[str] | list[int] | list[list[int]]
    echo: bool = False
    logprobs: int | None = Field(default=None, ge=0, le=20)
    best_of: int | None = Field(default=None, ge=1, le=128)
    suffix: str | None = None


class PromptTokensDetails(BaseModel):
    cached_tokens: int
    audio_tokens: int = 0


class CompletionTokensDetails(BaseModel):
    reasoning_tokens: int = 0
    audio_tokens: int = 0
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0


class Usage(BaseModel):
    """Tokens of the whole request, as the engine metered them (summed over n)."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails = CompletionTokensDetails()


class TopLogprob(BaseModel):
    token: str
    logprob: float
    bytes: list[int] | None


class ChatTokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(BaseModel):
    content: list[ChatTokenLogprob] | None
    refusal: None = None


class AssistantMessage(BaseModel):
    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None


class ChatChoice(BaseModel):
    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishReasonText


class ChatCompletion(BaseModel):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    service_tier: str
    system_fingerprint: str


class ChatDelta(BaseModel):
    """What is new; unset fields are left out of the chunk."""

    role: Literal["assistant"] | None = None
    content: str | None = None


class ChatChunkChoice(BaseModel):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishReasonText | None = None


class ChatCompletionChunk(BaseModel):
    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | None = None
    service_tier: str
    system_fingerprint: str


class TextLogprobs(BaseModel):
    """The completions API's parallel lists. Alternatives are keyed by their text."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class TextChoice(BaseModel):
    index: int
    text: str
    logprobs: TextLogprobs | None = None
    finish_reason: FinishReasonText | None


class Completion(BaseModel):
    """Also the form of a stream's chunks, where `finish_reason` may be null."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[TextChoice]
    usage: Usage | None = None
    service_tier: str
    system_fingerprint: str


class ModelCard(BaseModel):
    """One usable model: the base (`parent` null) or one of the tenant's adapters."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str
    parent: str | None = None
    version: int | None = None
    digest: str | None = None


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[ModelCard]
