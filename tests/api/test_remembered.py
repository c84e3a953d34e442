"""Remembered: no older than it may be, no more than it may hold, and no failure kept."""

from __future__ import annotations

import asyncio

import pytest

from tenora_platform.remembered import Remembered


class Source:
    """Counts how often it is read."""

    def __init__(self) -> None:
        self.now = 0.0
        self.count = 0
        self.fails = False

    async def read(self) -> int:
        await asyncio.sleep(0)
        if self.fails:
            raise ConnectionError("gone")
        self.count += 1
        return self.count


async def test_a_result_is_kept_since_its_call_began() -> None:
    source = Source()
    kept: Remembered[int] = Remembered(10.0, 2, lambda: source.now)
    assert await asyncio.gather(*(kept.get("a", source.read) for _ in range(3))) == [1, 1, 1]
    source.now = 9.9
    assert await kept.get("a", source.read) == 1
    source.now = 10.0
    assert await kept.get("a", source.read) == 2


async def test_more_keys_than_it_holds_are_read_again() -> None:
    source = Source()
    kept: Remembered[int] = Remembered(10.0, 2, lambda: source.now)
    found = [await kept.get(key, source.read) for key in ("a", "b", "a", "c", "a", "c")]
    assert found == [1, 2, 1, 3, 4, 3]


async def test_a_failure_is_not_kept() -> None:
    source = Source()
    kept: Remembered[int] = Remembered(10.0, 2, lambda: source.now)
    source.fails = True
    with pytest.raises(ConnectionError):
        await kept.get("a", source.read)
    source.fails = False
    assert await kept.get("a", source.read) == 1
