"""What the operator chooses: every option of `tenora serve`, each also as `TENORA_*` in the
environment. The text under a field is its help. It knows how the fields become an engine's
configuration, not how anything runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SecretStr,
    ValidationInfo,
    field_validator,
    model_validator,
)
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
from tenora_platform.plain_text import ONE_LINE
from tenora_platform.resources import default_draft_layer, is_installed
from tenora_platform.secret import SECRET_MIN, ServerSecret, load_secret, visible
from tenora_platform.setting_urls import address_of, is_safe, names_a_server

_UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4}
_BINARY_UNITS = {"ki": 1024, "mi": 1024**2, "gi": 1024**3, "ti": 1024**4}
_PUBLIC_PATH = re.compile(r"^(/[A-Za-z0-9._~-]+)*/?$")
_SIZE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*(|[kmgt]i?)b?\s*$", re.IGNORECASE)


def parse_size(value: Any) -> int:
    """Bytes from `2GiB`, `512 MB`, `1.5g` or a plain number. Raises ValueError on anything else."""
    if isinstance(value, int):
        return value
    match = _SIZE.match(str(value))
    if match is None:
        raise ValueError(f"{value!r} is not a size; write a size such as 2GiB, 512MiB or 1000000")
    number, unit = match.groups()
    return int(float(number) * (_UNITS | _BINARY_UNITS)[unit.lower()])


Size = Annotated[int, BeforeValidator(parse_size)]
ADMIN_KEY_MIN = 16
"""Characters of a configured admin key; of the server secret, `secret.SECRET_MIN`."""


def _admin_key(value: SecretStr) -> SecretStr:
    """Without what surrounds it, which no request can send."""
    key = value.get_secret_value().strip()
    if re.match(ONE_LINE, key) is None or sum("!" <= each <= "~" for each in key) < ADMIN_KEY_MIN:
        raise ValueError(
            f"TENORA_ADMIN_KEY must have at least {ADMIN_KEY_MIN} characters of visible ASCII, and "
            "none that is hidden; `openssl rand -hex 32` makes one"
        )
    return SecretStr(key)


def _secret(value: SecretStr) -> SecretStr:
    if visible(value.get_secret_value()) < SECRET_MIN:
        raise ValueError(
            f"TENORA_SECRET must have at least {SECRET_MIN} characters that can be seen; `openssl "
            "rand -hex 32` makes one"
        )
    return value


_SERVERS = {
    "database_url": (
        "postgresql://user:password@host:5432/database",
        ("postgresql", "postgres"),
    ),
    "redis_url": ("redis://:password@host:6379/0", ("redis", "rediss", "unix")),
}


def _is_blank(value: object) -> bool:
    text = value.get_secret_value() if isinstance(value, SecretStr) else value
    return isinstance(text, str) and not text.strip()


class Settings(BaseSettings):
    """One platform process and its engine. Frozen; `with_urls` returns a changed copy."""

    model_config = SettingsConfigDict(
        env_prefix="TENORA_",
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        hide_input_in_errors=True,  # of a secret that is too short, too
    )

    # The HTTP edge
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = Field(default=8000, ge=1, le=65535)
    """Port to listen on."""
    workers: int = Field(default=1, ge=1)
    """Number of API processes behind the port."""
    admin_key: Annotated[SecretStr, AfterValidator(_admin_key)] | None = None
    """The first admin key; generated and shown once if not set."""
    secret: Annotated[SecretStr, AfterValidator(_secret)] | None = None
    """The server secret, the same for all processes; kept in the data directory if not set."""
    max_body: Size = 8 * 1024**2
    """Maximum JSON body of an inference request; other requests can have 1 MiB."""
    max_stored_responses: int = Field(default=10_000, ge=0)
    """Maximum stored responses of one tenant; see `stored_responses` of plans."""
    max_stored_responses_size: Size = 1024**3
    """Maximum size of the stored responses of one tenant."""
    max_upload: Size = 1024**3
    """Maximum multipart upload."""
    upload_share: float = Field(default=0.2, gt=0, le=1)
    """Fraction of a CPU core that each API process may use to receive uploads; 1: all of it."""
    allow_control_tokens: bool = False
    """Whether control tokens that are written out in messages and prompts take effect."""
    tool_parser: Literal["auto", ToolFormatName] = "auto"
    """The format in which the base model writes tool calls; auto derives it from its chat
    template."""
    disk_reserve: Size = 256 * 1024**2
    """Minimum free space on the data directory's disk; uploads that would leave less get 507."""
    cors_origins: str = ""
    """Origins whose pages may call the API (comma-separated), or *; empty: none."""
    trusted_proxies: str = "127.0.0.1"
    """Addresses of proxies whose X-Forwarded-For is trusted (comma-separated), or *; none: no
    proxy's."""
    max_connections: int | None = Field(default=None, ge=1)
    """Maximum number of connections; default: what the limit of open files allows."""
    max_address_connections: int = Field(default=1000, ge=1)
    """Maximum connections per client address; raise it behind a proxy, which all of them come
    from."""
    head_timeout_s: float = Field(default=10.0, gt=0)
    """Seconds within which the request headers must arrive."""
    min_body_rate: Size = 1000
    """Minimum bytes per second of a request body, over every ten seconds; else the connection is
    closed."""
    drain_s: float = Field(default=10.0, ge=0)
    """Seconds for requests in flight to finish when the server stops; then they get an error
    event."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Minimum level of log messages."""
    lease_s: float = Field(default=30.0, gt=0)
    """Seconds after which parallel requests of a crashed process no longer count."""
    limits_fallback_s: float = Field(default=60.0, ge=0)
    """Seconds for which each process checks rate limits on its own while Redis is away; 0:
    never."""
    metrics_tenants: int = Field(default=100, ge=0)
    """Number of tenants with metrics of their own (the first to come); all others are called
    other."""
    canary_every_s: float = Field(default=0, ge=0)
    """Seconds between rounds of synthetic checks of answers and bills (canary); 0: none."""
    canary_url: str | None = None
    """Address that the synthetic checks use; default: host and port of this installation's API."""
    probe_adapters: bool = True
    """Whether every active version is probed with a few prompts, beside the base model, for its
    report."""
    evaluation_retention_days: int | None = Field(default=None, ge=1)
    """Days for which a finished evaluation is kept, with its items; default: for ever."""
    auth_cache_s: int = Field(default=10, ge=0)
    """Seconds for which a key is trusted without asking the database again; 0: never."""

    # Who signs in
    public_url: str | None = None
    """Public address of the portal and the API; default: http://host:port."""
    session_idle_s: float = Field(default=12 * 3600, gt=0)
    """Seconds after which an unused portal session ends."""
    session_max_s: float = Field(default=7 * 24 * 3600, gt=0)
    """Seconds after which a portal session ends in any case."""
    oidc_issuer: str | None = None
    """The OpenID Connect provider that people sign in with; without it, they sign in with a key."""
    oidc_client_id: str | None = None
    """Tenora's client id at the provider."""
    oidc_client_secret: SecretStr | None = None
    """Tenora's client secret at the provider; not set for a public client."""
    oidc_name: str = "single sign-on"
    """Text of the sign-in button after "Sign in with"."""
    oidc_scopes: str = "openid email profile"
    """Scopes requested from the provider."""
    oidc_owner_email: str | None = None
    """A person who signs in with this verified email becomes an owner among the operator's
    people."""

    # Money
    invoice_font: Path | None = None
    """A font file for letters in invoices' PDFs that the built-in Noto fonts lack."""
    webhook_private_addresses: bool = False
    """Whether webhooks may be sent into private networks, and by plain HTTP."""

    # Where state lives
    installation: InstallationName = "tenora"
    """Name of the installation, for its roles and schema if several share a PostgreSQL server."""
    data_dir: Path = Path(".data")
    """The directory for everything that Tenora writes."""
    database_url: str | None = None
    """PostgreSQL; default: an embedded server in the data directory."""
    database_connections: int = Field(default=24, ge=4)
    """Maximum connections of one API or worker process to PostgreSQL."""
    usage_retention_months: int = Field(default=0, ge=0)
    """Full months that usage events stay in the database besides the current month; older ones are
    archived in the object store. 0: for ever."""
    tenant_grace_days: int = Field(default=7, ge=0, le=365)
    """Days after which a tenant that was deleted is erased, unless it is restored."""
    history_minutes_days: int = Field(default=14, ge=1)
    """Days for which history is kept by the minute."""
    history_hours_days: int = Field(default=400, ge=1)
    """Days for which history is kept by the hour."""
    statement_timeout_s: float = Field(default=15.0, ge=0.1)
    """Timeout in seconds for one database statement of a request; workers have ten minutes."""
    redis_url: str | None = None
    """Redis or Valkey; default: an embedded server in the data directory."""
    object_store: str | None = None
    """A path, s3://, gs:// or az://; default: <data-dir>/objects."""
    import_prefixes: str = ""
    """URLs below which tenants may import adapters (comma-separated), such as s3://bucket/{tenant},
    where {tenant} stands for the tenant's id; empty: none."""
    spool_dir: Path | None = None
    """Directory for uploads while they are checked; default: <data-dir>/spool."""
    portal_dir: Path | None = None
    """Directory of the built portal; default: admin_ui/dist of the checkout."""

    # The engine
    engine: str | None = None
    """Address of the engine, ipc:///path or tcp://host:port; default: Tenora starts one itself."""
    model: str | None = None
    """A Hugging Face folder (docs/models.md); default: SmolLM2-135M-Instruct."""
    served_name: str | None = None
    """The base model's id in the API; default: the folder's name."""
    load_format: Literal["auto", "dummy"] = "auto"
    """dummy: load only the model's config, and use random weights, for measurements."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """The device that the model runs on."""
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """Data type of weights, KV and adapters."""
    weight_dtype: Literal["auto", "int8"] = "auto"
    """Data type of the base model's linear layers; int8 halves what a step reads (CPU only)."""
    kv_dtype: Literal["auto", "fp8"] = "auto"
    """Data type of the KV cache: as dtype, or fp8 (e4m3), which takes half the memory (CUDA
    only)."""
    adapter_dtype: Literal["auto", "int8"] = "auto"
    """Data type of adapters: as dtype, or int8, which takes half the memory (CPU only)."""
    threads: int | None = Field(default=None, ge=1)
    """Compute threads of the engine; default: as many as it has CPUs."""
    memory: Size | None = None
    """Memory for weights, workspace and arena together; default: 1 GiB, in a smaller container
    three quarters of its memory, on a GPU what is free there."""
    arena: Size | None = None
    """Memory of the page arena alone; default: what remains of the budget."""
    block_tokens: int = Field(default=16, ge=1)
    """Tokens per KV page."""
    max_context_tokens: int | None = Field(default=None, ge=1)
    """Maximum length of prompt and answer together; default: the model's own."""
    max_running: int | None = Field(default=None, ge=1)
    """Maximum sequences in one step; default: 64, on a GPU 256."""
    max_step_tokens: int | None = Field(default=None, ge=1)
    """Maximum tokens of one step, decode and prefill together; default: 512, on a GPU 2048."""
    max_prefill_chunk: int | None = Field(default=None, ge=1)
    """Maximum prompt tokens of one tenant in one step while others wait or run; default: 256, on a
    GPU 1024."""
    max_waiting: int = Field(default=1024, ge=1)
    """Maximum sequences in the queue; more are refused."""
    max_tenant_waiting: int = Field(default=256, ge=1)
    """Maximum sequences of one tenant in the queue."""
    max_request_memory: Size = 256 * 1024**2
    """Host memory for prompts, predictions and grammars of requests in flight; a tenant can use a
    quarter of it, or one request. Requests above that are refused."""
    max_grammar: Size = 64 * 1024
    """Maximum size of a grammar or JSON schema that answers must follow."""
    grammar_timeout_ms: int = Field(default=1000, ge=1)
    """CPU time within which a grammar must be compiled."""
    max_adapters: int = Field(default=256, ge=1)
    """Maximum adapters on the device at once, as far as pages allow."""
    max_rank: int = Field(default=128, ge=1)
    """Maximum rank of an adapter."""
    max_draft_tokens: int = Field(default=16, ge=0, le=64)
    """Maximum draft tokens per sequence and step (speculative decoding); 0: none."""
    batch_invariant: bool = False
    """On CUDA: make answers bitwise independent of what else runs, which allows speculative
    decoding."""
    draft_layer: Literal["none"] | Path | None = None
    """A trained draft layer for the base model (a file made by `examples/train_draft.py`). The
    default model has one, unless this is `none`."""
    adapter_draft_memory: Size = 32 * 1024**2
    """Memory for draft layers that adapters bring; 0: they are not used, as under strict
    isolation."""
    stream_chunk_tokens: int = Field(default=0, ge=0, le=256)
    """Tokens per chunk of a stream, so that its size reveals nothing about drafts; 0: as they
    come."""
    host_adapter_memory: Size | None = None
    """Memory on the host for packed adapters; default: 256 MiB, on a GPU 8 GiB or a quarter of the
    machine's memory, whichever is less."""
    host_kv_memory: Size = 0
    """Memory on the host for copies of evicted KV; not used under strict isolation."""
    prefix_caching: bool = True
    """Reuse the KV of equal prefixes, within one tenant and adapter."""
    scheduling_policy: SchedulingPolicy = "sla"
    """Scheduling order: by class, share and deadline (sla), or by order of arrival, for
    comparison."""
    eviction_policy: PolicyName = "joint"
    """What is evicted from the arena first when pages are needed."""
    strict_isolation: bool = False
    """Hard partitions of the arena by tenant: no tenant can evict what another has cached."""
    seed: int = 0
    """Seed for requests that set none."""
    record: Path | None = None
    """Record every step's plan and result to this file, to replay with `tenora bench replay`. It
    contains what users wrote."""

    @model_validator(mode="before")
    @classmethod
    def _empty_is_absent(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Compose files and shells set what is unset to an empty string."""
        return {name: value for name, value in given.items() if not _is_blank(value)}

    @field_validator("database_url", "redis_url")
    @classmethod
    def _is_url(cls, value: str | None, info: ValidationInfo) -> str | None:
        """Without the value in the error: it may hold a password."""
        example, schemes = _SERVERS[str(info.field_name)]
        if value is None or names_a_server(value, schemes):
            return value
        raise ValueError(
            f"must be a URL, such as {example}; characters such as / @ # ? and % in a password are "
            "written as %2F %40 %23 %3F and %25"
        )

    @field_validator("public_url")
    @classmethod
    def _is_address(cls, value: str | None) -> str | None:
        parts = None if value is None else address_of(value)
        if value is not None and (parts is None or not _PUBLIC_PATH.match(parts.path)):
            raise ValueError(
                "must be an address such as https://tenora.example or https://example.com/tenora"
            )
        return value

    @model_validator(mode="after")
    def _sign_in_is_whole(self) -> Settings:
        if self.oidc_issuer is None:
            return self
        if self.oidc_client_id is None or self.public_url is None:
            raise ValueError(
                "sign-in with OpenID Connect also needs TENORA_OIDC_CLIENT_ID and "
                "TENORA_PUBLIC_URL; the provider redirects people back to <public "
                "url>/auth/callback"
            )
        for name, url in (("oidc_issuer", self.oidc_issuer), ("public_url", self.public_url)):
            if not is_safe(url):
                raise ValueError(
                    f"TENORA_{name.upper()} must start with https:// (http:// only for this "
                    "machine)"
                )
        return self

    @property
    def base_url(self) -> str:
        """Where people reach us, without a slash at its end."""
        return self.public_url.rstrip("/") if self.public_url is not None else self._own_url

    @property
    def path_prefix(self) -> str:
        """The path of the public URL, below which a proxy shows us, such as `/tenora`; "" at the
        root of its host."""
        return urlsplit(self.base_url).path

    @property
    def trusts_proxies(self) -> bool:
        """Whether any proxy's word counts for where a request came from. An empty setting is an
        absent one, so that it takes a word to say none."""
        return self.trusted_proxies.strip().lower() != "none"

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
            redis_key=self.server_secret().key("redis-adapters"),
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
