"""The application over a real engine of a tiny model, in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import httpx
import pytest

from api_harness import Api
from fake_engine import FakeEngine
from tenora_engine.client import EngineClient
from tenora_engine.config import EngineConfig
from tenora_kernels.backend import has_compiled_ops
from tenora_platform.app import create_app
from tenora_platform.settings import Settings
from tiny_folder import write_tiny_folder

PATIENCE_S = 20.0


def tiny_config(folder: Path) -> EngineConfig:
    """Of a model that is written into the folder."""
    if not has_compiled_ops():
        pytest.skip("the kernels are not compiled")
    write_tiny_folder(folder / "model")
    return EngineConfig(
        model=str(folder / "model"),
        served_name="fake-base",
        load_format="dummy",
        dtype="float32",
        arena_bytes=8 * 1024**2,
        memory_bytes=1024**3,
        max_adapters=1,
        max_running=16,
        outbox_dir=str(folder / "outbox"),
    )


@asynccontextmanager
async def api_over(settings: Settings, engine: EngineClient) -> AsyncIterator[Api]:
    """As `api_harness.running_api` has it, once the engine is ready."""
    app = create_app(settings, engine=engine)
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://tenora") as http:
            async with asyncio.timeout(PATIENCE_S):
                while not engine.ready:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            yield Api(app, cast(FakeEngine, engine), http)
