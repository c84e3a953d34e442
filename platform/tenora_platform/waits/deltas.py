"""What engines have counted since it was last looked. Totals rise from 0 with each start of an
engine, and a start has an id: what is new is exact however often either side begins anew."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tenora_engine.telemetry import TelemetryStats

WaitKey = tuple[str, str, str, str]
"""Class, who waits, cause, other tenant."""

ShareKey = tuple[str, str]
"""Class, who is served."""


@dataclass(frozen=True)
class Totals:
    """Of one start of an engine."""

    waits: Mapping[WaitKey, tuple[float, int]]  # seconds, sequences
    shares: Mapping[ShareKey, float]  # service

    @classmethod
    def of(cls, telemetry: TelemetryStats) -> Totals:
        return cls(
            waits={
                (each.service_class, each.tenant, each.cause, each.other): (
                    each.seconds,
                    each.sequences,
                )
                for each in telemetry.waits
            },
            shares={
                (meter.service_class, meter.tenant): meter.service for meter in telemetry.meters
            },
        )

    @classmethod
    def stored(cls, found: Mapping[str, Any] | None) -> Totals:
        """From JSON; None is nothing yet."""
        if found is None:
            return cls({}, {})
        return cls(
            waits={(a, b, c, d): (seconds, n) for a, b, c, d, seconds, n in found["waits"]},
            shares={(a, b): service for a, b, service in found["shares"]},
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "waits": [[*key, *value] for key, value in self.waits.items()],
            "shares": [[*key, value] for key, value in self.shares.items()],
        }

    def since(self, before: Totals) -> Totals:
        """What is above 0 of the differences."""
        waits = {}
        for key, (seconds, sequences) in self.waits.items():
            past_s, past = before.waits.get(key, (0.0, 0))
            new = max(seconds - past_s, 0.0), max(sequences - past, 0)
            if any(new):
                waits[key] = new
        shares = {key: value - before.shares.get(key, 0.0) for key, value in self.shares.items()}
        return Totals(waits, {key: value for key, value in shares.items() if value > 0})
