"""What a person's role at a tenant allows: the one table of it. Which right a route asks for is
said at the route (`auth.require_scope`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple, get_args

Right = Literal["inference", "adapters", "usage", "keys", "billing", "people"]
"""The scopes of keys, and what no key is given: `billing`, the settings of bills (for which a key
needs `keys`), and `people`."""
MemberRole = Literal["owner", "developer", "billing", "viewer"]
MEMBER_ROLES: tuple[MemberRole, ...] = get_args(MemberRole)

_ALL: frozenset[Right] = frozenset(get_args(Right))


class Rights(NamedTuple):
    """`reads`: of GET; `writes`: of every other method."""

    reads: frozenset[Right]
    writes: frozenset[Right]


RIGHTS: Mapping[MemberRole, Rights] = {
    "owner": Rights(reads=_ALL, writes=_ALL),
    "developer": Rights(
        reads=frozenset({"inference", "adapters", "usage"}),
        writes=frozenset({"inference", "adapters", "usage"}),
    ),
    "billing": Rights(
        reads=frozenset({"usage", "billing"}), writes=frozenset({"usage", "billing"})
    ),
    "viewer": Rights(reads=frozenset({"inference", "adapters", "usage"}), writes=frozenset()),
}


def role_may(role: MemberRole, right: Right, *, reads: bool) -> bool:
    rights = RIGHTS[role]
    return right in (rights.reads if reads else rights.writes)
