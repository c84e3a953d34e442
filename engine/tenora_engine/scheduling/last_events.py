"""The last events of sequences, with what they are billed: of one that ends, and of all that is in
flight when the engine does."""

from __future__ import annotations

from collections.abc import Iterable

from tenora_engine.events import Event, FinishEvent
from tenora_engine.scheduling.bills import Bills, settled
from tenora_engine.scheduling.meters import Ending, finish_event
from tenora_engine.scheduling.waits import Waits
from tenora_engine.sequence import Flight, Sequence, SequenceState


def last_event(
    bills: Bills,
    flight: Flight,
    sequence: Sequence,
    ending: Ending,
    now_s: float,
    to_unix_s: float,
) -> FinishEvent:
    """Make the last event of a sequence that has not left its flight."""
    event = finish_event(flight, sequence, ending, now_s, to_unix_s)
    left = len(flight.sequences) - 1
    return bills.add(flight.request, flight.bill, event, left, is_sure=ending.is_told)


def events_of_the_end(
    flights: Iterable[Flight],
    told: list[Event],
    bills: Bills,
    waits: Waits,
    ending: Ending,
    now_s: float,
    to_unix_s: float,
) -> list[Event]:
    """Return what is `told` already and the last events of all others in these flights, which have
    no sequence afterwards. Whoever ended while it left is told and still there."""
    events = told.copy()
    ended = {(e.request_id, e.index) for e in events if isinstance(e, FinishEvent)}
    for flight in flights:
        request_id = flight.request.request_id
        left = [each for each in flight.sequences if (request_id, each.index) not in ended]
        flight.sequences[:] = left
        for sequence in reversed(left):
            if sequence.state is SequenceState.WAITING:
                waits.end(sequence, now_s)
            sequence.waits.parts = waits.parts(sequence)
            events.append(last_event(bills, flight, sequence, ending, now_s, to_unix_s))
            flight.sequences.remove(sequence)
    for usage in bills.close():
        events += settled(usage)
    return events
