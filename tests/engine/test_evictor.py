"""What policies are told as things change: the queue's wishes, adapters that come and go, time."""

from __future__ import annotations

import msgspec

from engine_fakes import Rig, make_config, make_ref, make_request, make_tenant
from tenora_engine.events import Residency
from tenora_engine.memory.costs import CostModel
from tenora_engine.memory.policies import Candidate, EloraPolicy, JointPolicy, Kind, MemoryState
from tenora_engine.request import AdapterRef


class Watcher(JointPolicy):
    """Keeps the last candidate it was asked about, by kind and tenant."""

    def __init__(self) -> None:
        self.seen: dict[tuple[Kind, str], Candidate] = {}
        self.state: MemoryState | None = None

    def value(self, candidate: Candidate, state: MemoryState) -> float:
        self.seen[candidate.kind, candidate.namespace] = candidate
        self.state = state
        return super().value(candidate, state)


def serve(rig: Rig, name: str, prompt: list[int], adapter: AdapterRef | None = None) -> None:
    submit(rig, name, prompt, adapter)
    while rig.engine.has_work:
        rig.now_s += 0.5
        rig.engine.step()
        rig.engine.check_integrity()


def submit(rig: Rig, name: str, prompt: list[int], adapter: AdapterRef | None = None) -> None:
    tenant = make_tenant(name.split("-")[0], weight=2.0)
    rig.engine.submit(
        make_request(name, prompt, tenant=tenant, adapter=adapter, max_tokens=1, ignore_eos=True)
    )


def test_a_prefix_that_waits_to_be_used_is_wanted_until_it_runs() -> None:
    policy = Watcher()
    rig = Rig.build(make_config(), policy=policy)
    wanted = []
    serve(rig, "a-1", [1] * 9)
    wanted.append(policy.seen["kv", "ns-a"].wanted)
    submit(rig, "a-2", [1] * 9)
    wanted.append(policy.seen["kv", "ns-a"].wanted)
    rig.engine.abort("a-2")
    wanted.append(policy.seen["kv", "ns-a"].wanted)
    assert wanted == [False, True, False]
    submit(rig, "a-3", [1] * 9)
    serve(rig, "a-4", [2])
    assert not policy.seen["kv", "ns-a"].wanted
    assert (policy.seen["kv", "ns-a"].visits, policy.seen["kv", "ns-a"].weight) == (2, 2.0)


def test_a_wanted_prefix_outlives_what_is_newer() -> None:
    rig = Rig.build(make_config(num_pages=12, max_running=1))
    serve(rig, "a-1", [1] * 16)
    running = make_request("b-0", [3] * 8, tenant=make_tenant("b"), max_tokens=20, ignore_eos=True)
    rig.engine.submit(running)
    rig.engine.step()
    submit(rig, "a-2", [1] * 16)  # waits behind b
    while rig.engine.has_work:
        rig.now_s += 100.0
        rig.engine.step()
    assert rig.engine.stats().counters["cached_tokens"] == 12


def test_a_policy_knows_adapters_that_bear_kv() -> None:
    policy = Watcher()
    rig = Rig.build(make_config(max_adapters=1), policy=policy)
    bears = []
    for name, tokens in (("a-1", [1] * 20), ("b-1", [1, 2])):  # b's fill no block
        serve(rig, name, tokens, make_ref(name))
        bears.append(policy.seen["adapter", f"ns-{name[0]}"].bears_kv)
    assert bears == [True, False]
    assert policy.state is not None
    assert policy.state.resident_adapters == 1
    assert policy.state.expected_adapters > 0


def test_what_time_reorders_is_valued_anew() -> None:
    """ELORA: of the same use, many visits long ago lose to one just now, although they would win at
    the moment at which they were valued first."""
    rig = Rig.build(make_config(num_pages=12), policy=EloraPolicy())
    for number in range(6):
        serve(rig, f"a-{number}", [1] * 16)
    rig.now_s += 60.0
    serve(rig, "b-1", [2] * 16)
    serve(rig, "c-1", [3] * 24)  # needs room
    tenants = rig.engine.stats().pool.tenants
    assert tenants["ns-b"]["cached_kv"] == 4
    assert tenants.get("ns-a", {"cached_kv": 0})["cached_kv"] < 4


def test_strict_isolation_tells_a_policy_nothing_of_others() -> None:
    policy = Watcher()
    rig = Rig.build(make_config(strict_isolation=True), policy=policy)
    for name in ("a", "b"):
        tenant = msgspec.structs.replace(make_tenant(name), min_memory_share=0.5)
        request = make_request(name, [1] * 9, tenant=tenant, adapter=make_ref(f"x{name}"))
        rig.engine.submit(request)
        while rig.engine.has_work:
            rig.engine.step()
        rig.memory.costs.observe_step(1000, 1, step_s=60.0)  # a's load is seen, but not in b's KV
    state = policy.state
    assert state is not None
    assert state.capacity_bytes == 16 * rig.config.page_bytes
    assert (state.resident_adapters, state.expected_adapters) == (1, 0.0)
    assert state.adapter_bytes == 2 * rig.config.page_bytes
    at_the_start = CostModel(rig.config)
    assert rig.memory.costs.token_s > at_the_start.token_s
    assert policy.seen["kv", "ns-b"].recompute_s == at_the_start.block_s(3)


def test_an_adapter_is_worth_what_it_takes_to_have_it_from_where_it_would_come() -> None:
    """And when host memory gives it up, that is so at once."""
    policy = Watcher()
    rig = Rig.build(make_config(), policy=policy)
    ref, costs = make_ref("x"), rig.memory.costs
    serve(rig, "a-1", [1], ref)
    num_bytes = 2 * rig.config.page_bytes
    for tier in ("host", "store", "shared", "host"):
        rig.loader.tiers[ref.digest] = tier
        rig.loader.moved = {ref.digest}
        serve(rig, "b-1", [2])
        fetch_s = policy.seen["adapter", "ns-a"].fetch_s
        assert fetch_s == costs.adapter_again_s(num_bytes, tier)
    assert costs.adapter_again_s(num_bytes, "host") < costs.adapter_again_s(num_bytes, "store")


def test_an_adapter_that_only_the_store_has_outlives_kv_that_is_used_less() -> None:
    """It is used five times as often as a prompt, which takes 10 ms to compute again; the store
    takes 143 ms, host memory next to nothing. There is room for one more adapter or the prompt."""

    def survivor(tier: Residency) -> str:
        rig = Rig.build(make_config(num_pages=9))
        ref, costs = make_ref("x"), rig.memory.costs
        costs.observe_step = lambda *_: None  # type: ignore[method-assign]
        costs._token_s = 0.010 / 16
        costs.observe_load = lambda *_: None  # type: ignore[method-assign]
        costs._byte_s |= {"store": 0.143 / (2 * rig.config.page_bytes)}
        for number in range(5):
            serve(rig, f"a-{number}", [1], ref)
        serve(rig, "b-1", [2] * 16)
        rig.loader.tiers[ref.digest] = tier
        rig.loader.moved = {ref.digest}
        serve(rig, "c-1", [3] * 16)  # the demand
        return "adapter" if rig.memory.adapters.get(ref.digest) is not None else "kv"

    assert survivor("store") == "adapter"
    assert survivor("host") == "kv"


def test_strict_isolation_prices_an_adapter_alike_wherever_it_lies() -> None:
    policy = Watcher()
    rig = Rig.build(make_config(strict_isolation=True), policy=policy)
    ref, seen = make_ref("x"), []
    tenant = msgspec.structs.replace(make_tenant("a"), min_memory_share=0.5)
    for tier in ("host", "store"):  # others' loads have it given up
        rig.loader.tiers[ref.digest] = tier
        rig.loader.moved = {ref.digest}
        rig.engine.submit(make_request(tier, [1], tenant=tenant, adapter=ref, max_tokens=1))
        while rig.engine.has_work:
            rig.engine.step()
        seen.append(policy.seen["adapter", "ns-a"].fetch_s)
    assert seen[0] == seen[1]
