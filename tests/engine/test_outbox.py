"""The usage outbox: whatever moment its owner dies at, a record is whole or absent, and what has
not been acknowledged comes again."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fake_step_engine import usage_record
from tenora_engine.errors import EngineUnavailableError
from tenora_engine.events import Metered, UsageRecord
from tenora_engine.transport.outbox import UsageOutbox
from tenora_engine.transport.segment_log import ACK, RECORD, Position, SegmentLog


def records(*numbers: int) -> list[UsageRecord]:
    return [usage_record(f"r{number}", output_tokens=number) for number in numbers]


def ids(found: Sequence[Metered]) -> list[str]:
    return [record.event_id for record in found]


def reopened(outbox: UsageOutbox, folder: Path) -> UsageOutbox:
    outbox.close()
    return UsageOutbox(folder)


def test_a_record_that_cannot_be_read_stops_no_other_and_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As another version may have written it: the frame is whole, its content is not ours."""
    outbox = UsageOutbox(tmp_path)
    outbox.append(records(1))
    outbox.close()
    log = SegmentLog(tmp_path)
    log.append([(RECORD, b"\x81\xa1x\x01"), (RECORD, b"\xff\xff"), (ACK, b"\xc1")], sync=True)
    log.close()
    outbox = UsageOutbox(tmp_path)
    assert caplog.text.count("cannot be read") == 2
    outbox.append(records(2))
    assert outbox.oldest() == records(1, 2)
    outbox.acknowledge(["r1:0", "r2:0"])
    assert outbox.oldest() == []
    assert outbox.pending == 2
    outbox = reopened(outbox, tmp_path)
    assert outbox.oldest() == []
    assert outbox.pending == 2, "somebody has to see to them"
    outbox.close()


@pytest.mark.parametrize("on_disk", [True, False])
def test_records_come_oldest_first_until_acknowledged(on_disk: bool, tmp_path: Path) -> None:
    outbox = UsageOutbox(tmp_path if on_disk else None)
    outbox.append(records(1, 2))
    outbox.append(records(3))
    assert outbox.oldest() == records(1, 2, 3)
    assert outbox.oldest(2) == records(1, 2)
    outbox.acknowledge(["r2:0", "never-given"])
    assert outbox.oldest() == records(1, 3)
    assert outbox.pending == 2
    outbox.acknowledge(["r1:0", "r3:0"])
    assert outbox.oldest() == []
    assert outbox.pending == 0
    outbox.close()


def test_a_restart_gives_what_was_not_acknowledged(tmp_path: Path) -> None:
    outbox = UsageOutbox(tmp_path)
    outbox.append(records(1, 2, 3))
    outbox.acknowledge(["r2:0"])
    outbox = reopened(outbox, tmp_path)
    outbox.append(records(4))
    assert outbox.oldest() == records(1, 3, 4)
    outbox = reopened(outbox, tmp_path)
    assert outbox.oldest() == records(1, 3, 4)
    outbox.acknowledge(["r1:0", "r3:0", "r4:0"])
    outbox = reopened(outbox, tmp_path)
    assert outbox.oldest() == []
    assert list(tmp_path.glob("*.segment")) == []
    outbox.close()


def test_memory_is_bounded_and_the_order_stays(tmp_path: Path) -> None:
    outbox = UsageOutbox(tmp_path, window=10)
    for number in range(100):
        outbox.append(records(number))
    given_out = []
    while found := outbox.oldest(7):
        given_out += ids(found)
        outbox.acknowledge(ids(found))
        if len(given_out) < 60:
            outbox.append(records(1000 + len(given_out)))
    assert given_out[:100] == [f"r{number}:0" for number in range(100)]
    assert len(given_out) == len(set(given_out)) > 100
    assert outbox.pending == 0
    outbox.close()


def test_two_owners_are_refused(tmp_path: Path) -> None:
    outbox = UsageOutbox(tmp_path)
    with pytest.raises(EngineUnavailableError, match="another engine is using the outbox"):
        UsageOutbox(tmp_path)
    outbox.close()
    UsageOutbox(tmp_path).close()


def test_a_failing_disk_keeps_records_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outbox = UsageOutbox(tmp_path)
    outbox.append(records(1))

    def full(descriptor: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.write", full)
        outbox.append(records(2))
        outbox.acknowledge(["r1:0"])
    outbox.append(records(3))
    assert outbox.oldest() == records(2, 3)
    outbox.acknowledge(["r2:0", "r3:0"])
    assert outbox.pending == 0
    outbox.close()


Action = tuple[str, list[int]]


@st.composite
def histories(draw: st.DrawFn) -> list[Action]:
    """Appends of new records, acknowledgements of some that came before, reopenings."""
    actions: list[Action] = []
    alive: list[int] = []
    for _ in range(draw(st.integers(1, 12))):
        kind = draw(st.sampled_from(["append", "append", "acknowledge", "reopen"]))
        if kind == "append":
            first = len(actions) * 10
            new = list(range(first, first + draw(st.integers(1, 4))))
            alive += new
            actions.append((kind, new))
        elif kind == "acknowledge" and alive:
            some = draw(st.lists(st.sampled_from(alive), unique=True))
            alive = [number for number in alive if number not in some]
            actions.append((kind, some))
        elif kind == "reopen":
            actions.append((kind, []))
    return actions


@given(history=histories(), cut=st.floats(0, 1), noise=st.binary(max_size=40))
@settings(max_examples=120)
def test_any_crash_point(history: list[Action], cut: float, noise: bytes) -> None:
    """The last segment is cut anywhere and may end in what a disk left there. Every record found is
    one that was written, whole; every one that was not acknowledged and lies before the cut is
    found."""
    folder = Path(tempfile.mkdtemp())
    try:
        outbox = UsageOutbox(folder)
        written: dict[str, UsageRecord] = {}
        acknowledged: set[str] = set()
        for kind, numbers in history:
            names = [f"r{number}:0" for number in numbers]
            if kind == "append":
                outbox.append(records(*numbers))
                written |= dict(zip(names, records(*numbers), strict=True))
            elif kind == "acknowledge":
                outbox.oldest()
                outbox.acknowledge(names)
                acknowledged |= set(names)
            else:
                outbox = reopened(outbox, folder)
        outbox.close()
        segments = sorted(folder.glob("*.segment"))
        safe = set(written) - acknowledged
        if segments:
            log = SegmentLog(folder)
            data = segments[-1].read_bytes()
            at = round(cut * len(data))
            number = int(segments[-1].stem)
            after = [f for f in log.read(Position(number, 0)) if f.kind == RECORD]
            lost = {
                found.event_id
                for found in written.values()
                for frame in after
                if found.event_id.encode() in frame.payload
                and frame.offset + 9 + len(frame.payload) > at
            }
            log.close()
            safe -= lost
            segments[-1].write_bytes(data[:at] + noise)
        outbox = UsageOutbox(folder)
        found = {record.event_id: record for record in outbox.oldest()}
        assert all(written[name] == record for name, record in found.items())
        assert safe <= set(found)
        outbox.append(records(9999))
        assert outbox.oldest()[-1] == records(9999)[0]
        outbox.close()
    finally:
        shutil.rmtree(folder)


@given(at=st.floats(0, 1), bit=st.integers(0, 7))
@settings(max_examples=200)
def test_a_flipped_bit_never_makes_a_wrong_record(at: float, bit: int) -> None:
    folder = Path(tempfile.mkdtemp())
    try:
        outbox = UsageOutbox(folder)
        outbox.append(records(1, 2, 3, 4, 5))
        outbox.oldest()
        outbox.acknowledge(["r4:0"])
        outbox.close()
        (segment,) = folder.glob("*.segment")
        data = bytearray(segment.read_bytes())
        data[round(at * (len(data) - 1))] ^= 1 << bit
        segment.write_bytes(data)
        outbox = UsageOutbox(folder)
        found = outbox.oldest()
        outbox.close()
        wanted = records(1, 2, 3, 4, 5)
        whole = records(1, 2, 3, 5)  # the fourth was acknowledged
        lacking = [whole[:at] + whole[at + 1 :] for at in range(4)]
        assert found in [whole, wanted, *lacking], "one is damaged, and no other lost"
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("which", "at"), [(0, 0), (0, 4), (0, 8), (0, 40), (1, 0), (1, 40), (3, 4), (3, 8), (3, 40)]
)
def test_damage_hides_nothing_behind_it_and_is_kept(
    which: int, at: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In the length, checksum, kind or content of a frame. A crash leaves no such frame; only the
    last one's length tells nothing, for it may be that of a frame that broke off."""
    outbox = UsageOutbox(tmp_path)
    for each in records(1, 2, 3, 4):
        outbox.append([each])
    outbox.close()
    (segment,) = tmp_path.glob("*.segment")
    log = SegmentLog(tmp_path)
    frames = list(log.read(Position(int(segment.stem), 0)))
    log.close()
    damaged = bytearray(segment.read_bytes())
    damaged[frames[which].offset + at] ^= 1
    segment.write_bytes(damaged)
    rest = [number for number in (1, 2, 3, 4) if number != which + 1]

    outbox = UsageOutbox(tmp_path)
    assert outbox.oldest() == records(*rest)
    assert caplog.text.count("is damaged at byte") == 1
    assert outbox.totals("").unreadable == outbox.unreadable == 1
    outbox.append(records(5))
    outbox.acknowledge([f"r{number}:0" for number in (*rest, 5)])
    outbox = reopened(outbox, tmp_path)
    assert outbox.oldest() == []
    assert list(tmp_path.glob("*.segment")) == [], "what is whole is not kept for its sake"
    (kept,) = tmp_path.glob("*.damaged")
    assert kept.read_bytes() == damaged
    assert outbox.unreadable == 1
    assert [day.sequences for day in outbox.totals("").days] == [4], "what was read is counted"
    outbox.append(records(6))
    assert not kept.with_suffix(".segment").exists(), "its number is not used again"
    kept.unlink()
    assert outbox.unreadable == 0
    outbox.close()


_WRITER = """
import sys
from pathlib import Path
from fake_step_engine import usage_record
from tenora_engine.transport.outbox import UsageOutbox
outbox = UsageOutbox(Path(sys.argv[1]))
for number in range(100_000):
    outbox.append([usage_record(f"r{number}", output_tokens=number)])
    print(number, flush=True)
"""


def test_kill_9_loses_no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    support = Path(__file__).parent.parent / "support"
    monkeypatch.setenv("PYTHONPATH", str(support))
    with subprocess.Popen(
        [sys.executable, "-c", _WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        for _ in range(50):
            last = int(writer.stdout.readline())
        writer.kill()
        rest = writer.stdout.read().split("\n")[:-1]
    last = int(rest[-1]) if rest else last
    outbox = UsageOutbox(tmp_path)
    found = []
    while batch := outbox.oldest():
        outbox.acknowledge(ids(batch))
        found += batch
    outbox.close()
    assert found[: last + 1] == records(*range(last + 1))
    assert len(found) <= last + 2  # one may be written and not yet told
