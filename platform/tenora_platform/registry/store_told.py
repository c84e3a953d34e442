"""What a worker found when it compared object store and database, as it tells it to the others, for
`/readyz` and `/metrics`."""

from __future__ import annotations

import msgspec


class StoreTold(msgspec.Struct, frozen=True, kw_only=True):
    """Why nothing is removed from the store, None where all is well: `problem` by what the store
    says of its database, `stopped` by how much the last sweep would have moved. The counts are that
    sweep's: objects that it looked at, and those without an owner."""

    problem: str | None = None
    stopped: str | None = None
    objects: int | None = None
    unowned: int | None = None


def store_warnings(told: StoreTold | None) -> list[str]:
    """For `/readyz`: requests are served, and somebody has to look."""
    found = [] if told is None else [told.problem, told.stopped]
    return [
        f"{each} Garbage collection of the object store has stopped. See: tenora store status"
        for each in found
        if each is not None
    ]
