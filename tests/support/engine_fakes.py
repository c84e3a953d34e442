"""An executor for engine tests, without a model (its loader is `fake_loader`): it keeps token ids
where KV would be and reads every context back through the block table, so that any mistake in
paging, prefix sharing, preemption or adapter slots shows as a wrong token at once."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass

from torch import Tensor

from batch_reference import check_batch
from fake_copier import FakeCopier
from fake_loader import FakeLoader, tag
from tenora_engine.config import LORA_MODULES, EngineConfig, ModelInfo, ResolvedConfig
from tenora_engine.engine import Engine
from tenora_engine.events import Event
from tenora_engine.executor.batch import BatchBuilder
from tenora_engine.executor.device_memory import DeviceMemory
from tenora_engine.memory.adapter_arrivals import AT_ONCE_BYTES
from tenora_engine.memory.manager import MemoryManager
from tenora_engine.memory.policies import EvictionPolicy
from tenora_engine.pace import Pace
from tenora_engine.request import (
    AdapterRef,
    GenerationRequest,
    LateAction,
    SamplingParams,
    Tenant,
)
from tenora_engine.scheduling.plan import ScheduledSequence, ScheduledStep
from tenora_engine.sequence import Sequence
from tenora_engine.step import StepPlan, StepResult, decode_plan, encode
from tenora_kernels.segments import BASE_SLOT

VOCAB = 97
EOS = 96


def next_token(token_ids: list[int], adapter_tag: int, index: int, eos_every: int) -> int:
    """What the "model" says after a context. One token in `eos_every` is EOS."""
    value = tag(f"{token_ids}/{adapter_tag}/{index}")
    return EOS if value % eos_every == 0 else value % EOS


def expected_output(
    request: GenerationRequest, index: int, context_tokens: int, eos_every: int
) -> tuple[list[int], str]:
    """What one sequence of a request must generate, and why it must end: run alone, by a loop
    without pages. The stopping token is included."""
    sampling = request.sampling
    adapter_tag = 0 if request.adapter is None else tag(request.adapter.digest)
    token_ids = list(request.prompt_token_ids)
    output: list[int] = []
    stops = {*sampling.stop_token_ids, *(() if sampling.ignore_eos else (EOS,))}
    while True:
        token = next_token(token_ids, adapter_tag, index, eos_every)
        token_ids.append(token)
        output.append(token)
        if token in stops:
            return output, "stop"
        if len(output) == sampling.max_tokens or len(token_ids) == context_tokens:
            return output, "length"


def make_config(
    *,
    num_pages: int = 32,
    block_tokens: int = 4,
    max_running: int = 8,
    max_step_tokens: int = 16,
    max_prefill_chunk: int = 7,
    max_waiting: int = 64,
    max_tenant_waiting: int = 64,
    max_adapters: int = 4,
    max_rank: int = 8,
    context_tokens: int = 64,
    prefix_caching: bool = True,
    strict_isolation: bool = False,
    host_pages: int = 0,
) -> ResolvedConfig:
    """A model of one layer with pages of `8 * block_tokens` float32 elements."""
    engine = EngineConfig(
        model="fake",
        served_name="fake",
        dtype="float32",
        block_tokens=block_tokens,
        max_running=max_running,
        max_step_tokens=max_step_tokens,
        max_prefill_chunk=max_prefill_chunk,
        max_waiting=max_waiting,
        max_tenant_waiting=max_tenant_waiting,
        max_adapters=max_adapters,
        max_rank=max_rank,
        prefix_caching=prefix_caching,
        strict_isolation=strict_isolation,
        host_kv_bytes=host_pages * 4 * 8 * block_tokens,
    )
    model = ModelInfo(
        id="fake",
        architecture="LlamaForCausalLM",
        num_layers=1,
        hidden=4,
        intermediate=8,
        heads=1,
        kv_heads=1,
        head_dim=4,
        vocab=VOCAB,
        context_tokens=context_tokens,
        dtype="float32",
        weight_bytes=4000,
        modules=dict.fromkeys(LORA_MODULES, (4, 4)),
        eos_token_ids=(EOS,),
    )
    page_elements = 8 * block_tokens
    return ResolvedConfig(
        engine=engine,
        model=model,
        page_elements=page_elements,
        page_bytes=4 * page_elements,
        num_pages=num_pages,
        workspace_bytes=0,
    )


@dataclass(frozen=True)
class ExecutedPlan:
    """A plan, and the sequences that the scheduler meant by it."""

    plan: StepPlan
    step: ScheduledStep

    @property
    def scheduled(self) -> Items[ScheduledSequence]:
        return self.step.items

    @property
    def num_tokens(self) -> int:
        return self.plan.num_tokens


class FakeExecutor:
    """Writes `(token id, tag of what computed it)` into each token's place in its page; to sample,
    reads all of the context back and refuses any difference."""

    def __init__(
        self,
        config: ResolvedConfig,
        memory: DeviceMemory,
        eos_every: int = 11,
        can_preempt: bool = False,
    ) -> None:
        self.config = config
        self.memory = memory
        self.pool, self.table = memory.arena.pool, memory.table
        self.stage = memory.stage
        self.take_ended_copies = memory.take_ended_copies
        self.close = memory.close
        self.eos_every = eos_every
        self.fail_next: Exception | None = None
        self.fails: Callable[[ExecutedPlan], Exception | None] = lambda executed: None
        self.plans: list[ExecutedPlan] = []
        self.scheduled: Callable[[StepPlan], ScheduledStep]  # of the engine's scheduler
        self.computed_tokens = 0
        self.builder = BatchBuilder(config.engine.block_tokens, self.table)
        self.can_preempt = can_preempt
        self.is_exact = True
        self.preemptions = 0
        self._preempt_wanted = False
        self._last_applied = 0  # number of a plan

    @property
    def on_copy_ended(self) -> Callable[[], None] | None:
        return self.memory.on_copy_ended

    @on_copy_ended.setter
    def on_copy_ended(self, call: Callable[[], None] | None) -> None:
        self.memory.on_copy_ended = call

    def preempt(self, wanted: bool) -> None:
        self._preempt_wanted = wanted

    def execute(self, plan: StepPlan) -> StepResult | None:
        if plan.number > self._last_applied:  # else it goes on
            self._last_applied = plan.number
            self.memory.apply(decode_plan(encode(plan)).memory)
        if not plan.rows:
            return StepResult([], [])
        step = self.scheduled(plan)
        if step.items:  # else it is a probe, of no sequence
            self._check(plan, step)
        return self.run(ExecutedPlan(plan, step))

    def _check(self, plan: StepPlan, step: ScheduledStep) -> None:
        engine = self.config.engine
        slots = plan.rows.adapter_slot.tolist()
        assert slots == sorted(slots), "sequences of one adapter slot must stand together"
        assert plan.num_tokens <= engine.max_step_tokens
        assert len(plan.rows) <= engine.max_running
        assert len(set(plan.rows.sequence)) == len(plan.rows)
        for item in step:
            sequence = item.sequence
            assert item.num_tokens >= 1
            assert item.samples == (item.num_tokens == sequence.num_uncomputed)
            end = sequence.num_computed + item.num_tokens + len(item.drafts)
            assert len(sequence.block_table) * engine.block_tokens >= end
            assert len(set(sequence.block_table)) == len(sequence.block_table)
        there = decode_plan(encode(plan))
        assert there == plan, "a plan is the same in another process"
        check_batch(self.builder.build(there), step, engine.block_tokens)

    def run(self, executed: ExecutedPlan) -> StepResult | None:
        """A step that is preempted has written nothing yet: what it is to write to and to read must
        still be its own when it goes on."""
        if self._preempt_wanted and executed.plan.is_preemptible:
            self.preemptions += 1
            return None
        self.plans.append(executed)
        for item in executed.step:
            self._write(item)
        if self.fail_next is not None:
            error, self.fail_next = self.fail_next, None
            raise error
        if (fault := self.fails(executed)) is not None:
            raise fault
        tokens = [self._sample(item) if item.samples else [] for item in executed.step]
        return StepResult(token_ids=tokens, logprobs=[None] * len(tokens))

    def _write(self, item: ScheduledSequence) -> None:
        sequence, owner = item.sequence, _owner(item.sequence)
        size, start = self.config.engine.block_tokens, sequence.num_computed
        own = sequence.token_ids[start : start + item.num_tokens]
        for position, token in enumerate([*own, *item.drafts], start):
            page, place = sequence.block_table[position // size], position % size
            self.pool[page, 2 * place] = token
            self.pool[page, 2 * place + 1] = owner
        self.computed_tokens += item.num_tokens

    def _sample(self, item: ScheduledSequence) -> list[int]:
        sequence = item.sequence
        size, length = self.config.engine.block_tokens, len(sequence.token_ids)
        kv = self.pool[sequence.block_table.tolist()].reshape(len(sequence.block_table), -1)
        rows = kv[:, : 2 * size].reshape(-1, 2)[:length]
        assert [int(value) for value in rows[:, 0]] == sequence.token_ids, "KV of other tokens"
        owner = _owner(sequence)
        assert all(int(value) == owner for value in rows[:, 1]), "KV of another tenant or adapter"
        context = sequence.token_ids.copy()
        for draft in (*item.drafts, None):
            adapter_tag = self._adapter_tag(sequence)
            context.append(next_token(context, adapter_tag, sequence.index, self.eos_every))
            if context[-1] != draft:
                break
        return context[length:]

    def _adapter_tag(self, sequence: Sequence) -> int:
        """Read from the arena, through the slot's table, in all rank rows."""
        slot = sequence.adapter_slot
        adapter = sequence.request.adapter
        if slot == BASE_SLOT:
            assert adapter is None
            return 0
        assert adapter is not None
        rank = int(self.table.rank[slot].max())
        assert rank == adapter.rank
        flat = self.pool.view(-1)
        values = {int(flat[offset]) for offset in self.table.granule_offset[slot, 0, :rank]}
        assert len(values) == 1, "an adapter's pages were overwritten"
        return values.pop()


def _owner(sequence: Sequence) -> int:
    request = sequence.request
    digest = "BASE" if request.adapter is None else request.adapter.digest
    return tag(f"{request.tenant.namespace}/{digest}")


def fails_with(request_id: str) -> Callable[[ExecutedPlan], Exception | None]:
    """Of a step with a row of that request: what it raises."""

    def fails(executed: ExecutedPlan) -> Exception | None:
        names = {item.sequence.request.request_id for item in executed.scheduled}
        return RuntimeError(f"{request_id} is in it") if request_id in names else None

    return fails


@dataclass
class Rig:
    """An engine on fakes. `clock` is set by the test."""

    config: ResolvedConfig
    engine: Engine
    executor: FakeExecutor
    loader: FakeLoader
    copier: FakeCopier  # of KV
    adapter_copier: FakeCopier
    memory: MemoryManager
    now_s: float = 1000.0

    @classmethod
    def build(
        cls,
        config: ResolvedConfig,
        *,
        instant: bool = True,
        eos_every: int = 11,
        policy: EvictionPolicy | None = None,
        at_once_bytes: float = AT_ONCE_BYTES,
        can_preempt: bool = False,
        wall_clock: Callable[[], float] | None = None,
    ) -> Rig:
        rig: Rig
        copiers: list[FakeCopier] = []

        def clock() -> float:
            return rig.now_s

        def make_copier(
            device_pages: Tensor, parallel: int = 1, pace: Pace | None = None
        ) -> FakeCopier:
            copiers.append(FakeCopier(device_pages, instant))
            return copiers[-1]

        memory = MemoryManager(config, policy, clock, at_once_bytes, wall_clock)
        executor = FakeExecutor(config, DeviceMemory(config, make_copier), eos_every, can_preempt)
        loader = FakeLoader(config, instant)
        engine = Engine(config, executor, loader, memory, clock)
        executor.scheduled = engine._scheduler.scheduled
        copier, adapter_copier = copiers
        rig = cls(config, engine, executor, loader, copier, adapter_copier, memory)
        return rig

    def apply_operations(self) -> None:
        """What memory has been told outside of a step, done."""
        self.executor.stage(self.memory.operations.take_staged())
        self.executor.memory.apply(self.memory.operations.take())


def run(rig: Rig, seconds: float = 0.0) -> list[Event]:
    """Step until nothing is left to do, `seconds` from one step to the next; their events."""
    events: list[Event] = []
    while rig.engine.has_work:
        rig.now_s += seconds
        events += rig.engine.step()
        rig.engine.check_integrity()
    return events


def fix_step_time(rig: Rig, step_s: float) -> None:
    """From now on every step takes so long, as far as the scheduler is told, and costs stay as they
    are: nothing depends on this machine."""
    scheduler = rig.engine._scheduler
    commit, fixed_s = scheduler.commit, step_s

    def commit_fixed(plan: StepPlan, result: StepResult, step_s: float | None) -> list[Event]:
        return commit(plan, result, fixed_s)

    scheduler.commit = commit_fixed  # type: ignore[method-assign]
    rig.memory.costs.observe_step = lambda *_: None  # type: ignore[method-assign]


def make_tenant(
    name: str = "t0",
    weight: float = 1.0,
    tpot_ms: float | None = None,
    *,
    tier: str = "default",
    ttft_ms: float | None = None,
    late: LateAction = "best_effort",
) -> Tenant:
    return Tenant(
        key=name,
        namespace=f"ns-{name}",
        weight=weight,
        tier=tier,
        ttft_ms=ttft_ms,
        tpot_ms=tpot_ms,
        late=late,
    )


def make_ref(name: str, rank: int = 8) -> AdapterRef:
    return AdapterRef(digest=f"sha256:{name}", rank=rank)


def make_request(
    request_id: str,
    prompt: list[int],
    *,
    tenant: Tenant | None = None,
    adapter: AdapterRef | None = None,
    max_tokens: int = 8,
    n: int = 1,
    stop_token_ids: tuple[int, ...] = (),
    ignore_eos: bool = False,
    waited_s: float = 0.0,
) -> GenerationRequest:
    return GenerationRequest(
        request_id=request_id,
        tenant=tenant or make_tenant(),
        prompt_token_ids=prompt,
        sampling=SamplingParams(
            temperature=0.0,
            max_tokens=max_tokens,
            n=n,
            stop_token_ids=stop_token_ids,
            ignore_eos=ignore_eos,
        ),
        adapter=adapter,
        waited_s=waited_s,
    )
