"""A part of a supervisor without anything in it: as slow to start and to end as its environment
says. Run as `python -m stub_part`."""

from __future__ import annotations

import os
import random
import signal
import threading
import time

from tenora_platform.processes.handover import Owner


def main() -> None:
    owner = Owner()
    owner.handover()
    begins, ends = os.environ.get("STUB_S", "0,0").split(",")
    time.sleep(random.random() * float(begins))
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    owner.when_gone(stop.set, 1.0)
    owner.say_ready()
    stop.wait()
    time.sleep(random.random() * float(ends))


if __name__ == "__main__":
    main()
