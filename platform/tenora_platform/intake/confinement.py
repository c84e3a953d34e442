"""What the system takes from a process that reads strangers' files: network, files, privileges, and
more memory and time than a check needs. It says what it could not take. Knows no adapter."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import socket
import sys
from dataclasses import dataclass

_NOBODY = 65534
_NEW_NETWORK, _NEW_USER = 0x40000000, 0x10000000  # CLONE_NEWNET, CLONE_NEWUSER
_NO_NEW_PRIVILEGES, _DUMPABLE, _DEATH_SIGNAL = 38, 4, 1  # PR_SET_*
_CREATE_RULESET, _RESTRICT_SELF = 444, 446  # Landlock's system calls, the same on every processor
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""Landlock's version -> how many rights to files it knows: numbers 0 to so many less one."""
_OPEN_FILES = 16


@dataclass(frozen=True, slots=True)
class Confinement:
    """What was taken. `network`: by a namespace of its own, of TCP alone, or not; `files`: no path
    can be opened any more; `user`: it is nobody, where its owner is root."""

    network: str  # "none", "no TCP" or "open"
    files: str  # "none" or "open"
    user: str  # "nobody", or "the same"

    def __str__(self) -> str:
        return f"network: {self.network}; files: {self.files}; user: {self.user}"


def confine() -> Confinement:
    """Give up for good what the system lets us give up. Afterwards nothing can be imported."""
    apart = _leave_network()
    user = _become_nobody()
    _prctl(_DUMPABLE, 0)
    _prctl(_NO_NEW_PRIVILEGES, 1)
    landlock = _landlock()
    network = "none" if apart else ("no TCP" if landlock >= 4 else "open")
    return Confinement(network, "none" if landlock else "open", user)


def limit(memory_bytes: int, cpu_s: int) -> None:
    """Of this process, for good. It ends with its owner, too."""
    _prctl(_DEATH_SIGNAL, 9)
    for what, most in (
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, _OPEN_FILES),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        # Some systems know a limit and do not take it.
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(what, (most, most))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))


def _leave_network() -> bool:
    """Without privileges only in a namespace of users of its own."""
    if sys.platform != "linux":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    return any(libc.unshare(flags) == 0 for flags in (_NEW_NETWORK, _NEW_NETWORK | _NEW_USER))


def _become_nobody() -> str:
    if os.geteuid() != 0:
        return "the same"
    try:
        os.setgroups([])
        os.setgid(_NOBODY)
        os.setuid(_NOBODY)
    except OSError:  # a container that has no such user
        return "the same"
    return "nobody"


class _Rules(ctypes.Structure):
    _fields_ = (
        ("files", ctypes.c_uint64),
        ("network", ctypes.c_uint64),
        ("scoped", ctypes.c_uint64),
    )


def _landlock() -> int:
    """Refuses every path, and TCP where the kernel can; the version that does, 0 for none."""
    if sys.platform != "linux":
        return 0
    libc = ctypes.CDLL(None, use_errno=True)
    version = int(libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(1)))
    if version < 1:
        return 0
    rules = _Rules(
        files=(1 << _FILE_RIGHTS.get(version, 16)) - 1,
        network=3 if version >= 4 else 0,  # bind, connect
        scoped=3 if version >= 6 else 0,  # abstract sockets and signals stay among our own
    )
    size = ctypes.c_size_t(24 if version >= 6 else 16 if version >= 4 else 8)
    ruleset = int(libc.syscall(_CREATE_RULESET, ctypes.byref(rules), size, ctypes.c_uint32(0)))
    if ruleset < 0:
        return 0
    try:
        return version if libc.syscall(_RESTRICT_SELF, ruleset, ctypes.c_uint32(0)) == 0 else 0
    finally:
        os.close(ruleset)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, ctypes.c_ulong(value), 0, 0, 0)


def network_is_reachable() -> bool:
    """Whether so much as a route to another machine is there; for tests and `tenora doctor`."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # an address of documents; nothing is sent
        except OSError:
            return False
    return True
