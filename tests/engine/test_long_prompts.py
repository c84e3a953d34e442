"""Next to long prompts and to many rows that decode: what another tenant's short requests take, in
virtual time."""

from __future__ import annotations

from collections.abc import Sequence as Items
from itertools import pairwise
from statistics import median
from weakref import ref

import pytest

from engine_fakes import make_config, make_request, make_tenant
from tenora_engine.memory.costs import CostModel
from tenora_engine.request import Tenant
from tenora_engine.scheduling.chunks import ARRIVAL_PART, BESIDE_S, LONG_S, ChunkSizer
from tenora_engine.scheduling.forecast import StepForecast, StepLoad
from tenora_engine.scheduling.tpot_promises import (
    FORGOTTEN_FROM,
    MARGIN,
    FirstTokens,
    TpotPromises,
)
from tenora_engine.sequence import Sequence
from virtual_time import LAYERS, Arrival, Machine, VirtualTime, arriving

CONFIG = make_config(
    num_pages=1024,
    block_tokens=16,
    max_running=64,
    max_step_tokens=128,
    max_prefill_chunk=64,
    max_waiting=256,
    max_tenant_waiting=256,
    context_tokens=1200,
)
START_S = 1000.0
QUIET_PROMPT, QUIET_OUTPUT = 8, 4


def long_prompts(count: int, tenant: Tenant) -> list[Arrival]:
    return [
        arriving(
            f"long{k}",
            [k + 1, 90 - k] * 500,
            tenant=tenant,
            max_tokens=4,
            came_s=START_S,
        )
        for k in range(count)
    ]


def short_requests(
    tenant: Tenant, count: int = 40, every_s: float = 0.43, output: int = QUIET_OUTPUT
) -> list[Arrival]:
    return [
        arriving(
            f"short{k}",
            [k + 1] * QUIET_PROMPT,
            tenant=tenant,
            max_tokens=output,
            came_s=START_S + 0.5 + k * every_s,
        )
        for k in range(count)
    ]


def played(requests: Items[Arrival], seconds: float = 1e9) -> VirtualTime:
    time = VirtualTime(CONFIG)
    time.play(requests, START_S + seconds)
    time.rig.engine.check_integrity()
    return time


def worst_ttft_s(time: VirtualTime) -> float:
    return max(a.ttft_s for name, a in time.answers.items() if name.startswith("short"))


def worst_answer_s(time: VirtualTime) -> float:
    return max(
        a.token_times_s[-1] - a.came_s
        for name, a in time.answers.items()
        if name.startswith("short")
    )


def known(tenant: Tenant) -> Arrival:
    """It has asked before the others come."""
    return arriving("known", [95], tenant=tenant, max_tokens=1, came_s=START_S)


def decoding(tenant: Tenant) -> Arrival:
    """It decodes when the others come."""
    return arriving("decoding", [95], tenant=tenant, max_tokens=100, came_s=START_S)


@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize(("ttft_ms", "tpot_ms"), [(None, None), (400.0, None), (400.0, 80.0)])
def test_long_prompts_however_few_keep_no_short_request_waiting(
    count: int, ttft_ms: float | None, tpot_ms: float | None
) -> None:
    """Few requests are no backlog, and their chunks take the longer the further they are."""
    quiet = make_tenant("quiet", ttft_ms=ttft_ms, tpot_ms=tpot_ms)
    alone = played([known(quiet), *short_requests(quiet)])
    beside = played(
        [known(quiet), *long_prompts(count, make_tenant("long")), *short_requests(quiet)]
    )
    assert worst_ttft_s(beside) <= 1.5 * worst_ttft_s(alone)
    tpot_s = BESIDE_S if tpot_ms is None else tpot_ms / 1000
    assert worst_answer_s(beside) <= 1.5 * worst_ttft_s(alone) + MARGIN * QUIET_OUTPUT * tpot_s


def test_many_short_prompts_keep_nobodys_next_token_waiting() -> None:
    """Where nothing is promised to anybody: a backlog of one tenant has only as much of a step as
    keeps who arrives waiting for no longer than ARRIVAL_PART of LONG_S."""
    config = make_config(
        num_pages=4096,
        block_tokens=16,
        max_running=64,
        max_step_tokens=1024,
        max_prefill_chunk=512,
        max_waiting=1024,
        max_tenant_waiting=1024,
        context_tokens=1200,
    )
    crowd, quiet = make_tenant("crowd"), make_tenant("quiet")
    many = [
        arriving(f"m{k}", [k % 90 + 1, k // 90] * 25, tenant=crowd, max_tokens=1, came_s=START_S)
        for k in range(900)
    ]
    time = VirtualTime(config)
    time.play([known(quiet), *many, *short_requests(quiet, 20)], START_S + 10)
    assert worst_ttft_s(time) <= 1.5 * worst_ttft_s(played([known(quiet), *short_requests(quiet)]))
    most_s = MARGIN * LONG_S / ARRIVAL_PART
    assert worst_answer_s(time) <= worst_ttft_s(time) + QUIET_OUTPUT * most_s


def test_where_a_step_is_dear_a_backlog_is_not_cut_into_many_for_nobody() -> None:
    """As of a large model on a CPU. That another tenant was here within the last minute took a
    third of the throughput."""
    config = make_config(
        num_pages=4000,
        max_running=64,
        max_step_tokens=512,
        max_prefill_chunk=256,
        max_waiting=1024,
        max_tenant_waiting=1024,
        prefix_caching=False,
    )
    machine = Machine(step_s=0.12, row_s=0.002, position_s=1e-6, token_s=0.006, pair_s=1e-5)

    def backlog_s(*before: Arrival) -> float:
        time = VirtualTime(config, machine)
        crowd = [
            arriving(
                f"m{k}",
                [k % 50 + 1] * 50,
                tenant=make_tenant("crowd"),
                max_tokens=1,
                came_s=START_S + 0.5,
            )
            for k in range(150)
        ]
        time.play([*before, *crowd], START_S + 300)
        return max(time.answers[f"m{k}"].token_times_s[-1] for k in range(150)) - START_S

    assert backlog_s(known(make_tenant("quiet"))) <= 1.15 * backlog_s()


def test_the_first_request_that_ever_comes_beside_a_long_prompt_interrupts_it() -> None:
    """When the step was planned its tenant was alone."""
    quiet = make_tenant("quiet")
    alone = played(short_requests(quiet, 1))
    beside = played([*long_prompts(1, make_tenant("long")), *short_requests(quiet, 1)])
    longest_s = max(step_s for _, step_s in beside.steps)
    assert worst_ttft_s(beside) <= worst_ttft_s(alone) + 1.1 * longest_s / LAYERS


def test_a_long_prompts_chunks_become_smaller_as_its_context_grows_and_never_nothing() -> None:
    """Beside a stream that was promised a TPOT each step stays within it. Without any context a
    step would have room for all its tokens."""
    tpot_s = 0.12
    stream = arriving(
        "stream",
        [5],
        tenant=make_tenant("quiet", tpot_ms=1000 * tpot_s),
        max_tokens=300,
        came_s=START_S,
    )
    time = played([stream, *long_prompts(1, make_tenant("long"))], seconds=30.0)
    chunks = [
        (item.num_tokens, step_s)
        for executed, step_s in time.steps
        for item in executed.scheduled
        if item.sequence.request.request_id == "long0"
    ]
    sizes = [size for size, _ in chunks]
    assert sum(sizes) >= 1000
    learned = chunks[8:-8]
    assert all(step_s <= tpot_s for _, step_s in learned)
    assert max(sizes) >= 4 * learned[-1][0] > 0
    assert all(after <= 1.25 * before + 1 for before, after in pairwise(sizes[8:-8]))


def test_on_a_slow_machine_no_prompt_is_long_that_fits_a_step() -> None:
    """Nor is a long one given less than half of the steps beside others."""
    sizer = ChunkSizer(CostModel(CONFIG), max_step_tokens=128)
    for tokens in (0, 8, 64, 128) * 50:
        load = StepLoad(tokens=tokens, pairs=tokens * tokens / 2)
        sizer.forecast.observe(load, 1.0 + 0.05 * tokens)
    short, long = (Sequence(make_request("r", [1] * n), 0, [1] * n, n) for n in (100, 1000))
    assert sizer.forecast.prompt_s(short) > LONG_S
    assert not sizer.is_long(short, START_S)
    assert sizer.is_long(long, START_S)
    assert sizer.beside_s(1, 128) >= sizer.forecast.decode_s(1) * (1 - 1e-9)


def streams(tenant: Tenant, count: int = 64) -> list[Arrival]:
    return [
        arriving(
            f"stream{k}",
            [k + 1, 3] * 4,
            tenant=tenant,
            max_tokens=150,
            came_s=START_S + 0.1,
        )
        for k in range(count)
    ]


def rows_of(time: VirtualTime, prefix: str) -> list[int]:
    """Of each step that decodes: how many rows of requests with such a name."""
    return [
        sum(item.sequence.request.request_id.startswith(prefix) for item in executed.scheduled)
        for executed, _ in time.steps
        if executed.step.is_decode
    ]


@pytest.mark.parametrize("is_known", [True, False])
def test_no_more_rows_decode_than_keep_a_promised_tpot(is_known: bool) -> None:
    """Whether who was promised it was there before the flood or comes later. What a row takes is to
    be learnt from the first answers."""
    quiet, tpot_s = make_tenant("quiet", tpot_ms=30.0), 0.030
    others = [*streams(make_tenant("flood")), *short_requests(quiet, output=12)]
    time = played([decoding(quiet), *others] if is_known else others)
    tpots = [
        (answer.token_times_s[-1] - answer.token_times_s[0]) / (len(answer.token_times_s) - 1)
        for name, answer in time.answers.items()
        if name.startswith("short")
    ]
    assert max(tpots[4:]) <= MARGIN * tpot_s
    assert median(tpots) <= tpot_s
    assert all(answer.finished_s for answer in time.answers.values())
    flood = rows_of(time, "stream")
    assert 0.5 * tpot_s <= max(step_s for _, step_s in time.steps[-200:]), "it uses what there is"
    assert time.rig.engine.stats().counters["places_given_up"] <= 96, "1.5 for each stream"
    assert max(flood) < 64


@pytest.mark.parametrize(("row_s", "every_s"), [(0.0003, 0.15), (0.0021, 0.3)])
def test_prefills_keep_a_promised_tpot_as_rows_do(row_s: float, every_s: float) -> None:
    """Those of a flood whose prompts are still to be read, and the tenant's own next ones. The
    first answers come beside a step that has begun
    without a promise, and rows that are to be given up."""
    tpot_s, ttft_s = 0.050, 0.500
    quiet = make_tenant("quiet", ttft_ms=1000 * ttft_s, tpot_ms=1000 * tpot_s)
    flood = [
        arriving(
            f"stream{k}",
            [k + 1, 3] * 16,
            tenant=make_tenant("flood"),
            max_tokens=150,
            came_s=START_S,
        )
        for k in range(64)
    ]
    short = [
        arriving(
            f"short{k}",
            [k + 1] * 64,
            tenant=quiet,
            max_tokens=4,
            came_s=START_S + 0.7 + k * every_s,
        )
        for k in range(24)
    ]
    time = VirtualTime(CONFIG, Machine(row_s=row_s, position_s=1e-6, pair_s=1e-7))
    time.play([known(quiet), *flood, *short], START_S + 6)
    answers = [answer for name, answer in time.answers.items() if name.startswith("short")]
    tpots = [
        (a.token_times_s[-1] - a.token_times_s[0]) / (len(a.token_times_s) - 1) for a in answers
    ]
    assert median(tpots) <= tpot_s
    assert max(tpots[4:]) <= 1.05 * tpot_s
    assert max(tpots) <= 1.5 * tpot_s
    assert max(answer.ttft_s for answer in answers) <= ttft_s


@pytest.mark.parametrize(("output", "every_s"), [(1, 0.4), (2, 2.0)])
def test_who_hardly_decodes_holds_no_places_back(output: int, every_s: float) -> None:
    """There is no time between two tokens, or one in many steps."""
    quiet = make_tenant("quiet", tpot_ms=30.0)
    short = short_requests(quiet, every_s=every_s, output=output)
    time = played([*streams(make_tenant("flood")), *short], 5.0)
    assert median(rows_of(time, "stream")[5:]) >= 60


@pytest.mark.parametrize("impossible_ms", [1.0, 12.0])
def test_a_promise_that_no_step_could_keep_changes_nothing_for_others(impossible_ms: float) -> None:
    """Neither another tenant's promise, which can be kept, nor what the rest is given."""

    def tpots_and_work(*others: Arrival) -> tuple[list[float], int]:
        stream = arriving(
            "stream", [5], tenant=make_tenant("quiet", tpot_ms=50.0), max_tokens=90, came_s=START_S
        )
        time = played([stream, *others, *streams(make_tenant("flood"))], 4.0)
        times_s = time.answers["stream"].token_times_s
        work = sum(len(a.token_times_s) for a in time.answers.values())
        return [b - a for a, b in pairwise(times_s)], work

    hasty = make_tenant("hasty", tpot_ms=impossible_ms)
    tpots, work = tpots_and_work(decoding(hasty))
    without, work_without = tpots_and_work(decoding(make_tenant("hasty")))
    assert median(tpots) <= 0.050
    assert median(tpots) <= 1.05 * median(without)
    assert work >= 0.95 * work_without


def test_rows_grow_back_to_what_the_promise_allows_though_they_were_thought_dear() -> None:
    """At few rows it cannot be told what a step takes from what a row does: they grow while steps
    take less than they may."""
    promises = TpotPromises(StepForecast(CostModel(CONFIG)))
    for _ in range(300):  # learnt from full steps: rows seem to be all that there is
        promises._forecast.observe(StepLoad(64, 6400), 0.100)
    promises.observe(StepLoad(1, 100), 0.010)
    promises.begin_step([0.05], is_alone=False)
    first, _ = promises.most_rows(START_S)
    admitted: int | None = None
    for step in range(200):
        promises.begin_step([0.05], is_alone=False)
        admitted, _ = promises.most_rows(START_S + 10 + step / 10)
        assert admitted is not None
        promises.observe(StepLoad(admitted, 100.0 * admitted), 0.010 + 0.0001 * admitted)
    assert first is not None
    assert admitted is not None
    assert admitted > max(first, 200), "27 ms are left for rows of 0.1 ms"


def test_long_contexts_of_one_tenant_do_not_take_anothers_places() -> None:
    """Its few rows make steps as long as all rows may take together: it has fewer, not who else
    decodes beside a promised TPOT."""
    config = make_config(
        num_pages=8192,
        block_tokens=16,
        max_running=64,
        max_step_tokens=512,
        max_prefill_chunk=256,
        max_waiting=2000,
        max_tenant_waiting=2000,
        context_tokens=2400,
    )
    machine = Machine(step_s=0.010, row_s=0.0002, position_s=2.5e-6, token_s=0.0003, pair_s=1e-8)
    quiet, short = make_tenant("quiet", tpot_ms=60.0), make_tenant("short")
    long = make_tenant("long")
    requests: list[Arrival] = []

    def ask(name: str, tenant: Tenant, prompt: int, output: int, at_s: float) -> None:
        tokens = [len(requests) % 90, len(requests) // 90] * (prompt // 2)
        came_s = START_S + at_s
        requests.append(arriving(name, tokens, tenant=tenant, max_tokens=output, came_s=came_s))

    ask("known", short, 300, 4, 0)
    ask("decoding", quiet, 64, 1500, 1)
    for number in range(360):
        ask(f"short{number}", short, 16, 60, 1.5 + number * 0.05)
    for number in range(8):
        ask(f"long{number}", long, 2000, 390, 5)
    time = VirtualTime(config, machine)
    time.play(requests, START_S + 19)

    def tokens_a_s(prefix: str, begin_s: float, end_s: float) -> float:
        answers = (answer for name, answer in time.answers.items() if name.startswith(prefix))
        times = [at_s - START_S for answer in answers for at_s in answer.token_times_s]
        return sum(begin_s <= at_s < end_s for at_s in times) / (end_s - begin_s)

    assert tokens_a_s("short", 12, 19) >= 0.6 * tokens_a_s("short", 2, 5)
    assert tokens_a_s("long", 12, 19) > 0
    times = time.answers["decoding"].token_times_s
    assert (times[-1] - times[0]) / (len(times) - 1) <= 0.060


def yes(_: Sequence) -> bool:
    return True


def no(_: Sequence) -> bool:
    return False


def test_a_promised_first_token_at_risk_comes_before_a_promised_tpot() -> None:
    """Of a tenant that asks for no more than its share, until it is answered or lost."""
    first, (early, late) = FirstTokens(), (make_sequence(START_S), make_sequence(START_S + 1))
    first.add(early, 1.0)
    first.add(late, 1.0)
    at_s = START_S + 0.8
    assert not first.is_any_at_risk(START_S + 0.7, yes, yes)
    assert first.is_any_at_risk(at_s, yes, yes)
    assert not first.is_any_at_risk(at_s, no, yes)
    early.usage.first_token_s = at_s
    assert not first.is_any_at_risk(START_S + 1.7, yes, yes)
    assert first.is_any_at_risk(START_S + 1.8, yes, yes)
    assert not first.is_any_at_risk(START_S + 3.1, yes, yes), "lost"


def test_a_first_token_that_no_prefill_would_bring_is_not_at_risk() -> None:
    """As one whose adapter is being loaded; another of the same tenant is, and only for itself."""
    first, (loading, ready) = FirstTokens(), (make_sequence(START_S), make_sequence(START_S))
    first.add(loading, 1.0)
    assert not first.is_any_at_risk(START_S + 0.8, yes, lambda each: each is not loading)
    first.add(ready, 1.0)
    assert first.is_any_at_risk(START_S + 1, yes, lambda each: each is not loading)


def test_the_many_of_one_tenant_do_not_hide_anothers_first_token() -> None:
    """Though all of them came before, and none counts, for its tenant is beyond its share."""
    first, many = FirstTokens(), [make_sequence(START_S) for _ in range(500)]
    quiet = make_sequence(START_S + 0.1, "quiet")
    for each in (*many, quiet):
        first.add(each, 1.0)
    for step in range(5):
        now_s = START_S + 0.9 + step / 100
        assert first.is_any_at_risk(now_s, lambda each: each is quiet, yes)


def test_ended_requests_with_long_promises_are_not_kept() -> None:
    first, waiting = FirstTokens(), make_sequence(START_S)
    first.add(waiting, 1e6)
    for _ in range(10_000):
        answered = make_sequence(START_S)
        first.add(answered, 1e6)
        answered.usage.first_token_s = START_S
    assert len(first) <= 2 * FORGOTTEN_FROM
    assert first.is_any_at_risk(START_S + 1e6, yes, lambda each: each is waiting)
    prompt = ref(answered)
    del answered
    assert prompt() is None, "an idle engine keeps no prompt of one that has ended"


def make_sequence(arrival_s: float, tenant: str = "t") -> Sequence:
    sequence = Sequence(make_request("r", [1], tenant=make_tenant(tenant)), 0, [1], num_prompt=1)
    sequence.arrival_s = arrival_s
    return sequence


def test_a_promise_that_no_step_could_keep_holds_nothing_up() -> None:
    quiet = make_tenant("quiet", tpot_ms=5.0)
    time = played([decoding(quiet), *streams(make_tenant("flood")), *short_requests(quiet, 4)])
    assert max(rows_of(time, "stream")) >= 60
    assert all(answer.finished_s for answer in time.answers.values())


def test_who_is_alone_is_not_held_up_by_its_own_promise() -> None:
    time = played(streams(make_tenant("flood", tpot_ms=30.0)))
    assert max(rows_of(time, "stream")) >= 60


@pytest.mark.parametrize("tier", ["default", "flex"])
def test_who_has_no_row_gets_one_whatever_was_promised(tier: str) -> None:
    """A promise with room for a few rows, and more tenants than those."""
    quiet = make_tenant("quiet", tpot_ms=16.0)
    many = [
        arriving(
            f"own{k}",
            [k + 1] * 4,
            tenant=make_tenant(f"t{k}", tier=tier),
            max_tokens=60,
            came_s=START_S + 1.0,
        )
        for k in range(20)
    ]
    time = played([decoding(quiet), *streams(make_tenant("flood")), *many])
    waits = [answer.ttft_s for name, answer in time.answers.items() if name.startswith("own")]
    longest_s = max(step_s for _, step_s in time.steps)
    assert max(waits) <= 8 * longest_s
    assert all(answer.finished_s for answer in time.answers.values())
