"""Whatever happens to holds, settlements, reports, leases, processes and Redis: budgets are what a
plain model says, and none is passed by more than the holds' own error."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis

from api_harness import Api
from budget_model import Happened, Model
from tenant_contexts import plan_terms, tenant_context
from tenora_engine.events import UsageRecord
from tenora_engine.request import GenerationRequest, SamplingParams, Tenant
from tenora_platform.auth import Caps, TenantContext
from tenora_platform.budgets.accounts import budgets_of
from tenora_platform.budgets.hold import BudgetHold
from tenora_platform.budgets.service import Budgets
from tenora_platform.budgets.store import NOTHING
from tenora_platform.budgets.true_up import TrueUp
from tenora_platform.errors import QuotaExceededError
from tenora_platform.ids import new_id
from tenora_platform.operations.metrics import Metrics
from tenora_platform.usage.sink import UsageSink
from usage_records import usage_record

NANO = 10**9
UNCACHED, OUTPUT = Fraction(10, 100), Fraction(40, 100)  # of a million; the list of migrations
KEYS = ("key_a", "key_b")
BEGIN = datetime(2033, 5, 30, 12, tzinfo=UTC)  # two days before a month ends
CAPS = {
    ("day", False): 30_000,
    ("month", False): 60_000,
    ("day", True): 20_000,
    ("month", True): 50_000,
}


def money(nanos: int) -> Decimal:
    return Decimal(nanos) / NANO


def cost(prompt: int, output: int) -> int:
    """In nanos, rounded up once."""
    exact = (prompt * UNCACHED + output * OUTPUT) / 10**6 * NANO
    return -(-exact.numerator // exact.denominator)


@dataclass
class Run:
    """As inference's: what the engine was asked, and what it has metered of it."""

    request: GenerationRequest
    usage: list[UsageRecord] = field(default_factory=list)
    begun: bool = True


@dataclass(eq=False)
class Stream:
    """One request of one process."""

    process: int
    key: str
    hold: BudgetHold
    run: Run
    ended: bool = False

    @property
    def left(self) -> list[int]:
        """Sequences that still run in the engine."""
        done = {record.index for record in self.run.usage}
        return [index for index in range(self.run.request.sampling.n) if index not in done]


class World:
    """Two API processes, a sink and a true-up over real servers, and the model beside them."""

    def __init__(self, api: Api, tenant_id: str) -> None:
        self.now = BEGIN
        self.tenant_id = tenant_id
        self.api = api
        self.budgets = [self.process() for _ in range(2)]
        self.model = Model(CAPS)
        self.streams: list[Stream] = []
        self.outbox: list[UsageRecord] = []  # of the engine, not in the books yet
        self.delivered: list[UsageRecord] = []
        self.meanwhile: list[UsageRecord] = []  # stored while the books are read

    def process(self) -> Budgets:
        made = Budgets(
            self.api.state.db,
            self.api.state.redis,
            lease_s=3600,
            metrics=Metrics(),
            clock=lambda: self.now,
        )
        seed = made.store.seed

        async def seed_late(*values: Any, **options: Any) -> Any:
            """What the sink stores after the books were read, and before they are believed."""
            records, self.meanwhile = self.meanwhile, []
            await self.store(records)
            return await seed(*values, **options)

        made.store.seed = seed_late  # type: ignore[method-assign]
        return made

    @property
    def redis(self) -> Redis:
        return self.api.state.redis

    def redis_key(self, name: str) -> str:
        return f"tenora:budgets:{{{self.tenant_id}}}:{name}"

    def context(self, key: str) -> TenantContext:
        plan = plan_terms(budget=money(CAPS["month", False]), budget_day=money(CAPS["day", False]))
        caps = Caps(budget=money(CAPS["month", True]), budget_day=money(CAPS["day", True]))
        return tenant_context(plan, tenant_id=self.tenant_id, key_id=key, key_caps=caps)

    async def start(self, data: st.DataObject) -> None:
        """A request: the real ones and the model must agree whether it passes."""
        process = data.draw(st.integers(0, 1), "process")
        key = data.draw(st.sampled_from(KEYS), "key")
        prompt, most = data.draw(st.integers(0, 40)), data.draw(st.integers(1, 30))
        sequences = data.draw(st.integers(1, 2), "n")
        request = GenerationRequest(
            request_id=new_id("cmpl"),
            tenant=Tenant(key=self.tenant_id, namespace="n"),
            prompt_token_ids=[1] * prompt,
            sampling=SamplingParams(max_tokens=most, n=sequences),
            context=self.told(key),
        )
        amounts = {
            f"{request.request_id}:{index}": cost(prompt if index == 0 else 0, most)
            for index in range(sequences)
        }
        self.model.look(key, self.now)
        self.meanwhile = self.drawn(data, self.outbox)
        run = Run(request)
        hold = None
        with contextlib.suppress(QuotaExceededError):
            hold = await self.budgets[process].acquire(self.context(key), [run], request.request_id)
        assert (hold is not None) == self.model.passes(key, self.now, sum(amounts.values()))
        self.meanwhile = []
        if hold is None:
            return
        assert hold.amounts == amounts
        self.model.accept(key, self.now, amounts)
        self.streams.append(Stream(process, key, hold, run))

    def told(self, key: str) -> dict[str, str]:
        return {
            "tenant_id": self.tenant_id,
            "api_key_id": key,
            "model": "fake-base",
            "plan": "standard",
        }

    async def meter(self, data: st.DataObject) -> None:
        """A sequence ends in the engine, perhaps later than it was expected to."""
        running = [stream for stream in self.streams if stream.left]
        if not running:
            return
        stream = data.draw(st.sampled_from(running))
        self.finish(stream, data.draw(st.integers(0, 60), "output"))

    def finish(self, stream: Stream, output: int) -> None:
        index = stream.left[0]
        request = stream.run.request
        prompt = len(request.prompt_token_ids) if index == 0 else 0
        record = usage_record(
            f"{request.request_id}:{index}",
            self.tenant_id,
            context=request.context,
            prompt_tokens=prompt,
            cached_tokens=0,
            output_tokens=output,
            finished_s=self.now.timestamp(),
        )
        stream.run.usage.append(record)
        self.outbox.append(record)
        self.model.happened[record.event_id] = Happened(
            record.event_id, stream.key, self.now, cost(prompt, output)
        )

    async def end(self, data: st.DataObject) -> None:
        """The API's side of a request ends: with what was metered by then, whoever hung up."""
        going = [stream for stream in self.streams if not stream.ended]
        if not going:
            return
        stream = data.draw(st.sampled_from(going))
        refused = not stream.run.usage and data.draw(st.booleans(), "refused")
        if refused:  # by the engine, which meters nothing of it
            stream.run.begun = False
            self.streams.remove(stream)
        stream.ended = True
        await stream.hold.end([stream.run])
        for record in stream.run.usage:
            self.model.count(record.event_id)
        if refused:
            for event_id in stream.hold.amounts:
                self.model.holds.pop(event_id, None)

    async def crash(self, data: st.DataObject) -> None:
        """An API process dies; its leases run out."""
        process = data.draw(st.integers(0, 1), "process")
        self.budgets[process] = self.process()
        for stream in self.streams:
            if stream.process == process and not stream.ended:
                stream.ended = True
                for event_id in stream.hold.amounts:
                    held = await self.redis.hget(self.redis_key("holds"), event_id)
                    if held:
                        assert isinstance(held, bytes)
                        past = b"1|" + held.split(b"|", 1)[1]
                        await self.redis.hset(self.redis_key("holds"), event_id, past)
                    self.model.holds.pop(event_id, None)

    async def deliver(self, data: st.DataObject) -> None:
        """The sink stores some of what waits, and again some of what it had; it may die between
        the commit and its word to Redis."""
        some = self.drawn(data, self.outbox)
        again = self.drawn(data, self.delivered)
        dies = data.draw(st.booleans(), "dies")
        await self.store([*some, *again], dies=dies)

    def drawn(self, data: st.DataObject, records: Sequence[UsageRecord]) -> list[UsageRecord]:
        return data.draw(st.lists(st.sampled_from(records), unique_by=id)) if records else []

    async def store(self, records: Sequence[UsageRecord], *, dies: bool = False) -> None:
        told = None if dies else self.budgets[0].book
        await UsageSink(self.api.engine, self.api.state.db, told=told).store(records)
        new = {record.event_id for record in records} - self.model.stored
        self.model.stored |= new
        self.outbox = [each for each in self.outbox if each.event_id not in new]
        self.delivered += [each for each in records if each.event_id in new]
        if not dies and self.model.known:
            for event_id in new:
                self.model.count(event_id)

    async def late_word(self, data: st.DataObject) -> None:
        """What an API process said long ago comes once more: its connection had broken."""
        ended = [each for each in self.streams if each.ended and each.run.usage]
        if ended:
            stream = data.draw(st.sampled_from(ended))
            await self.budgets[stream.process]._settle(stream.hold, stream.run.usage, ())
            for record in stream.run.usage:
                self.model.count(record.event_id)

    async def empty(self, data: st.DataObject) -> None:
        """Redis loses everything."""
        keys = [self.redis_key(each) for each in ("spent", "holds", "events", "pending", "stored")]
        await self.redis.delete(*keys)
        await self.redis.srem("tenora:budgets", self.tenant_id)
        self.model.empty()

    async def renew(self, data: st.DataObject) -> None:
        """Processes renew what they hold; what was lost is held again."""
        for number, process in enumerate(self.budgets):
            await process._renew()
            for stream in self.streams:
                if stream.process == number and not stream.ended:
                    for event_id, nanos in stream.hold.amounts.items():
                        if event_id not in self.model.counted:
                            self.model.holds[event_id] = (nanos, stream.key)

    async def true_up(self, data: st.DataObject) -> None:
        store = self.budgets[0].store
        await TrueUp(self.api.state.db, store, Metrics(), self.api.state.seal).compare(
            self.tenant_id
        )
        if self.model.known:
            self.model.read_books()

    async def time_passes(self, data: st.DataObject) -> None:
        """To another day, at last to another month."""
        self.now += timedelta(hours=data.draw(st.sampled_from([1, 13, 24])))

    async def check(self) -> None:
        """Redis and the model say the same of every account that is known, and of what is held."""
        for key in KEYS:
            budgets = self.budgets[0]
            asked = budgets_of(self.context(key), self.now, "USD")
            answer = await budgets.store.acquire(self.tenant_id, key, asked, NOTHING)
            for level, (account, _) in zip(
                answer.levels, self.model.budgets(key, self.now), strict=True
            ):
                assert level.held == self.model.held(account[1])
                known = account in self.model.known
                assert level.spent == (self.model.spent(account) if known else None), account


Step = Callable[[World, st.DataObject], Coroutine[Any, Any, None]]
STEPS: list[Step] = [
    World.start,
    World.start,
    World.start,
    World.meter,
    World.meter,
    World.meter,
    World.end,
    World.deliver,
    World.deliver,
    World.late_word,
    World.crash,
    World.empty,
    World.renew,
    World.renew,
    World.true_up,
    World.time_passes,
]


@settings(
    max_examples=20,
    # What fails is told as it was found: to make it smaller takes minutes.
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
@given(data=st.data())
async def test_budgets_are_what_a_plain_model_says(api: Api, data: st.DataObject) -> None:
    world = World(api, (await api.new_tenant("model")).id)
    for step in data.draw(st.lists(st.sampled_from(STEPS), min_size=15, max_size=30)):
        await step(world, data)
        await world.check()
    for stream in world.streams:
        while stream.left:
            world.finish(stream, 60)
    await world.store(world.outbox)
    for key in KEYS:
        world.model.look(key, world.now)
        await world.budgets[1].levels(world.context(key))
    await world.true_up(data)
    await world.check()
    for account in {each for event in world.model.happened.values() for each in event.accounts()}:
        total = sum(e.nanos for e in world.model.happened.values() if account in e.accounts())
        most = world.model.most(account)
        assert most is None or total <= most
