"""An API process: requests over a socket that its owner listens on, and nothing that must be done
only once. Run as `python -m tenora_platform.processes.api` by the supervisor."""

from __future__ import annotations

import socket

import uvloop

from tenora_engine.garbage import collect_nothing_yet
from tenora_platform.processes.handover import Handover, Owner


async def serve(handover: Handover, owner: Owner) -> None:
    """Until SIGTERM, or the owner's end: then requests in flight have `drain_s`."""
    from tenora_platform.app import create_app
    from tenora_platform.background import api_work
    from tenora_platform.operations.metrics import Metrics, share_metrics
    from tenora_platform.processes.engine_client import shared_engine
    from tenora_platform.serving import PlatformServer, connection_limits

    settings = handover.settings
    share_metrics(handover.metrics_dir, handover.counts_as)
    app = create_app(
        settings,
        engine=shared_engine(settings, handover.engine),
        work=api_work,
        metrics=Metrics(handover.metrics_dir),
        role="api",
        name=handover.name,
    )
    server = PlatformServer(
        app,
        settings,
        limits=connection_limits(settings),
        end_all=(app.state.tenora.flights.end_all, app.state.bodies.end_all),
        end_streams=app.state.tenora.live.end_all,
        started=owner.say_ready,
    )
    owner.when_gone(server.end_soon, settings.drain_s)
    assert handover.listen_fd is not None
    with socket.socket(fileno=handover.listen_fd) as listener:
        await server.serve(sockets=[listener])


def main() -> None:
    collect_nothing_yet()
    owner = Owner()
    uvloop.run(serve(owner.handover(), owner))


if __name__ == "__main__":
    main()
