"""Rows that are read in slices: all of them, with turns for others in between, by readers that end
early too."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from api_harness import Api
from tenora_platform.db import in_slices

ROWS = text("SELECT n FROM generate_series(1, CAST(:rows AS integer)) n")


async def numbers(session: AsyncSession, rows: int) -> AsyncGenerator[int]:
    async for (number,) in in_slices(session, ROWS, {"rows": rows}, rows=10):
        yield number


async def read_and_fail(api: Api) -> None:
    async with api.state.db.admin_session() as session:
        async for number in numbers(session, 1000):
            raise KeyError(number)


async def test_others_have_turns_between_slices(api: Api) -> None:
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with api.state.db.admin_session() as session:
        task = asyncio.create_task(other())
        found = [number async for number in numbers(session, 1000)]
        task.cancel()
    assert found == [*range(1, 1001)]
    assert turns >= 50


async def test_a_reader_that_ends_early_disturbs_nobody(api: Api) -> None:
    async with api.state.db.admin_session() as session:
        async with aclosing(numbers(session, 1000)) as reader:
            assert await anext(reader) == 1
        gc.collect()
        assert await session.scalar(text("SELECT 7")) == 7
    with pytest.raises(KeyError):
        await read_and_fail(api)
    gc.collect()
    async with api.state.db.admin_session() as session:
        assert [number async for number in numbers(session, 3)] == [1, 2, 3]


async def test_a_reader_that_is_cancelled_disturbs_nobody(api: Api) -> None:
    begun = asyncio.Event()

    async def read() -> None:
        async with api.state.db.admin_session() as session:
            async for _ in numbers(session, 1_000_000):
                begun.set()

    task = asyncio.create_task(read())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    gc.collect()
    async with api.state.db.admin_session() as session:
        assert [number async for number in numbers(session, 3)] == [1, 2, 3]
