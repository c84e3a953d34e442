"""Who waits for whom on busy cores: a process may stand behind the others of its machine. Knows the
system's ways of saying so, not what any process does."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

_GROUP = Path("/proc/self/autogroup")


def stand_behind(nice: int) -> None:
    """Let processes of a lower niceness go first, for good. Where the kernel shares the cores among
    sessions (Linux's autogroups), a process's own niceness counts within its session alone: one
    that leads a session tells that of the whole session, too."""
    os.nice(nice)
    if os.getsid(0) == os.getpid():
        # Other systems have no such file, containers with a group of their own ignore it, and
        # the kernel takes few changes in a second.
        with contextlib.suppress(OSError):
            _GROUP.write_text(str(os.nice(0)))
