"""The schedule: what shares a step, who waits for whom, and what is metered."""

from __future__ import annotations

import msgspec
import pytest

from engine_fakes import Rig, make_config, make_ref, make_request, make_tenant, run
from tenora_engine.errors import ContextLengthError, InvalidRequestError, QueueFullError
from tenora_engine.events import Event, FinishEvent, TokenEvent
from tenora_engine.request import AdapterRef, SamplingParams
from tenora_engine.scheduling.intake import PERIOD_S
from tenora_engine.scheduling.load_places import MAX_TENANT_PENDING
from tenora_engine.scheduling.page_shares import PAGE_PATIENCE_STEPS
from tenora_engine.scheduling.slot_turns import SLOT_PATIENCE_STEPS
from tenora_engine.step import StepPlan, StepResult


def finishes(events: list[Event]) -> dict[tuple[str, int], FinishEvent]:
    return {(e.request_id, e.index): e for e in events if isinstance(e, FinishEvent)}


def step_shape(rig: Rig) -> list[tuple[str, int]]:
    """(request, tokens) of the last step."""
    return [
        (item.sequence.request.request_id, item.num_tokens)
        for item in rig.executor.plans[-1].scheduled
    ]


def test_decode_first_then_a_tenants_prompts_one_after_another() -> None:
    rig = Rig.build(make_config(max_step_tokens=8, max_prefill_chunk=5))
    rig.engine.submit(make_request("short", [1, 2], ignore_eos=True))
    rig.engine.step()
    assert step_shape(rig) == [("short", 2)]
    rig.engine.submit(make_request("long", [3] * 10, ignore_eos=True))
    rig.engine.submit(make_request("other", [4] * 20, ignore_eos=True))
    rig.engine.step()
    assert step_shape(rig) == [("short", 1), ("long", 7)]
    rig.engine.step()
    assert step_shape(rig) == [("short", 1), ("long", 3), ("other", 4)]


def test_beside_others_a_tenants_prompts_have_a_part_of_the_step() -> None:
    rig = Rig.build(make_config(max_step_tokens=8, max_prefill_chunk=5))
    for name, token_id in (("a1", 1), ("a2", 2), ("b1", 3)):
        tenant = make_tenant(name[0])
        rig.engine.submit(make_request(name, [token_id] * 9, tenant=tenant, ignore_eos=True))
    rig.engine.step()
    assert sorted(step_shape(rig)) == [("a1", 5), ("b1", 3)]
    rig.engine.step()
    assert sorted(step_shape(rig)) == [("a1", 4), ("b1", 4)]
    rig.engine.step()
    assert sorted(step_shape(rig)) == [("a1", 1), ("a2", 5), ("b1", 2)]


def test_tenants_with_their_part_of_the_step_hide_nobody() -> None:
    """However many of their prompts stand before another tenant's."""
    config = make_config(max_step_tokens=16, max_prefill_chunk=2, max_running=16, max_waiting=1000)
    rig = Rig.build(config)
    for name in "abcde":
        tenant = make_tenant(name, weight=100.0)
        for number in range(64):
            rig.engine.submit(make_request(f"{name}{number}", [number % 40] * 4, tenant=tenant))
    rig.engine.submit(make_request("z", [1] * 2, tenant=make_tenant("z", weight=0.01)))
    rig.engine.step()
    assert ("z", 2) in step_shape(rig)


def test_rows_of_one_adapter_stand_together_base_first() -> None:
    rig = Rig.build(make_config(max_step_tokens=16))
    for number, name in enumerate(("x", None, "y", "x", None)):
        adapter = None if name is None else make_ref(name)
        rig.engine.submit(make_request(f"{number}{name}", [1], adapter=adapter, ignore_eos=True))
    rig.engine.step()
    assert [name[1:] for name, _ in step_shape(rig)] == ["None", "None", "x", "x", "y"]


def test_a_loading_adapter_keeps_only_its_own_requests_waiting() -> None:
    rig = Rig.build(make_config(), instant=False)
    ref = make_ref("slow")
    rig.engine.submit(make_request("slow", [1], adapter=ref, ignore_eos=True, max_tokens=2))
    rig.engine.submit(make_request("base", [1], ignore_eos=True, max_tokens=2))
    events = run(rig)
    assert list(finishes(events)) == [("base", 0)]
    rig.loader.finish(ref.digest)
    usage = finishes(run(rig))["slow", 0].usage
    assert (usage.residency, usage.adapter_load_ms, usage.adapter_digest) == (
        "store",
        5.0,
        ref.digest,
    )


def test_a_failed_load_fails_only_its_own_requests_and_may_be_tried_again() -> None:
    rig = Rig.build(make_config())
    bad, good = make_ref("bad"), make_ref("good")
    rig.loader.bad.add(bad.digest)
    rig.engine.submit(make_request("bad", [1], adapter=bad, n=2))
    rig.engine.submit(make_request("good", [1], adapter=good))
    done = finishes(run(rig))
    assert done["bad", 0].reason == done["bad", 1].reason == "error"
    assert done["bad", 0].error == "sha256:bad is broken"
    assert done["bad", 0].usage.prompt_tokens == 0
    assert done["good", 0].reason != "error"
    rig.loader.bad.clear()
    rig.engine.submit(make_request("again", [1], adapter=bad))
    assert finishes(run(rig))["again", 0].reason != "error"


def test_more_adapters_than_may_be_on_their_way_all_get_there() -> None:
    rig = Rig.build(make_config(max_adapters=2, max_running=2))
    names = [f"a{i}" for i in range(6 * MAX_TENANT_PENDING)]
    for name in names:
        rig.engine.submit(make_request(name, [1], adapter=make_ref(name), max_tokens=2))
    assert len(finishes(run(rig))) == len(names)


def test_siblings_wait_for_the_prompt_and_share_its_blocks() -> None:
    rig = Rig.build(make_config(max_prefill_chunk=7))
    prompt = list(range(18))
    rig.engine.submit(make_request("r", prompt, n=3, ignore_eos=True, max_tokens=4))
    assert rig.engine.stats().waiting == 3
    rig.engine.step()
    assert rig.engine.stats().running == 1
    done = finishes(run(rig))
    assert len(done) == 3
    # the first computes 18 tokens, the others the two that follow the full blocks, then 3 each
    assert rig.executor.computed_tokens == 18 + 2 * 2 + 3 * 3
    assert [done["r", i].usage.prompt_tokens for i in range(3)] == [18, 0, 0]
    assert [done["r", i].usage.cached_tokens for i in range(3)] == [0, 0, 0]


@pytest.mark.parametrize("index", [0, 1])
def test_a_sibling_can_be_aborted_alone(index: int) -> None:
    rig = Rig.build(make_config())
    rig.engine.submit(make_request("r", [1] * 9, n=2, ignore_eos=True, max_tokens=4))
    rig.engine.abort("r", index)
    done = finishes(run(rig))
    assert done["r", index].reason == "abort"
    assert done["r", 1 - index].reason == "length"
    assert done["r", 0].usage.prompt_tokens == 9


def test_a_second_request_reuses_the_prefix_of_its_own_tenant_and_adapter_only() -> None:
    rig = Rig.build(make_config(num_pages=64))
    prompt = list(range(17))
    ways: list[tuple[str, AdapterRef | None]] = [
        ("t0", None),
        ("t1", None),
        ("t0", make_ref("x")),
        ("t1", make_ref("x")),
    ]
    for again in (False, True):
        for tenant, adapter in ways:
            request = make_request(
                f"{tenant}{adapter}{again}", prompt, tenant=make_tenant(tenant), adapter=adapter
            )
            rig.engine.submit(request)
            (done,) = finishes(run(rig)).values()
            assert done.usage.cached_tokens == (16 if again else 0)
            assert done.usage.prompt_tokens == 17


def test_without_prefix_caching_nothing_is_kept() -> None:
    rig = Rig.build(make_config(prefix_caching=False))
    rig.engine.submit(make_request("r", [1] * 5, n=3))
    rig.engine.step()
    assert rig.engine.stats().running == 3
    run(rig)
    pool = rig.engine.stats().pool
    assert pool.free_pages == pool.total_pages


def test_preemption_takes_the_latest_of_the_least_urgent_and_is_not_billed() -> None:
    """Three sequences grow until the arena is full: the one with the slackest deadline goes,
    comes back, and its meters are those of a run alone."""
    config = make_config(num_pages=10, context_tokens=40, max_step_tokens=32, max_prefill_chunk=10)
    rig = Rig.build(config)
    for name, tpot_ms in (("slack", None), ("urgent", 10.0), ("medium", 50.0)):
        tenant = make_tenant(name, tpot_ms=tpot_ms)
        rig.engine.submit(
            make_request(name, [5] * 9, tenant=tenant, ignore_eos=True, max_tokens=14)
        )
    preempted: list[str] = []
    events: list[Event] = []
    running: set[str] = set()
    while rig.engine.has_work:
        events += rig.engine.step()
        now = {s.request.request_id for s in rig.engine._scheduler.running}
        ended = {key[0] for key in finishes(events)}
        preempted += sorted(running - now - ended)
        running = now
    assert preempted[0] == "slack"
    assert "urgent" not in preempted
    assert rig.engine.stats().counters["preemptions"] == len(preempted)
    for done in finishes(events).values():
        assert (done.usage.prompt_tokens, done.usage.cached_tokens) == (9, 0)
        assert done.usage.output_tokens == 14


def test_what_can_never_fit_is_refused_with_the_numbers() -> None:
    rig = Rig.build(make_config(num_pages=5, context_tokens=64))
    with pytest.raises(ContextLengthError, match=r"is 20 tokens.* 21 tokens \(13 in .*, 8 in"):
        rig.engine.submit(make_request("r", [1] * 13, max_tokens=8))
    rig.engine.submit(make_request("fits", [1] * 12, max_tokens=8, ignore_eos=True))
    (done,) = finishes(run(rig)).values()
    assert (done.reason, done.usage.output_tokens) == ("length", 8)


def test_an_adapter_that_leaves_no_room_for_the_prompt_is_an_error() -> None:
    rig = Rig.build(make_config(num_pages=4))
    rig.engine.submit(make_request("r", [1] * 12, adapter=make_ref("x", rank=8), max_tokens=1))
    (done,) = finishes(run(rig)).values()
    assert done.reason == "error"
    assert done.error is not None
    assert (
        "12 tokens need 3 pages and the adapter needs 2, but this engine has 4 pages" in done.error
    )


def test_beside_its_adapter_a_sequence_ends_where_the_arena_does() -> None:
    rig = Rig.build(make_config(num_pages=4))
    rig.engine.submit(
        make_request("r", [1] * 4, adapter=make_ref("x", rank=8), max_tokens=12, ignore_eos=True)
    )
    (done,) = finishes(run(rig)).values()
    assert (done.reason, done.usage.output_tokens) == ("length", 5)


def test_nobody_is_passed_over_for_ever_for_want_of_a_slot() -> None:
    """One slot, always taken by a stream of requests for the hot adapter: the other adapter's
    request gets it all the same."""
    rig = Rig.build(make_config(max_adapters=1, max_running=4))
    hot, cold = make_ref("hot"), make_ref("cold")
    rig.engine.submit(make_request("hot0", [1], adapter=hot, ignore_eos=True, max_tokens=9))
    rig.engine.step()
    rig.engine.submit(make_request("cold", [1], tenant=make_tenant("c"), adapter=cold))
    events: list[Event] = []
    for number in range(1, 3 * SLOT_PATIENCE_STEPS):
        if number % 3 == 0:
            name = f"hot{number}"
            rig.engine.submit(make_request(name, [1], adapter=hot, ignore_eos=True, max_tokens=9))
        events += rig.engine.step()
    assert ("cold", 0) in finishes(events)


def test_what_finds_no_pages_is_passed_but_not_for_ever() -> None:
    """A stream of small requests, which always leaves less room than the large one needs: some
    pass it, and it gets its pages all the same. Where who came first goes first, none passes."""
    passed = {}
    for policy in ("sla", "fcfs"):
        config = make_config(num_pages=12)
        engine = msgspec.structs.replace(config.engine, scheduling_policy=policy)
        rig = Rig.build(msgspec.structs.replace(config, engine=engine))
        events: list[Event] = []
        ended: dict[tuple[str, int], int] = {}
        for number in range(3 * PAGE_PATIENCE_STEPS):
            if number % 3 == 0:
                name, tenant = f"small{number}", make_tenant(f"s{number % 4}")
                rig.engine.submit(
                    make_request(name, [1] * 8, tenant=tenant, ignore_eos=True, max_tokens=8)
                )
            if number == 10:
                large = make_request("large", [2] * 36, tenant=make_tenant("l"), max_tokens=1)
                rig.engine.submit(large)
            events = rig.engine.step()
            rig.engine.check_integrity()
            ended |= dict.fromkeys(finishes(events), number)
        assert ("large", 0) in ended
        later = {(f"small{number}", 0) for number in range(12, 3 * PAGE_PATIENCE_STEPS, 3)}
        passed[policy] = sum(ended[name] < ended["large", 0] for name in later & ended.keys())
    assert passed["fcfs"] == 0
    assert 0 < passed["sla"] <= PAGE_PATIENCE_STEPS // 3 + 1


def test_a_failing_step_fails_its_sequences_and_nothing_else() -> None:
    rig = Rig.build(make_config(max_running=2))
    for name in ("a", "b", "c"):
        rig.engine.submit(make_request(name, [1] * 6, ignore_eos=True, max_tokens=3))
    rig.executor.fails = lambda executed: RuntimeError("cosmic ray")
    done = finishes(rig.engine.step())
    rig.executor.fails = lambda executed: None
    rig.engine.check_integrity()
    assert sorted(done) == [("a", 0), ("b", 0)]
    assert done["a", 0].error == "the step failed: RuntimeError: cosmic ray"
    assert rig.engine.stats().pool.cached_kv_pages == 0, "half-written blocks are not cached"
    assert finishes(run(rig))["c", 0].reason == "length"


def test_a_stopping_token_is_counted_and_named_but_not_shown() -> None:
    rig = Rig.build(make_config())
    probe = make_request("probe", [1], ignore_eos=True, max_tokens=3)
    rig.engine.submit(probe)
    tokens = [t for e in run(rig) if isinstance(e, TokenEvent) for t in e.token_ids]
    stop = tokens[2]
    assert stop not in tokens[:2]
    rig.engine.submit(make_request("r", [1], ignore_eos=True, stop_token_ids=(stop,)))
    events = run(rig)
    assert [t for e in events if isinstance(e, TokenEvent) for t in e.token_ids] == tokens[:2]
    (done,) = finishes(events).values()
    assert (done.reason, done.stop_token_id, done.usage.output_tokens) == ("stop", stop, 3)
    assert done.stop_logprob is None


def test_a_stop_string_is_metered_where_the_text_ended() -> None:
    rig = Rig.build(make_config())
    rig.engine.submit(make_request("r", [1], ignore_eos=True, max_tokens=20))
    for _ in range(5):
        rig.engine.step()
    rig.engine.abort("r", 0, reason="stop", output_tokens=3)
    rig.engine.abort("r", 0)
    rig.engine.abort("never", None)
    (done,) = run(rig)
    assert isinstance(done, FinishEvent)
    assert (done.reason, done.usage.output_tokens, done.usage.finish_reason) == ("stop", 3, "stop")


def test_the_record_is_complete() -> None:
    rig = Rig.build(make_config())
    request = make_request("r", [1, 2, 3], ignore_eos=True, max_tokens=2, waited_s=1.0)
    rig.now_s = 1001.0
    rig.engine.submit(request)
    rig.now_s = 1002.0
    rig.engine.step()
    rig.now_s = 1004.0
    (done,) = finishes(run(rig)).values()
    usage = done.usage
    assert usage.event_id == "r:0"
    assert (usage.arrival_s, usage.queue_ms) == (1000.0, 2000.0)
    assert (usage.first_token_s, usage.finished_s) == (1002.0, 1004.0)
    assert (usage.tenant, usage.tier, usage.residency) == ("t0", "default", None)


@pytest.mark.parametrize(
    ("prompt", "sampling", "param"),
    [
        ([], SamplingParams(), "prompt"),
        ([97], SamplingParams(), "prompt"),
        ([-1], SamplingParams(), "prompt"),
        ([1], SamplingParams(max_tokens=0), "max_tokens"),
        ([1], SamplingParams(n=0), "n"),
        ([1] * 64, SamplingParams(max_tokens=1), "prompt"),
        ([1] * 60, SamplingParams(max_tokens=9), "max_tokens"),
    ],
)
def test_bad_requests_name_their_field(
    prompt: list[int], sampling: SamplingParams, param: str
) -> None:
    rig = Rig.build(make_config())
    request = make_request("r", prompt, max_tokens=sampling.max_tokens, n=sampling.n)
    with pytest.raises(InvalidRequestError) as caught:
        rig.engine.submit(request)
    assert caught.value.param == param
    assert not rig.engine.has_work


def test_an_id_in_flight_a_rank_too_large_and_a_full_queue_are_refused() -> None:
    rig = Rig.build(make_config(max_waiting=2))
    rig.engine.submit(make_request("r", [1]))
    with pytest.raises(InvalidRequestError, match="already in flight"):
        rig.engine.submit(make_request("r", [1]))
    with pytest.raises(InvalidRequestError, match="rank is 9; this engine allows 1 to"):
        rig.engine.submit(make_request("s", [1], adapter=make_ref("x", rank=9)))
    with pytest.raises(QueueFullError):
        rig.engine.submit(make_request("s", [1], n=2))
    rig.engine.submit(make_request("s", [1]))
    assert rig.engine.stats().waiting_by_tenant == {"t0": 2}


def test_loads_are_bounded_by_tenant_and_begin_in_the_order_of_turns() -> None:
    rig = Rig.build(make_config(max_waiting=64), instant=False)
    for i in range(3 * MAX_TENANT_PENDING):
        rig.engine.submit(make_request(f"r{i}", [1], adapter=make_ref(f"a{i}")))
    assert len(rig.loader.in_flight) == MAX_TENANT_PENDING
    other = make_ref("other")
    rig.engine.submit(make_request("o", [1], adapter=other, tenant=make_tenant("t1")))
    assert other.digest in rig.loader.in_flight
    rig.engine.step()
    for _ in range(3):
        for digest in list(rig.loader.in_flight):
            rig.loader.finish(digest)
        rig.engine.step()
        assert len(rig.loader.in_flight) <= MAX_TENANT_PENDING
    own = [digest for digest in rig.loader.started if digest != other.digest]
    assert own == [f"sha256:a{i}" for i in range(len(own))]
    assert len(own) > MAX_TENANT_PENDING


def test_a_load_that_nobody_waits_for_is_cancelled() -> None:
    rig = Rig.build(make_config(), instant=False)
    one, two = make_ref("one"), make_ref("two")
    rig.loader.begun.add(two.digest)
    for name, ref in (("a", one), ("b", one), ("c", two)):
        rig.engine.submit(make_request(name, [1], adapter=ref))
    rig.engine.abort("a")
    assert one.digest in rig.loader.in_flight
    rig.engine.abort("b")
    assert one.digest not in rig.loader.in_flight
    rig.engine.abort("c")
    assert two.digest in rig.loader.in_flight, "it is being read"
    rig.engine.submit(make_request("d", [1], adapter=two))
    assert rig.loader.started.count(two.digest) == 1
    rig.loader.finish(two.digest)
    assert finishes(run(rig))["d", 0].reason != "abort"


def test_a_nearer_load_takes_the_place_of_one_that_has_not_begun() -> None:
    rig = Rig.build(make_config(max_running=1), instant=False)
    refs = [make_ref(f"a{i}") for i in range(MAX_TENANT_PENDING)]
    tenant = make_tenant("t0", ttft_ms=9000.0)
    for ref in refs:
        request = make_request(ref.digest, [1], adapter=ref, tenant=tenant)
        rig.engine.submit(request)
    near = make_ref("near")
    urgent = make_tenant("t0", ttft_ms=10.0)
    rig.engine.submit(make_request("u", [1], adapter=near, tenant=urgent))
    assert near.digest not in rig.loader.in_flight
    rig.engine.step()
    assert near.digest in rig.loader.in_flight
    assert refs[-1].digest not in rig.loader.in_flight
    assert len(rig.loader.in_flight) == MAX_TENANT_PENDING


def test_adapters_come_up_while_the_batch_is_full() -> None:
    rig = Rig.build(make_config(max_running=1), instant=False)
    rig.engine.submit(make_request("runs", [1, 2], max_tokens=20, ignore_eos=True))
    rig.engine.step()
    refs = [make_ref(f"a{i}") for i in range(MAX_TENANT_PENDING + 1)]
    for ref in refs:
        rig.engine.submit(make_request(ref.digest, [1], adapter=ref))
    assert refs[-1].digest not in rig.loader.in_flight
    rig.engine.abort(refs[0].digest)
    rig.now_s += 2 * PERIOD_S
    rig.engine.step()
    assert refs[-1].digest in rig.loader.in_flight


def test_what_is_not_waited_for_teaches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does the next step, which waits for both."""
    rig = Rig.build(make_config(max_step_tokens=4))
    execute, learned = rig.executor.execute, []

    def without_waiting(plan: StepPlan) -> StepResult | None:
        result = execute(plan)
        assert result is not None
        waited = any(plan.rows.num_samples)
        return msgspec.structs.replace(result, seconds=1.0 if waited else None)

    monkeypatch.setattr(rig.executor, "execute", without_waiting)
    costs = rig.memory.costs
    monkeypatch.setattr(costs, "observe_step", lambda tokens, rows, _: learned.append(tokens))
    rig.engine.submit(make_request("a", list(range(2, 12)), max_tokens=4, ignore_eos=True))
    run(rig)
    assert [executed.num_tokens for executed in rig.executor.plans] == [4, 4, 2, 1, 1, 1]
    assert learned == [1, 1, 1]
