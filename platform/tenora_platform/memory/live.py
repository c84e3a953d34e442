"""`pages`: what has changed in the arena since the last time, for operators' pages that follow it.
A listener asks for the whole once (`GET /admin/v1/engine/pages`) and applies what comes after."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from tenora_engine.pages import ArenaPages, PageOwner
from tenora_platform.errors import UnavailableError
from tenora_platform.memory.names import NameReader, Names
from tenora_platform.memory.view import counts, departures, owners, places, tenants
from tenora_platform.state import AppState, answered

EVERY_S = 2.0
_Columns = npt.NDArray[np.int64]  # [pages, 3]: kind, owner, second
_Owners = dict[PageOwner, int]


def pages(state: AppState) -> Callable[[], Awaitable[dict[str, Any] | None]]:
    """`since` is when the sample before was taken: who has the arena of that moment or later has it
    of `at` then. `runs` as in the whole, with the first page's number before each. Null `since`:
    ask for the whole."""
    reader = NameReader(state)
    known: _Owners = {PageOwner("", ""): 0}
    before: tuple[ArenaPages, _Columns] | None = None

    async def sample() -> dict[str, Any] | None:
        nonlocal before
        if not state.engine.ready:
            before = None
            return None
        try:
            now = await answered(state.engine.pages())
        except UnavailableError:
            return None
        columns = _columns(now, known)
        last, before = before, (now, columns)
        if last is None or len(last[1]) != len(columns):
            return {"at": now.at_s, "since": None}
        changed = (columns != last[1]).any(axis=1)
        if not changed.any() and _rest(now) == _rest(last[0]):
            return None
        return _event(now, last[0], columns, changed, known, await reader.of(now))

    return sample


def _event(
    now: ArenaPages,
    last: ArenaPages,
    columns: _Columns,
    changed: npt.NDArray[np.bool_],
    known: _Owners,
    names: Names,
) -> dict[str, Any]:
    runs = _runs(columns, changed)
    numbers = dict.fromkeys(runs[3::5])
    by_number = {number: owner for owner, number in known.items()}
    table = {number: at for at, number in enumerate(numbers)}
    runs[3::5] = [table[number] for number in runs[3::5]]
    shown = replace(now, owners=[by_number[number] for number in numbers])
    event: dict[str, Any] = {
        "at": now.at_s,
        "since": last.at_s,
        "counts": counts(now).model_dump(),
        "runs": runs,
        "owners": [each.model_dump() for each in owners(shown, names)],
    }
    if now.departures != last.departures:
        event["departures"] = [each.model_dump() for each in departures(now, names)]
    if (now.adapters, now.host, now.pins) != (last.adapters, last.host, last.pins):
        event["adapters"] = [each.model_dump() for each in places(now, names)]
        event["pinned_pages"] = now.pinned_pages
        event["pinnable_pages"] = now.pinnable_pages
    if changed.any() or now.partitions != last.partitions:
        event["tenants"] = [each.model_dump() for each in tenants(now, names)]
    return event


def _rest(pages: ArenaPages) -> object:
    return pages.departures, pages.adapters, pages.host, pages.pins, pages.partitions


def _columns(pages: ArenaPages, known: _Owners) -> _Columns:
    """Of every page, with owners by numbers that stay theirs."""
    runs = np.asarray(pages.runs, np.int64).reshape(-1, 4)
    numbers = [known.setdefault(owner, len(known)) for owner in pages.owners]
    rows = np.column_stack([runs[:, 1], np.asarray(numbers)[runs[:, 2]], runs[:, 3]])
    return np.repeat(rows, runs[:, 0], axis=0)


def _runs(columns: _Columns, changed: npt.NDArray[np.bool_]) -> list[int]:
    """First page, how many, kind, owner, second, of runs of changed neighbours that are alike."""
    at = np.flatnonzero(changed)
    if not len(at):
        return []
    rows = columns[at]
    begins = np.ones(len(at), bool)
    begins[1:] = (np.diff(at) != 1) | (rows[1:] != rows[:-1]).any(axis=1)
    first = np.flatnonzero(begins)
    lengths = np.diff(np.append(first, len(at)))
    found: list[int] = np.column_stack([at[first], lengths, rows[first]]).ravel().tolist()
    return found
