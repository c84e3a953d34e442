"""An installation whose parts are stubs, with a real Valkey: `python -m stub_platform <data dir>`
prints a line when it runs, and serves until it is told to stop."""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import suppress
from pathlib import Path

from tenora_platform.cli.run import take_signals
from tenora_platform.embedded.servers import running_servers
from tenora_platform.processes import supervisor
from tenora_platform.processes.engine_address import engine_address
from tenora_platform.processes.listening import listen
from tenora_platform.settings import Settings


async def _running() -> None:
    print("running", flush=True)


def main() -> None:
    supervisor.API = supervisor.WORKER = "stub_part"
    settings = Settings(
        data_dir=Path(sys.argv[1]),
        workers=2,
        drain_s=1.0,
        database_url="postgresql://nobody@127.0.0.1:1/none",
        model="none",
    )
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    take_signals()
    with suppress(KeyboardInterrupt), running_servers(settings, settings.server_secret()) as ready:
        parts = supervisor.Supervisor(
            ready, engine_address(ready), listen("127.0.0.1", 0), own_engine=False, own_worker=True
        )
        try:
            asyncio.run(parts.run(_running))
        finally:
            take_signals()


if __name__ == "__main__":
    main()
