"""SingleFlight: one call for all who ask at once, whatever becomes of any of them."""

from __future__ import annotations

import asyncio

import pytest

from tenora_platform.single_flight import SingleFlight


class Calls:
    """Counts calls, each of which ends when it is told to."""

    def __init__(self) -> None:
        self.count = 0
        self.may_end = asyncio.Event()

    async def call(self) -> int:
        self.count += 1
        number = self.count
        await self.may_end.wait()
        return number


async def asked(flights: SingleFlight[int], calls: Calls, key: str) -> asyncio.Task[int]:
    task = asyncio.create_task(flights.run(key, calls.call))
    await asyncio.sleep(0)
    return task


async def test_one_call_for_each_key_at_a_time() -> None:
    flights, calls = SingleFlight[int](), Calls()
    tasks = [await asked(flights, calls, key) for key in ("a", "b", "a", "a")]
    calls.may_end.set()
    assert await asyncio.gather(*tasks) == [1, 2, 1, 1]
    assert await flights.run("a", calls.call) == 3  # the first has ended


async def test_who_is_cancelled_leaves_the_others_alone() -> None:
    flights, calls = SingleFlight[int](), Calls()
    first, second = await asked(flights, calls, "a"), await asked(flights, calls, "a")
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    calls.may_end.set()
    assert await second == 1


async def test_all_see_the_failure_and_the_next_tries_again() -> None:
    flights = SingleFlight[int]()

    async def fail() -> int:
        await asyncio.sleep(0)
        raise OSError("no database")

    failed = await asyncio.gather(
        *(flights.run("a", fail) for _ in range(3)), return_exceptions=True
    )
    assert [str(error) for error in failed] == ["no database"] * 3
    calls = Calls()
    calls.may_end.set()
    assert await flights.run("a", calls.call) == 1
