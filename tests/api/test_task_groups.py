"""A group of tasks raises what a task raised, not a group of errors that nobody catches."""

from __future__ import annotations

import asyncio

import pytest

from tenora_platform.task_groups import task_group


async def fail(error: Exception) -> None:
    raise error


async def test_the_error_of_a_task_is_raised_itself() -> None:
    ended = list[str]()

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")

    async def both() -> None:
        async with task_group() as group:
            group.create_task(waits())
            await asyncio.sleep(0)
            group.create_task(fail(OSError("away")))

    with pytest.raises(OSError, match=r"^away$"):
        await both()
    assert ended == ["cancelled"]


async def test_so_is_that_of_a_group_within_and_of_the_block() -> None:
    async def inner() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(fail(ValueError("deep")))

    with pytest.raises(ValueError, match=r"^deep$"):
        async with task_group() as group:
            group.create_task(inner())
    with pytest.raises(KeyError):
        async with task_group():
            raise KeyError("block")


async def test_nothing_is_raised_where_nothing_fails() -> None:
    async with task_group() as group:
        found = group.create_task(asyncio.sleep(0, "done"))
    assert found.result() == "done"
