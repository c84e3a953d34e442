"""The layer of events: each row's seal, what it costs by the list that held for it, and what all of
them add up to by series and hour. Rows come in any order; this module reads none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from tenora_platform.reconciliation.differences import Differences, Kind
from tenora_platform.reconciliation.series import Series
from tenora_platform.reconciliation.sums import AMOUNTS, CELL, COUNTED, PRICED, Cells
from tenora_platform.reconciliation.tariff import (
    EVENT_METERS,
    MissingPriceError,
    Tariff,
    cost,
    is_amount,
    nanos,
    shown,
)
from tenora_platform.usage.ids import event_text
from tenora_platform.usage.seal import EVENT_COLUMNS, OCCUPANCY_COLUMNS, Seals

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_HOUR = timedelta(hours=1)
_AT = {name: at for at, name in enumerate(EVENT_COLUMNS)}
_TIME, _VERSION, _POSITIONS = (
    _AT[name] for name in ("event_time", "price_version_no", "positions")
)


class Volume(NamedTuple):
    """What places in volume tiers are counted for."""

    tenant_id: str
    month: date
    version: int
    model: str
    service_class: str
    meter: str


@dataclass(slots=True)
class EventBook:
    """What the events say. `unrated` are those that wait for a
    price, with tenant, day and name; `places` the (place,
    quantity) of events under lists with tiers."""

    series: Mapping[int, Series]
    tariffs: Mapping[int, Tariff]
    seals: Seals
    found: Differences
    cells: Cells = field(default_factory=dict)
    events: int = 0
    occupancy_events: int = 0
    unrated: dict[tuple[UUID, int], tuple[str, date, str]] = field(default_factory=dict)
    places: dict[Volume, list[tuple[int, int]]] = field(default_factory=dict)

    def add_events(self, rows: Iterable[Sequence[Any]]) -> None:
        """Rows of usage_events: EVENT_COLUMNS and the seal."""
        seal_of, cells, every = self.seals.event, self.cells, self.series
        for row in rows:
            self.events += 1
            (request, sequence, tenant_no, series_id, at, _, prompt, cached, output, _, loads,
             _, _, _, _, _, _, _, _, _, version, amount, _, seal) = row  # fmt: skip
            series = every.get(series_id)
            if series is None:
                self._tell_stray(row)
                continue
            if seal != seal_of(row[:-1]) or tenant_no != series.tenant_no:
                self._tell(Kind.EVENT_CHANGED, series, row, "its seal", "a row without it")
            used = (prompt - cached, cached, output, loads)
            costs = _FREE
            if version is None:
                self.unrated[request, sequence] = _whose(series, row)
            else:
                costs = self._costs(series, row, used)
            charged = sum(costs)
            if version is not None and not is_amount(amount, charged):
                self._tell(Kind.AMOUNT_WRONG, series, row, shown(charged), amount)
            key = (series_id, (at - _EPOCH) // _HOUR, version or 0)
            cell = cells.get(key)
            if cell is None:
                cell = cells[key] = CELL[:]
            if sequence == 0:
                cell[0] += 1
            cell[1] += 1
            if version is None:
                cell[2] += 1
            cell[4] += used[0]
            cell[5] += cached
            cell[6] += output
            cell[7] += loads
            if charged:
                cell[3] += nanos(charged)
                cell[AMOUNTS] += costs[0]
                cell[AMOUNTS + 1] += costs[1]
                cell[AMOUNTS + 2] += costs[2]
                cell[AMOUNTS + 3] += costs[3]

    def _costs(self, series: Series, row: Sequence[Any], used: tuple[int, ...]) -> Sequence[int]:
        """Picos of each of EVENT_METERS."""
        version = row[_VERSION]
        if not version:  # there was nothing to price
            if any(used):
                self._tell(Kind.PRICE_MISSING, series, row, "the list it was rated by", "none")
            return _FREE
        if series.price_at(row[_TIME]) != version:
            self._tell_list(series, row)
        try:
            prices = series.flat_prices(version, self.tariffs)
            if prices is None:
                return self._tiered(series, row, used)
            if None in prices:
                demand_prices(used, prices)
            return [quantity * (price or 0) for quantity, price in zip(used, prices, strict=True)]
        except (KeyError, MissingPriceError):
            self._tell(Kind.PRICE_MISSING, series, row, f"prices of version {version}", "none")
            return _FREE

    def _tiered(self, series: Series, row: Sequence[Any], used: tuple[int, ...]) -> Sequence[int]:
        costs = []
        version, positions = row[_VERSION], row[_POSITIONS]
        for at, (meter, quantity) in enumerate(zip(EVENT_METERS, used, strict=True)):
            tiers = self.tariffs[version].of(meter, series.service_class)
            if not quantity:
                costs.append(0)
                continue
            if tiers is None:
                raise MissingPriceError
            place = 0
            if len(tiers) > 1:
                if positions is None:
                    self._tell(Kind.TIER_POSITION_WRONG, series, row, f"a place of {meter}")
                else:
                    place = positions[at]
                self._take_place(series, version, row[_TIME], meter, (place, quantity))
            costs.append(cost(tiers, quantity, place))
        return costs

    def _take_place(
        self, series: Series, version: int, time: datetime, meter: str, taken: tuple[int, int]
    ) -> None:
        """`taken`: (place, quantity) in the tiers of the month."""
        month = time.astimezone(UTC).date().replace(day=1)
        volume = Volume(series.tenant_id, month, version, series.model, series.service_class, meter)
        self.places.setdefault(volume, []).append(taken)

    def add_occupancy(self, rows: Iterable[Sequence[Any]]) -> None:
        """Rows of occupancy_events: OCCUPANCY_COLUMNS and the seal."""
        for row in rows:
            self.occupancy_events += 1
            values = dict(zip(OCCUPANCY_COLUMNS, row, strict=False))
            series = self.series.get(values["series_id"])
            name = f"occ {values['id']}"
            if series is None:
                self.found.add(Kind.SERIES_MISSING, None, None, name, values["series_id"])
                continue
            at, meter, quantity = values["ends"], values["meter"], values["quantity"]
            tell = (series.tenant_id, at.astimezone(UTC).date(), name)
            sealed = self.seals.occupancy(row[:-1]) == row[-1]
            if not sealed or values["tenant_no"] != series.tenant_no:
                self.found.add(Kind.EVENT_CHANGED, *tell, "its seal", "a row without it")
            version, charged = values["price_version_no"], 0
            cell = self.cells.setdefault((series.id, (at - _EPOCH) // _HOUR, version or 0), CELL[:])
            if version is None:
                self.unrated[values["id"], -1] = tell
                cell[2] += 1
            else:
                charged = self._held_cost(series, values, tell)
                cell[3] += nanos(charged)
            if meter in PRICED:
                cell[len(COUNTED) + PRICED.index(meter)] += quantity
                cell[AMOUNTS + PRICED.index(meter)] += charged

    def _held_cost(
        self, series: Series, row: Mapping[str, Any], tell: tuple[str, date, str]
    ) -> int:
        """Picos of a row of occupancy_events that has been rated."""
        version, quantity, charged = row["price_version_no"], row["quantity"], 0
        if version and series.price_at(row["ends"]) != version:
            holds = self._list(series.price_at(row["ends"]))
            self.found.add(Kind.PRICE_NOT_IN_FORCE, *tell, holds, self._list(version))
        tariff = self.tariffs.get(version)
        tiers = tariff.of(row["meter"], series.service_class) if tariff is not None else None
        if tiers is not None:
            place = (row["positions"] or [0])[0]
            charged = cost(tiers, quantity, place)
            if len(tiers) > 1 and quantity:
                self._take_place(series, version, row["ends"], row["meter"], (place, quantity))
        elif quantity:
            self.found.add(Kind.PRICE_MISSING, *tell, f"a price of {row['meter']}", "none")
        if not is_amount(row["amount"], charged):
            self.found.add(Kind.AMOUNT_WRONG, *tell, shown(charged), row["amount"])
        return charged

    def _tell(
        self,
        kind: Kind,
        series: Series,
        row: Sequence[Any],
        expected: object = "",
        there: object = "",
    ) -> None:
        self.found.add(kind, *_whose(series, row), expected, there)

    def _tell_list(self, series: Series, row: Sequence[Any]) -> None:
        holds = series.price_at(row[_TIME])
        version = row[_VERSION]
        self._tell(Kind.PRICE_NOT_IN_FORCE, series, row, self._list(holds), self._list(version))

    def _list(self, version: int | None) -> str:
        found = self.tariffs.get(version) if version is not None else None
        return f"price version {version}" + (f" ({found.id})" if found is not None else "")

    def _tell_stray(self, row: Sequence[Any]) -> None:
        name = event_text("other", row[_AT["request"]], row[_AT["sequence"]])
        self.found.add(
            Kind.SERIES_MISSING, None, None, name, f"series {row[_AT['series_id']]}", "none"
        )


_FREE: Sequence[int] = (0, 0, 0, 0)


def _whose(series: Series, row: Sequence[Any]) -> tuple[str, date, str]:
    """Tenant, day and name of an event."""
    name = event_text(series.kind, row[_AT["request"]], row[_AT["sequence"]])
    return series.tenant_id, row[_TIME].astimezone(UTC).date(), name


def demand_prices(used: Sequence[int], prices: Sequence[int | None]) -> None:
    """Raises MissingPriceError for a meter that moved and has none."""
    if any(quantity and price is None for quantity, price in zip(used, prices, strict=True)):
        raise MissingPriceError


def compare_places(
    places: Mapping[Volume, list[tuple[int, int]]],
    volumes: Mapping[Volume, int],
    found: Differences,
) -> None:
    """Whether the events of a month take each place in a tier once, and as many as were counted.
    Uses `places` up."""
    for volume in sorted(places.keys() | volumes.keys()):
        taken, at = sorted(places.get(volume, ())), 0
        name = f"{volume.tenant_id} {volume.month:%Y-%m} {volume.meter} of {volume.model}"
        tell = (volume.tenant_id, None, f"{name}, class {volume.service_class}")
        for place, quantity in taken:
            if place != at:
                found.add(Kind.TIER_POSITION_WRONG, *tell, f"from {at} on", f"from {place} on")
            at = place + quantity
        if at != volumes.get(volume, 0):
            found.add(Kind.TIER_POSITION_WRONG, *tell, f"{at} counted", volumes.get(volume, 0))
