"""Price lists as the APIs show them. Prices are decimal strings, never JSON numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from tenora_platform.billing.preview import Due, MeterChange, TenantChange, total
from tenora_platform.billing.price_lists import (
    ANY_CLASS,
    HELD_METERS,
    METERS,
    Meter,
    PriceList,
    Status,
    Tier,
    Tiers,
)
from tenora_platform.plain_text import ONE_LINE
from tenora_platform.schemas import Body, IdItem, ListPage
from tenora_platform.times import BodyTime

Price = Annotated[Decimal, Field(ge=0, max_digits=20, decimal_places=6)]
Money = Annotated[Decimal, Field(ge=0, max_digits=38, decimal_places=12)]
ENTRIES_MAX = 100  # of one meter


# No control characters, NUL among them, and not empty: absent is what means any.
Scope = Annotated[str, Field(min_length=1, max_length=256, pattern=ONE_LINE)]


class PriceEntry(Body):
    """The price of one meter, for one class, from one quantity on."""

    model_config = ConfigDict(validate_by_name=True, serialize_by_alias=True)

    class_: str | None = Field(
        default=None,
        alias="class",
        pattern=r"^[a-z][a-z0-9_-]{0,31}$",
        description="The service class that actually served (`priority`, `default`, `flex`, "
        "`batch`, ...). Without it, the price is for every class that has no entry of "
        "its own.",
    )
    from_quantity: int = Field(
        default=0,
        alias="from",
        ge=0,
        lt=2**62,
        description="The price applies to units above this quantity, counted per tenant, month "
        "(UTC), model, meter and class under this list. Each class needs an entry "
        "from 0.",
    )
    price: Price = Field(
        description="Price of one million units, as a decimal string such as `0.40`."
    )


def _as_entries(value: Any) -> Any:
    """One price for all is short for a list of one entry."""
    return value if isinstance(value, list) else [{"price": value}]


def _complete(entries: list[PriceEntry]) -> list[PriceEntry]:
    seen: dict[str | None, set[int]] = {}
    for entry in entries:
        quantities = seen.setdefault(entry.class_, set())
        if entry.from_quantity in quantities:
            raise ValueError(f"has two prices for {_name(entry.class_)} from {entry.from_quantity}")
        quantities.add(entry.from_quantity)
    for class_, quantities in seen.items():
        if 0 not in quantities:
            raise ValueError(f"has no price for {_name(class_)} from 0, which the first units need")
    return entries


def _without_class(entries: list[PriceEntry]) -> list[PriceEntry]:
    if any(entry.class_ is not None for entry in entries):
        raise ValueError("cannot have a class, because memory and storage are priced without one")
    return entries


def _name(class_: str | None) -> str:
    return "any class" if class_ is None else f"class {class_}"


MeterPrices = Annotated[
    list[PriceEntry],
    Field(min_length=1, max_length=ENTRIES_MAX),
    AfterValidator(_complete),
    BeforeValidator(_as_entries, json_schema_input_type=Price | list[PriceEntry]),
]
HeldPrices = Annotated[MeterPrices, AfterValidator(_without_class)]
"""Of what no request uses, and so no class."""

_FREE = [PriceEntry(price=Decimal(0))]


class Prices(BaseModel):
    """The price of a million units of each meter: one price, or a list of prices by class and
    tier."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "uncached_prefill": "0.10",
                    "cached_prefill": "0.02",
                    "output": [
                        {"price": "0.40"},
                        {"from": 1_000_000_000, "price": "0.30"},
                        {"class": "priority", "price": "0.80"},
                        {"class": "batch", "price": "0.20"},
                    ],
                    "cold_load": "50",
                    "device_residency": "0.002",
                }
            ]
        }
    )

    uncached_prefill: MeterPrices = Field(
        description="Prompt tokens that were computed (not cached)."
    )
    cached_prefill: MeterPrices = Field(description="Prompt tokens from the prefix cache.")
    output: MeterPrices = Field(description="Generated tokens.")
    cold_load: MeterPrices = Field(
        default=_FREE,
        description="Adapter loads from the object store (the adapter was in neither device nor "
        'host memory). The unit is one load: "50" is 0.00005 per load.',
    )
    device_residency: HeldPrices = Field(
        default=_FREE,
        description="An adapter in device memory. The unit is one kB-second, so the price of a "
        "million units is the price of one GB-second (10^9 byte-seconds). It has no "
        "class.",
    )
    host_residency: HeldPrices = Field(
        default=_FREE,
        description="An adapter in host memory: the price of one GB-second. It has no class.",
    )
    stored: HeldPrices = Field(
        default=_FREE,
        description="Adapters in the object store. The unit is one kB-hour, so the price of a "
        "million units is the price of one GB-hour. It has no class.",
    )

    def tiers(self) -> dict[tuple[Meter, str], Tiers]:
        return _tiers({meter: getattr(self, meter) for meter in METERS})


def _tiers(
    entries: Mapping[Meter, Sequence[PriceEntry]],
) -> dict[tuple[Meter, str], Tiers]:
    found: dict[tuple[Meter, str], list[Tier]] = {}
    for meter, of_meter in entries.items():
        for entry in of_meter:
            tiers = found.setdefault((meter, entry.class_ or ANY_CLASS), [])
            tiers.append(Tier(entry.from_quantity, entry.price))
    return {key: tuple(sorted(tiers)) for key, tiers in found.items()}


class PriceScope(Body):
    """What a list applies to; an absent field means any."""

    model: Scope | None = Field(default=None, description="The base model's id.")
    plan: Scope | None = None
    tenant: Scope | None = Field(
        default=None, description="A tenant's id: the list is this tenant's own agreement."
    )
    adapter: Scope | None = Field(
        default=None, description="An adapter's id; the list then applies to its owner only."
    )


class PriceTerms(PriceScope):
    """A price list, but for its beginning. Of several that hold for a use, the most specific one is
    taken whole: an adapter's own before its tenant's before the plan's before the model's before
    the general one; of equals the newest. A meter or class without a price there is not free: usage
    of it waits, unbilled, until there is one."""

    currency: str = Field(default="USD", pattern=r"^[A-Z]{3}$")
    per_million: Prices
    minimum: Money = Field(
        default=Decimal(0),
        description="Minimum amount of a month's invoice. Taken from the list without model and "
        "adapter that is in force at the end of the month.",
    )
    included: Money = Field(
        default=Decimal(0),
        description=(
            "Amount of usage included per month, deducted from the invoice; taken from "
            "the same list."
        ),
    )


class PriceVersionCreate(PriceTerms):
    """A new price list, in force from `effective_from` (default: now) until the next list of the
    same scope. It cannot begin before usage of its scope that has been rated."""

    effective_from: BodyTime | None = None


def _known_classes(prices: dict[Meter, list[PriceEntry]]) -> dict[Meter, list[PriceEntry]]:
    for meter, entries in prices.items():
        if meter in HELD_METERS:
            _without_class(entries)
    return prices


PricesByMeter = Annotated[
    dict[Meter, MeterPrices], Field(min_length=1), AfterValidator(_known_classes)
]


class MissingPrices(Body):
    """Prices that a list does not have yet, by meter; existing prices stay as they are."""

    per_million: PricesByMeter

    def tiers(self) -> dict[tuple[Meter, str], Tiers]:
        return _tiers(self.per_million)


class PriceEntryShown(BaseModel):
    model_config = ConfigDict(validate_by_name=True, serialize_by_alias=True)

    class_: str | None = Field(default=None, alias="class")
    from_quantity: int = Field(alias="from")
    price: str


ShownPrices = str | list[PriceEntryShown]


class PriceVersion(BaseModel):
    """`per_million` is a string if one price applies to all, else a list by class and tier. A meter
    that is missing has no price, and its usage waits for one."""

    id: str
    object: Literal["price_version"] = "price_version"
    model: str | None
    plan: str | None
    tenant: str | None
    adapter: str | None
    currency: str
    effective_from: datetime
    effective_to: datetime | None
    per_million: dict[str, ShownPrices]
    minimum: str
    included: str

    @classmethod
    def of(cls, price: PriceList) -> PriceVersion:
        return cls(**shown(price))


class PriceVersionListed(PriceVersion, IdItem):
    """With the names of its tenant and adapter, if it has them. `no` is the number that invoice
    lines call `price_version`."""

    no: int
    status: Status
    tenant_name: str | None
    adapter_name: str | None

    @classmethod
    def of_row(
        cls, price: PriceList, tenant_name: str | None, adapter_name: str | None, now: datetime
    ) -> PriceVersionListed:
        return cls(
            **shown(price),
            no=price.no,
            status=price.status_at(now),
            tenant_name=tenant_name,
            adapter_name=adapter_name,
        )


class PriceVersionList(ListPage[PriceVersionListed]):
    pass


class TenantPrice(PriceVersion):
    """`announced`: it is not in force yet. `adapter_name` is null unless it is for one adapter."""

    status: Literal["in_force", "announced"]
    adapter_name: str | None


class TenantPriceList(BaseModel):
    object: Literal["list"] = "list"
    data: list[TenantPrice]


def shown(price: PriceList) -> dict[str, Any]:
    """As the API shows it; also what the audit log keeps."""
    per_million: dict[str, Any] = {}
    for meter in METERS:
        entries = [
            {"class": class_ or None, "from": tier.from_quantity, "price": f"{tier.per_million:f}"}
            for (name, class_), tiers in sorted(price.tiers.items())
            if name == meter
            for tier in tiers
        ]
        plain = len(entries) == 1 and entries[0]["class"] is None
        if entries:
            per_million[meter] = entries[0]["price"] if plain else entries
    return {
        "id": price.id,
        "model": price.scope.model,
        "plan": price.scope.plan,
        "tenant": price.scope.tenant_id,
        "adapter": price.scope.adapter_id,
        "currency": price.currency,
        "effective_from": price.effective_from,
        "effective_to": price.effective_to,
        "per_million": per_million,
        "minimum": f"{price.minimum:f}",
        "included": f"{price.included:f}",
    }


class PricePreviewCreate(PriceTerms):
    """A price list to preview (it is not added), and the month to price with it."""

    month: str | None = Field(
        default=None,
        pattern=r"^20\d\d-(0[1-9]|1[0-2])$",
        description="A month such as `2026-10`, in UTC; default: the last full month.",
    )


class MeterPreview(BaseModel):
    """Money by currency, as exact decimal strings. `unpriced` is how much of `quantity` would wait
    for a price."""

    model_config = ConfigDict(validate_by_name=True, serialize_by_alias=True)

    meter: Meter
    class_: str | None = Field(alias="class")
    quantity: int
    before: dict[str, str]
    after: dict[str, str]
    unpriced: int


class TenantPreview(BaseModel):
    """`before` and `after` are usage only."""

    tenant: str
    tenant_name: str | None = None
    before: dict[str, str]
    after: dict[str, str]
    due_before: dict[str, str]
    due_after: dict[str, str]
    meters: list[MeterPreview]


class PricePreview(BaseModel):
    """What the month's usage cost `before`, and what it would cost `after`, had the list applied to
    the whole month; also what was due in each case: less included usage, and at least the minimum,
    but without credit, tax and invoice rounding. Tenants without usage are listed if they owe a
    minimum."""

    object: Literal["price_preview"] = "price_preview"
    month: str
    before: dict[str, str]
    after: dict[str, str]
    due_before: dict[str, str]
    due_after: dict[str, str]
    data: list[TenantPreview]
    has_more: bool = False

    def take(self, after: str | None, limit: int | None) -> None:
        """Leave of the list what comes behind the tenant `after`, at most `limit`."""
        rest = [each for each in self.data if after is None or each.tenant > after]
        self.data = rest[:limit]
        self.has_more = len(self.data) < len(rest)

    @classmethod
    def of(
        cls, month: str, changes: Mapping[str, TenantChange], dues: Mapping[str, Due]
    ) -> PricePreview:
        every = [change for each in changes.values() for change in each.values()]
        data = [
            _preview(tenant, changes.get(tenant, {}), dues.get(tenant, Due({}, {})))
            for tenant in sorted({*changes, *dues})
        ]
        return cls(month=month, **_sides(every), **_dues(list(dues.values())), data=data)


def _preview(tenant: str, changes: TenantChange, due: Due) -> TenantPreview:
    meters = [
        MeterPreview.model_validate(
            {
                "meter": key.meter,
                "class": key.class_ or None,
                "quantity": change.quantity,
                "unpriced": change.unpriced,
                **_sides([change]),
            }
        )
        for key, change in sorted(changes.items())
    ]
    sides = _sides(list(changes.values()))
    return TenantPreview(tenant=tenant, meters=meters, **sides, **_dues([due]))


def _dues(dues: Sequence[Due]) -> dict[str, Any]:
    return {
        "due_before": _shown(total([due.before for due in dues])),
        "due_after": _shown(total([due.after for due in dues])),
    }


def _sides(changes: Sequence[MeterChange]) -> dict[str, Any]:
    return {
        "before": _shown(total([change.before for change in changes])),
        "after": _shown(total([change.after for change in changes])),
    }


def _shown(money: Mapping[str, Decimal]) -> dict[str, str]:
    """All twelve decimals, nothing rounded."""
    return {currency: f"{amount:.12f}" for currency, amount in sorted(money.items())}
