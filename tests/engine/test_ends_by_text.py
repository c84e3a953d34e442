"""A stop string is met in the text, which the engine does not see: what a sequence is charged that
had ended by itself by then is what its client says, once, or as it ended where nobody says it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_fakes import (
    Rig,
    expected_output,
    make_config,
    make_request,
    make_tenant,
    run,
)
from tenora_engine.errors import InvalidRequestError
from tenora_engine.events import Event, FinishEvent, SettledEvent, TokenEvent, UsageRecord
from tenora_engine.request import GenerationRequest
from tenora_engine.scheduling import bills
from tenora_engine.scheduling.bills import CONFIRM_S, Bills
from tenora_engine.step import StepPlan, StepResult
from tenora_engine.transport.outbox import usage_of
from tenora_engine.transport.routing import ActiveRequests
from tenora_kernels.compiled.decoder import NO_NUMBER

NEVER = 10**9  # no token ends a sequence


def asked(
    name: str = "r", *, part_of: str | None = None, parts: int = 1, **more: Any
) -> GenerationRequest:
    """Its stop strings are its client's business."""
    made = make_request(name, [1, 2, 3], **more)
    return msgspec.structs.replace(made, ends_by_text=True, part_of=part_of, parts=parts)


def charged(events: Iterable[Event]) -> dict[str, tuple[int, int, str]]:
    """Of each sequence, prompt, output and reason. None is there twice."""
    records = usage_of(events)
    found: dict[str, tuple[int, int, str]] = {
        each.event_id: (each.prompt_tokens, each.output_tokens, each.finish_reason)
        for each in records
    }
    assert len(found) == len(records), "billed twice"
    return found


def built(**more: Any) -> Rig:
    return Rig.build(make_config(**more), eos_every=NEVER)


def test_a_step_of_drafts_that_ends_by_length_is_charged_up_to_the_stop_string() -> None:
    """As it is where the client is in time: the same request always costs the same."""
    for is_late in (True, False):
        rig = built()
        request = asked(max_tokens=12)
        output, _ = expected_output(request, 0, 64, NEVER)
        predicted = output if is_late else output[:5]  # and then a token a step
        rig.engine.submit(msgspec.structs.replace(request, prediction_token_ids=predicted))
        events = run(rig) if is_late else [e for _ in range(2) for e in rig.engine.step()]
        assert any(isinstance(event, FinishEvent) for event in events) == is_late
        assert charged(events) == {}
        rig.engine.abort("r", 0, "stop", 5)
        assert charged(run(rig)) == {"r:0": (3, 5, "stop")}


def test_more_drafts_than_the_output_has_tokens_are_not_told() -> None:
    rig = built()
    request = asked(max_tokens=12)
    output, _ = expected_output(request, 0, 64, NEVER)
    rig.engine.submit(msgspec.structs.replace(request, prediction_token_ids=output))
    (event,) = [event for event in run(rig) if isinstance(event, FinishEvent)]
    assert event.usage.accepted_draft_tokens > 5
    rig.engine.abort("r", 0, "stop", 5)
    (record,) = usage_of(run(rig))
    assert record.accepted_draft_tokens <= 5


@pytest.mark.parametrize("reason", ["length", "stop"])
def test_how_it_ended_does_not_matter(reason: str) -> None:
    """By its length, or by a token."""
    rig = built()
    output, _ = expected_output(asked(max_tokens=6), 0, 64, NEVER)
    stops = () if reason == "length" else (output[-1],)
    rig.engine.submit(asked(max_tokens=6 if reason == "length" else 20, stop_token_ids=stops))
    events = run(rig)
    assert charged(events) == {}
    told = [event for event in events if isinstance(event, FinishEvent)]
    assert [event.reason for event in told] == [reason]
    rig.engine.abort("r", 0, "stop", 2)
    assert charged(run(rig)) == {"r:0": (3, 2, "stop")}


def test_a_client_that_met_no_stop_string_says_so_once_for_all() -> None:
    rig = built()
    rig.engine.submit(asked(n=3, max_tokens=6))
    events = run(rig)
    rig.engine.abort("r", 1, "stop", 4)
    assert charged(events + run(rig)) == {}
    rig.engine.abort("r", reason="stop")
    expected = {"r:0": (3, 6, "length"), "r:1": (0, 4, "stop"), "r:2": (0, 6, "length")}
    assert charged(run(rig)) == expected
    rig.engine.abort("r", reason="stop")
    rig.engine.abort("r", 2, "stop", 1)
    assert run(rig) == [], "once"


def test_one_that_runs_is_not_ended_by_what_is_said_of_another() -> None:
    rig = built()
    output, _ = expected_output(asked(n=2), 0, 64, NEVER)
    rig.engine.submit(asked(n=2, max_tokens=9, stop_token_ids=(output[3],)))
    events = [event for _ in range(5) for event in rig.engine.step()]
    ended = [event.index for event in events if isinstance(event, FinishEvent)]
    assert ended == [0]
    rig.engine.abort("r", 0, "stop", 2)
    rig.engine.abort("r", 1, "stop", 40)  # it has no more than it has
    events += run(rig)
    found = charged(events)
    assert found["r:0"] == (3, 2, "stop")
    assert found["r:1"][1] == sum(
        len(event.token_ids)
        for event in events
        if isinstance(event, TokenEvent) and event.index == 1
    )


def test_the_prompts_of_a_body_are_settled_together() -> None:
    rig = built()
    for number in range(2):
        rig.engine.submit(asked(f"b-{number}", part_of="b", parts=3, max_tokens=6))
    events = run(rig)
    rig.engine.abort("b-0", reason="stop")
    rig.engine.abort("b-1", 0, "stop", 2)
    assert charged(events + run(rig)) == {}, "its last prompt has not come"
    rig.engine.submit(asked("b-2", part_of="b", parts=3, max_tokens=6))
    assert charged(run(rig)) == {}
    rig.engine.abort("b-2", 0, "stop", 3)
    assert charged(run(rig)) == {
        "b-0:0": (3, 6, "length"),
        "b-1:0": (3, 2, "stop"),
        "b-2:0": (3, 3, "stop"),
    }


def sick_from(rig: Rig, monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """The weights are no numbers after so many steps."""
    execute, count = rig.executor.execute, [0]

    def sick(plan: StepPlan) -> StepResult | None:
        result = execute(plan)
        assert result is not None
        count[0] += 1
        if count[0] <= steps:
            return result
        return msgspec.structs.replace(result, token_ids=[[NO_NUMBER] for _ in result.token_ids])

    monkeypatch.setattr(rig.executor, "execute", sick)


@pytest.mark.parametrize(("at", "billed"), [(2, (3, 2, "stop")), (None, (0, 0, "error"))])
def test_a_fault_behind_the_stop_string_is_not_the_request_s(
    monkeypatch: pytest.MonkeyPatch, at: int | None, billed: tuple[int, int, str]
) -> None:
    rig = built()
    sick_from(rig, monkeypatch, 4)
    rig.engine.submit(asked())
    events = run(rig)
    (event,) = [event for event in events if isinstance(event, FinishEvent)]
    assert (event.reason, event.fault) == ("error", "weights")
    rig.engine.abort("r", None if at is None else 0, "stop", at)
    assert charged(events + run(rig)) == {"r:0": billed}


def test_a_fault_makes_all_free_unless_every_text_had_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for number, told in enumerate([(0,), (0, 1)]):
        rig = built()
        sick_from(rig, monkeypatch, 5)
        rig.engine.submit(asked(n=2, max_tokens=20))
        events = run(rig)
        for index in told:
            rig.engine.abort("r", index, "stop", 1)
        rig.engine.abort("r", reason="stop")
        outputs = {key: tokens[:2] for key, tokens in charged(events + run(rig)).items()}
        free = {"r:0": (0, 0), "r:1": (0, 0)}
        assert outputs == (free if not number else {"r:0": (3, 1), "r:1": (0, 1)})


@pytest.mark.parametrize("reason", ["client_gone", "invalid"])
def test_a_client_that_goes_is_charged_as_it_ended(reason: Any) -> None:
    rig = built()
    rig.engine.submit(asked(max_tokens=6))
    events = run(rig)
    rig.engine.abort("r", reason=reason)
    billed = (3, 6, "length") if reason == "client_gone" else (0, 0, "length")
    assert charged(events + run(rig)) == {"r:0": billed}
    assert run(rig) == []


def test_a_server_aborts_what_waits_for_a_client_that_is_gone() -> None:
    rig, active = built(), ActiveRequests()
    request = asked(max_tokens=6)
    active.add(request, b"client")
    rig.engine.submit(request)
    for event in run(rig):
        if isinstance(event, FinishEvent):
            active.note_end(event)
    assert active.of(b"client") == ["r"]
    rig.engine.abort("r")
    (settled,) = run(rig)
    assert isinstance(settled, SettledEvent)
    active.note_end(settled)
    assert not len(active)


def test_nobody_waits_for_ever_to_be_told() -> None:
    rig = built()
    rig.engine.submit(asked("a", max_tokens=6))
    events = run(rig)
    rig.now_s += CONFIRM_S / 2
    rig.engine.submit(asked("b", max_tokens=6))
    events += run(rig)
    assert rig.engine.idle_s == CONFIRM_S / 2, "it is woken by nothing else"
    rig.now_s += CONFIRM_S / 2 + 1
    assert rig.engine.has_work
    late = run(rig)
    assert charged(late) == {"a:0": (3, 6, "length")}
    rig.engine.abort("a", 0, "stop", 2)
    rig.engine.abort("b", 0, "stop", 2)
    assert charged(events + run(rig)) == {"b:0": (3, 2, "stop")}
    assert rig.engine.idle_s is None


def test_a_tenant_that_never_tells_has_its_oldest_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bills, "UNSURE_MAX", 3)
    rig = built()
    for number in range(5):
        rig.engine.submit(asked(f"r{number}", max_tokens=2))
    other = msgspec.structs.replace(asked("other", max_tokens=2), tenant=make_tenant("t1"))
    rig.engine.submit(other)
    events = run(rig)
    assert len(charged(events)) == 2
    for name in (*(f"r{number}" for number in range(5)), "other"):
        rig.engine.abort(name, 0, "stop", 1)
    assert len(charged(events + run(rig))) == 6


@pytest.mark.parametrize("failure", [None, RuntimeError("the engine's own")])
def test_an_engine_that_ends_bills_what_had_ended(failure: RuntimeError | None) -> None:
    rig = built()
    rig.engine.submit(asked("ended", max_tokens=2))
    events = run(rig)
    rig.engine.submit(asked("runs", max_tokens=9))
    events += rig.engine.step() + rig.engine.abandon(failure)
    reason = "abort" if failure is None else "error"
    assert charged(events) == {"ended:0": (3, 2, "length"), "runs:0": (0, 0, reason)}


def test_an_id_is_taken_until_it_is_settled() -> None:
    rig = built()
    rig.engine.submit(asked(max_tokens=2))
    run(rig)
    with pytest.raises(InvalidRequestError, match="in flight"):
        rig.engine.submit(asked(max_tokens=2))


def test_what_has_no_stop_strings_is_billed_with_its_end() -> None:
    rig = built()
    rig.engine.submit(make_request("r", [1, 2, 3], max_tokens=4))
    assert charged(run(rig)) == {"r:0": (3, 4, "length")}
    rig.engine.abort("r", 0, "stop", 1)
    assert run(rig) == []


class Told:
    """What each sequence may be billed, by what was done."""

    def __init__(self) -> None:
        self.generated: dict[str, int] = {}
        self.billed: dict[str, UsageRecord] = {}

    def note(self, events: Iterable[Event]) -> None:
        events = list(events)
        for event in events:
            if isinstance(event, FinishEvent):
                assert event.usage.event_id not in self.generated, "it ends twice"
                self.generated[event.usage.event_id] = event.usage.output_tokens
        for record in usage_of(events):
            assert record.event_id not in self.billed, "billed twice"
            self.billed[record.event_id] = record


def drawn_requests(data: st.DataObject) -> list[GenerationRequest]:
    """Some of the parts of a body, or requests of their own."""
    draw = data.draw
    parts = draw(st.integers(1, 3))
    return [
        msgspec.structs.replace(
            make_request(
                f"b-{number}",
                [1, 2, number],
                max_tokens=draw(st.integers(1, 6)),
                n=draw(st.integers(1, 3)),
                tenant=make_tenant(draw(st.sampled_from(["t0", "t1"]))),
            ),
            part_of="b" if parts > 1 else None,
            parts=parts,
            ends_by_text=draw(st.sampled_from([True, True, False])),
        )
        for number in range(draw(st.integers(1, 3)))
    ]


def say_something(data: st.DataObject, rig: Rig, requests: list[GenerationRequest]) -> None:
    """Of a request that runs, has ended, or was not sent."""
    draw = data.draw
    request = draw(st.sampled_from(requests))
    index = draw(st.none() | st.integers(0, request.sampling.n - 1))
    reason = draw(st.sampled_from(["stop", "stop", "client_gone", "invalid"]))
    count = draw(st.none() | st.integers(-1, 9)) if reason == "stop" else None
    rig.engine.abort(request.request_id, index, reason, count)  # type: ignore[arg-type]


def leave(data: st.DataObject, rig: Rig, requests: list[GenerationRequest]) -> list[Event]:
    """The engine is stopped, or the clients go after a while."""
    if data.draw(st.booleans()):
        return rig.engine.abandon(None)
    rig.now_s += CONFIRM_S + 1
    events = run(rig)
    for request in requests:
        rig.engine.abort(request.request_id)
    return events + run(rig)


@given(data=st.data())
def test_each_sequence_is_billed_once_and_never_for_more_than_was_generated(
    data: st.DataObject,
) -> None:
    """Whatever the order of ends, aborts, confirmations and timeouts."""
    rig = Rig.build(make_config(num_pages=64), eos_every=data.draw(st.sampled_from([4, 99])))
    told, requests = Told(), drawn_requests(data)
    waiting = requests.copy()
    for kind in data.draw(st.lists(st.sampled_from(["submit", "step", "steps", "wait", "say"]))):
        if kind == "submit" and waiting:
            rig.engine.submit(waiting.pop(0))
        elif kind == "wait":
            rig.now_s += data.draw(st.sampled_from([1.0, CONFIRM_S + 1]))
        elif kind == "say":
            say_something(data, rig, requests)
        for _ in range({"step": 1, "steps": 8}.get(kind, 0)):
            told.note(rig.engine.step())
    for request in waiting:
        rig.engine.submit(request)
    told.note(run(rig))
    told.note(leave(data, rig, requests))
    names = {f"{r.request_id}:{i}" for r in requests for i in range(r.sampling.n)}
    assert told.billed.keys() == told.generated.keys() == names
    for name, record in told.billed.items():
        assert 0 <= record.output_tokens <= told.generated[name]


def test_nothing_is_kept_of_what_was_settled() -> None:
    rig = built()
    for number in range(20):
        rig.engine.submit(asked(f"r{number}", max_tokens=2))
        run(rig)
        rig.engine.abort(f"r{number}", reason="stop")
        run(rig)
    kept = vars(rig.engine._requests.bills)
    assert isinstance(rig.engine._requests.bills, Bills)
    assert [name for name, value in kept.items() if name != "_clock" and value] == []
