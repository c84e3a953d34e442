"""The garbage collector of a process that serves: it looks at what was made lately, seldom, and
never again at what was there before."""

from __future__ import annotations

import gc

YOUNG_OBJECTS = 10_000
"""Made, and not yet unmade, since the last collection before there is another. Almost nothing of
ours is in cycles, and a collection visits all that lives, every token id of a prompt too; so it
should come when most of what is young has gone by itself. Beside 2000 waiting requests there were
3 of 7 ms in 1,486 steps; with Python's 700 there were 55 of 2.4 ms."""


def collect_nothing_yet() -> None:
    """While modules are imported and what stays is built: a fifth of that time would go to
    collections that find nothing."""
    gc.disable()


def seldom_collect() -> None:
    """To be called once everything that stays has been built."""
    gc.enable()
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 10, 10)
