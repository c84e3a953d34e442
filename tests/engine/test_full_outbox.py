"""An outbox whose disk is full: no new work is taken before anything is answered that cannot be
billed, what runs ends and is recorded, and work is taken again as soon as there is room. On a real
small disk where a test may mount one, and with a disk that refuses everything."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine_clients import (
    FOREVER,
    close,
    drained,
    everything,
    first_of,
    in_process_client,
    process_client,
)
from fake_step_engine import request, usage_record
from small_disk import fill, small_disk
from tenora_engine.client import EngineClient
from tenora_engine.errors import EngineUnavailableError
from tenora_engine.events import FinishEvent
from tenora_engine.transport.outbox import RESERVE_BYTES, UsageOutbox

DISK_BYTES = RESERVE_BYTES + 2 * 1024**2
NO_ROOM = OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", DISK_BYTES) as folder:
        yield folder


def ids(outbox: UsageOutbox) -> list[str]:
    return [record.event_id for record in outbox.oldest(100_000)]


def trouble(outbox: UsageOutbox) -> str | None:
    """Asked anew each time, which a type checker does not expect of a property."""
    return outbox.trouble


def test_records_go_to_the_reserve_and_the_reserve_comes_back(disk: Path) -> None:
    outbox = UsageOutbox(disk / "outbox")
    outbox.append([usage_record("before")])
    assert trouble(outbox) is None
    filler = fill(disk)
    outbox.append([usage_record(f"full{number}") for number in range(2000)])
    outbox.append([usage_record("after")])
    assert "No space left on device" in (trouble(outbox) or "")
    outbox.recover()
    assert trouble(outbox) is not None, "there is no room yet"
    outbox.close()
    outbox = UsageOutbox(disk / "outbox")
    assert trouble(outbox) is not None, "one that is opened on a full disk knows it"
    assert len(ids(outbox)) == 2002, "all of them were on the disk"
    filler.unlink()
    outbox.recover()
    assert trouble(outbox) is None
    assert (disk / "outbox/reserve").stat().st_size == RESERVE_BYTES
    outbox.acknowledge(ids(outbox))
    assert outbox.pending == 0
    outbox.close()


def test_a_full_disk_is_made_free_by_what_is_stored(disk: Path) -> None:
    """The outbox itself fills it while nobody reads; acknowledging gives the room back."""
    outbox = UsageOutbox(disk / "outbox")
    number = 0
    while trouble(outbox) is None:
        outbox.append([usage_record(f"r{number + each}") for each in range(500)])
        number += 500
    while found := [record.event_id for record in outbox.oldest()]:
        outbox.acknowledge(found)
    outbox.recover()
    assert trouble(outbox) is None
    assert outbox.totals("").days[0].sequences == number
    outbox.close()
    outbox = UsageOutbox(disk / "outbox")
    assert outbox.totals("").days[0].sequences == number
    outbox.close()


def test_what_was_in_memory_alone_is_written_when_the_disk_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outbox = UsageOutbox(tmp_path)
    outbox.append([usage_record("before")])
    with monkeypatch.context() as patch:
        patch.setattr("os.write", refuse)
        patch.setattr("os.posix_fallocate", refuse)
        outbox.append([usage_record("stored"), usage_record("waits")])
        outbox.acknowledge(["stored:0"])
        outbox.recover()
        assert trouble(outbox) is not None
    outbox.recover()
    assert trouble(outbox) is None
    assert outbox.totals("").days[0].sequences == 3
    outbox.close()
    outbox = UsageOutbox(tmp_path)
    assert ids(outbox) == ["before:0", "waits:0"]
    assert outbox.totals("").days[0].sequences == 3, "what was acknowledged counts"
    outbox.close()


def refuse(*arguments: object) -> int:
    raise NO_ROOM


@pytest.mark.usefixtures("importable_by_children")
@pytest.mark.parametrize("form", ["in this process", "a process"])
async def test_an_engine_on_a_full_disk(disk: Path, form: str) -> None:
    client = in_process_client(disk) if form == "in this process" else process_client(disk)
    await client.start()
    runs = client.submit(request("runs", max_tokens=FOREVER))
    await first_of(runs)
    filler = fill(disk)
    ends = await everything(client, request("ends", max_tokens=2))
    assert isinstance(ends[-1], FinishEvent), "it was taken before anybody could know"
    with pytest.raises(EngineUnavailableError, match="No space left on device"):
        await everything(client, request("new"))
    assert "usage cannot be recorded" in str(await until(client, refuses=True))
    await client.abort("runs")
    last = [event async for event in runs][-1]
    assert isinstance(last, FinishEvent), "what runs ends as ever"
    await close(runs)
    filler.unlink()
    await until(client, refuses=False)
    recorded = {record.request_id for record in await drained(client)}
    assert recorded == {"runs", "ends"}
    await client.stop()


async def until(client: EngineClient, *, refuses: bool) -> str | None:
    """What it says then."""
    for _ in range(400):
        if (client.refuses is not None) == refuses:
            break
        await asyncio.sleep(0.05)
    assert (client.refuses is not None) == refuses
    return client.refuses
