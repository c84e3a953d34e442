"""Wakes work beside requests where something that it is about was committed, in whichever process,
so that it need not look again and again whether there is anything to do."""

from __future__ import annotations

import asyncio
import contextlib

from tenora_platform.live.changes import Changes


class Wake:
    """What one piece of work waits for. Without a channel nothing is heard: it looks by time."""

    def __init__(self, listening: asyncio.Event | None = None) -> None:
        self._listening = listening
        self._rung = asyncio.Event()

    def ring(self) -> None:
        self._rung.set()

    async def wait(self, most_s: float, deaf_s: float) -> None:
        """Until something has changed since the last wait, `most_s` at most, for a message may be
        lost; while no messages come, `deaf_s`."""
        hears = self._listening is not None and self._listening.is_set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(most_s if hears else min(deaf_s, most_s)):
                await self._rung.wait()
        self._rung.clear()


class Wakes:
    """All of a process, over a channel of their own. `keep` must run beside them."""

    def __init__(self, changes: Changes) -> None:
        self._changes = changes
        self._listening = asyncio.Event()
        self._wakes: list[tuple[frozenset[str], Wake]] = []

    def on(self, *topics: str) -> Wake:
        """Rings for any of these (`live.topics`), whoever's they are."""
        wake = Wake(self._listening)
        self._wakes.append((frozenset(topics), wake))
        return wake

    async def keep(self) -> None:
        """Hear for ever."""
        await self._changes.listen(self._heard, self._listening)

    def _heard(self, _: str | None, topics: frozenset[str]) -> None:
        for wanted, wake in self._wakes:
            if wanted & topics:
                wake.ring()
