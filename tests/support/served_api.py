"""The application of the tests on a loopback port, for clients that need a real connection."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import openai
from openai.types.chat import ChatCompletionMessageParam

from api_harness import Api, TestTenant
from fake_engine import FakeEngine, default_answer
from tenora_platform.connections import ConnectionLimits
from tenora_platform.serving import PlatformServer

HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Hi"}]


async def until(condition: Callable[[], bool]) -> None:
    """What is waited for happens on the other side of a socket, so there is no event to await."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


@asynccontextmanager
async def served(api: Api, limits: ConnectionLimits | None = None) -> AsyncIterator[str]:
    """The base URL for the `openai` client, of the platform's own server."""
    state = api.state
    limits = limits or ConnectionLimits(total=2000, per_address=1000)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = PlatformServer(
            api.app,
            state.settings,
            limits=limits,
            end_all=(state.flights.end_all, api.app.state.bodies.end_all),
            end_streams=state.live.end_all,
            lifespan=False,
        )
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        await until(lambda: server.started)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        finally:
            server.should_exit = True
            await serving


@asynccontextmanager
async def openai_client(api: Api, tenant: TestTenant) -> AsyncIterator[openai.AsyncOpenAI]:
    """The official client of a tenant, which does not retry, at the served application."""
    async with (
        served(api) as url,
        openai.AsyncOpenAI(base_url=url, api_key=tenant.key, max_retries=0) as made,
    ):
        yield made


def reset(engine: FakeEngine) -> None:
    """As it was when it was made, for the next test."""
    engine.answer = default_answer
    engine.gate = None
    engine.refusal = None
    engine.requests.clear()
    engine.aborted.clear()
