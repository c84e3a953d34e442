"""Receipts over HTTP: requests as lists and as signed receipts, the keys that sign them, what
tenants choose to keep, and what is kept."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from tenora_platform.receipts.filters import FinishReason, ToldStatus
from tenora_platform.schemas import Body, IdItem, Item, ListPage

KEEP_DAYS_MAX = 366
STORED_DAYS_MAX = 90


class JsonWebKey(BaseModel):
    """A key as in RFC 8037. `kid` is its thumbprint (RFC 7638)."""

    kty: Literal["OKP"]
    crv: Literal["Ed25519"]
    x: str
    kid: str
    use: Literal["sig"]
    alg: Literal["EdDSA"]


class JsonWebKeySet(BaseModel):
    keys: list[JsonWebKey]


class SigningKey(Item):
    """`signs_from`: another key signs until then. `can_sign`: its private part is still
    available."""

    object: Literal["signing_key"] = "signing_key"
    kid: str
    signs_from: datetime
    can_sign: bool
    created_at: datetime


class SigningKeyList(BaseModel):
    object: Literal["list"] = "list"
    data: list[SigningKey]


class TenantSettings(Item):
    """The tenant's own settings. `keep_contents_days` null: prompts and answers are not kept.
    `stored_response_days` null: responses are not stored; `stored_responses_allowed`: whether the
    plan allows it. `draft_from_answers`: its answers are used as drafts for its later ones."""

    object: Literal["settings"] = "settings"
    keep_contents_days: int | None
    stored_response_days: int | None
    stored_responses_allowed: bool
    draft_from_answers: bool


class TenantSettingsChange(Body):
    """Absent fields stay as they are. `delete_kept_contents`, `delete_stored_responses`: delete
    everything kept or stored so far, now."""

    keep_contents_days: Annotated[int, Field(ge=1, le=KEEP_DAYS_MAX)] | None = None
    delete_kept_contents: bool = False
    stored_response_days: Annotated[int, Field(ge=1, le=STORED_DAYS_MAX)] | None = None
    delete_stored_responses: bool = False
    draft_from_answers: bool = False


class ContentsChoice(BaseModel):
    """`finish_reason` null: it was interrupted."""

    index: int
    text: str
    finish_reason: str | None


class Contents(BaseModel):
    """The request as the client sent it, and the answer."""

    object: Literal["request.contents"] = "request.contents"
    id: str
    endpoint: str
    request: dict[str, Any]
    choices: list[ContentsChoice]
    created_at: datetime
    expires_at: datetime


class RequestItem(IdItem):
    """One request in a list. `amount` is an exact decimal string over the parts that have a price,
    null if their prices are in several currencies. Times are in ms from its arrival; of several
    sequences, those of the slowest. `queue_ms` is the time until it first ran, of which
    `adapter_load_ms` is a part."""

    model_config = ConfigDict(serialize_by_alias=True)

    object: Literal["request"] = "request"
    x_request_id: str | None
    tenant_id: str
    tenant_name: str | None
    api_key_id: str | None
    api_key_name: str | None = Field(description="null: a person was signed in")
    model: str = Field(description="As the client asked for it")
    adapter: str | None = Field(description="name@version that ran; null: the base model")
    adapter_digest: str | None
    class_: str = Field(
        serialization_alias="class", description="The class that served its first sequence"
    )
    kind: str = Field(description="How its id starts: chatcmpl, cmpl, ...")
    status: ToldStatus
    finish_reason: FinishReason = Field(description="The finish reason of its worst sequence")
    arrived_at: datetime
    finished_at: datetime
    queue_ms: float
    adapter_load_ms: float
    ttft_ms: float | None = Field(description="null: it ended before its first token")
    duration_ms: float
    sequences: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    amount: str | None
    currency: str | None
    waits_for_price: bool


class RequestPage(ListPage[RequestItem]):
    """`searching`: enough was looked through for one answer, which may be empty; the search goes on
    with `after` = `last_id`."""

    searching: bool = False


class _Part(BaseModel):
    quantity: int
    per_million: str
    amount: str


class _MeterSum(BaseModel):
    meter: str
    quantity: int
    amount: str


class _Line(_MeterSum):
    """`parts` has one entry, unless the quantity spans several price tiers."""

    parts: list[_Part]


class _Tokens(BaseModel):
    uncached_prefill: int
    cached_prefill: int
    output: int


class _Times(BaseModel):
    """In milliseconds. `queue` is the time until it first ran, including the load of its
    adapter."""

    queue: float
    adapter_load: float
    prefill: float | None
    decode: float | None
    total: float


class _Sequence(BaseModel):
    """`residency` is where the adapter was when the request arrived. `waits_because` is null once
    it has a price."""

    model_config = ConfigDict(serialize_by_alias=True)

    sequence: int
    finish_reason: str
    finished_at: str
    class_: str = Field(serialization_alias="class")
    adapter_digest: str | None
    residency: str | None
    tokens: _Tokens
    cold_loads: int
    preemptions: int
    times_ms: _Times
    price_version: str | None
    currency: str | None
    waits_because: str | None
    meters: list[_Line] | None
    amount: str | None


class _Asked(BaseModel):
    """`class` null: the plan's own. `max_tokens` null: the client set none."""

    model_config = ConfigDict(serialize_by_alias=True)

    model: str | None
    alias: str | None
    class_: str | None = Field(serialization_alias="class")
    max_tokens: int | None


class _RanAdapter(BaseModel):
    name: str | None
    version: int | None
    version_id: str | None
    digest: str


class _Ran(BaseModel):
    """`sequences` is their number over all prompts and choices; of an incomplete request fewer are
    booked, and the amount is that of these."""

    model: str
    plan: str | None
    adapter: _RanAdapter | None
    residency: str | None
    sequences: int
    sequences_booked: int | None = None  # receipts of before 2026-11-27 do not say it


class _PriceScope(BaseModel):
    adapter_id: str | None
    tenant_id: str | None
    plan: str | None
    model: str | None


class _Price(BaseModel):
    id: str
    currency: str
    effective_from: str
    effective_to: str | None
    scope: _PriceScope


class _Signature(BaseModel):
    """Ed25519 (`value`, base64url) over the canonical JSON (RFC 8785) of the whole receipt without
    this `value`. `digests` has the first 16 hex digits of each field's SHA-256."""

    alg: Literal["EdDSA"]
    kid: str
    digests: dict[str, str]
    value: str


class Receipt(BaseModel):
    """What was requested, what ran and what it costs, signed; `tenora receipt verify` verifies it.
    Amounts are exact decimal strings. `prices` are the price versions by which it was rated."""

    object: Literal["receipt"]
    version: Literal[1]
    id: str
    x_request_id: str | None
    issuer: str
    issued_at: str
    tenant_id: str
    api_key_id: str | None
    status: ToldStatus
    arrived_at: str
    finished_at: str
    asked: _Asked
    ran: _Ran
    tokens: _Tokens
    prices: list[_Price]
    waits_for_price: bool
    amount: str | None
    currency: str | None
    meters: list[_MeterSum] | None
    sequences: list[_Sequence]
    signature: _Signature
