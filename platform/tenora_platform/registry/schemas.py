"""Adapters, versions, aliases and resumable uploads as the HTTP API shows them."""

from __future__ import annotations

from datetime import datetime
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from tenora_engine.events import Residency
from tenora_platform.intake.report import ValidationReport
from tenora_platform.probing.schemas import Footprint, Load, StorageCost
from tenora_platform.registry.tables import AdapterAliasRow
from tenora_platform.schemas import Body, IdItem, ListPage, Reason

VersionState = Literal["quarantined", "validating", "active", "rejected", "deprecated", "revoked"]

ADAPTER_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"
ALIAS_NAME = r"^[A-Za-z][A-Za-z0-9._-]{0,62}$"


class DraftLayer(BaseModel):
    """A trained draft layer for speculative decoding with this adapter. `digest` is the file's."""

    digest: str
    bytes: int


class AdapterVersion(BaseModel):
    """One immutable version. `validation` is null until it has been examined; `has_chat_template`:
    its chats go through a template of its own. `bytes` include those of its `draft_layer`, null
    where it came with none. `residency` is the best tier that has it now; null for what does not
    serve, where nobody asked the engine, and while it does not answer. `damaged_at`: since when its
    requests fail with `adapter_damaged`, for its stored content is damaged or missing."""

    id: str
    object: Literal["adapter_version"] = "adapter_version"
    adapter_id: str
    name: str
    version: int
    state: VersionState
    digest: str | None
    rank: int | None
    target_modules: list[str] | None
    bytes: int
    draft_layer: DraftLayer | None = None
    has_chat_template: bool
    validation: ValidationReport | None
    residency: Residency | None = None
    created_at: datetime
    activated_at: datetime | None
    deprecated_at: datetime | None
    damaged_at: datetime | None = None


class VersionChange(Body):
    """PATCH body. `deprecated`: it is still served, and its answers carry a warning. `revoked`: no
    new request runs on it anywhere, permanently, and its content is deleted. `reason` goes to the
    audit log."""

    state: Literal["active", "deprecated", "revoked"]
    reason: Reason | None = None


class PreflightModule(BaseModel):
    """One target module, over all layers that have it."""

    module: str
    layers: int
    rank_min: int
    rank_max: int


class TierBytes(BaseModel):
    tier: Residency
    bytes: int


class Preflight(BaseModel):
    """What would happen to an upload, from its config and header alone; no value has been checked.
    If it would not be `accepted`, `validation` says why and the fields after it are empty.
    `footprint` is in pages while it is on the device; `sizes` is the bytes that each tier
    stores."""

    object: Literal["adapter.preflight"] = "adapter.preflight"
    name: str
    accepted: bool
    rank: int | None
    target_modules: list[str]
    bytes: int
    validation: ValidationReport
    modules: list[PreflightModule] = []
    footprint: Footprint | None = None
    sizes: list[TierBytes] = []
    loads: list[Load] = []
    storage: StorageCost | None = None


class AdapterImport(BaseModel):
    """`source` is the URL of a folder below one of the operator's prefixes."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(max_length=256)
    source: str = Field(max_length=2048)


class AliasTarget(Body):
    version: int = Field(ge=1, lt=2**31)
    weight: int = Field(ge=1, le=100)


class Shadow(Body):
    """Shadow traffic: a copy of `percent` of an alias's requests also runs on `version`; those
    answers are not sent to the client."""

    version: int = Field(ge=1, lt=2**31)
    percent: int = Field(ge=1, le=100)


class Alias(BaseModel):
    object: Literal["adapter_alias"] = "adapter_alias"
    name: str
    alias: str
    targets: list[AliasTarget]
    shadow: Shadow | None
    updated_at: datetime

    @classmethod
    def of(cls, name: str, row: AdapterAliasRow) -> Self:
        return cls(
            name=name,
            alias=row.alias,
            targets=[AliasTarget(**target) for target in row.targets],
            shadow=None if row.shadow is None else Shadow(**row.shadow),
            updated_at=row.updated_at,
        )


class ServedVersion(BaseModel):
    """`weight` is the percentage of callers that this version answers."""

    version: int
    weight: int
    state: VersionState
    digest: str | None
    rank: int | None
    bytes: int
    residency: Residency | None


class Serving(BaseModel):
    """What requests for the plain name run on now, highest weight first: the targets of the alias
    `prod` if it exists, else the newest active version (`alias` null). Empty: requests get 404."""

    alias: str | None
    versions: list[ServedVersion]


class AdapterTraffic(BaseModel):
    """Finished requests since `start` (the current hour and the 23 before it, UTC), over all
    versions. `prompt_tokens` includes cached ones; `total_tokens` is prompt plus output."""

    start: datetime
    requests: int
    requests_by_hour: list[int]
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    total_tokens: int


class AdapterCost(BaseModel):
    """An exact decimal string, as in /v1/costs."""

    amount: str
    currency: str


class Adapter(IdItem):
    """A name with its versions, newest first. `version`, `state` and the fields after them are the
    newest version's, for clients that keep only one; `serving` is what answers requests. `traffic`
    and `month_costs` (this month, UTC, all meters) are null without the scope `usage`."""

    object: Literal["adapter"] = "adapter"
    name: str
    created_at: datetime
    version: int
    state: VersionState
    digest: str | None
    rank: int | None
    target_modules: list[str] | None
    bytes: int
    has_chat_template: bool
    validation: ValidationReport | None
    aliases: list[Alias]
    versions: list[AdapterVersion]
    serving: Serving
    traffic: AdapterTraffic | None = None
    month_costs: list[AdapterCost] | None = None


class AdapterPage(ListPage[Adapter]):
    """`total` is the number of adapters on all pages."""

    total: int


class UploadCreate(BaseModel):
    """`bytes` is the size of the whole file; `sha256` (hex) is verified when the upload is
    completed."""

    model_config = ConfigDict(extra="forbid")

    bytes: int = Field(ge=1, lt=2**53)
    sha256: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")


class UploadPart(BaseModel):
    id: str
    object: Literal["upload.part"] = "upload.part"
    upload_id: str
    bytes: int
    sha256: str
    created_at: datetime


class UploadComplete(BaseModel):
    model_config = ConfigDict(extra="forbid")

    part_ids: list[str] = Field(min_length=1, max_length=10_000)
    sha256: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")


class OpenUpload(IdItem):
    """An upload that can be resumed: `pending` accepts more parts, `completed` has all of them. GET
    it for its parts."""

    object: Literal["upload"] = "upload"
    status: Literal["pending", "completed"]
    bytes: int
    received_bytes: int
    parts_received: int
    part_bytes_max: int
    created_at: datetime
    expires_at: datetime


class Upload(BaseModel):
    """`pending` accepts parts, `completed` can be used once in place of `weights`; all other states
    are final."""

    id: str
    object: Literal["upload"] = "upload"
    status: Literal["pending", "completed", "cancelled", "expired", "used"]
    bytes: int
    sha256: str | None
    part_bytes_max: int
    parts: list[UploadPart]
    created_at: datetime
    expires_at: datetime
