"""Express steps: who keeps its share does not wait for the end of a step of those who do not. The
runner is a fake that pauses where it is asked to."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

import msgspec
import pytest

from engine_fakes import ExecutedPlan, Rig, make_config, make_ref, make_request, make_tenant, run
from tenora_engine.engine import Engine
from tenora_engine.events import Event, FinishEvent
from tenora_engine.loop import EngineLoop
from tenora_engine.request import GenerationRequest
from tenora_engine.scheduling.express import MAX_STEPS
from tenora_engine.step import StepResult
from tenora_engine.transport.outbox import usage_of

CONFIG = make_config(
    num_pages=512,
    max_running=64,
    max_step_tokens=64,
    max_prefill_chunk=64,
    max_waiting=256,
    max_tenant_waiting=256,
)
PATIENCE_S = 20.0  # only a hang takes as long


def request(
    name: str, tenant: str, prompt_tokens: int = 4, max_tokens: int = 8
) -> GenerationRequest:
    return make_request(
        name,
        [sum(name.encode()) % 90] * prompt_tokens,
        tenant=make_tenant(tenant),
        max_tokens=max_tokens,
        ignore_eos=True,
    )


def noisy_rig() -> Rig:
    """The noisy tenant has a backlog and is far ahead; a quiet one was served meanwhile."""
    rig = Rig.build(CONFIG, can_preempt=True)
    rig.engine.submit(request("first", "quiet", max_tokens=1))
    for number in range(200):
        rig.engine.submit(request(f"n{number}", "noisy", 16, 2))
    for _ in range(12):
        rig.engine.step()
    return rig


def plan_of(rig: Rig) -> dict[str, int]:
    """Tokens by request of the step that ran last."""
    return {i.sequence.request.request_id: i.num_tokens for i in rig.executor.plans[-1].scheduled}


def finished(events: list[Event]) -> set[str]:
    return {event.request_id for event in events if isinstance(event, FinishEvent)}


def pause(rig: Rig, arrival: GenerationRequest) -> None:
    """A step begins and is paused for the arrival."""
    ran = len(rig.executor.plans)
    rig.engine.announce(arrival)
    assert rig.engine.step() == []
    assert (rig.executor.preemptions, len(rig.executor.plans)) == (1, ran)


def test_a_step_is_paused_for_who_keeps_within_its_share_and_goes_on_afterwards() -> None:
    rig = noisy_rig()
    arrival = request("q", "quiet", 10)
    pause(rig, arrival)
    rig.engine.submit(arrival)
    assert [event.request_id for event in rig.engine.step()] == ["q"], "its first token"
    assert plan_of(rig) == {"q": 10}
    rig.engine.step()
    resumed = plan_of(rig)
    assert resumed
    assert all(name.startswith("n") for name in resumed)
    rig.engine.step()
    assert plan_of(rig)["q"] == 1, "it decodes with the others"
    assert rig.engine.stats().counters["express_steps"] == 2, "the first request was as well"
    assert finished(run(rig)) > {"q", "n199"}


def test_nobody_else_pauses_a_step() -> None:
    rig = noisy_rig()
    rig.engine.announce(request("more", "noisy"))
    rig.engine.step()
    assert rig.executor.preemptions == 0
    calm = Rig.build(CONFIG, can_preempt=True)
    for number in range(3):
        calm.engine.submit(request(f"r{number}", f"t{number}", 4, 1))
    calm.engine.announce(request("q", "quiet"))
    calm.engine.step()
    assert calm.executor.preemptions == 0, "nobody has a backlog"


def test_a_runner_that_cannot_pause_has_no_express_steps() -> None:
    rig = Rig.build(CONFIG)
    for number in range(40):
        rig.engine.submit(request(f"n{number}", "noisy"))
    for _ in range(6):
        rig.engine.step()
    rig.engine.submit(request("q", "quiet"))
    rig.engine.step()
    assert len(plan_of(rig)) > 1
    assert rig.engine.stats().counters["express_steps"] == 0


def test_a_long_prompt_is_computed_in_express_steps_to_its_end() -> None:
    """Though other arrivals come before a step of everybody's."""
    rig = noisy_rig()
    arrival = request("q", "quiet", 60, 1)
    pause(rig, arrival)
    rig.engine.submit(arrival)
    rig.engine.submit(request("p", "patient", 50, 1))
    ran, computed = len(rig.executor.plans), Counter[str]()
    while computed != {"q": 60, "p": 50}:
        rig.engine.step()
        assert plan_of(rig).keys() <= {"q", "p"}
        computed.update(plan_of(rig))
    assert len(rig.executor.plans) - ran <= MAX_STEPS


def test_a_paused_step_comes_to_its_end_however_many_arrive() -> None:
    rig = noisy_rig()
    arrivals = [request(f"q{number}", f"quiet{number}", 20, 1) for number in range(3 * MAX_STEPS)]
    pause(rig, arrivals[0])
    ran = len(rig.executor.plans)
    for arrival in arrivals:
        rig.engine.submit(arrival)
    for _ in range(MAX_STEPS + 1):
        rig.engine.step()
    express, resumed = rig.executor.plans[ran:-1], plan_of(rig)
    assert len(express) == MAX_STEPS
    assert all(i.sequence.request.request_id[0] == "q" for p in express for i in p.scheduled)
    assert all(name.startswith("n") for name in resumed)
    begun = finished(run(rig)) | {
        i.sequence.request.request_id for p in express for i in p.scheduled
    }
    assert begun >= {arrival.request_id for arrival in arrivals}


def test_a_paused_step_does_not_go_on_for_what_has_ended() -> None:
    """It was paused for somebody else; to be told where a text ended changes nothing of it."""
    rig = noisy_rig()
    rig.engine.submit(msgspec.structs.replace(request("e", "ended", 4, 1), ends_by_text=True))
    events: list[Event] = []
    while rig.engine._requests.flights.get("e"):
        events += rig.engine.step()
    assert "e" in finished(events)
    pause(rig, request("q", "quiet"))
    rig.engine.abort("e", 0, "stop", 0)
    assert rig.engine._preempted is not None
    assert [record.event_id for record in usage_of(run(rig))].count("e:0") == 1


def test_an_abort_of_what_a_paused_step_computes_waits_for_its_end() -> None:
    """Nothing is taken from under it; all that it gave is told first."""
    rig = noisy_rig()
    running = [s.request.request_id for s in rig.engine._scheduler.running]
    arrival, ran = request("q", "quiet", 10), len(rig.executor.plans)
    pause(rig, arrival)
    rig.engine.submit(arrival)
    rig.engine.abort(running[0])
    assert len(rig.executor.plans) == ran
    assert [event.request_id for event in rig.engine.step()] == ["q"], "who came runs first"
    events = rig.engine.step()
    assert set(running) <= plan_of(rig).keys(), "it has been run to its end"
    assert set(running) <= {event.request_id for event in events}
    assert running[0] in finished(events)
    rig.engine.check_integrity()
    assert running[0] not in finished(run(rig)), "it ends once"


def test_an_abort_that_waits_for_a_paused_step_is_carried_out_though_the_engine_stops() -> None:
    rig = noisy_rig()
    stopped, cut = [s.request.request_id for s in rig.engine._scheduler.running][:2]
    pause(rig, request("q", "quiet"))
    rig.engine.abort(stopped, reason="stop", output_tokens=1)
    ends = {e.request_id: e for e in rig.engine.abandon(None) if isinstance(e, FinishEvent)}
    assert (ends[stopped].reason, ends[stopped].usage.output_tokens) == ("stop", 1)
    assert ends[cut].reason == "abort"


COMMANDS: dict[str, Callable[[Engine], object]] = {
    "abort of what waits": lambda engine: engine.abort("n199"),
    "abort of what runs": lambda engine: engine.abort(in_paused_step(engine)),
    "abort by a stop string": lambda engine: engine.abort(
        in_paused_step(engine), 0, "stop", output_tokens=1
    ),
    "abort of what has ended": lambda engine: engine.abort("first"),
    "submit": lambda engine: engine.submit(request("more", "noisy")),
    "announce": lambda engine: engine.announce(request("more", "noisy")),
    "forget an adapter": lambda engine: engine.forget_adapter("noisy", "sha256:0"),
    "forget a namespace": lambda engine: engine.forget_namespace("noisy"),
    "evict an adapter": lambda engine: engine.evict_adapter("noisy", "sha256:0"),
    "pin": lambda engine: engine.set_pins([]),
    "pages": lambda engine: engine.pages("noisy"),
    "stats": lambda engine: engine.stats(),
    "residency": lambda engine: engine.residency(make_ref("0")),
    "residencies": lambda engine: engine.residencies(["sha256:0"]),
}


def in_paused_step(engine: Engine) -> str:
    """One that a step which is paused computes."""
    paused = engine._scheduler.in_flight.first
    assert paused is not None
    return paused.items[0].sequence.request.request_id


@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_of_a_tenant_runs_a_paused_step_before_the_express_one(name: str) -> None:
    rig = noisy_rig()
    arrival, ran = request("q", "quiet", 10), len(rig.executor.plans)
    pause(rig, arrival)
    rig.engine.submit(arrival)
    COMMANDS[name](rig.engine)
    assert len(rig.executor.plans) == ran
    rig.engine.step()
    assert plan_of(rig) == {"q": 10}
    run(rig)
    rig.engine.check_integrity()


def test_a_failing_express_step_fails_its_own_sequences_only() -> None:
    rig = noisy_rig()
    arrival = request("q", "quiet")
    pause(rig, arrival)
    rig.engine.submit(arrival)
    rig.executor.fails = lambda executed: RuntimeError("out of luck")
    events = rig.engine.step()
    rig.executor.fails = lambda executed: None
    assert [(e.request_id, e.reason) for e in events if isinstance(e, FinishEvent)] == [
        ("q", "error")
    ]
    rest = [e for e in run(rig) if isinstance(e, FinishEvent)]
    assert all(event.reason == "length" for event in rest)


def test_the_loop_pauses_the_step_that_runs() -> None:
    """One whose end would not come while the arrival waits for it."""
    rig = noisy_rig()
    asked, begun = threading.Event(), threading.Event()
    run_step, ask = rig.executor.run, rig.executor.preempt

    def run_slowly(executed: ExecutedPlan) -> StepResult | None:
        if executed.plan.is_preemptible and not asked.is_set():
            begun.set()
            assert asked.wait(PATIENCE_S)
        return run_step(executed)

    def note(wanted: bool) -> None:
        ask(wanted)
        if wanted:
            asked.set()

    rig.executor.run, rig.executor.preempt = run_slowly, note  # type: ignore[method-assign]
    events: list[Event] = []
    done = threading.Event()

    def take(new: list[Event]) -> None:
        events.extend(new)
        if "q" in finished(new):
            done.set()

    loop = EngineLoop(rig.engine, take)
    loop.start()
    assert begun.wait(PATIENCE_S)
    loop.submit(request("q", "quiet")).result(PATIENCE_S)
    assert done.wait(PATIENCE_S)
    loop.stop()
    assert rig.executor.preemptions == 1
    assert events[0].request_id == "q", "before what the paused step gives"
