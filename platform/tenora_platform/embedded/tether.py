"""Ties a process to its parent: the system sends it a signal when the thread that started it has
ended, however that came (Linux only). Run as `python -I tether.py <parent's pid> <signal> <program>
[arguments...]` it becomes that program."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def tie(parent: int, number: int = signal.SIGKILL) -> None:
    """This process, from here on; ends it if the parent is gone already."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def main() -> None:
    parent, number, *command = sys.argv[1:]
    tie(int(parent), int(number))
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
