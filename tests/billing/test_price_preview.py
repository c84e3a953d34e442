"""What a new list would change in a month, against a plain model in fractions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from tenora_platform.billing.preview import Money, MonthUsed, preview
from tenora_platform.billing.price_lists import Meter, PriceList, Scope, Tier

BEGIN = datetime(2030, 1, 1, tzinfo=UTC)
NEW = {
    ("output", ""): (Tier(0, Decimal(3)), Tier(100, Decimal("0.5"))),
    ("uncached_prefill", "batch"): (Tier(0, Decimal("1.25")),),
}
scopes = st.builds(
    Scope, *[st.sampled_from([None, name]) for name in ("adapter", "tenant", "plan", "model")]
)


def price_list(no: int, scope: Scope, currency: str = "USD") -> PriceList:
    tiers: dict[tuple[Meter, str], tuple[Tier, ...]] = NEW  # type: ignore[assignment]
    return PriceList(str(no), no, scope, currency, BEGIN, None, tiers)


LISTS = st.builds(price_list, st.integers(1, 9), scopes, st.sampled_from(["USD", "EUR"]))
USED = st.builds(
    MonthUsed,
    scope=st.builds(
        Scope,
        st.sampled_from([None, "adapter", "other"]),
        st.sampled_from(["tenant", "other"]),
        st.sampled_from(["plan", "other"]),
        st.sampled_from(["model", "other"]),
    ),
    class_=st.sampled_from(["default", "batch"]),
    meter=st.sampled_from(["output", "uncached_prefill"]),
    quantity=st.integers(0, 200),
    amount=st.decimals(0, 1000, places=12),
    rated_by=st.one_of(st.none(), LISTS),
)


def plain_tiers(quantity: int) -> Fraction:
    return Fraction(min(quantity, 100) * 3 + max(0, quantity - 100) * Fraction(1, 2), 10**6)


@dataclass
class Plain:
    """The same in plain Python: money by tenant and currency, what has no price by tenant."""

    before: defaultdict[tuple[str, str], Fraction] = field(
        default_factory=lambda: defaultdict(Fraction)
    )
    after: defaultdict[tuple[str, str], Fraction] = field(
        default_factory=lambda: defaultdict(Fraction)
    )
    unpriced: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))

    def count(self, scope: Scope, used: list[MonthUsed]) -> None:
        taken: dict[tuple[str, str, str, str], int] = defaultdict(int)
        for each in used:
            tenant, rated = str(each.scope.tenant_id), each.rated_by
            if rated is not None:
                self.before[tenant, rated.currency] += Fraction(each.amount)
            if takes(scope, each):
                taken[tenant, str(each.scope.model), each.meter, each.class_] += each.quantity
            elif rated is not None:
                self.after[tenant, rated.currency] += Fraction(each.amount)
            else:
                self.unpriced[tenant] += each.quantity
        for (tenant, _, meter, class_), quantity in taken.items():
            if meter == "output":
                self.after[tenant, "USD"] += plain_tiers(quantity)
            elif class_ == "batch":
                self.after[tenant, "USD"] += Fraction(quantity) * Fraction(5, 4) / 10**6
            else:
                self.unpriced[tenant] += quantity


def takes(scope: Scope, used: MonthUsed) -> bool:
    fits = all(a is None or a == b for a, b in zip(scope, used.scope, strict=True))
    if not fits or used.rated_by is None:
        return fits
    rated = [part is not None for part in used.rated_by.scope]
    return [part is not None for part in scope] >= rated


def added(moneys: Iterable[Money], currency: str) -> Fraction:
    return sum((Fraction(each.get(currency, 0)) for each in moneys), Fraction(0))


@given(scope=scopes, used=st.lists(USED, max_size=15))
def test_a_preview_is_that_of_a_plain_model(scope: Scope, used: list[MonthUsed]) -> None:
    found = preview(price_list(10, scope), used)
    plain = Plain()
    plain.count(scope, used)
    for tenant, meters in found.items():
        changes = list(meters.values())
        for currency in ("USD", "EUR"):
            before = added((change.before for change in changes), currency)
            after = added((change.after for change in changes), currency)
            assert before == plain.before[tenant, currency]
            assert after == plain.after[tenant, currency]
        assert sum(change.unpriced for change in changes) == plain.unpriced[tenant]
    quantity = sum(change.quantity for each in found.values() for change in each.values())
    assert quantity == sum(each.quantity for each in used)
