"""A step that raises by some of its rows: their requests end, and the others have to the bit what
they would have had without them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_fakes import Rig, fails_with, make_config, make_ref, make_request, make_tenant, run
from tenora_engine.config import EngineConfig
from tenora_engine.engine import FAILED_STEPS_MAX, Engine, build_engine
from tenora_engine.errors import EngineFailedError, MemoryOperationError
from tenora_engine.events import Event, FinishEvent, TokenEvent
from tenora_engine.executor.executor import ModelExecutor
from tenora_engine.request import BeamSearch, GenerationRequest, Grammar, SamplingParams, Tenant
from tenora_engine.scheduling.sampling import plan_sampling
from tenora_engine.step import StepPlan, StepResult
from tenora_engine.step_retry import RETRIES_MAX, StepRetry
from tenora_kernels.backend import has_compiled_ops
from tiny_folder import write_tiny_folder


def ends(events: list[Event]) -> dict[str, FinishEvent]:
    return {event.request_id: event for event in events if isinstance(event, FinishEvent)}


def said(events: list[Event]) -> dict[tuple[str, int], list[object]]:
    """All that each sequence was given, tokens and logprobs, and how it ended."""
    found: dict[tuple[str, int], list[object]] = {}
    for event in events:
        assert isinstance(event, TokenEvent | FinishEvent)
        given = found.setdefault((event.request_id, event.index), [])
        if isinstance(event, FinishEvent):
            given.append((event.reason, event.stop_token_id, event.usage.output_tokens))
        else:
            given += event.token_ids
            given += event.logprobs or []
            given += event.prompt_logprobs or []
            given += event.embedding or []
    return found


def test_one_request_s_fault_ends_one_request() -> None:
    rig = Rig.build(make_config(num_pages=64, max_running=9, max_step_tokens=64))
    for number in range(8):
        adapter = make_ref("a") if number % 2 else None
        tenant = make_tenant(f"t{number % 3}")
        prompt = [number + 1] * (number + 2)
        request = make_request(
            f"good {number}", prompt, adapter=adapter, tenant=tenant, ignore_eos=True
        )
        rig.engine.submit(request)
    rig.engine.submit(make_request("bad", [7] * 5, tenant=make_tenant("t0"), ignore_eos=True))
    rig.executor.fails = fails_with("bad")
    ended = ends(run(rig))
    assert ended.pop("bad").error == "the step failed: RuntimeError: bad is in it"
    assert {event.reason for event in ended.values()} == {"length"}
    assert len(ended) == 8
    assert rig.engine.stats().counters["step_failures"] == 1


def test_what_an_error_ends_is_not_charged() -> None:
    rig = Rig.build(make_config())
    rig.executor.fails = fails_with("at once")
    rig.engine.submit(make_request("at once", [1, 2]))
    usage = ends(run(rig))["at once"].usage
    assert (usage.prompt_tokens, usage.output_tokens) == (0, 0)
    rig.engine.submit(make_request("later", [1, 2], ignore_eos=True))
    for _ in range(3):
        rig.engine.step()
    rig.executor.fails = fails_with("later")
    usage = ends(run(rig))["later"].usage
    assert (usage.prompt_tokens, usage.output_tokens) == (0, 0)


def test_what_the_platform_cuts_off_is_not_charged() -> None:
    rig = Rig.build(make_config())
    for name in ("cut", "left"):
        rig.engine.submit(make_request(name, [1, 2], ignore_eos=True))
    for _ in range(3):
        rig.engine.step()
    rig.engine.abort("cut", reason="cut_off")
    rig.engine.abort("left", reason="client_gone")
    found = {e.request_id: e for e in rig.engine.step() if isinstance(e, FinishEvent)}
    assert {event.reason for event in found.values()} == {"abort"}
    assert found["cut"].fault == "platform"
    charged = {name: (e.usage.prompt_tokens, e.usage.output_tokens) for name, e in found.items()}
    assert charged == {"cut": (0, 0), "left": (2, 3)}


def test_what_cannot_be_answered_is_not_charged() -> None:
    """A part of it that ran, too."""
    rig = Rig.build(make_config())
    rig.engine.submit(make_request("part", [1, 2], n=2, ignore_eos=True))
    for _ in range(3):
        rig.engine.step()
    rig.engine.abort("part", reason="invalid")
    found = [event for event in rig.engine.step() if isinstance(event, FinishEvent)]
    assert {(event.reason, event.fault) for event in found} == {("error", "request")}
    assert {(e.usage.prompt_tokens, e.usage.output_tokens) for e in found} == {(0, 0)}
    assert len(found) == 2


@pytest.mark.parametrize("error", [MemoryOperationError("lost"), RuntimeError("CUDA error: lost")])
def test_what_is_lost_while_parts_are_run_ends_the_engine(error: Exception) -> None:
    rig = Rig.build(make_config())
    for name in ("a", "b"):
        rig.engine.submit(make_request(name, [1]))
    errors = [RuntimeError("by one of them"), error]
    rig.executor.fails = lambda executed: errors.pop(0)
    with pytest.raises(EngineFailedError):
        rig.engine.step()
    assert ends(rig.engine.abandon(None)).keys() == {"a", "b"}


def test_a_row_that_cannot_be_planned_ends_its_own_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the plan says of memory is done all the same."""
    rig = Rig.build(make_config())

    def plan(sequences: list[object], *more: object) -> object:
        if any(each.request.request_id == "bad" for each in sequences):  # type: ignore[attr-defined]
            raise OverflowError("Python int too large to convert to C int")
        return plan_sampling(sequences, *more)  # type: ignore[arg-type]

    monkeypatch.setattr("tenora_engine.scheduling.plan.plan_sampling", plan)
    for name in ("good", "bad", "fine"):
        request = make_request(name, [1, 2, 3], adapter=make_ref(name), ignore_eos=True)
        rig.engine.submit(request)
    ended = ends(run(rig))
    assert {name: event.reason for name, event in ended.items()} == {
        "good": "length",
        "bad": "error",
        "fine": "length",
    }


def test_requests_that_fail_alone_do_not_end_the_engine() -> None:
    """However many in a row, and each with all rows of its step: the engine's own probe runs."""
    rig = Rig.build(make_config(num_pages=64))
    rig.executor.fails = lambda executed: RuntimeError("by itself") if executed.scheduled else None
    for number in range(3 * FAILED_STEPS_MAX):
        n = number % 3 + 1
        adapter = make_ref("a") if number % 2 else None
        prompt = [number % 7 + 1] * (number % 20 + 1)
        rig.engine.submit(make_request(f"bad {number}", prompt, n=n, adapter=adapter))
        assert {event.reason for event in ends(run(rig)).values()} == {"error"}
    rig.executor.fails = lambda executed: None
    rig.engine.submit(make_request("good", [1, 2, 3], ignore_eos=True))
    assert ends(run(rig))["good"].reason == "length"


@given(num_rows=st.integers(1, 256), bad=st.sets(st.integers(0, 255), max_size=3))
def test_rows_are_found_by_halves(num_rows: int, bad: set[int]) -> None:
    bad = {row for row in bad if row < num_rows}
    times = 0

    def execute(rows: object) -> StepResult:
        nonlocal times
        times += 1
        if bad & set(rows):  # type: ignore[call-overload]
            raise ValueError
        return StepResult([[row] for row in rows], [None for _ in rows])  # type: ignore[attr-defined]

    retry = StepRetry(execute)
    retry.run([("t", "r")] * num_rows, lambda error: False)
    assert set(retry.failed) == bad
    assert retry.result().token_ids == [[row] for row in range(num_rows) if row not in bad]
    assert times <= RETRIES_MAX


@given(
    owners=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 3)), min_size=1, max_size=256),
    bad=st.integers(0, 20),
)
def test_a_tenant_with_many_bad_rows_takes_nobody_along(
    owners: list[tuple[int, int]], bad: int
) -> None:
    """More of them than could be found one by one."""
    of_bad = {row for row, (tenant, _) in enumerate(owners) if tenant == bad}

    def execute(rows: object) -> StepResult:
        assert rows == sorted(rows)  # type: ignore[call-overload]
        if of_bad & set(rows):  # type: ignore[call-overload]
            raise ValueError
        return StepResult([[row] for row in rows], [None for _ in rows])  # type: ignore[attr-defined]

    retry = StepRetry(execute)
    retry.run([(str(tenant), str(request)) for tenant, request in owners], lambda error: False)
    assert set(retry.failed) == of_bad
    assert retry.result().token_ids == [[row] for row in range(len(owners)) if row not in of_bad]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not has_compiled_ops():
        pytest.skip("the kernels are not compiled: torch promises no bits")
    folder = tmp_path_factory.mktemp("retried") / "model"
    write_tiny_folder(folder)
    return folder


def engine_of(folder: Path) -> Engine:
    return build_engine(
        EngineConfig(
            model=str(folder),
            served_name="tiny",
            load_format="dummy",
            dtype="float32",
            arena_bytes=8 * 1024**2,
            memory_bytes=1024**3,
            max_adapters=1,
            max_step_tokens=64,
            max_prefill_chunk=32,
            max_running=16,
        )
    )


@pytest.mark.parametrize("length", [1, 40])
def test_a_probe_runs_where_no_request_does(folder: Path, length: int) -> None:
    """On the model, and leaves what is cached of others as it is."""
    engine = engine_of(folder)
    good = random_request("good", random.Random(1))
    quiet = said(answers(engine, [good]))
    executor, execute = engine._executor, engine._executor.execute

    def fails(plan: StepPlan) -> StepResult | None:
        if plan.rows.sequence and engine._scheduler.scheduled(plan).items:
            raise ValueError("by itself")
        return execute(plan)

    executor.execute = fails  # type: ignore[method-assign]
    for number in range(2 * FAILED_STEPS_MAX):
        bad = GenerationRequest(
            request_id=f"bad {number}",
            tenant=Tenant(key="c", namespace="c"),
            prompt_token_ids=[5] * length,
            sampling=SamplingParams(seed=3, max_tokens=20),
        )
        (end,) = answers(engine, [bad])
        assert isinstance(end, FinishEvent)
        assert end.error == "the step failed: ValueError: by itself"
    executor.execute = execute  # type: ignore[method-assign]
    assert said(answers(engine, [good])) == quiet
    engine.close()


def random_request(name: str, draw: random.Random) -> GenerationRequest:
    kind = draw.choice(["greedy", "drawn", "rules", "grammar", "beams", "scores", "embeds"])
    sampling = {
        "greedy": SamplingParams(temperature=0.0, max_tokens=12),
        "drawn": SamplingParams(seed=draw.randrange(99), top_p=0.9, max_tokens=9, logprobs=3),
        "rules": SamplingParams(repetition_penalty=1.3, logit_bias={9: 4.0}, seed=1, max_tokens=8),
        "grammar": SamplingParams(grammar=Grammar("regex", "(ab|cd){4}"), seed=2, max_tokens=9),
        "beams": SamplingParams(temperature=0.0, n=3, beams=BeamSearch(), max_tokens=5),
        "scores": SamplingParams(temperature=0.0, prompt_logprobs=2, max_tokens=3),
        "embeds": SamplingParams(temperature=0.0, embeds=True, max_tokens=0),
    }[kind]
    tenant = draw.choice(["a", "b"])
    token_ids = [draw.randrange(3, 90) for _ in range(draw.randrange(1, 50))]
    return GenerationRequest(
        request_id=name,
        tenant=Tenant(key=tenant, namespace=tenant),
        prompt_token_ids=token_ids,
        prediction_token_ids=token_ids if draw.random() < 0.3 else [],
        sampling=sampling,
    )


def answers(engine: Engine, requests: list[GenerationRequest]) -> list[Event]:
    events: list[Event] = []
    for request in requests:
        engine.submit(request)
    while engine.has_work:
        events += engine.step()
        engine.check_integrity()
    return events


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_the_others_answers_are_what_they_are_without_it(folder: Path, seed: int) -> None:
    """The step raises before or after the model has run, at any of the bad request's tokens."""
    draw = random.Random(seed)
    others = [random_request(f"good {number}", draw) for number in range(8)]
    bad = GenerationRequest(
        request_id="bad",
        tenant=Tenant(key="c", namespace="c"),
        prompt_token_ids=[5] * draw.randrange(1, 70),
        sampling=SamplingParams(seed=3, max_tokens=20, ignore_eos=True),
    )
    engine = engine_of(folder)
    quiet = said(answers(engine, others))
    engine.close()
    engine = engine_of(folder)
    executor = engine._executor
    assert isinstance(executor, ModelExecutor)
    place, fails_after, execute = draw.randrange(9), draw.random() < 0.5, executor.execute
    length = len(bad.prompt_token_ids) + draw.randrange(12)

    def fails(plan: StepPlan) -> StepResult | None:
        rows = zip(plan.rows.sequence, plan.rows.context_len, strict=True)
        numbers = {s.request.request_id: s.number for s in engine._scheduler.running}
        is_bad = any(number == numbers.get("bad") and at >= length for number, at in rows)
        if is_bad and not fails_after:
            executor.memory.apply(plan.memory)
            raise ValueError("before")
        result = execute(plan)
        if is_bad:
            raise torch.OutOfMemoryError("after")
        return result

    executor.execute = fails  # type: ignore[method-assign]
    beside = said(answers(engine, [*others[:place], bad, *others[place:]]))
    failures = engine.stats().counters["step_failures"]
    engine.close()
    del beside["bad", 0]
    assert failures == 1
    assert beside == quiet
