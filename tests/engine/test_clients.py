"""Who a server takes to live, and what it keeps for those who do not read."""

from __future__ import annotations

import pytest

from tenora_engine.transport import clients
from tenora_engine.transport.clients import UNREAD_MAX_BYTES, Clients
from tenora_engine.transport.wire import CLIENT_LEASE_S

HALF = UNREAD_MAX_BYTES // 2


class World:
    def __init__(self) -> None:
        self.now_s = 500.0
        self.clients = Clients(lambda: self.now_s)
        self.clients.greet(b"a")
        self.clients.greet(b"b")

    def pass_time(self, seconds: float) -> list[bytes]:
        """In turns of a second; who was found dead."""
        found: set[bytes] = set()
        for _ in range(round(seconds)):
            self.now_s += 1
            found |= {*self.clients.turn()}
        return sorted(found)


@pytest.fixture
def world() -> World:
    return World()


def test_a_lease_is_thirty_seconds_from_what_was_heard_last(world: World) -> None:
    assert CLIENT_LEASE_S == 30.0
    assert world.pass_time(20) == []
    world.clients.hear(b"a")
    assert world.pass_time(11) == [b"b"]
    assert world.pass_time(20) == [b"a", b"b"]


def test_what_is_heard_of_a_stranger_makes_no_client_of_it(world: World) -> None:
    world.clients.hear(b"c")
    assert b"c" not in world.clients
    assert list(world.clients) == [b"a", b"b"]


def test_no_lease_runs_while_the_server_stands_still(world: World) -> None:
    world.pass_time(25)
    world.now_s += 3600
    assert world.clients.turn() == []
    assert world.pass_time(6) == [b"a", b"b"]


def test_what_one_does_not_read_is_bounded_and_no_other_pays_for_it(world: World) -> None:
    send, read = world.clients.try_send, world.clients.note_read
    assert send(b"a", HALF)
    assert send(b"a", HALF)
    assert not send(b"a", 1)
    assert send(b"b", HALF)
    read(b"a", HALF)
    assert send(b"a", HALF)
    assert not send(b"a", 1)
    read(b"a", None)
    assert send(b"a", UNREAD_MAX_BYTES)


def test_one_that_begins_anew_has_read_all_that_it_was_sent_before(world: World) -> None:
    assert world.clients.try_send(b"a", UNREAD_MAX_BYTES)
    world.clients.greet(b"a")
    world.clients.note_read(b"a", HALF)  # on its way meanwhile, of before
    assert world.clients.try_send(b"a", UNREAD_MAX_BYTES)


def test_minutes_of_a_full_batch_fit() -> None:
    """Of 64 sequences at 50 steps a second, an event of each at 150 bytes."""
    assert clients.UNREAD_MAX_BYTES > 64 * 50 * 150 * 4 * 60
