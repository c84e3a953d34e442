"""Commands that wait for the engine's thread: in turns of their senders, each sender's in order."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_fakes import Rig, make_config, make_ref, make_request, make_tenant
from tenora_engine import inbox
from tenora_engine.engine import Engine
from tenora_engine.errors import QueueFullError
from tenora_engine.events import Event
from tenora_engine.inbox import Command, Inbox
from tenora_engine.loop import COMMANDS_S, EngineLoop

PATIENCE_S = 20.0  # only a hang takes as long


def nothing(_: Engine) -> None: ...


def push(box: Inbox, sender: str, *, is_ordered: bool = False) -> Future[None]:
    future: Future[None] = Future()
    box.push(nothing, future, sender, is_ordered=is_ordered)
    return future


@given(st.lists(st.none() | st.tuples(st.sampled_from("abc"), st.booleans()), max_size=60))
def test_each_senders_commands_stay_in_order_and_what_is_ordered_comes_after_all_before_it(
    moves: list[tuple[str, bool] | None],
) -> None:
    """None takes the next one out."""
    box = Inbox()
    waiting: dict[str, deque[tuple[int, Future[None]]]] = {name: deque() for name in "abco"}
    for number, move in enumerate(moves):
        if move is not None:
            sender, is_ordered = move
            future = push(box, sender, is_ordered=is_ordered)
            waiting["o" if is_ordered else sender].append((number, future))
        elif len(box):
            command = box.pop()
            sender = next(s for s, line in waiting.items() if _is_first(line, command))
            came, _ = waiting[sender].popleft()
            if sender == "o":
                assert all(not line or line[0][0] > came for line in waiting.values())
        assert len(box) == sum(map(len, waiting.values()))


def _is_first(line: deque[tuple[int, Future[None]]], command: Command) -> bool:
    return bool(line) and line[0][1] is command.future


def test_senders_take_turns() -> None:
    box = Inbox()
    flood = [push(box, "noisy") for _ in range(4)]
    other = [push(box, "quiet") for _ in range(2)]
    taken = [box.pop().future for _ in range(6)]
    assert taken == [flood[0], other[0], flood[1], other[1], flood[2], flood[3]]
    with pytest.raises(KeyError):
        box.pop()


def test_what_waits_for_all_before_it_keeps_nobody_from_their_turns() -> None:
    box = Inbox()
    flood = [push(box, "noisy") for _ in range(4)]
    last = push(box, "noisy", is_ordered=True)
    other = push(box, "quiet")
    later = push(box, "noisy")
    taken = [box.pop().future for _ in range(7)]
    assert taken.index(other) == 1
    assert taken.index(last) > max(map(taken.index, flood))
    assert set(taken) == {*flood, last, other, later}


def test_a_full_inbox_refuses_who_has_more_than_its_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox, "INBOX_LIMIT", 10)
    box = Inbox()
    for _ in range(10):
        push(box, "noisy")
    with pytest.raises(QueueFullError):
        push(box, "noisy")
    for _ in range(5):
        push(box, "quiet")
    with pytest.raises(QueueFullError):
        push(box, "quiet")
    assert len(box) == 15


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
