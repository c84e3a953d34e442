"""A worker: the work that is done for all API processes (intake, usage, what is left over). Run as
`python -m tenora_platform.processes.worker` by the supervisor, or alone by `tenora worker`."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack

import uvloop

from tenora_engine.garbage import collect_nothing_yet, seldom_collect
from tenora_engine.priority import stand_behind
from tenora_engine.transport.address import EngineAddress
from tenora_platform.processes.handover import Handover, Owner
from tenora_platform.settings import Settings

_END_S = 10.0
_NICE = 5  # books and checks wait for tokens, a little


class Stop:
    """Asks the worker to end; from any thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    def __call__(self) -> None:
        self._loop.call_soon_threadsafe(self._event.set)

    async def wait(self) -> None:
        await self._event.wait()


async def work(
    settings: Settings,
    engine: EngineAddress,
    stop: Stop,
    begun: Callable[[], None],
    name: str = "worker",
) -> None:
    """Until `stop`: then usage that waits is stored still."""
    from tenora_platform.assembly import build_state, running_engine
    from tenora_platform.background import doing, worker_work
    from tenora_platform.operations.metrics import Metrics
    from tenora_platform.processes.engine_client import shared_engine
    from tenora_platform.usage.gate import UsageGate
    from tenora_platform.usage.sink import UsageSink

    client = shared_engine(settings, engine, late_text=True)
    state = build_state(settings, client, Metrics(), "worker", name)
    async with AsyncExitStack() as stack:
        stack.callback(state.checker.close)
        stack.callback(state.apart.close)
        stack.push_async_callback(state.db.close)
        stack.push_async_callback(state.redis.aclose)
        stack.push_async_callback(state.live.finish)
        stack.push_async_callback(state.budgets.finish)
        await stack.enter_async_context(running_engine(state, with_text=False))
        async with doing(worker_work(state), state.outages):
            seldom_collect()
            begun()
            await stop.wait()
        gate = UsageGate(state.db, state.store)
        sink = UsageSink(state.engine, state.db, told=state.budgets.book, gate=gate)
        await sink.store_what_waits()


async def serve(handover: Handover, owner: Owner) -> None:
    from tenora_platform.operations.metrics import share_metrics

    share_metrics(handover.metrics_dir, handover.counts_as)
    stop = Stop()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop)
    owner.when_gone(stop, _END_S)
    await work(handover.settings, handover.engine, stop, owner.say_ready, handover.name)


def main() -> None:
    collect_nothing_yet()
    stand_behind(_NICE)
    owner = Owner()
    uvloop.run(serve(owner.handover(), owner))


if __name__ == "__main__":
    main()
