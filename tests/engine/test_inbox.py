"""Commands that wait for the engine's thread: in turns of their senders, each sender's in order."""

from __future__ import annotations

import contextlib
from concurrent.futures import Future

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_fakes import Rig, make_config, make_ref, make_request, make_tenant
from tenora_engine import inbox
from tenora_engine.client import AbortReason
from tenora_engine.engine import Engine
from tenora_engine.errors import InvalidRequestError, QueueFullError
from tenora_engine.events import Event, FinishEvent, UsageRecord
from tenora_engine.grammar.guide import Guide
from tenora_engine.inbox import NOBODY, Inbox
from tenora_engine.loop import COMMANDS_S, EngineLoop
from tenora_engine.request import Grammar

PATIENCE_S = 20.0  # only a hang takes as long


def nothing(_: Engine) -> None: ...


def push(box: Inbox, sender: str, namespace: str | None = None) -> Future[None]:
    future: Future[None] = Future()
    box.push(nothing, future, sender, namespace=namespace)
    return future


def push_after(box: Inbox, namespace: str) -> Future[None]:
    future: Future[None] = Future()
    box.push_after(namespace, nothing, future)
    return future


MOVES = st.lists(
    st.none() | st.tuples(st.sampled_from("abc"), st.sampled_from([None, "m", "n"]), st.booleans()),
    max_size=80,
)


@given(MOVES)
def test_each_senders_commands_stay_in_order_and_who_forgets_comes_after_its_namespaces_submits(
    moves: list[tuple[str, str | None, bool] | None],
) -> None:
    """None takes the next one out, beside a plain model of what waits, oldest first. A forget comes
    as soon as nothing of its namespace that is older waits, and its turn has come."""
    box = Inbox()
    waiting: dict[Future[None], tuple[str, str | None]] = {}  # line and namespace of its submit
    for move in [*moves, *[None] * len(moves)]:
        if move is not None:
            sender, namespace, forgets = move
            if forgets and namespace is not None:
                waiting[push_after(box, namespace)] = f"forget {namespace}", None
            else:
                waiting[push(box, sender, namespace)] = sender, namespace
        elif len(box):
            taken = box.pop().future
            older = list(waiting)[: list(waiting).index(taken)]
            line, _ = waiting.pop(taken)
            assert line not in {waiting[each][0] for each in older}
            if line.startswith("forget"):
                assert line[-1] not in {waiting[each][1] for each in older}
        assert len(box) == len(waiting)
    assert not waiting
    assert not box._submits
    assert not box._later


def test_senders_take_turns() -> None:
    box = Inbox()
    flood = [push(box, "noisy") for _ in range(4)]
    other = [push(box, "quiet") for _ in range(2)]
    taken = [box.pop().future for _ in range(6)]
    assert taken == [flood[0], other[0], flood[1], other[1], flood[2], flood[3]]
    with pytest.raises(KeyError):
        box.pop()


def test_what_forgets_waits_for_the_submits_of_its_namespace_alone() -> None:
    """And keeps nobody from their turns meanwhile."""
    box = Inbox()
    flood = [push(box, "noisy", "n") for _ in range(4)]
    own, others = push_after(box, "n"), push_after(box, "q")
    other = push(box, "quiet", "q")
    later = push(box, "noisy", "n")
    taken = [box.pop().future for _ in range(8)]
    assert taken == [flood[0], others, other, flood[1], flood[2], flood[3], later, own]


def test_a_sender_has_at_most_as_many_as_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many senders there are, the limit is a total, and there is room for another while
    those that came first are not all at once."""
    monkeypatch.setattr(inbox, "INBOX_LIMIT", 64)
    box = Inbox()
    for number, most in enumerate((32, 16, 8, 4, 2, 1)):
        for _ in range(most):
            push(box, f"s{number}")
        with pytest.raises(QueueFullError):
            push(box, f"s{number}")
    assert len(box) == 63
    for number in range(60):
        with contextlib.suppress(QueueFullError):
            push(box, f"more{number}")
    assert len(box) == 64
    box.pop()
    push(box, "new")
    with pytest.raises(QueueFullError):
        push(box, "s0")


def test_what_is_owed_is_never_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox, "INBOX_LIMIT", 2)
    box = Inbox()
    for _ in range(9):
        box.push(nothing, Future(), "a", is_bounded=False)
        push_after(box, "n")
    assert len(box) == 18


def test_a_command_is_replaced_only_while_it_waits() -> None:
    box = Inbox()
    commands = [box.push(nothing, Future(), "a") for _ in range(4)]

    def instead(_: Engine) -> None: ...

    assert box.replace(commands[2], instead)
    first = box.pop()
    assert (first.carry_out, first.future) == (instead, commands[2].future)
    assert not box.replace(commands[2], instead)
    assert [box.pop().future for _ in range(3)] == [commands[k].future for k in (0, 1, 3)]
    assert not box.replace(commands[0], instead)


def test_a_flood_of_one_tenants_requests_takes_anothers_one_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each takes so long that one is carried out before each step: the other's is the second."""
    rig = Rig.build(make_config(max_waiting=64, max_tenant_waiting=64))
    now_s, order = [0.0], []
    monkeypatch.setattr("tenora_engine.loop.steady", lambda: now_s[0])
    submit = rig.engine.submit

    def slow_submit(request: object, *args: object, **kwargs: object) -> None:
        now_s[0] += 2 * COMMANDS_S
        order.append(request.tenant.key)  # type: ignore[attr-defined]
        submit(request, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(rig.engine, "submit", slow_submit)
    loop = EngineLoop(rig.engine, _ignore)
    for number in range(20):
        loop.submit(make_request(f"n{number}", [1, 2], tenant=make_tenant("noisy")))
    last = loop.submit(make_request("q", [3, 4], tenant=make_tenant("quiet")))
    loop.start()
    last.result(PATIENCE_S)
    loop.stop()
    assert order.index("quiet") == 1


def test_aborts_are_their_tenants_and_where_an_adapter_is_waits_for_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of requests that run, too: a flood of them takes another's abort one turn."""
    rig = Rig.build(make_config(max_waiting=64, max_tenant_waiting=64))
    loop = EngineLoop(rig.engine, _ignore)
    names = [f"n{number}" for number in range(20)]
    for name in names:
        rig.engine.submit(make_request(name, [1, 2], tenant=make_tenant("noisy")))
    rig.engine.submit(make_request("q", [3, 4], tenant=make_tenant("quiet")))
    order: list[str] = []
    monkeypatch.setattr(rig.engine, "abort", lambda name, *_: order.append(name))
    for name in names:
        loop.abort(name)
    loop.forget_namespace("other")
    loop.abort("q")
    assert loop.residency(make_ref("a")).result(0) == "store", "the loop has not been started"
    for _ in range(3):
        loop._inbox.pop().carry_out(rig.engine)
    assert "q" in order


def _full(monkeypatch: pytest.MonkeyPatch, loop: EngineLoop) -> None:
    """As if others' commands filled the inbox."""
    monkeypatch.setattr(inbox, "INBOX_LIMIT", len(loop._inbox))


def test_an_abort_is_never_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full line refused those of requests that ran: they ran on to their ends. Nor is what
    forgets."""
    rig = Rig.build(make_config(max_waiting=64, max_tenant_waiting=64))
    events: list[Event] = []
    loop = EngineLoop(rig.engine, events.extend)
    rig.engine.submit(make_request("runs", [1, 2], max_tokens=50, ignore_eos=True))
    loop.submit(make_request("waits", [1, 2], max_tokens=50, ignore_eos=True))
    _full(monkeypatch, loop)
    with pytest.raises(QueueFullError):
        loop.submit(make_request("refused", [1, 2])).result(0)
    ended = [loop.abort("runs"), loop.abort("waits"), loop.forget_namespace("ns")]
    loop.start()
    for each in ended:
        each.result(PATIENCE_S)
    loop.stop()
    ends = [event for event in events if isinstance(event, FinishEvent)]
    assert {(end.request_id, end.reason) for end in ends} == {("runs", "abort"), ("waits", "abort")}
    assert rig.engine._requests.bytes.total == 0


@pytest.mark.parametrize("reason", ["client_gone", "invalid", "cut_off"])
def test_who_is_aborted_in_the_inbox_ends_there_as_it_would_in_the_queue(
    reason: AbortReason,
) -> None:
    """In one command, before those of its tenant that came before it, and without a submit. Its
    events are those of one that waits in the queue, parts of bodies included."""
    body = {"part_of": "body", "parts": 2}
    asked = [
        make_request("plain", [1, 2], n=3),
        msgspec.structs.replace(make_request("text", [1, 2]), ends_by_text=True),
        msgspec.structs.replace(make_request("part", [1, 2]), **body),
    ]
    ends = []
    for is_submitted in (True, False):
        rig = Rig.build(make_config(max_waiting=64, max_tenant_waiting=64))
        loop = EngineLoop(rig.engine, _ignore)
        for request in asked:
            if is_submitted:
                rig.engine.submit(request)
                rig.engine.abort(request.request_id, reason=reason)
            else:
                first = loop.submit(make_request("first", [1]))
                submitted = loop.submit(request)
                aborted = loop.abort(request.request_id, reason=reason)
                _carry_out_next(loop)
                assert (submitted.done(), aborted.done()) == (True, True)
                _carry_out_next(loop)
                assert first.result(0) is None
                rig.engine.abort("first")
        counters = rig.engine.stats().counters
        if not is_submitted:
            assert not loop._coming
            assert counters["requests_finished"] == 2 * len(asked)
        assert rig.engine._requests.bytes.total == 0
        events = [e for e in rig.engine.step() if isinstance(e, FinishEvent)]
        ends.append([_timeless(e) for e in events if e.request_id != "first"])
        rig.engine.check_integrity()
        assert not rig.engine._requests.bills._by_body
    assert ends[0] == ends[1]


def test_who_is_aborted_in_the_inbox_has_waited_there(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig.build(make_config())
    now_s = [0.0]
    monkeypatch.setattr("tenora_engine.loop.steady", lambda: now_s[0])
    loop = EngineLoop(rig.engine, _ignore)
    loop.submit(make_request("r", [1, 2]))
    loop.abort("r")
    now_s[0] += 2.0
    _carry_out_next(loop)
    (end,) = rig.engine.step()
    assert isinstance(end, FinishEvent)
    assert end.usage.queue_ms == pytest.approx(2000)


def test_who_is_aborted_while_its_grammar_is_compiled_ends_when_that_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What compiles goes on; it is not submitted, though the inbox is full."""
    rig = Rig.build(make_config(max_waiting=64, max_tenant_waiting=64))
    compiling: Future[list[Guide]] = Future()
    monkeypatch.setattr(rig.engine.grammars, "guides", lambda _: compiling)
    monkeypatch.setattr(inbox, "INBOX_LIMIT", 0)
    events: list[Event] = []
    loop = EngineLoop(rig.engine, events.extend)
    asked = make_request("guided", [1, 2])
    sampling = msgspec.structs.replace(asked.sampling, grammar=Grammar("regex", "a+"))
    submitted = loop.submit(msgspec.structs.replace(asked, sampling=sampling))
    ended = loop.abort("guided", reason="cut_off")
    again = loop.submit(asked).exception(0)
    assert isinstance(again, InvalidRequestError), "it is in flight"
    assert not ended.done()
    loop.start()
    compiling.set_result([])
    assert submitted.result(PATIENCE_S) is None
    ended.result(PATIENCE_S)
    loop.stop()
    (end,) = (event for event in events if isinstance(event, FinishEvent))
    assert (end.request_id, end.reason, end.fault) == ("guided", "abort", "platform")
    assert rig.engine._requests.bytes.total == 0


def test_what_forgets_waits_for_a_request_whose_grammar_is_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else the request would bring back what was forgotten, and keep it."""
    rig = Rig.build(make_config())
    compiling: Future[list[Guide]] = Future()
    monkeypatch.setattr(rig.engine.grammars, "guides", lambda _: compiling)
    loop = EngineLoop(rig.engine, lambda _: None)
    asked = make_request("guided", [1, 2])
    sampling = msgspec.structs.replace(asked.sampling, grammar=Grammar("regex", "a+"))
    submitted = loop.submit(msgspec.structs.replace(asked, sampling=sampling))
    forgotten = loop.forget_namespace(asked.tenant.namespace)
    elsewhere = loop.forget_namespace("another")
    _carry_out_next(loop)
    assert elsewhere.done()
    with pytest.raises(KeyError):
        loop._inbox.pop()
    compiling.set_result([])
    _carry_out_next(loop)
    assert submitted.done()
    assert not forgotten.done()
    _carry_out_next(loop)
    assert forgotten.done()


def test_memory_is_given_back_whatever_a_submit_fails_by(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig.build(make_config())

    def defect(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(rig.engine._requests, "_enter", defect)
    with pytest.raises(ZeroDivisionError):
        rig.engine.submit(make_request("r", [1, 2]))
    assert rig.engine._requests.bytes.total == 0


def _carry_out_next(loop: EngineLoop) -> None:
    command = loop._inbox.pop()
    command.future.set_result(command.carry_out(loop.engine))


def _timeless(event: FinishEvent) -> FinishEvent:
    def plain(usage: UsageRecord) -> UsageRecord:
        times = dict.fromkeys(("arrival_s", "finished_s", "queue_ms"), 0.0)
        return msgspec.structs.replace(usage, **times, waits=[])

    settled = None if event.settled is None else [plain(each) for each in event.settled]
    return msgspec.structs.replace(event, usage=plain(event.usage), settled=settled)


def test_a_confirmation_stands_in_its_tenants_line_and_what_has_ended_in_nones() -> None:
    """40 of them came before what the operator asked."""
    rig = Rig.build(make_config(max_waiting=64, max_tenant_waiting=64))
    loop = EngineLoop(rig.engine, _ignore)
    for number in range(10):
        name = f"a{number}"
        asked = make_request(name, [1, 2], tenant=make_tenant("A"), max_tokens=1, ignore_eos=True)
        rig.engine.submit(msgspec.structs.replace(asked, ends_by_text=number < 5))
    while rig.engine.has_work:
        rig.engine.step()
    confirmed = [loop.abort(f"a{number}", 0, "stop", 1) for number in range(10)]
    asked_by_operator = loop.call(nothing)
    assert [future.done() for future in confirmed] == [False] * 5 + [True] * 5
    taken = [loop._inbox.pop() for _ in range(6)]
    assert [command.sender for command in taken] == ["A", NOBODY, "A", "A", "A", "A"]
    assert taken[1].future is asked_by_operator


def test_an_abort_does_not_overtake_its_request() -> None:
    """Though what no tenant sends has a turn of its own, before the request's."""
    rig = Rig.build(make_config(max_waiting=64, max_tenant_waiting=64))
    events: list[Event] = []
    loop = EngineLoop(rig.engine, events.extend)
    for number in range(10):
        loop.submit(make_request(f"r{number}", [1, 2], max_tokens=50, ignore_eos=True))
    ended = [loop.abort(f"r{number}") for number in range(10)]
    loop.start()
    for each in ended:
        each.result(PATIENCE_S)
    stats = loop.stats().result(PATIENCE_S)
    loop.stop()
    assert (stats.running, stats.waiting) == (0, 0)
    assert not loop._coming


def _ignore(_: list[Event]) -> None: ...
