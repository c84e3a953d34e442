"""A part of an invoice's line: of one day, adapter or key, as a query is narrowed to it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import Any

_VERSIONS = """
  SELECT v.id FROM adapter_versions v JOIN adapters a ON a.id = v.adapter_id
   WHERE a.tenant_id = :part_tenant AND a.name = :part_adapter
"""


@dataclass(frozen=True, slots=True)
class Part:
    """None: whatever. `adapter` is a name or name@version; empty, the base model."""

    day: date | None = None
    adapter: str | None = None
    api_key: str | None = None

    def conditions(self, day: str) -> str:
        """On a query that has the series as `s` and the day of use in the column `day`."""
        found = []
        if self.day is not None:
            found.append(f"{day} = :part_day")
        if self.api_key is not None:
            found.append("s.api_key_id = :part_key")
        if self.adapter == "":
            found.append("s.adapter_digest IS NULL AND s.adapter_id IS NULL")
        elif self.adapter is not None:
            narrowed = " AND v.number = :part_version" if "@" in self.adapter else ""
            found.append(f"s.adapter_version_id IN ({_VERSIONS}{narrowed})")
        return "".join(f" AND {each}" for each in found)

    def values(self, tenant_id: str) -> dict[str, Any]:
        """Of those conditions' parameters."""
        found: dict[str, Any] = {}
        if self.day is not None:
            found["part_day"] = self.day
        if self.api_key is not None:
            found["part_key"] = self.api_key
        if self.adapter:
            name, _, number = self.adapter.partition("@")
            found |= {"part_tenant": tenant_id, "part_adapter": name}
            if "@" in self.adapter:
                is_number = number.isascii() and number.isdigit() and len(number) < 10
                found["part_version"] = int(number) if is_number else -1
        return found
