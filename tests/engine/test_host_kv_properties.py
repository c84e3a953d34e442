"""The engine machine with a host tier for KV: few prefixes that come again and an arena that holds
a few of them, so that most of what is cached goes to the host and comes back, is cancelled or
purged on the way. A fetch takes less than computing by the costs that stand at first."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import initialize, precondition, rule

from engine_fakes import Rig, fix_step_time, make_config, make_tenant
from engine_machine import REFS, EngineMachine
from tenora_engine.memory.policies import POLICIES, make_policy
from tenora_engine.request import AdapterRef, Tenant

_PREFIXES: list[list[int]] = [[7] * 24, [5, 6] * 12, list(range(24)), list(range(40, 64))]
_STEPS_S = (0.0, 0.01, 1.0)  # 12 blocks of 2 tokens take 0.024 s to compute
_TENANTS = [make_tenant("t0"), make_tenant("t3", weight=2.0)]


class HostKVMachine(EngineMachine):
    @initialize(
        num_pages=st.integers(14, 40),
        host_pages=st.sampled_from((4, 16, 64, 64)),
        policy=st.sampled_from(list(POLICIES)),
        instant=st.booleans(),
        slots=st.integers(1, 2),
        budget=st.sampled_from((4, 4, 16)),
        step_s=st.sampled_from(_STEPS_S),
    )
    def start(
        self,
        num_pages: int,
        host_pages: int,
        policy: str,
        instant: bool,
        slots: int,
        budget: int,
        step_s: float,
    ) -> None:
        self.share = 0.0
        self.policy = policy
        config = make_config(
            num_pages=num_pages,
            block_tokens=2,
            max_running=3,
            max_step_tokens=budget,
            max_adapters=slots,
            max_waiting=24,
            context_tokens=40,
            host_pages=host_pages,
        )
        self.rig = Rig.build(config, instant=instant, policy=make_policy(policy))
        self.rig.loader.instant = True
        fix_step_time(self.rig, 0.01)
        for prefix in _PREFIXES:  # all but the last go to the host, as far as it has room
            super().submit(prefix, 24, [[0]], _TENANTS[0], None, 1, 1, (), True)
            while self.rig.engine.has_work:
                self.step()
        self.change_step_time(step_s)

    @rule(
        prefixes=st.lists(st.sampled_from([*_PREFIXES, []]), min_size=1, max_size=4),
        own=st.lists(st.integers(0, 95), min_size=1, max_size=3),
        tenant=st.sampled_from(_TENANTS),
        adapter=st.sampled_from([None, None, REFS[0]]),
        max_tokens=st.integers(1, 14),
    )
    def submit(
        self,
        prefixes: list[list[int]],
        own: list[int],
        tenant: Tenant,
        adapter: AdapterRef | None,
        max_tokens: int,
    ) -> None:
        for prefix in prefixes:
            super().submit(prefix, 24, [own], tenant, adapter, max_tokens, 1, (), True)

    @rule(step_s=st.sampled_from(_STEPS_S))
    def change_step_time(self, step_s: float) -> None:
        """Beside a step that takes as long as that, a few blocks or all of a prefix are computed
        sooner than fetched: so a sequence may compute what another one fetches."""
        self.rig.memory.costs._step_s = step_s

    @precondition(lambda self: not self.rig.engine._scheduler.requests.num_waiting)
    @rule(prefix=st.sampled_from(_PREFIXES), tenant=st.sampled_from(_TENANTS))
    def fetch_what_another_computes(self, prefix: list[int], tenant: Tenant) -> None:
        """Beside something that runs, one begins to compute a prefix, the next to fetch it."""
        for step_s, path in ((0.0, []), (1.0, prefix), (0.0, prefix)):
            self.change_step_time(step_s)
            self.submit([path], [5], tenant, None, 12)
            self.step()

    @precondition(lambda self: self.rig.copier.in_flight)
    @rule(pick=st.integers(0, 1000))
    def finish_fetch(self, pick: int) -> None:
        copies = list(self.rig.copier.in_flight)
        self.rig.copier.finish(copies[pick % len(copies)])

    @precondition(lambda self: self.rig.copier.in_flight)
    @rule(pick=st.integers(0, 1000))
    def abort_who_waits_for_a_fetch(self, pick: int) -> None:
        flights = self.rig.memory.fetches
        fetches = list(flights)
        waiters = [sequence for fetch in fetches for sequence in flights.waiters(fetch)]
        if waiters:
            request_id = waiters[pick % len(waiters)].request.request_id
            self.abort(list(self.requests).index(request_id), None, False)

    @precondition(lambda self: self.rig.copier.in_flight)
    @rule()
    def purge_while_in_flight(self) -> None:
        fetch = next(iter(self.rig.memory.fetches), None)
        if fetch is not None:
            self.rig.engine.forget_adapter(fetch.root.namespace, fetch.root.digest)
            assert all(other.root is not fetch.root for other in self.rig.memory.fetches)
            assert not self.rig.memory.host.purge(fetch.root.namespace, fetch.root.digest)
            self.rig.engine.check_integrity()


HostKVMachine.TestCase.settings = settings(
    max_examples=120,
    stateful_step_count=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestHostKVMachine = HostKVMachine.TestCase
