"""The OpenAI-shaped bodies of /v1/chat/completions, /v1/completions and /v1/models, as they cross
the wire. Knows no engine; what a field means is decided in `inference.parameters`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from tenora_engine.request import (
    LENGTH_PENALTY_MAX,
    REPETITION_PENALTY_MAX,
    REPETITION_PENALTY_MIN,
)
from tenora_platform.inference.bounds import (
    ALLOWED_TOKENS_MAX,
    BAD_WORDS_MAX,
    METADATA_MAX,
    NAMED_LOGPROBS_MAX,
    PROMPTS_MAX,
    ROLE_MAX,
    STOP_PATTERNS_MAX,
    STOP_STRINGS_MAX,
    STOP_TOKENS_MAX,
    TEMPLATE_ARGUMENTS_MAX,
    TOOLS_MAX,
    at_most,
    biases,
    check_messages,
    prompts,
    token_list,
)
from tenora_platform.inference.given import Given, QuickList
from tenora_platform.inference.response_formats import FormatFields
from tenora_platform.inference.tool_schemas import Tool, ToolCallDelta, ToolCallMade, ToolChoice
from tenora_platform.request_ids import REQUEST_ID

Role = Literal["system", "developer", "user", "assistant", "tool", "function"]
ServiceTier = Literal["auto", "default", "priority", "flex"]
FinishReasonText = Literal["stop", "length", "tool_calls"]
TruncationSide = Literal["left", "right"]
COUNT_MAX = 2**31 - 1
LOGPROBS_MAX = 20

TemplateArguments = Annotated[dict[str, Any] | None, at_most(TEMPLATE_ARGUMENTS_MAX)]
RequestId = Annotated[str | None, Field(pattern=REQUEST_ID)]
TOKEN = Annotated[int, Field(ge=0, lt=2**31)]
Unheeded = Annotated[str | None, Field(max_length=64)]
MetadataName = Annotated[str, Field(max_length=64)]
MetadataText = Annotated[str, Field(max_length=512)]


def _as_part(value: Any) -> Any:
    return {"text": value} if isinstance(value, str) else value


class TextPart(Given):
    """One piece of a message's content; a bare text is one, too. Only text is supported; other
    types are refused by name, and fields that nobody knows passed over."""

    model_config = ConfigDict(extra="ignore")

    type: str = "text"
    text: str | None = None
    refusal: str | None = None
    image_url: Any = None
    input_audio: Any = None
    file: Any = None
    cache_control: Any = None  # accepted; every prefix is cached


Part = Annotated[TextPart, BeforeValidator(_as_part, json_schema_input_type=TextPart | str)]


class FunctionCall(Given):
    """`arguments` is JSON, as models write it; templates are given the object."""

    model_config = ConfigDict(extra="ignore")

    name: str
    arguments: str | dict[str, Any] = ""


class ToolCall(Given):
    """One call of a tool in an assistant's earlier message."""

    model_config = ConfigDict(extra="allow")

    id: str | None = None
    type: str = "function"
    function: FunctionCall


class ChatMessage(Given):
    """One message. Whatever else clients keep in a history (`id`, `timestamp`, `reasoning`) is
    passed over: no template reads it. The role is the template's affair."""

    model_config = ConfigDict(extra="ignore")

    role: str = Field(min_length=1, max_length=ROLE_MAX)
    content: str | QuickList[Part] | None = None
    name: str | None = None
    tool_calls: QuickList[ToolCall] | None = None
    tool_call_id: str | None = None
    function_call: FunctionCall | None = None  # OpenAI's older form of tool_calls
    refusal: str | None = None
    reasoning_content: str | None = None
    audio: Any = None  # of an earlier answer: refused, as it holds what was said


class StreamOptions(Given):
    """`include_usage` adds a last chunk with the usage of the whole request,
    `continuous_usage_stats` the usage so far to every chunk."""

    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_obfuscation: bool = False  # accepted; chunks are never padded


def _unless_false(value: Any) -> Any:
    return None if value is False else value


class Choosing(Given):
    """How each token is chosen and where the text ends: what responses take, too."""

    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    stop: Annotated[str | list[str] | None, at_most(STOP_STRINGS_MAX)] = None

    # Additions, named and meant as in vLLM.
    top_k: int | None = Field(default=None, ge=-1, le=COUNT_MAX)
    min_p: float | None = Field(default=None, ge=0, le=1)
    repetition_penalty: float | None = Field(
        default=None, ge=REPETITION_PENALTY_MIN, le=REPETITION_PENALTY_MAX
    )
    cache_salt: str | None = Field(default=None, min_length=1, max_length=256)
    request_id: RequestId = None


class SamplingFields(FormatFields, Choosing):
    """What both APIs share. Fields after the blank line are Tenora's additions, named and meant as
    in vLLM. Other names are accepted where they ask for nothing (`inference.neutral_fields`)."""

    model_config = ConfigDict(extra="allow")

    model: str = Field(min_length=1, max_length=256)
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = Field(default=None, ge=1, le=COUNT_MAX)
    n: int = Field(default=1, ge=1, le=128)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, ge=0, le=1)  # 0: the likeliest token
    logit_bias: Annotated[dict[str, float] | None, BeforeValidator(biases)] = None
    user: str | None = Field(default=None, max_length=512)
    service_tier: ServiceTier | None = None
    metadata: Annotated[dict[MetadataName, MetadataText] | None, at_most(METADATA_MAX)] = None
    prompt_cache_key: str | None = Field(default=None, max_length=512)

    # Accepted, and without effect.
    prompt_cache_retention: Unheeded = None
    reasoning_effort: Unheeded = None
    safety_identifier: str | None = Field(default=None, max_length=512)
    verbosity: Unheeded = None

    min_tokens: int = Field(default=0, ge=0, le=COUNT_MAX)
    ignore_eos: bool = False
    stop_token_ids: Annotated[list[TOKEN] | None, token_list(STOP_TOKENS_MAX)] = None
    stop_regex: Annotated[str | list[str] | None, at_most(STOP_PATTERNS_MAX)] = None  # SGLang's
    include_stop_str_in_output: bool = False
    bad_words: Annotated[list[str] | None, at_most(BAD_WORDS_MAX)] = None
    allowed_token_ids: Annotated[list[TOKEN] | None, token_list(ALLOWED_TOKENS_MAX)] = Field(
        default=None, min_length=1
    )
    logprob_token_ids: Annotated[list[TOKEN] | None, token_list(NAMED_LOGPROBS_MAX)] = Field(
        default=None, min_length=1
    )
    skip_special_tokens: bool = True
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False
    truncate_prompt_tokens: int | None = Field(default=None, ge=-1, le=COUNT_MAX)
    truncation_side: TruncationSide = "left"
    prompt_logprobs: Annotated[
        int | None, Field(ge=0, le=LOGPROBS_MAX), BeforeValidator(_unless_false)
    ] = None
    best_of: int | None = Field(default=None, ge=1, le=128)

    # What they mean is decided in `inference.beams`.
    use_beam_search: bool = False
    length_penalty: float | None = Field(
        default=None, ge=-LENGTH_PENALTY_MAX, le=LENGTH_PENALTY_MAX
    )
    early_stopping: Literal[True, False, "never"] | None = None


class Prediction(Given):
    """What most of the answer is thought to be: text, or parts of text."""

    type: Literal["content"]
    content: str | QuickList[TextPart]

    @property
    def text(self) -> str:
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text or "" for part in self.content)


class ChatCompletionRequest(SamplingFields):
    """POST /v1/chat/completions."""

    messages: Annotated[
        QuickList[ChatMessage], Field(min_length=1), BeforeValidator(check_messages)
    ]
    max_completion_tokens: int | None = Field(default=None, ge=1, le=COUNT_MAX)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=20)

    # Absent, it is the opposite of `continue_final_message`.
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    echo: bool = False  # of the message that is gone on with
    chat_template: str | None = None
    chat_template_kwargs: TemplateArguments = None

    # What they mean is decided in `inference.tools`.
    tools: Annotated[QuickList[Tool] | None, at_most(TOOLS_MAX)] = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool = True
    prediction: Prediction | None = None

    # Known to OpenAI's API, not to this one: any value but the neutral one is refused by name.
    functions: Any = None
    function_call: Any = None
    modalities: Any = None
    audio: Any = None
    web_search_options: Any = None
    store: Any = None


class MadeChat(ChatCompletionRequest):
    """A chat made of another API's body, whose own bounds have held: of its members, one message
    may have become several, and its instructions one more."""

    messages: list[ChatMessage]


class CompletionRequest(SamplingFields):
    """POST /v1/completions. `prompt` is a string, an array of strings, an array of token ids, or an
    array of arrays of token ids."""

    prompt: Annotated[
        str | QuickList[str] | QuickList[int] | QuickList[QuickList[int]],
        prompts(PROMPTS_MAX),
    ]
    max_tokens: int | None = Field(default=None, ge=0, le=COUNT_MAX)  # 0: the prompt alone
    echo: bool = False
    logprobs: int | None = Field(default=None, ge=0, le=20)
    suffix: str | None = None
    add_special_tokens: bool = True

    @model_validator(mode="before")
    @classmethod
    def not_embeddings_alone(cls, data: Any) -> Any:
        """In vLLM's words, which its clients know."""
        if isinstance(data, dict) and "prompt_embeds" in data and data.get("prompt") is None:
            raise PydanticCustomError(
                "prompt_embeds",
                "Either prompt or prompt_embeds must be provided and non-empty. This server takes "
                "prompt alone.",
            )
        return data


class PromptTokensDetails(BaseModel):
    cached_tokens: int
    audio_tokens: int = 0


class CompletionTokensDetails(BaseModel):
    reasoning_tokens: int = 0
    audio_tokens: int = 0
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0


class Usage(BaseModel):
    """Tokens of the whole request, summed over its `n` choices, as metered by the engine."""

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
    tool_calls: list[ToolCallMade] | None = Field(
        default=None, exclude_if=lambda calls: calls is None
    )


TokenIds = list[int] | None
"""Null where `return_token_ids` did not ask for it; chunks of a stream then leave it out."""


class PromptLogprob(BaseModel):
    """One token at one position of a prompt. `rank` is 1 for the most likely token; null for a
    prompt token that is outside the requested number of alternatives."""

    logprob: float
    rank: int | None
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None] | None
"""By token id, at each of a prompt's tokens; null at its first, and where `prompt_logprobs` did not
ask for them. Chunks of a stream have none."""


class Stopped(BaseModel):
    """Why a choice ended. `matched_stop` (as in SGLang) is the stop string or token id that ended
    it, including the model's own end token. `stop_reason` (as in vLLM) is null for the model's own
    end token. Both are null when the maximum length was reached."""

    matched_stop: str | int | None = None
    stop_reason: str | int | None = None


class ChatChoice(Stopped):
    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishReasonText
    token_ids: TokenIds = None


class ChatCompletion(BaseModel):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    service_tier: str
    system_fingerprint: str
    prompt_token_ids: TokenIds = None
    prompt_logprobs: PromptLogprobs = None


class ChatDelta(BaseModel):
    """What this chunk adds; fields that are not set are left out."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    tool_calls: list[ToolCallDelta] | None = None


class ChatChunkChoice(Stopped):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishReasonText | None = None
    token_ids: TokenIds = None


class ChatCompletionChunk(BaseModel):
    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | None = None
    service_tier: str
    system_fingerprint: str
    prompt_token_ids: TokenIds = None


class TextLogprobs(BaseModel):
    """The parallel arrays of OpenAI's completions API. Alternatives are keyed by their text."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class TextChoice(Stopped):
    index: int
    text: str
    logprobs: TextLogprobs | None = None
    finish_reason: FinishReasonText | None
    prompt_token_ids: TokenIds = None
    token_ids: TokenIds = None
    prompt_logprobs: PromptLogprobs = None


class Completion(BaseModel):
    """A completion; also one chunk of a stream, in which `finish_reason` may be null."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[TextChoice]
    usage: Usage | None = None
    service_tier: str
    system_fingerprint: str


class ModelCard(BaseModel):
    """One usable model: the base model (`parent` null, `owned_by` is `tenora`) or an adapter of the
    tenant (`owned_by` is the tenant's id). `root` is its `id` again, as vLLM and SGLang have it.
    `max_model_len` (as in vLLM) and `context_length` (as in OpenRouter) are the maximum number of
    tokens of a prompt and its answer together."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str
    root: str
    parent: str | None = None
    max_model_len: int
    context_length: int
    version: int | None = None
    digest: str | None = None


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[ModelCard]
