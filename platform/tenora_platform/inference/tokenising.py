"""Texts on their way to tokens: what cannot fit is refused by its length, and what takes long is
done beside the event loop, one text of a tenant at a time. It knows no API's shapes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar

from pydantic import BaseModel

from tenora_engine.client import EngineClient
from tenora_platform.errors import BadRequestError
from tenora_platform.turns import Turns

SHORT_CHARACTERS = 2048
"""Up to here a text is made into tokens sooner than a thread could be asked to."""
FEW_MEMBERS = 256
"""Up to here what is in a body takes no longer than a thread to wake up."""
PLACES = 2
"""Long texts at once in one process; the tokenizer works without Python's lock."""
TENANT_WAITING_MAX = 32
"""Requests of one tenant whose long texts wait for those before them."""

FREE_S = 0.05
"""Processor time of one long text, after which its tenant's next one waits."""
REST_FACTOR = 2.0
"""So many times as long as the text took: of each process a tenant has a third of a core for texts
that long."""
REFUSED_REST_FACTOR = 9.0
"""The same for a text that was refused: a tenth of a core for what comes to nothing."""
_RESTING_MAX = 1000

T = TypeVar("T")


class LongTexts(Turns):
    """The places for long texts. A tenant whose text took long begins its next one later."""

    def __init__(self, places: int = PLACES) -> None:
        super().__init__(
            places,
            tenant_waiting_max=TENANT_WAITING_MAX,
            what="long prompts waiting to be tokenized",
            too_many="too_many_long_prompts",
            own_threads=False,
        )
        self._rests: dict[str, float] = {}  # until when, by the monotonic clock

    async def run(self, tenant_id: str, work: Callable[[], T]) -> T:
        async with self.turn(tenant_id):
            rest_s = self._rests.pop(tenant_id, 0.0) - time.monotonic()
            if rest_s > 0:
                await asyncio.sleep(rest_s)
            return await self.work(partial(self._timed, tenant_id, work))

    def _timed(self, tenant_id: str, work: Callable[[], T]) -> T:
        """What it makes, or raises; also of one that nobody waits for any more the time counts."""
        began_s = time.thread_time()
        factor = REFUSED_REST_FACTOR
        try:
            made = work()
            factor = REST_FACTOR
            return made
        finally:
            took_s = time.thread_time() - began_s
            if took_s > FREE_S:
                self._rest(tenant_id, factor * took_s)

    def _rest(self, tenant_id: str, rest_s: float) -> None:
        """In the thread; the tenant's turn is still its own."""
        now_s = time.monotonic()
        if len(self._rests) >= _RESTING_MAX:
            self._rests = {key: end_s for key, end_s in [*self._rests.items()] if end_s > now_s}
        self._rests[tenant_id] = now_s + rest_s


async def tokenised(places: LongTexts, tenant_id: str, characters: int, work: Callable[[], T]) -> T:
    """What `work` makes of so many characters; others go on while it makes it of many."""
    if characters <= SHORT_CHARACTERS:
        return work()
    return await places.run(tenant_id, work)


async def gone_through(
    places: LongTexts, tenant_id: str, given: object, work: Callable[[], T]
) -> T:
    """What `work` makes of a body's value; others go on while it goes through many members."""
    if not has_many(given):
        return work()
    return await places.run(tenant_id, work)


def has_many(value: object) -> bool:
    """Whether a body's value has more than FEW_MEMBERS members, however deep. No more are looked
    at."""
    count = 0
    left = [value]
    while left:
        item = left.pop()
        inner: Iterable[object] = ()
        if isinstance(item, BaseModel):
            inner = [*item.__dict__.values(), item.model_extra]
        elif isinstance(item, dict | list):
            inner = item.values() if isinstance(item, dict) else item
            count += len(item)
        if count > FEW_MEMBERS:
            return True
        left += inner
    return False


def refuse_too_long(engine: EngineClient, characters: int, param: str) -> None:
    """Raises BadRequestError for a text that cannot fit the context whatever its tokens are, before
    any work is spent on it."""
    context = engine.model.context_tokens
    most = engine.text.characters_max(context)
    if characters > most:
        raise BadRequestError(
            f"This model's maximum context length is {context} tokens. However, your {param} "
            f"has {characters} characters, which is at least {-(-characters * context // most)} "
            "tokens and is longer than the model's context length. Please reduce the length of "
            f"the {param}.",
            param=param,
            code="context_length_exceeded",
        )


def prompt_lengths(prompt: str | list[str] | list[int] | list[list[int]]) -> list[int]:
    """Characters of each of a body's prompts; tokens of one that is token ids."""
    if isinstance(prompt, str) or (prompt and isinstance(prompt[0], int)):
        return [len(prompt)]
    return [count_characters(each) for each in prompt]


def count_characters(value: object) -> int:
    """Of all texts in a body's value, however deep. What is no text but is written into a prompt by
    a template counts one: a number of a list, a null, an empty list or object."""
    count = 0
    left = [value]
    while left:
        item = left.pop()
        if isinstance(item, str):
            count += len(item)
        elif isinstance(item, BaseModel):
            left += [*item.__dict__.values(), item.model_extra]
        elif isinstance(item, dict):
            count += not item
            left += [*item.keys(), *item.values()]
        elif isinstance(item, list):
            plain = sum(isinstance(each, int | float | None) for each in item)
            count += plain or not item
            if plain < len(item):
                left += item
    return count
