"""The counters and holds of budgets in Redis, one atomic call each. It knows the scripts and their
keys; what a refusal means, and what the database says, is not its matter."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from redis.asyncio import Redis

from tenora_platform.budgets.accounts import CREDIT, NO_CURRENCY, Budget, Charge
from tenora_platform.budgets.scripts import ACQUIRE, COUNT, OPEN, RENEW, RETAKE, SEED

_NUMBER = re.compile(rb"-?[0-9]{1,24}")
_EVENT = re.compile(rb"[!-~]{1,200}")
_TENANT = re.compile(rb"[A-Za-z0-9_-]{1,64}")
TENANTS = "tenora:budgets"
"""The tenants that have counters."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """One sequence that is to run, as it is priced."""

    event_id: str
    prompt_nanos: int
    tokens_max: int


@dataclass(frozen=True, slots=True)
class Work:
    """What a request would do, priced in `currency`. `token_nanos` is the price of an output token,
    `unknown_tokens` what a sequence is expected to generate where the model has no history."""

    model: str
    sequences: Sequence[Wanted]
    token_nanos: float
    unknown_tokens: int
    currency: str

    def amounts(self, expected_tokens: int) -> list[int]:
        """Nanos to hold for each sequence, as the script computes them."""
        return [
            math.ceil(each.prompt_nanos + min(each.tokens_max, expected_tokens) * self.token_nanos)
            for each in self.sequences
        ]


NOTHING = Work("", (), 0.0, 0, NO_CURRENCY)


@dataclass(frozen=True, slots=True)
class Level:
    """One budget at a moment. `spent` and `cap` None: not known yet."""

    budget: Budget
    spent: int | None
    cap: int | None
    held: int

    @property
    def reached(self) -> bool:
        """Nothing is left, whatever it costs."""
        return self.spent is not None and self.cap is not None and self.spent >= self.cap

    @property
    def left(self) -> int:
        """Of a level that is known; never below 0. What is held is not taken off."""
        return max(0, (self.cap or 0) - (self.spent or 0))

    @property
    def soft(self) -> bool:
        if self.budget.soft is None or self.spent is None or self.cap is None:
            return False
        return self.spent >= self.budget.soft * self.cap


@dataclass(frozen=True, slots=True)
class Answer:
    """`refused_by` is among `levels`."""

    what: Literal["held", "refused", "unknown"]
    refused_by: Level | None
    expected_tokens: int
    levels: list[Level]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the database said at one moment, to seed or mend counters by."""

    before_ms: int  # Redis' clock, before the snapshot was taken
    spent: dict[str, int]  # account -> nanos
    lately: Sequence[Charge]
    oldest: datetime  # counters of periods before this one's go
    credits: Mapping[str, tuple[int, datetime, datetime | None]]  # currency -> cap, since, until


@dataclass(frozen=True, slots=True)
class Correction:
    """A counter that was wrong, in nanos."""

    account: str
    before: int
    after: int


class BudgetStore:
    """Raises RedisError from every call while Redis is away."""

    def __init__(self, redis: Redis, *, lease_ms: int) -> None:
        self.redis = redis
        self._lease_ms = lease_ms
        self._acquire = redis.register_script(ACQUIRE)
        self._count = redis.register_script(COUNT)
        self._open = redis.register_script(OPEN)
        self._seed = redis.register_script(SEED)
        self._renew = redis.register_script(RENEW)
        self._retake = redis.register_script(RETAKE)

    async def acquire(
        self, tenant_id: str, keys: Sequence[str], budgets: Sequence[Budget], work: Work
    ) -> Answer:
        """Hold what each sequence of `keys` is expected to cost, if no budget would be passed. With
        NOTHING it only looks."""
        args: list[Any] = [
            self._lease_ms if work.sequences else 0,
            _joined(work.currency, keys),
            work.model,
            work.unknown_tokens,
            repr(work.token_nanos),
            len(budgets),
        ]
        for budget in budgets:
            cap = "" if budget.cap is None else budget.cap
            args += [budget.account, cap, budget.key_id or ""]
        for each in work.sequences:
            args += [each.event_id, each.prompt_nanos, each.tokens_max]
        answer = await self._acquire(keys=_keys(tenant_id), args=args)
        what, index, expected, *found = answer
        levels = [
            Level(budget=budget, spent=_number(spent), cap=_number(cap), held=int(held))
            for budget, spent, cap, held in zip(
                budgets, found[::3], found[1::3], found[2::3], strict=True
            )
        ]
        by = levels[index - 1] if what == b"refused" else None
        return Answer(what.decode(), by, int(expected), levels)

    async def spent(self, tenant_id: str, budgets: Sequence[Budget]) -> list[Level]:
        """What has been spent, without the holds: one cheap look."""
        if not budgets:
            return []
        fields = [budget.account for budget in budgets]
        caps = [_cap_field(account) for account in fields]
        found = await self.redis.hmget(_keys(tenant_id)[0], [*fields, *caps])
        spent, known = found[: len(budgets)], found[len(budgets) :]
        return [
            Level(budget, _number(of), _number(cap) if budget.cap is None else budget.cap, 0)
            for budget, of, cap in zip(budgets, spent, known, strict=True)
        ]

    async def settle(
        self, tenant_id: str, model: str, charges: Sequence[Charge], released: Sequence[str]
    ) -> int:
        """An API process tells what its sequences cost, and which of them have not run; how many
        of the charges were new."""
        args = [model, len(charges), *_flat(charges, lengths=True), *released]
        return int(await self._count(keys=_keys(tenant_id), args=args))

    async def book(self, tenant_id: str, charges: Sequence[Charge]) -> None:
        """The books tell what they have stored."""
        args = ["", len(charges), *_flat(charges, lengths=True)]
        await self._count(keys=_keys(tenant_id), args=args)

    async def with_counters(self, tenant_ids: Sequence[str]) -> list[str]:
        """Those that have any: whom `book` should be called for."""
        found = await self.redis.smismember(TENANTS, list(tenant_ids))
        return [tenant_id for tenant_id, there in zip(tenant_ids, found, strict=True) if there]

    async def tenants(self) -> list[str]:
        """Without names that are no tenant's, which go."""
        found: Any = await self.redis.smembers(TENANTS)
        strange = [each for each in found if _TENANT.fullmatch(each) is None]
        if strange:
            await self.redis.srem(TENANTS, *strange)
        return sorted(each.decode() for each in found if each not in strange)

    async def drop(self, tenant_id: str) -> None:
        """It has no counters any more."""
        await self.redis.srem(TENANTS, tenant_id)

    async def open(self, tenant_id: str) -> tuple[int, list[str]]:
        """Call it before the database's snapshot is taken: (Redis' time in ms, the events that no
        book has confirmed yet)."""
        await self.redis.sadd(TENANTS, tenant_id)
        now, *pending = await self._open(keys=_keys(tenant_id))
        return int(now), [each.decode() for each in pending if _EVENT.fullmatch(each)]

    async def accounts(self, tenant_id: str) -> list[str]:
        """The accounts that are known."""
        fields = await self.redis.hkeys(_keys(tenant_id)[0])
        names = [_text(field) for field in fields]
        return [name for name in names if name != "open" and not name.startswith("credit_")]

    async def seed(self, tenant_id: str, snapshot: Snapshot, *, mend: bool) -> list[Correction]:
        """Give counters that are not known their value; with `mend` all of the snapshot. Returns
        what was known and wrong."""
        credits: list[Any] = [len(snapshot.credits)]
        for currency, (cap, since, until) in snapshot.credits.items():
            credits += [currency, cap, _ms(since), 2**53 if until is None else _ms(until)]
        args: list[Any] = [
            int(mend),
            snapshot.before_ms,
            f"{snapshot.oldest:%Y-%m-%d}",
            f"{snapshot.oldest:%Y-%m}",
            *credits,
            len(snapshot.spent),
        ]
        for account, nanos in snapshot.spent.items():
            args += [account, nanos]
        args += _flat(snapshot.lately, lengths=False)
        wrong = await self._seed(keys=_keys(tenant_id), args=args)
        return [
            Correction(account.decode(), int(before), int(after))
            for account, before, after in zip(wrong[::3], wrong[1::3], wrong[2::3], strict=True)
        ]

    async def forget_credit(self, tenant_id: str) -> None:
        """The next request asks the database what the credit is, in whichever currency."""
        spent = _keys(tenant_id)[0]
        names = [_text(field) for field in await self.redis.hkeys(spent)]
        caps = [name for name in names if name.startswith("credit_cap")]
        if caps:
            await self.redis.hdel(spent, *caps)

    async def renew(self, tenant_id: str, ids: Sequence[str]) -> list[str]:
        """Holds last another lease. Returns those that are not there."""
        missing = await self._renew(keys=_keys(tenant_id), args=[self._lease_ms, *ids])
        return [each.decode() for each in missing]

    async def retake(
        self, tenant_id: str, holds: Iterable[tuple[str, int, str, tuple[str, ...]]]
    ) -> None:
        """(event id, nanos, currency, its keys): hold again, unless it has been counted."""
        args: list[Any] = [self._lease_ms]
        for event_id, nanos, currency, keys in holds:
            args += [event_id, f"{nanos}|{_joined(currency, keys)}"]
        await self._retake(keys=_keys(tenant_id), args=args)


def _flat(charges: Sequence[Charge], *, lengths: bool) -> list[Any]:
    args: list[Any] = []
    for each in charges:
        day = f"{each.at.astimezone(UTC):%Y-%m-%d}"
        args += [each.event_id, each.nanos, day, _joined(each.currency, each.keys), _ms(each.at)]
        if lengths:
            args.append(each.output_tokens)
    return args


def _joined(currency: str, keys: Sequence[str]) -> str:
    """As the scripts read them."""
    return f"{currency}|{','.join(keys)}"


def _cap_field(account: str) -> str:
    """Where the cap of a credit's account is; nothing is there of another's."""
    return f"credit_cap:{account.removeprefix(f'{CREDIT}:')}"


def _ms(time: datetime) -> int:
    return math.floor(time.timestamp() * 1000)


def _text(value: bytes | str) -> str:
    """Redis gives bytes, as we connect; its types allow for both."""
    return value if isinstance(value, str) else value.decode(errors="replace")


def _number(value: bytes | str | None) -> int | None:
    """None for what is no number of ours too: it is not known then."""
    raw = value.encode() if isinstance(value, str) else value
    return int(raw) if raw and _NUMBER.fullmatch(raw) is not None else None


def _keys(tenant_id: str) -> list[str]:
    # The braces keep all keys of a tenant on one node of a Redis cluster.
    prefix = f"tenora:budgets:{{{tenant_id}}}"
    return [
        f"{prefix}:{name}" for name in ("spent", "holds", "events", "pending", "stored", "lengths")
    ]
