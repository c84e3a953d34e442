"""What PostgreSQL reads to answer: each query is explained as it is run, and the rows that its
scans visited are counted, those that a filter threw away included. No clock is in it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Engine, event

_READS = re.compile(r"\s*(select|with)\b", re.IGNORECASE)
_NOT_TWICE = re.compile(
    r"\b(insert|update|delete)\b|advisory|set_config|nextval|(create|drop)_usage", re.IGNORECASE
)
_EXPLAIN = "EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) "


@dataclass
class Read:
    """One query that was run."""

    statement: str
    rows: int  # that its scans visited
    blocks: int
    plan: dict[str, Any] = field(repr=False)

    def of(self, table: str) -> int:
        """Of this table, or its partitions."""
        return visited(self.plan, table)


@contextmanager
def rows_read() -> Iterator[list[Read]]:
    """Every query of this process meanwhile; those that change something are not explained."""
    found: list[Read] = []

    def explained(
        link: Any, _: Any, statement: str, parameters: Any, __: Any, is_many: bool
    ) -> None:
        if is_many or not _READS.match(statement) or _NOT_TWICE.search(statement):
            return
        cursor = link.connection.cursor()  # the query's own may be one of the server's
        cursor.execute(_EXPLAIN + statement, parameters)
        plan = cursor.fetchone()[0][0]["Plan"]
        cursor.close()
        blocks = plan.get("Shared Hit Blocks", 0) + plan.get("Shared Read Blocks", 0)
        found.append(Read(statement, visited(plan), blocks, plan))

    event.listen(Engine, "before_cursor_execute", explained)
    try:
        yield found
    finally:
        event.remove(Engine, "before_cursor_execute", explained)


def visited(plan: dict[str, Any], table: str = "") -> int:
    """Rows that the scans of a plan looked at, in all their loops."""
    own = 0
    if plan.get("Relation Name", "").startswith(table) and plan["Node Type"].endswith("Scan"):
        steps = ("Filter", "Index Recheck")
        thrown = sum(plan.get(f"Rows Removed by {step}", 0) for step in steps)
        own = round((plan["Actual Rows"] + thrown) * plan["Actual Loops"])
    return own + sum(visited(each, table) for each in plan.get("Plans", ()))
