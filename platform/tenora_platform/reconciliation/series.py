"""What the events of one series have in common: whose they are, and which price list holds for them
when. Knows no event."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from tenora_platform.reconciliation.tariff import Tariff

_EVER = datetime(9999, 1, 1, tzinfo=UTC)
_NEVER = datetime(1, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Held:
    """A price list with whom it is for (adapter, tenant, plan, model; None: any) and its time."""

    no: int
    scope: tuple[str | None, str | None, str | None, str | None]
    begin: datetime
    end: datetime | None

    def covers(self, usage: tuple[str | None, ...]) -> bool:
        return all(mine in (None, its) for mine, its in zip(self.scope, usage, strict=True))

    @property
    def precedence(self) -> tuple[tuple[bool, ...], datetime]:
        """An adapter's before its tenant's before the plan's before the model's before the general
        one; of equals the newest."""
        return tuple(part is not None for part in self.scope), self.begin


@dataclass(slots=True)
class Series:
    """One row of usage_series, with `whole` False where it is not what its key says."""

    id: int
    tenant_id: str
    tenant_no: int
    kind: str
    service_class: str
    model: str
    scope: tuple[str | None, str | None, str | None, str | None]
    # Found out once, asked for each event.
    flat: dict[int, tuple[int | None, ...] | None] = field(default_factory=dict)
    _begins: list[datetime] = field(default_factory=list)
    _versions: list[int | None] = field(default_factory=list)

    def hold(self, lists: Iterable[Held]) -> None:
        """From now on `price_at` knows these."""
        mine = sorted(
            (each for each in lists if each.covers(self.scope)),
            key=lambda each: each.precedence,
            reverse=True,
        )
        edges = {_NEVER}
        for each in mine:
            edges |= {each.begin, each.end or _EVER}
        self._begins = sorted(edges)
        self._versions = [
            next(
                (
                    each.no
                    for each in mine
                    if each.begin <= edge and (each.end is None or edge < each.end)
                ),
                None,
            )
            for edge in self._begins
        ]

    def price_at(self, at: datetime) -> int | None:
        """The number of the list that holds then."""
        return self._versions[bisect_right(self._begins, at) - 1]

    def flat_prices(
        self, version: int, tariffs: Mapping[int, Tariff]
    ) -> tuple[int | None, ...] | None:
        """As `Tariff.flat`. Raises KeyError for a version that is not there."""
        if version not in self.flat:
            self.flat[version] = tariffs[version].flat(self.service_class)
        return self.flat[version]
