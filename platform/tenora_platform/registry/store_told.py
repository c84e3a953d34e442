"""What a worker found when it compared object store and database, as it tells it to the others, for
`/readyz` and `/metrics`."""

from __future__ import annotations

import msgspec


class StoreTold(msgspec.Struct, frozen=True, kw_only=True):
    """Why nothing is removed from the store, None where all is well: `problem` by what the store
    says of its database, `stopped` by how much the last sweep would have moved. The counts are that
    sweep's: objects that it looked at, and those without an owner. `damaged`: versions that cannot
    be served, for their content is damaged or missing. `undeleted`: versions and uploads whose
    objects could not be deleted; `stuck`: objects that the last sweep could not remove;
    `missing`: contents that versions serve and of which it did not find a file."""

    problem: str | None = None
    stopped: str | None = None
    objects: int | None = None
    unowned: int | None = None
    damaged: int | None = None
    undeleted: int | None = None
    stuck: int | None = None
    missing: int | None = None


def store_warnings(told: StoreTold | None) -> list[str]:
    """For `/readyz`: requests are served, and somebody has to look."""
    if told is None:
        return []
    warnings = [
        f"{each} Garbage collection of the object store has stopped. See: tenora store status"
        for each in (told.problem, told.stopped)
        if each is not None
    ]
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
