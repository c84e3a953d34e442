"""Which versions a name stands for, and in which parts of its callers. Pure: the one rule by which
requests are resolved (`resolver`) and by which it is shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from tenora_platform.registry.split import PARTS, of_serving

DEFAULT_ALIAS = "prod"


@dataclass(frozen=True)
class Meant:
    """`parts` has a version number for each hundredth of the callers, or one for all; empty where
    nothing answers. `alias` is the one by which they were found."""

    parts: tuple[int, ...] = ()
    alias: str | None = None

    @property
    def weights(self) -> dict[int, int]:
        """Percent by version."""
        if len(self.parts) == 1:
            return {self.parts[0]: PARTS}
        return dict(sorted(Counter(self.parts).items()))


def meant(
    which: str | None,  # of `name@which`; None of a bare name
    servable: Collection[int],
    newest_active: int | None,
    aliases: Mapping[str, Sequence[int]],  # the parts of each
) -> Meant:
    """A number names a version, any other word an alias; a bare name is `prod`, if there is such an
    alias, else the newest active version."""
    if which is not None and which.isdecimal():
        number = int(which)
        return Meant((number,)) if number in servable else Meant()
    if which is not None or DEFAULT_ALIAS in aliases:
        alias = which or DEFAULT_ALIAS
        parts = aliases.get(alias)
        return Meant() if parts is None else Meant(tuple(of_serving(parts, servable)), alias)
    return Meant() if newest_active is None else Meant((newest_active,))
