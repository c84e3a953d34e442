"""The totals of an outbox beside a plain sum of all that was ever appended: whatever is stored,
deleted, read again or torn, and across days."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given, settings

from fake_step_engine import usage_record
from tenora_engine.events import EngineTotals, UsageRecord
from tenora_engine.transport.outbox import UsageOutbox
from tenora_engine.transport.segment_log import RECORD, SegmentLog

MIDNIGHT_S = 1_763_856_000.0  # 2025-11-23


def record(number: int, tenant: str = "t0", at_s: float = MIDNIGHT_S) -> UsageRecord:
    made = usage_record(f"r{number}", output_tokens=number)
    return msgspec.structs.replace(
        made, tenant=tenant, finished_s=at_s, cached_tokens=1, cold_load=number % 2 == 0
    )


def plain(records: list[UsageRecord]) -> dict[tuple[str, str], list[int]]:
    sums: dict[tuple[str, str], Counter[str]] = {}
    for each in records:
        day = datetime.fromtimestamp(each.finished_s, UTC).strftime("%Y-%m-%d")
        counts = sums.setdefault((each.tenant, day), Counter())
        counts["n"] += 1
        counts["prompt"] += each.prompt_tokens
        counts["cached"] += each.cached_tokens
        counts["output"] += each.output_tokens
        counts["cold"] += each.cold_load
    names = ("n", "prompt", "cached", "output", "cold")
    return {key: [counts[name] for name in names] for key, counts in sums.items()}


def told(totals: EngineTotals) -> dict[tuple[str, str], list[int]]:
    return {
        (row.tenant, row.day): [
            row.sequences,
            row.prompt_tokens,
            row.cached_tokens,
            row.output_tokens,
            row.cold_loads,
        ]
        for row in totals.days
    }


Steps = list[tuple[str, int, int]]
ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["append", "append", "append", "store", "reopen", "torn", "no disk"]),
        st.integers(1, 9),
        st.integers(-2, 2),
    ),
    max_size=25,
)


@given(actions=ACTIONS)
@settings(max_examples=80)
def test_totals_are_the_sum_of_all_records(actions: Steps) -> None:
    folder = Path(tempfile.mkdtemp())
    try:
        check(folder, actions)
    finally:
        shutil.rmtree(folder)


def check(folder: Path, actions: Steps) -> None:
    small = 2000  # bytes of a segment: a few records

    def opened() -> UsageOutbox:
        outbox = UsageOutbox(folder, reserve_bytes=4096)
        assert outbox._log is not None
        outbox._log._segment_bytes = small
        return outbox

    outbox, written = opened(), list[UsageRecord]()
    engine = outbox.totals("").engine
    for place, (action, count, days) in enumerate(actions):
        if action == "append":
            at_s = MIDNIGHT_S + days * 43_200 - 1e-7
            new = [record(100 * place + n, f"t{n % 3}", at_s) for n in range(count)]
            outbox.append(new)
            written += new
        elif action == "store":
            outbox.acknowledge([each.event_id for each in outbox.oldest(count)])
        elif action == "reopen":
            outbox.close()
            outbox = opened()
        elif action == "torn":
            outbox.close()
            segments = sorted(folder.glob("*.segment"))
            if segments:
                with segments[-1].open("ab") as file:
                    file.write(b"\x07\x00\x00\x00half a frame")
            outbox = opened()
        else:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("os.write", _refuse)
                new = [record(100 * place + n, at_s=MIDNIGHT_S) for n in range(count)]
                outbox.append(new)
                outbox.acknowledge([each.event_id for each in outbox.oldest(count)])
            written += new
            outbox.recover()
        totals = outbox.totals("")
        assert told(totals) == plain(written)
        assert totals.engine == engine
    since = [key for key in plain(written) if key[1] >= "2025-11-23"]
    assert set(told(outbox.totals("2025-11-23"))) == set(since)
    outbox.close()


def _refuse(*arguments: object) -> int:
    raise OSError(28, "No space left on device")


def test_what_an_older_engine_began_is_not_whole(tmp_path: Path) -> None:
    log = SegmentLog(tmp_path)
    log.append([(RECORD, msgspec.msgpack.encode(record(1)))], sync=True)
    log.close()
    today = datetime.now(UTC).strftime("%Y-%m-%d")
    outbox = UsageOutbox(tmp_path)
    assert outbox.totals("").whole_since > today
    outbox.close()
    outbox = UsageOutbox(tmp_path / "new")
    assert outbox.totals("").whole_since <= datetime.now(UTC).strftime("%Y-%m-%d")
    outbox.close()


@pytest.mark.parametrize(
    "content", [b"\xc1", b"", b"\x82\xa7through\x01\xa7tenants\x81\xa2\xff\xfe\x95\0\0\0\0\0"]
)
@pytest.mark.parametrize("name", ["2025-11-22.totals", "engine"])
def test_totals_without_a_disk_and_of_files_that_cannot_be_read(
    name: str, content: bytes, tmp_path: Path
) -> None:
    outbox = UsageOutbox(None)
    outbox.append([record(1), record(2)])
    outbox.acknowledge(["r1:0"])
    assert told(outbox.totals("")) == plain([record(1), record(2)])
    outbox = UsageOutbox(tmp_path)
    outbox.append([record(1)])
    outbox.close()
    (tmp_path / "totals" / name).write_bytes(content)
    outbox = UsageOutbox(tmp_path)
    assert told(outbox.totals("")) == plain([record(1)])
    outbox.close()
