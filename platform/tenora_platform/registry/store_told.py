"""What a worker found when it compared object store and database, as it tells it to the others, for
`/readyz` and `/metrics`."""

from __future__ import annotations

import msgspec

REMEDY = (
    "Bring the right database or object store back, or accept this database: tenora store adopt."
)
STRANGE_USAGE = (
    "The engine's outbox has usage of tenants, and this database has no tenant. It waits there. "
    "Bring the right database back; once there is a tenant, it is set aside as dead letters."
)


class StoreTold(msgspec.Struct, frozen=True, kw_only=True):
    """Why nothing is removed from the store, None where all is well: `problem` by what the store
    says of its database, `stopped` by how much the last sweep would have moved. The counts are that
    sweep's: objects that it looked at, and those without an owner. `damaged`: versions that cannot
    be served, for their content is damaged or missing. `strange_usage`: usage waits that names
    tenants, and there are none."""

    problem: str | None = None
    stopped: str | None = None
    objects: int | None = None
    unowned: int | None = None
    damaged: int | None = None
    strange_usage: bool = False

    @property
    def usage_held(self) -> bool:
        return self.problem is not None or self.strange_usage


def store_warnings(told: StoreTold | None) -> list[str]:
    """For `/readyz`: requests are served, and somebody has to look."""
    if told is None:
        return []
    stopped = "Garbage collection of the object store has stopped"
    warnings = []
    if told.problem is not None:
        warnings.append(
            f"{told.problem} Usage is not stored and waits in the engine's outbox. {stopped}. "
            f"{REMEDY} See: tenora store status"
        )
    if told.stopped is not None:
        warnings.append(f"{told.stopped} {stopped}. See: tenora store status")
    if told.strange_usage:
        warnings.append(STRANGE_USAGE)
    if told.damaged:
        warnings.append(
            f"{told.damaged} adapter versions cannot be served: their content in the object store "
            "is damaged or missing. See: tenora doctor --store"
        )
    return warnings
