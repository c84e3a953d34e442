"""The engine's configuration: what the operator says (`EngineConfig`) and what follows from it and
the model (`ResolvedConfig`, made once by `memory.budget.plan_memory` and frozen)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from tenora_engine.model.modules import LORA_MODULES as LORA_MODULES

if TYPE_CHECKING:
    from tenora_kernels.segments import KVLayout

Device = Literal["cpu", "cuda"]
DType = Literal["bfloat16", "float32"]
WeightDType = Literal["auto", "int8"]
KVDType = Literal["auto", "fp8"]
AdapterDType = Literal["auto", "int8"]
PolicyName = Literal["joint", "static-lru", "unified-lru", "kv-first", "elora", "chameleon"]
SchedulingPolicy = Literal["sla", "fcfs"]
PackedDType = Literal["bfloat16", "float32", "int8"]


class StepLimits(msgspec.Struct, frozen=True):
    """What bounds a step where the operator has not said."""

    max_running: int
    max_step_tokens: int
    max_prefill_chunk: int


STEP_LIMITS: dict[Device, StepLimits] = {
    "cpu": StepLimits(max_running=64, max_step_tokens=512, max_prefill_chunk=256),
    "cuda": StepLimits(max_running=256, max_step_tokens=2048, max_prefill_chunk=1024),
}
"""A GPU reads its weights for 256 rows in the time of one, and is full of work at some thousand
tokens; a laptop's processor is at some hundred."""

HOST_ADAPTER_BYTES: dict[Device, int] = {"cpu": 256 * 1024**2, "cuda": 8 * 1024**3}
"""A rank-16 adapter of an 8B model takes 86 MiB, and a machine with a GPU has memory."""

CPU_MEMORY_BYTES = 1024**3


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What the operator chooses. Sent to the engine process as it is."""

    model: str  # a Hugging Face folder
    served_name: str  # the base model's id in the API
    load_format: Literal["auto", "dummy"] = "auto"  # dummy: config only, seeded random weights
    kernels_dir: str | None = None  # where to compile the CPU's, if nobody has; None: do not
    device: Device = "cpu"
    dtype: DType = "bfloat16"
    weight_dtype: WeightDType = "auto"  # of the linears' weights; auto = dtype
    kv_dtype: KVDType = "auto"  # auto = dtype; fp8 = e4m3, half the bytes, CUDA only
    adapter_dtype: AdapterDType = "auto"  # of adapters' pages; int8 = half the bytes, CPU only
    threads: int | None = None  # of the compute pool; None = all cores
    memory_bytes: int | None = 2 * 1024**3
    """Weights, workspace and arena together; None = on CUDA what is free there, else
    CPU_MEMORY_BYTES."""
    arena_bytes: int | None = None  # the arena alone; None = what the budget leaves
    block_tokens: int = 16
    max_context_tokens: int | None = None  # None = the model's own
    max_running: int = 64  # sequences in one step
    max_step_tokens: int = 512  # tokens of one step, decode and prefill together
    max_prefill_chunk: int = 256  # tokens of one tenant beside others
    max_waiting: int = 1024  # sequences in the queue
    max_tenant_waiting: int = 256  # of one tenant
    max_request_bytes: int = 256 * 1024**2  # prompts and more of requests in flight, on the host
    max_adapters: int = 256  # adapter slots on the device
    max_rank: int = 128
    max_draft_tokens: int = 16  # of a sequence, verified in one step; 0 = none
    batch_invariant: bool = False
    """A token has the same bits whatever else a step computes, so that drafts show in no answer.
    The CPU's compiled kernels are so anyway; on CUDA it takes slower ones, and allows drafts."""
    draft_layer: str | None = None  # a file of model.draft_layer's; CPU only
    draft_layer_optional: bool = False  # there is none where it cannot run, instead of an error
    adapter_draft_bytes: int = 0
    """Draft layers of adapters' own, kept in memory; 0 = none, as under strict isolation."""
    host_adapter_bytes: int = HOST_ADAPTER_BYTES["cpu"]  # packed adapters kept in host memory
    host_kv_bytes: int = 0  # copies of evicted KV in host memory; none under strict isolation
    shared_adapter_bytes: int = 64 * 1024**2  # the largest packed adapter put into Redis
    shared_adapter_ttl_s: int = 3600
    loader_threads: int = 2
    redis_url: str | None = None  # the shared tier; None = skip it
    redis_key: bytes = b""  # 32 secret bytes, the same for all engines that share it
    object_store: str | None = None  # path or URL of the store that holds adapters by digest
    outbox_dir: str | None = None  # usage records not yet acknowledged; None = memory only
    max_grammar_bytes: int = 64 * 1024  # the largest text of a request's grammar
    grammar_timeout_ms: int = 1000  # of processor time, in which a grammar has to be compiled
    prefix_caching: bool = True
    scheduling_policy: SchedulingPolicy = "sla"  # fcfs = order of arrival, to compare with
    eviction_policy: PolicyName = "joint"  # see memory.policies
    strict_isolation: bool = False  # hard partitions of the arena by tenant
    metrics_tenants: int = 100  # tenants that telemetry tells apart
    seed: int = 0
    record: str | None = None  # a file for all plans and results, see executor.recording


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What the rest of Tenora needs to know about the base model."""

    id: str
    architecture: str
    num_layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    context_tokens: int
    dtype: DType
    weight_bytes: int
    modules: dict[str, tuple[int, int]]  # LORA_MODULES name -> (in, out) features
    eos_token_ids: tuple[int, ...]
    warnings: tuple[str, ...] = ()  # for the operator: what serves, and not as it should


class ResolvedConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`EngineConfig` plus every size that follows from it. Nothing is derived after this.

    `model.context_tokens` is what one sequence can really have (see `plan_memory`)."""

    engine: EngineConfig
    model: ModelInfo
    page_elements: int
    page_bytes: int
    num_pages: int
    workspace_bytes: int
    workspace_parts: dict[str, int] = {}  # of it, by what it is for
    memory_bytes: int = 0  # the budget
    cuda_bytes: int = 0  # CUDA: libraries, captured graphs, rotary and staging tables
    table_bytes: int = 0  # AdapterTable
    draft_bytes: int = 0  # for draft layers of adapters
    headroom_bytes: int = 0

    @property
    def packed_dtype(self) -> PackedDType:
        """Of the adapters' pages."""
        return "int8" if self.engine.adapter_dtype == "int8" else self.engine.dtype

    @property
    def packed_page_elements(self) -> int:
        """Elements of `packed_dtype` in one page."""
        return self.page_bytes if self.packed_dtype == "int8" else self.page_elements

    @property
    def num_host_pages(self) -> int:
        """Of KV on the host; none under strict isolation, where one tenant could see by a miss that
        another fills them."""
        engine = self.engine
        return 0 if engine.strict_isolation else engine.host_kv_bytes // self.page_bytes

    @property
    def kv_layout(self) -> KVLayout:
        # Imported here: whoever only configures an engine must not pay for torch (220 MB).
        from tenora_kernels.segments import KVLayout

        return KVLayout(
            num_layers=self.model.num_layers,
            block_tokens=self.engine.block_tokens,
            kv_heads=self.model.kv_heads,
            head_dim=self.model.head_dim,
        )
