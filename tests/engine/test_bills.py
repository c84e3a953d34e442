"""What the sequences of a client's request are charged is decided at once, when the last has ended:
a fault of the request's or of the weights makes all of them free, whatever had ended before."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_fakes import Rig, fix_step_time, make_config, make_request, make_tenant, run
from tenora_engine.errors import ContextLengthError
from tenora_engine.events import Event, FinishEvent, RefusedEvent, SettledEvent, UsageRecord
from tenora_engine.request import GenerationRequest
from tenora_engine.sequence import Sequence
from tenora_engine.step import StepPlan, StepResult
from tenora_engine.transport.outbox import UsageOutbox, usage_of
from tenora_engine.transport.routing import ActiveRequests
from tenora_kernels.compiled.decoder import NO_NUMBER


def part(number: int, parts: int, tokens: int = 4, **more: object) -> GenerationRequest:
    """Of the body "b"."""
    made = make_request(f"b-{number}", [1, 2, 3], max_tokens=tokens, ignore_eos=True, **more)  # type: ignore[arg-type]
    return msgspec.structs.replace(made, part_of="b", parts=parts)


def steps(rig: Rig, count: int) -> list[Event]:
    return [event for _ in range(count) for event in rig.engine.step()]


def tokens(records: Iterable[UsageRecord]) -> dict[str, tuple[int, int]]:
    """Of each, prompt and output. None is there twice."""
    records = list(records)
    found = {record.event_id: (record.prompt_tokens, record.output_tokens) for record in records}
    assert len(found) == len(records), "billed twice"
    return found


def stop_after(rig: Rig, index: int, count: int) -> list[Event]:
    """Of a request of several: one of its sequences has its stop string after so many tokens."""
    events = steps(rig, count)
    rig.engine.abort("r", index, "stop", output_tokens=count)
    return events + rig.engine.step()


def test_what_had_ended_before_a_fault_is_free_too() -> None:
    rig = Rig.build(make_config())
    rig.engine.submit(make_request("r", [1, 2, 3], n=2, max_tokens=9, ignore_eos=True))
    events = stop_after(rig, 0, 2)
    assert usage_of(events) == [], "nothing is billed while some of it may yet fail"
    rig.engine.abort("r", reason="invalid")
    events += run(rig)
    assert tokens(usage_of(events)) == {"r:0": (0, 0), "r:1": (0, 0)}


def test_without_a_fault_everything_is_billed_at_the_end() -> None:
    rig = Rig.build(make_config())
    rig.engine.submit(make_request("r", [1, 2, 3], n=2, max_tokens=9, ignore_eos=True))
    events = stop_after(rig, 0, 2) + run(rig)
    assert tokens(usage_of(events)) == {"r:0": (3, 2), "r:1": (0, 9)}
    assert [e.billed == [] for e in events if isinstance(e, FinishEvent)] == [True, False]


def test_weights_that_fail_late_leave_nothing_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig.build(make_config())
    rig.engine.submit(make_request("r", [1, 2, 3], n=2, max_tokens=9, ignore_eos=True))
    events = stop_after(rig, 0, 3)
    execute = rig.executor.execute

    def sick(plan: StepPlan) -> StepResult | None:
        result = execute(plan)
        assert result is not None
        return msgspec.structs.replace(result, token_ids=[[NO_NUMBER] for _ in result.token_ids])

    monkeypatch.setattr(rig.executor, "execute", sick)
    assert tokens(usage_of(events + run(rig))) == {"r:0": (0, 0), "r:1": (0, 0)}


def test_a_body_s_prompts_are_free_together() -> None:
    rig = Rig.build(make_config())
    rig.engine.submit(part(0, 2, tokens=1))
    rig.engine.submit(part(1, 2, tokens=9))
    events = steps(rig, 3)
    (ended,) = [event for event in events if isinstance(event, FinishEvent)]
    assert (ended.request_id, ended.billed) == ("b-0", [])
    rig.engine.abort("b-1", reason="invalid")
    assert tokens(usage_of(events + run(rig))) == {"b-0:0": (0, 0), "b-1:0": (0, 0)}


def test_a_fault_frees_a_part_that_is_aborted_for_it_without_a_reason() -> None:
    """As the API ends the others of a body whose weights are sick."""
    rig = Rig.build(make_config())
    for number in range(2):
        rig.engine.submit(part(number, 2, tokens=9))
    events = steps(rig, 3)
    rig.engine.abort("b-0", reason="invalid")
    rig.engine.abort("b-1", reason="client_gone")
    assert tokens(usage_of(events + run(rig))) == {"b-0:0": (0, 0), "b-1:0": (0, 0)}


@pytest.mark.parametrize(("reason", "billed"), [("client_gone", (3, 1)), ("invalid", (0, 0))])
def test_a_part_that_never_runs_does_not_keep_the_others_from_being_billed(
    reason: str, billed: tuple[int, int]
) -> None:
    """It was refused, or never sent: whoever knows aborts those that were."""
    rig = Rig.build(make_config())
    rig.engine.submit(part(0, 2, tokens=1))
    with pytest.raises(ContextLengthError):
        rig.engine.submit(part(1, 2, tokens=10**6))
    events = run(rig)
    assert usage_of(events) == []
    rig.engine.abort("b-0", reason=reason)  # type: ignore[arg-type]
    (settled,) = run(rig)
    assert isinstance(settled, SettledEvent)
    assert tokens(settled.usage) == {"b-0:0": billed}
    rig.engine.abort("b-0", reason="invalid")
    assert run(rig) == [], "once"


def test_a_part_that_is_refused_for_its_deadline_settles_the_others() -> None:
    rig = Rig.build(make_config(max_running=1))
    fix_step_time(rig, 0.001)
    tenant = make_tenant(ttft_ms=1000.0, late="refuse")
    rig.engine.submit(part(0, 2, tokens=3, tenant=tenant))
    rig.engine.submit(part(1, 2, tenant=tenant))
    events = run(rig, 0.6)
    assert any(isinstance(event, RefusedEvent) for event in events)
    assert tokens(usage_of(events)) == {"b-0:0": (3, 3)}


@pytest.mark.parametrize("failure", [None, RuntimeError("the engine's own")])
def test_an_engine_that_ends_bills_nothing_that_it_cut_off(failure: RuntimeError | None) -> None:
    rig = Rig.build(make_config())
    rig.engine.submit(part(0, 3, tokens=1))
    rig.engine.submit(part(1, 3, tokens=9))
    events = steps(rig, 3) + rig.engine.abandon(failure)
    assert tokens(usage_of(events)) == {"b-0:0": (0, 0), "b-1:0": (0, 0)}


def test_bodies_of_tenants_have_nothing_to_do_with_each_other() -> None:
    rig = Rig.build(make_config())
    rig.engine.submit(part(0, 2, tokens=1))
    other = msgspec.structs.replace(part(1, 2, tokens=1), tenant=make_tenant("t1"))
    rig.engine.submit(other)
    run(rig)
    rig.engine.abort("b-1", reason="invalid")
    assert tokens(usage_of(run(rig))) == {"b-1:0": (0, 0)}
    rig.engine.abort("b-0")
    assert tokens(usage_of(run(rig))) == {"b-0:0": (3, 1)}


def test_a_server_keeps_in_mind_what_is_not_settled() -> None:
    """So that it can abort it when its client goes."""
    rig, active = Rig.build(make_config()), ActiveRequests()
    for number in range(2):
        active.add(part(number, 3, tokens=1), b"client")
        rig.engine.submit(part(number, 3, tokens=1))
    for event in run(rig):
        if isinstance(event, FinishEvent):
            active.note_end(event)
    assert active.of(b"client") == ["b-0", "b-1"]
    rig.engine.abort("b-0")
    for event in run(rig):
        assert isinstance(event, SettledEvent)
        active.note_end(event)
    assert not len(active)


@given(data=st.data())
def test_all_of_it_or_nothing_and_once(data: st.DataObject) -> None:
    """Whatever ends a body's sequences, in whatever order, and however much of it was sent."""
    rig = Rig.build(make_config(num_pages=64))
    parts = data.draw(st.integers(1, 3))
    sent = data.draw(st.integers(1, parts))
    requests = [
        part(n, parts, tokens=data.draw(st.integers(1, 5)), n=data.draw(st.integers(1, 3)))
        for n in range(sent)
    ]
    events: list[Event] = []
    for request in requests:
        rig.engine.submit(request)
        events += steps(rig, data.draw(st.integers(0, 2)))
    faulted = False
    for _ in range(data.draw(st.integers(0, 3))):
        request = data.draw(st.sampled_from(requests))
        index = data.draw(st.none() | st.integers(0, request.sampling.n - 1))
        reason = data.draw(st.sampled_from(["client_gone", "invalid"]))
        ended = {(e.request_id, e.index) for e in events if isinstance(e, FinishEvent)}
        is_in_time = index is None or (request.request_id, index) not in ended
        faulted |= reason == "invalid" and is_in_time and not usage_of(events)
        rig.engine.abort(request.request_id, index, reason)  # type: ignore[arg-type]
        events += steps(rig, data.draw(st.integers(1, 2)))
    events += run(rig)
    for request in requests:
        rig.engine.abort(request.request_id)
    events += run(rig)
    billed = tokens(usage_of(events))
    assert billed.keys() == {f"{r.request_id}:{i}" for r in requests for i in range(r.sampling.n)}
    taken = tokens(event.usage for event in events if isinstance(event, FinishEvent))
    assert set(billed.values()) == {(0, 0)} if faulted else billed == taken
    rig.engine.check_integrity()


def test_an_outbox_has_all_of_a_body_or_none(tmp_path: Path) -> None:
    """A process that is killed between two ends of it leaves nothing of it to be billed."""
    rig, outbox = Rig.build(make_config()), UsageOutbox(tmp_path)
    rig.engine.submit(part(0, 2, tokens=1))
    rig.engine.submit(part(1, 2, tokens=5))
    seen: list[set[str]] = []
    while rig.engine.has_work:
        outbox.append(usage_of(rig.engine.step()))
        copy = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
        killed = tmp_path.parent / f"{tmp_path.name}-{len(seen)}"
        killed.mkdir()
        for path, content in copy.items():
            (killed / path.name).write_bytes(content)
        again = UsageOutbox(killed)
        seen.append({record.event_id for record in again.oldest()})
        again.close()
    outbox.close()
    assert seen[-1] == {"b-0:0", "b-1:0"}
    assert not any(seen[:-1])


@pytest.mark.parametrize("fails_at", [1, 2])
def test_an_engine_that_ends_while_a_sequence_leaves_bills_all_of_its_request(
    fails_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig, left = Rig.build(make_config(), eos_every=1 << 30), []
    rig.engine.submit(make_request("r", [1, 2, 3], n=2, max_tokens=4, ignore_eos=True))
    leave = rig.memory.leave

    def leave_or_fail(sequence: Sequence) -> None:
        left.append(sequence)
        if len(left) == fails_at:
            raise RuntimeError("the arena is broken")
        leave(sequence)

    monkeypatch.setattr(rig.memory, "leave", leave_or_fail)
    events: list[Event] = []

    def step_to_the_end() -> None:
        while rig.engine.has_work:
            events.extend(rig.engine.step())

    with pytest.raises(RuntimeError, match="arena") as failed:
        step_to_the_end()
    events += rig.engine.abandon(failed.value)
    assert set(tokens(usage_of(events))) == {"r:0", "r:1"}
