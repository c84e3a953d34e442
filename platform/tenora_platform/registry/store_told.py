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
    be served, for their content is damaged or missing. `undeleted`: versions and uploads whose
    objects could not be deleted; `stuck`: objects that the last sweep could not remove;
    `missing`: contents that versions serve and of which it did not find a file. `strange_usage`:
    usage waits that names tenants, and there are none. `unreadable_usage`: what of the engine's
    outbox is damaged."""

    problem: str | None = None
    stopped: str | None = None
    objects: int | None = None
    unowned: int | None = None
    damaged: int | None = None
    undeleted: int | None = None
    stuck: int | None = None
    missing: int | None = None
    strange_usage: bool = False
    unreadable_usage: int = 0

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
    if told.unreadable_usage:
        warnings.append(
            f"{told.unreadable_usage} segments or records of the engine's usage outbox cannot be "
            "read and are not billed. They are kept: files that end in .damaged, or as they are; "
            "the engine's log names them. Take them away once they have been looked at."
        )
    if told.damaged:
        warnings.append(
            f"{told.damaged} adapter versions cannot be served: their content in the object store "
            "is damaged or missing. See: tenora doctor --store"
        )
    if told.missing:
        warnings.append(
            f"Files of {told.missing} adapters that are served are missing from the object store. "
            "See: tenora doctor --store"
        )
    if told.undeleted:
        warnings.append(
            f"The stored files of {told.undeleted} adapter versions could not be deleted from the "
            "object store. They are tried again; the worker's log says why."
        )
    if told.stuck:
        warnings.append(
            f"{told.stuck} objects that nothing needs could not be removed from the object store. "
            "The next sweep tries them again; the worker's log names them."
        )
    return warnings
