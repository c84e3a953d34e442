"""What the operator chooses: every option of `tenora serve`, each also as `TENORA_*` in the
environment. The text under a field is its help. It knows how the fields become an engine's
configuration, not how anything runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, SecretStr, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from tenora_engine.config import (
    HOST_ADAPTER_BYTES,
    STEP_LIMITS,
    EngineConfig,
    PolicyName,
    SchedulingPolicy,
)
from tenora_engine.machine import this_machine
from tenora_engine.text.tool_formats import ToolFormatName
from tenora_platform.gpu import choose_device
from tenora_platform.installation import InstallationName
from tenora_platform.resources import default_draft_layer, is_installed
from tenora_platform.secret import ServerSecret, load_secret

_UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4}
_BINARY_UNITS = {"ki": 1024, "mi": 1024**2, "gi": 1024**3, "ti": 1024**4}
_SAFE_URL = re.compile(r"^(https://[^/?#]+|http://(localhost|127\.0\.0\.1|\[::1\])(:\d+)?)[^?#]*$")
_SIZE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*(|[kmgt]i?)b?\s*$", re.IGNORECASE)


def parse_size(value: Any) -> int:
    """Bytes from `2GiB`, `512 MB`, `1.5g` or a plain number. Raises ValueError on anything else."""
    if isinstance(value, int):
        return value
    match = _SIZE.match(str(value))
    if match is None:
        raise ValueError(f"{value!r} is not a size; write one such as 2GiB, 512MiB or 1000000")
    number, unit = match.groups()
    return int(float(number) * (_UNITS | _BINARY_UNITS)[unit.lower()])


Size = Annotated[int, BeforeValidator(parse_size)]


class Settings(BaseSettings):
    """One platform process and its engine. Frozen; `with_urls` returns a changed copy."""

    model_config = SettingsConfigDict(
        env_prefix="TENORA_", frozen=True, extra="forbid", use_attribute_docstrings=True
    )

    # The HTTP edge
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = Field(default=8000, ge=1, le=65535)
    """Port to listen on."""
    workers: int = Field(default=1, ge=1)
    """API processes behind the one port."""
    admin_key: SecretStr | None = None
    """The first admin key; made and shown once when absent."""
    secret: SecretStr | None = None
    """Server secret, the same for all workers; kept in the data directory when absent."""
    max_body: Size = 8 * 1024**2
    """Largest JSON body of an inference request; others take 1 MiB at most."""
    max_upload: Size = 1024**3
    """Largest multipart upload."""
    upload_share: float = Field(default=0.2, gt=0, le=1)
    """Of a core that each API process gives to taking uploads; 1: all that it has."""
    allow_control_tokens: bool = False
    """Whether control tokens written out in messages and prompts count as such."""
    tool_parser: Literal["auto", ToolFormatName] = "auto"
    """How the base model writes that it calls tools; auto reads it off its chat template."""
    disk_reserve: Size = 256 * 1024**2
    """Uploads that would leave less free on the data directory's disk are answered 507."""
    cors_origins: str = ""
    """Origins whose pages may call the API, separated by commas, or *; none when empty."""
    trusted_proxies: str = "127.0.0.1"
    """Addresses of proxies whose X-Forwarded-For is believed, separated by commas, or *."""
    max_connections: int | None = Field(default=None, ge=1)
    """Connections in all; what the limit of open files leaves when absent."""
    max_address_connections: int = Field(default=1000, ge=1)
    """Connections of one address; raise it behind a proxy, from which all of them come."""
    head_timeout_s: float = Field(default=10.0, gt=0)
    """Seconds for a request's head, after which its connection is closed."""
    min_body_rate: Size = 1000
    """Least bytes a second of a body, over every ten seconds, else its connection is closed."""
    drain_s: float = Field(default=10.0, ge=0)
    """Seconds for requests in flight when the server stops; then they end with an error event."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """How much is logged."""
    lease_s: float = Field(default=30.0, gt=0)
    """Seconds after which a crashed worker's parallel requests are free again."""
    limits_fallback_s: float = Field(default=60.0, ge=0)
    """Seconds for which limits are checked without Redis, by each process alone; 0 is never."""
    metrics_tenants: int = Field(default=100, ge=0)
    """Tenants with metrics of their own, the first that come; all others are one called other."""
    canary_every_s: float = Field(default=0, ge=0)
    """Seconds between the rounds of a canary tenant that checks answers and bills; 0 is none."""
    canary_url: str | None = None
    """Where the canary asks; host and port of this installation's API when absent."""
    probe_adapters: bool = True
    """Whether every active version is asked a few prompts beside the base model, for its report."""
    evaluation_retention_days: int | None = Field(default=None, ge=1)
    """Days after its end for which an evaluation is kept, with its items; for ever where absent."""
    auth_cache_s: int = Field(default=10, ge=0)
    """Seconds for which a key may be believed without asking the database; 0 is never."""

    # Who signs in
    public_url: str | None = None
    """Where people reach the portal and the API; http://host:port when absent."""
    session_idle_s: float = Field(default=12 * 3600, gt=0)
    """Seconds after which a session of the portal ends when unused."""
    session_max_s: float = Field(default=7 * 24 * 3600, gt=0)
    """Seconds after which it ends in any case."""
    oidc_issuer: str | None = None
    """The OpenID Connect provider by which people sign in; they show a key when absent."""
    oidc_client_id: str | None = None
    """Ours at the provider."""
    oidc_client_secret: SecretStr | None = None
    """Ours at the provider; none when absent, for a public client."""
    oidc_name: str = "single sign-on"
    """What the button says: Sign in with ..."""
    oidc_scopes: str = "openid email profile"
    """What the provider is asked for."""
    oidc_owner_email: str | None = None
    """Whoever signs in with this verified email is an owner among the operator's people."""

    # Money
    invoice_font: Path | None = None
    """A font file for letters in invoices' PDFs that the built-in Noto fonts lack."""
    webhook_private_addresses: bool = False
    """Whether webhooks may be sent into private networks, and by plain HTTP."""

    # Where state lives
    installation: InstallationName = "tenora"
    """What names roles and schema where several installations share a PostgreSQL server."""
    data_dir: Path = Path(".data")
    """Everything that Tenora writes."""
    database_url: str | None = None
    """PostgreSQL; an embedded one under the data directory when absent."""
    database_connections: int = Field(default=24, ge=4)
    """Most connections of one API or worker process to PostgreSQL."""
    usage_retention_months: int = Field(default=0, ge=0)
    """Whole months that usage events stay in the database beside the current one; older ones are
    archived in the object store. 0: for ever."""
    tenant_grace_days: int = Field(default=7, ge=0, le=365)
    """Days after which a tenant that was deleted is erased, unless it is restored."""
    history_minutes_days: int = Field(default=14, ge=1)
    """Days for which the history of service is kept by the minute."""
    history_hours_days: int = Field(default=400, ge=1)
    """And by the hour."""
    statement_timeout_s: float = Field(default=15.0, ge=0.1)
    """Seconds for one statement of a request; workers have ten minutes."""
    redis_url: str | None = None
    """Redis or Valkey; an embedded one under the data directory when absent."""
    object_store: str | None = None
    """A path, s3://, gs:// or az://; <data-dir>/objects when absent."""
    import_prefixes: str = ""
    """URLs, separated by commas, below which tenants may import adapters (s3://bucket/{tenant}; the
    tenant's id stands for {tenant}); none when empty."""
    spool_dir: Path | None = None
    """Where an upload lies while it is checked; <data-dir>/spool when absent."""
    portal_dir: Path | None = None
    """The built portal; admin_ui/dist of the checkout when absent."""

    # The engine
    engine: str | None = None
    """Where it listens, ipc:///path or tcp://host:port; one of our own when absent."""
    model: str | None = None
    """A Hugging Face folder (docs/models.md); SmolLM2-135M-Instruct when absent."""
    served_name: str | None = None
    """The base model's id in the API; the folder's name when absent."""
    load_format: Literal["auto", "dummy"] = "auto"
    """dummy: the model's config only, with random weights, for measurements."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the model runs."""
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """Of weights, KV and adapters."""
    weight_dtype: Literal["auto", "int8"] = "auto"
    """Of the base model's linears; int8 halves what a step reads, on the CPU only."""
    kv_dtype: Literal["auto", "fp8"] = "auto"
    """Of the KV alone: as dtype, or fp8 (e4m3), which takes half the memory; CUDA only."""
    adapter_dtype: Literal["auto", "int8"] = "auto"
    """Of the adapters alone: as dtype, or int8, which takes half the memory; CPU only."""
    threads: int | None = Field(default=None, ge=1)
    """Compute threads of the engine; when absent as many as it may use of the processors."""
    memory: Size | None = None
    """Weights, workspace and arena together; when absent 1 GiB, in a smaller container three
    quarters of its memory, on a GPU what is free there."""
    arena: Size | None = None
    """The page arena alone; what the budget leaves when absent."""
    block_tokens: int = Field(default=16, ge=1)
    """Tokens of a KV page."""
    max_context_tokens: int | None = Field(default=None, ge=1)
    """Longest prompt and answer together; the model's own when absent."""
    max_running: int | None = Field(default=None, ge=1)
    """Sequences in one step; when absent 64, on a GPU 256."""
    max_step_tokens: int | None = Field(default=None, ge=1)
    """Tokens of one step, decode and prefill together; when absent 512, on a GPU 2048."""
    max_prefill_chunk: int | None = Field(default=None, ge=1)
    """Prompt tokens of one tenant in one step, while others wait or run too; when absent 256, on a
    GPU 1024."""
    max_waiting: int = Field(default=1024, ge=1)
    """Sequences in the queue; more are refused."""
    max_tenant_waiting: int = Field(default=256, ge=1)
    """Of one tenant."""
    max_request_memory: Size = 256 * 1024**2
    """Host memory for prompts, predictions and grammars of requests in flight; a tenant has a
    quarter of it, or its one request. What would exceed it is refused."""
    max_grammar: Size = 64 * 1024
    """The largest text of a grammar or JSON schema that answers are to follow."""
    grammar_timeout_ms: int = Field(default=1000, ge=1)
    """Processor time in which it has to be compiled."""
    max_adapters: int = Field(default=256, ge=1)
    """Adapters on the device at once, as far as pages allow."""
    max_rank: int = Field(default=128, ge=1)
    """Largest rank accepted."""
    max_draft_tokens: int = Field(default=16, ge=0, le=64)
    """Tokens of a sequence that are drafted and verified in one step; 0: none."""
    batch_invariant: bool = False
    """On CUDA: answers the same to the bit whatever else runs, which allows drafts there."""
    draft_layer: Literal["none"] | Path | None = None
    """A trained draft layer of the base model, a file of `examples/train_draft.py`; the default
    model has one, unless this is `none`."""
    adapter_draft_memory: Size = 32 * 1024**2
    """Draft layers that adapters bring, kept in memory; 0: they propose nothing, as under strict
    isolation."""
    stream_chunk_tokens: int = Field(default=0, ge=0, le=256)
    """Of each chunk of a stream, so that its size says nothing of drafts; 0: as they come."""
    host_adapter_memory: Size | None = None
    """Packed adapters kept in host memory: 256 MiB, on a GPU 8 GiB or a quarter of the machine's
    memory, whatever is less."""
    host_kv_memory: Size = 0
    """Copies of evicted KV kept in host memory; none under strict isolation."""
    prefix_caching: bool = True
    """Reuse the KV of equal prefixes, within one tenant and adapter."""
    scheduling_policy: SchedulingPolicy = "sla"
    """Whose turn it is: by class, share and deadline, or (to compare with) by order of arrival."""
    eviction_policy: PolicyName = "joint"
    """What leaves the arena first when pages are needed."""
    strict_isolation: bool = False
    """Hard partitions of the arena by tenant: no tenant can evict what another has cached."""
    seed: int = 0
    """For requests that name no seed."""
    record: Path | None = None
    """A file for every step's plan and result, to run again with `tenora bench replay`. It holds
    what users wrote."""

    @model_validator(mode="after")
    def _sign_in_is_whole(self) -> Settings:
        if self.oidc_issuer is None:
            return self
        if self.oidc_client_id is None or self.public_url is None:
            raise ValueError(
                "sign-in by OpenID Connect needs TENORA_OIDC_CLIENT_ID and TENORA_PUBLIC_URL; the "
                "provider sends people back to <public url>/auth/callback"
            )
        for name, url in (("oidc_issuer", self.oidc_issuer), ("public_url", self.public_url)):
            if not _SAFE_URL.match(url):
                raise ValueError(
                    f"TENORA_{name.upper()} must be https:// (http:// on this machine)"
                )
        return self

    @property
    def base_url(self) -> str:
        """Where people reach us, without a slash at its end."""
        return self.public_url.rstrip("/") if self.public_url is not None else self._own_url

    @property
    def canary_base_url(self) -> str:
        if self.canary_url is not None:
            return self.canary_url.rstrip("/").removesuffix("/v1")
        return self._own_url

    @property
    def _own_url(self) -> str:
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"

    @property
    def object_store_url(self) -> str:
        return self.object_store or str((self.data_dir / "objects").resolve())

    @property
    def connections_needed(self) -> int:
        """To PostgreSQL at most, by the API processes, one worker, migrations and `doctor`."""
        return (self.workers + 1) * self.database_connections + 2

    @property
    def kernels_dir(self) -> Path | None:
        """Where an installed Tenora compiles its kernels at the first start; a checkout has them
        compiled by its Makefile."""
        return self.data_dir.resolve() / "kernels" if is_installed() else None

    @property
    def spool_folder(self) -> Path:
        return self.spool_dir or self.data_dir / "spool"

    def server_secret(self) -> ServerSecret:
        """The configured one, else the one kept in the data directory, made on first use."""
        configured = self.secret.get_secret_value() if self.secret else None
        return load_secret(self.data_dir, configured)

    def with_urls(self, *, database_url: str, redis_url: str) -> Settings:
        """The same settings with the servers that run now."""
        return self.model_copy(update={"database_url": database_url, "redis_url": redis_url})

    def resolved_device(self) -> Literal["cpu", "cuda"]:
        """`cuda` when asked for, or when `auto` finds a GPU that this torch can use."""
        return choose_device(self.device).device

    def host_adapter_bytes(self, device: Literal["cpu", "cuda"]) -> int:
        """Packed adapters kept in host memory; at most a quarter of it unless said otherwise."""
        if self.host_adapter_memory is not None:
            return self.host_adapter_memory
        return min(HOST_ADAPTER_BYTES[device], this_machine().memory_bytes // 4)

    def to_engine_config(self) -> EngineConfig:
        """The engine's share. `model` must be known by now (the default model's folder, if none
        was named); raises ValueError otherwise."""
        if self.model is None:
            raise ValueError("no model folder: resolve the default model first")
        device = self.resolved_device()
        usual = STEP_LIMITS[device]
        layer = self.draft_layer.resolve() if isinstance(self.draft_layer, Path) else None
        return EngineConfig(
            model=self.model,
            served_name=self.served_name or Path(self.model).resolve().name,
            load_format=self.load_format,
            kernels_dir=str(self.kernels_dir) if self.kernels_dir else None,
            device=device,
            dtype=self.dtype,
            weight_dtype=self.weight_dtype,
            kv_dtype=self.kv_dtype,
            adapter_dtype=self.adapter_dtype,
            threads=self.threads,
            memory_bytes=self.memory,
            arena_bytes=self.arena,
            block_tokens=self.block_tokens,
            max_context_tokens=self.max_context_tokens,
            max_running=self.max_running or usual.max_running,
            max_step_tokens=self.max_step_tokens or usual.max_step_tokens,
            max_prefill_chunk=self.max_prefill_chunk or usual.max_prefill_chunk,
            max_waiting=self.max_waiting,
            max_tenant_waiting=self.max_tenant_waiting,
            max_request_bytes=self.max_request_memory,
            max_grammar_bytes=self.max_grammar,
            grammar_timeout_ms=self.grammar_timeout_ms,
            max_adapters=self.max_adapters,
            max_rank=self.max_rank,
            max_draft_tokens=self.max_draft_tokens,
            batch_invariant=self.batch_invariant,
            draft_layer=None if layer is None else str(layer),
            draft_layer_optional=layer == default_draft_layer().resolve(),
            adapter_draft_bytes=self.adapter_draft_memory,
            host_adapter_bytes=self.host_adapter_bytes(device),
            host_kv_bytes=self.host_kv_memory,
            redis_url=self.redis_url,
            object_store=self.object_store_url,
            outbox_dir=str((self.data_dir / "outbox").resolve()),
            prefix_caching=self.prefix_caching,
            scheduling_policy=self.scheduling_policy,
            eviction_policy=self.eviction_policy,
            strict_isolation=self.strict_isolation,
            metrics_tenants=self.metrics_tenants,
            seed=self.seed,
            record=None if self.record is None else str(self.record.resolve()),
        )
