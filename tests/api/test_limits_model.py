"""The limits against a plain model of them: holds, settlements, releases, renewals, leases, crashes
of a process, time that passes, and Redis emptied, in any order. The model keeps every event in a
list and adds up what counts; Redis is real, its clock is moved by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)
from redis.asyncio import Redis

from limits_harness import HandClock, tenant_of
from tenora_platform.auth import TenantContext
from tenora_platform.errors import RateLimitedError
from tenora_platform.limits.service import Hold, Limits
from tenora_platform.limits.shared import Settlement
from tenora_platform.limits.uses import Owner, ScopeUse, capped
from tenora_platform.operations.metrics import Metrics

T = TypeVar("T")
LEASE_MS = 20_000
KNOWN_MS = 120_000  # so long after its lease a hold is settled exactly
PROCESSES = 2


@dataclass
class Event:
    """What was counted at one time, by whom."""

    at_ms: int
    is_keys: bool
    requests: int = 0
    tokens: int = 0


@dataclass
class Held:
    """A hold as the model knows it. `lost`: Redis was emptied since."""

    hold: Hold
    tenant: TenantContext
    process: int
    event: Event
    until_ms: int
    lost: bool = False
    gone: bool = False  # lost, and not taken again


@dataclass
class Model:
    now_ms: int
    events: list[Event] = field(default_factory=list)
    held: list[Held] = field(default_factory=list)
    passed: list[Event] = field(default_factory=list)  # since Redis was emptied

    def counts(self, event: Event, at_ms: int) -> bool:
        """Until the whole quarter of a second in which it came is a minute old."""
        return event.at_ms // 250 * 250 + 60_250 > at_ms

    def used(self, owner: Owner, at_ms: int) -> tuple[int, int]:
        events = [
            event
            for event in self.events
            if self.counts(event, at_ms) and (owner == "plan" or event.is_keys)
        ]
        return sum(e.requests for e in events), sum(e.tokens for e in events)

    def reset_ms(self, owner: Owner, kind: str) -> int:
        ends = [
            event.at_ms // 250 * 250 + 60_250 - self.now_ms
            for event in self.events
            if getattr(event, kind) > 0 and (owner == "plan" or event.is_keys)
        ]
        return max([0, *ends])

    def places(self, owner: Owner) -> int:
        return sum(
            each.hold.sequences
            for each in self.held
            if each.until_ms > self.now_ms and not each.gone
            if owner == "plan" or each.event.is_keys
        )

    def rates_allow(self, tenant: TenantContext, tokens: int | None, at_ms: int) -> bool:
        """Of no tokens that are known yet (None) requests are counted alone."""
        for owner, caps in capped(tenant):
            requests_used, tokens_used = self.used(owner, at_ms)
            if caps.requests_per_min is not None and requests_used + 1 > caps.requests_per_min:
                return False
            if tokens is None:
                continue
            if caps.tokens_per_min is not None and tokens_used + tokens > caps.tokens_per_min:
                return False
        return True

    def places_allow(self, tenant: TenantContext, sequences: int) -> bool:
        return all(
            caps.parallel_requests is None
            or self.places(owner) + sequences <= caps.parallel_requests
            for owner, caps in capped(tenant)
        )


class LimitsMachine(RuleBasedStateMachine):
    holds = Bundle("holds")
    redis_url = ""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.redis: Redis = Redis.from_url(self.redis_url)
        self.clock = self.run(HandClock.started(self.redis))
        self.model = Model(self.clock.now_ms)
        self.workers = [self.new_worker() for _ in range(PROCESSES)]
        self.plan = tenant_of()
        self.key = self.plan

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    def new_worker(self) -> Limits:
        return Limits(
            self.redis, lease_s=LEASE_MS / 1000, metrics=Metrics(), clock=self.clock.source
        )

    @initialize(
        rpm=st.integers(1, 6),
        tpm=st.integers(50, 300),
        parallel=st.integers(1, 6),
        key_rpm=st.none() | st.integers(1, 6),
        key_tpm=st.none() | st.integers(50, 300),
    )
    def limit(
        self, rpm: int, tpm: int, parallel: int, key_rpm: int | None, key_tpm: int | None
    ) -> None:
        self.key = tenant_of(rpm, tpm, parallel, {"rpm": key_rpm, "tpm": key_tpm, "parallel": 3})
        self.plan = msgspec.structs.replace(
            self.key, key_id="other", key_caps=type(self.key.key_caps)()
        )

    @rule(
        target=holds,
        process=st.integers(0, PROCESSES - 1),
        is_keys=st.booleans(),
        tokens=st.integers(1, 50),
        sequences=st.integers(1, 3),
        admit=st.booleans(),
    )
    def acquire(self, process: int, is_keys: bool, tokens: int, sequences: int, admit: bool) -> Any:
        tenant, model = (self.key if is_keys else self.plan), self.model
        most = tenant.plan.parallel_requests
        sequences = min(sequences, most or sequences)
        allowed = model.rates_allow(tenant, tokens, model.now_ms)
        fits = model.places_allow(tenant, sequences)
        try:
            hold = self.run(self.take(self.workers[process], tenant, tokens, sequences, admit))
        except RateLimitedError as error:
            assert not (allowed and fits)
            if fits:
                then = model.now_ms + error.retry_after_ms
                # Who is refused at the door has said nothing of tokens.
                known = None if admit and "requests per minute" in str(error) else tokens
                assert model.rates_allow(tenant, known, then), "the wait that is told helps"
                assert not model.rates_allow(tenant, tokens, then - 1), "and no shorter one"
            return multiple()
        assert allowed
        assert fits
        event = Event(model.now_ms, is_keys, 1, tokens)
        model.events.append(event)
        model.passed.append(event)
        held = Held(hold, tenant, process, event, model.now_ms + LEASE_MS)
        model.held.append(held)
        return held

    async def take(
        self, worker: Limits, tenant: TenantContext, tokens: int, sequences: int, admit: bool
    ) -> Hold:
        if not admit:
            return await worker.acquire(tenant, tokens, sequences)
        admission = await worker.admit(tenant)
        return await worker.acquire(tenant, tokens, sequences, requests=0, admission=admission)

    @rule(held=consumes(holds), used=st.integers(0, 120), again=st.booleans())
    def settle(self, held: Held, used: int, again: bool) -> None:
        model = self.model
        if model.now_ms > held.until_ms + KNOWN_MS - LEASE_MS:
            used = min(used, held.event.tokens)
        self.run(held.hold.settle(used))
        if again:
            settlement = Settlement(held.tenant, held.hold.id, used)
            self.run(self.workers[held.process]._shared.settle(settlement))
        model.held.remove(held)
        reserved = held.event.tokens
        if not held.lost:
            held.event.tokens = min(used, reserved)
        if used > reserved and not held.gone:
            model.events.append(Event(model.now_ms, held.event.is_keys, 0, used - reserved))

    @rule(held=consumes(holds))
    def release(self, held: Held) -> None:
        self.run(held.hold.release())
        self.model.held.remove(held)
        if not held.lost:
            held.event.requests = held.event.tokens = 0

    @rule(ms=st.integers(1, 700) | st.integers(1, 70_000))
    def wait(self, ms: int) -> None:
        self.run(self.clock.move(ms))
        self.model.now_ms = self.clock.now_ms

    @rule(process=st.integers(0, PROCESSES - 1))
    def renew(self, process: int) -> None:
        self.run(self.workers[process]._renew_all())
        for held in self.model.held:
            if held.process == process:
                held.until_ms, held.gone = self.model.now_ms + LEASE_MS, False

    @rule(process=st.integers(0, PROCESSES - 1))
    def crash(self, process: int) -> None:
        """Nobody renews its leases any more, or settles what it held."""
        self.workers[process] = self.new_worker()
        for held in self.model.held:
            if held.process == process:
                held.process = -1

    @rule()
    def empty(self) -> None:
        self.run(self.forget_all())
        self.model.events.clear()
        self.model.passed.clear()
        for held in self.model.held:
            held.lost = held.gone = True

    async def forget_all(self) -> None:
        keys = await self.redis.keys(f"tenora:limits:{{{self.key.tenant_id}}}*")
        if keys:
            await self.redis.delete(*keys)

    @invariant()
    def what_is_shown_is_what_was_used(self) -> None:
        now = self.run(self.workers[0].now(self.key))
        for (owner, _), use in zip(capped(self.key), now.scopes, strict=True):
            self.compare(owner, use)

    def compare(self, owner: Owner, use: ScopeUse) -> None:
        model = self.model
        assert (use.requests.used, use.tokens.used) == model.used(owner, model.now_ms)
        assert use.parallel == model.places(owner)
        assert use.requests.reset_ms == model.reset_ms(owner, "requests")
        assert use.tokens.reset_ms == model.reset_ms(owner, "tokens")

    @invariant()
    def no_window_has_more_than_the_limit(self) -> None:
        for owner, caps in capped(self.key):
            events = [e for e in self.model.passed if owner == "plan" or e.is_keys]
            for first in events:
                window = [e for e in events if first.at_ms <= e.at_ms < first.at_ms + 60_000]
                most = caps.requests_per_min
                assert most is None or sum(event.requests for event in window) <= most

    def teardown(self) -> None:
        """A while later nothing is left of all of it."""

        async def nothing_is_left() -> None:
            await self.clock.move(LEASE_MS)
            assert (await self.workers[0].now(self.plan)).parallel == 0
            await self.clock.move(2 * KNOWN_MS)
            await (await self.workers[0].acquire(self.plan, 1)).release()
            prefix = f"tenora:limits:{{{self.key.tenant_id}}}"
            assert set(await self.redis.hkeys(f"{prefix}:holds")) <= {b"pace"}
            assert await self.redis.zcard(f"{prefix}:parallel") == 0
            assert await self.redis.zcard(f"{prefix}:late") == 0
            await self.redis.aclose()

        if self.key is not self.plan:
            self.run(nothing_is_left())
        self.runner.close()


@pytest.mark.parametrize("examples", [60])
def test_limits_are_their_model(redis_url: str, examples: int) -> None:
    LimitsMachine.redis_url = redis_url
    run_state_machine_as_test(
        LimitsMachine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=40,
            suppress_health_check=list(HealthCheck),
        ),
    )
