"""What a platform that has been stopped has on its books: usage events, rated lines, what still
waits; what a reconciliation of them found; and where they contradict themselves. Who reads them
knows the database."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Books:
    """`events`: request id -> (prompt tokens, output tokens) of each of its events."""

    events: dict[str, list[tuple[int, int]]]
    rated: dict[str, int]  # meter -> quantity, over all lines
    unrated: int
    unrated_and_rated: int
    dead_letters: int
    in_outbox: int  # records that nobody has acknowledged
    compared: dict[str, int] = field(default_factory=dict)  # by the reconciliation: rows by layer
    differences: list[str] = field(default_factory=list)  # that it found

    @property
    def output_tokens(self) -> int:
        return sum(output for rows in self.events.values() for _, output in rows)

    def summary(self) -> dict[str, Any]:
        return {
            "events": sum(map(len, self.events.values())),
            "output_tokens": self.output_tokens,
            "rated": self.rated,
            "unrated": self.unrated,
            "dead_letters": self.dead_letters,
            "in_outbox": self.in_outbox,
            "compared": self.compared,
        }

    def faults(self) -> list[str]:
        """Where the books contradict themselves."""
        found = []
        if self.rated and not self.unrated and self.rated.get("output", 0) != self.output_tokens:
            found.append(f"{self.output_tokens} output tokens, rated {self.rated.get('output')}")
        for name in ("unrated_and_rated", "dead_letters", "in_outbox"):
            if getattr(self, name):
                found.append(f"{getattr(self, name)} {name.replace('_', ' ')}")
        return found + self.differences
