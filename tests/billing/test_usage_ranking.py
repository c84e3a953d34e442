"""The greatest groups and the others together, as the database ranks and adds them up, beside the
same done here, in plain Python, with every group's sums: random usage, random questions."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any, get_args

import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from api_harness import Api, TestTenant
from priced_adapters import DIGEST, an_adapter
from tenora_engine.events import OccupancyRecord
from tenora_engine.ulid import new_id as occupancy_id
from tenora_platform.ids import new_id
from tenora_platform.usage import reading
from tenora_platform.usage.reading import Keys, Summed
from tenora_platform.usage.residency import ResidencyBooks
from tenora_platform.usage.schemas import Bucket
from tenora_platform.usage.service import ADMIN_GROUPS, Query, find_usage, make_query
from tenora_platform.usage.sink import UsageSink
from tenora_platform.usage.tally import Shape, TopBy
from usage_records import usage_record

END = datetime.now(UTC).replace(microsecond=0)
SPAN_S = 3 * 24 * 3600
NAMES = ["a", "B", "Z", "ä", "e\u0301", "zz", "_", "10", "9"]
"""Which the rules of a language would order otherwise than their code points."""
QUESTIONS = 30  # to each side


@pytest.fixture(scope="module")
async def tenants(api: Api) -> list[TestTenant]:
    """Two, with adapters of the same names, prices in two currencies, and a model without one."""
    tokens = {"uncached_prefill": "1", "cached_prefill": "0.37", "output": "3.000001"}
    for model, currency in (("dollars", "USD"), ("euros", "EUR")):
        body = {
            "model": model,
            "currency": currency,
            "effective_from": (END - timedelta(days=40)).isoformat(),
            "per_million": {**tokens, "device_residency": "0.01"},
        }
        assert (await api.admin("POST", "/admin/v1/prices", json=body)).status_code == 201
    chance = random.Random(5)
    made = [await api.new_tenant(), await api.new_tenant()]
    for tenant in made:
        contexts: list[dict[str, str]] = [{}]
        contexts += [await an_adapter(api, tenant, name, chance.randint(1, 3)) for name in NAMES]
        sink = UsageSink(api.engine, api.state.db)
        await sink.store([sequence(tenant, chance, chance.choice(contexts)) for _ in range(150)])
        held = [residency(tenant, chance) for _ in range(20)]
        for model in ("dollars", "unpriced"):
            await ResidencyBooks(api.state.db).store(held[:10], model)
            held = held[10:]
    return made


def sequence(tenant: TestTenant, chance: random.Random, context: dict[str, str]) -> Any:
    """Of few sizes, so that groups weigh the same."""
    end_s = END.timestamp() - chance.randrange(SPAN_S)
    base = {
        "tenant_id": tenant.id,
        "api_key_id": chance.choice(["key_1", "key_2", "key_3"]),
        "plan": "standard",
        "adapter_version_id": "",
        "model": chance.choice(["dollars", "dollars", "euros", "another"]),
    }
    return usage_record(
        f"{new_id('chatcmpl')}:{chance.choice([0, 0, 1])}",
        tenant.id,
        context=base | context,
        output_tokens=chance.choice([0, 7, 7, 1000]),
        arrival_s=end_s - 1,
        first_token_s=None,
        finished_s=end_s,
        tier=chance.choice(["default", "priority"]),
        adapter_digest=DIGEST if context else None,
    )


def residency(tenant: TestTenant, chance: random.Random) -> OccupancyRecord:
    end_s = END.timestamp() - chance.randrange(SPAN_S)
    return OccupancyRecord(
        event_id=occupancy_id("occ"),
        tenant=tenant.id,
        adapter_digest=DIGEST,
        tier="device",
        kb_s=chance.choice([10**6, 10**9]),
        begins_s=end_s - 60,
        ends_s=end_s,
    )


def question(chance: random.Random, tenant_id: str | None) -> tuple[Query, Shape]:
    """Windows begin and end anywhere, at whole hours or at whole days."""
    step = chance.choice([1, 3600, 86400])
    first, last = sorted(int(END.timestamp()) - chance.randrange(SPAN_S) for _ in range(2))
    groups = [each for each in ADMIN_GROUPS if tenant_id is None or each != "tenant"]
    query = make_query(
        start=datetime.fromtimestamp(first // step * step, UTC),
        end=datetime.fromtimestamp(last // step * step + step, UTC),
        bucket=chance.choice(get_args(Bucket)),
        group_by=",".join(chance.sample(groups, chance.choice([0, 1, 1, 1, 2, 3]))),
        limit=chance.choice([1, 24, 744]),
        page=None,
        groups=ADMIN_GROUPS,
        tenant_id=tenant_id,
    )
    by: TopBy = chance.choice(get_args(TopBy))
    costs = by == "cost" or chance.random() < 0.5
    return query, Shape(costs, chance.choice([1, 2, 3, 5, 100]), by)


async def test_as_added_up_here(api: Api, tenants: list[TestTenant]) -> None:
    chance, folded = random.Random(1), 0
    for tenant_id in (None, tenants[0].id):
        for _ in range(QUESTIONS):
            query, shape = question(chance, tenant_id)
            session = (
                api.state.db.admin_session()
                if tenant_id is None
                else api.state.db.tenant_session(tenant_id)
            )
            async with session as opened:
                found = (await find_usage(opened, query, shape)).page().model_dump()
                wanted = await reference(opened, query, shape)
            assert [bucket["results"] for bucket in found["data"]] == wanted, (query, shape)
            folded += any(each["others"] for results in wanted for each in results)
    assert folded > QUESTIONS / 2, "questions without others show little"


async def reference(
    session: AsyncSession, query: Query, shape: Shape
) -> list[list[dict[str, Any]]]:
    """Results of each bucket, from the sums of every group in it."""
    cells: dict[datetime, dict[Keys, list[Summed]]] = defaultdict(lambda: defaultdict(list))
    for each in await reading.sums(session, query.window):
        cells[each.bucket][each.group].append(each)
    whole: dict[Keys, list[Summed]] = defaultdict(list)
    for groups in cells.values():
        for keys, sums in groups.items():
            if is_shown(sums, shape):
                whole[keys] += sums
    most = sorted(whole, key=lambda keys: (-weight(whole[keys], shape), in_order(keys)))
    others = len(most[shape.top :])
    answer = []
    for begin, _ in query.buckets:
        groups = cells.get(begin, {})
        kept = {
            keys: sums for keys, sums in groups.items() if not others or keys in most[: shape.top]
        }
        rest = [each for keys, sums in groups.items() if keys not in kept for each in sums]
        results = [
            result(dict(keys), kept[keys], shape, None)
            for keys in sorted(kept, key=in_order)
            if is_shown(kept[keys], shape)
        ]
        if is_shown(rest, shape):
            results.append(result({}, rest, shape, others))
        answer.append(results)
    return answer


def counted(sums: Iterable[Summed], *meters: str) -> int:
    return sum(each.quantity for each in sums if each.meter in meters)


def amounts(sums: Iterable[Summed]) -> dict[str, Fraction]:
    found: dict[str, Fraction] = defaultdict(Fraction)
    for each in sums:
        if each.amount and each.currency is not None:
            found[each.currency] += Fraction(each.amount)
    return found


def is_shown(sums: list[Summed], shape: Shape) -> bool:
    return counted(sums, "sequences") > 0 or (shape.costs and bool(amounts(sums)))


def weight(sums: list[Summed], shape: Shape) -> Fraction:
    if shape.top_by == "cost":
        return sum(amounts(sums).values(), Fraction())
    if shape.top_by == "requests":
        return Fraction(counted(sums, "requests"))
    return Fraction(counted(sums, "cached_prefill", "uncached_prefill", "output"))


def in_order(keys: Keys) -> list[tuple[bool, Any]]:
    return [(value is None, value) for _, value in keys]


def result(
    keys: dict[str, Any], sums: list[Summed], shape: Shape, others: int | None
) -> dict[str, Any]:
    none = dict.fromkeys(
        ("tenant_id", "adapter", "adapter_version", "api_key_id", "model", "tier", "kind")
    )
    said = [
        {"currency": currency, "amount": written(amount)}
        for currency, amount in sorted(amounts(sums).items())
    ]
    return {
        **none,
        **keys,
        "requests": counted(sums, "requests"),
        "sequences": counted(sums, "sequences"),
        "prompt_tokens": counted(sums, "cached_prefill", "uncached_prefill"),
        "cached_tokens": counted(sums, "cached_prefill"),
        "uncached_tokens": counted(sums, "uncached_prefill"),
        "output_tokens": counted(sums, "output"),
        "costs": {"amounts": said, "unrated_events": counted(sums, "unrated")}
        if shape.costs
        else None,
        "others": others,
    }


def written(amount: Fraction) -> str:
    pieces = amount * 10**12
    assert pieces.denominator == 1, "twelve decimals hold every amount"
    whole, rest = divmod(int(pieces), 10**12)
    return f"{whole}.{rest:012}"
