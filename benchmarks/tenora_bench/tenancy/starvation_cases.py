"""Crowds that wait for what another tenant does not need: pages of their own shares, adapter loads,
adapter slots, or simply their turn."""

from __future__ import annotations

from collections.abc import Sequence

from tenora_bench.tenancy.experiment import Experiment, Options, Outcome
from tenora_bench.tenancy.live import LiveRequest, page_bytes, tenant_of
from tenora_bench.tenancy.slow_store import URL, SlowStore, slow_store
from tenora_bench.tenancy.starvation import Case, Run, measure
from tenora_bench.trace import random_tokens
from tenora_engine.request import AdapterRef, Tenant

REQUESTS = 16  # of the tenant that is judged, in a run: the P99 is the slowest
EVERY_S = 0.15
HEAD_START_S = 1.0
"""The crowd's: all of it runs or waits when the first of the others comes."""

PROMPT_TOKENS, OUTPUT_TOKENS = 64, 4
CROWD_PROMPT, CROWD_OUTPUT = 16, 4
QUIET = tenant_of("quiet")
ALONE = "nobody"


def ask(
    tenant: Tenant,
    name: str,
    prompt_tokens: int,
    output_tokens: int,
    adapter: AdapterRef | None = None,
    at_s: float = 0.0,
) -> LiveRequest:
    """One request; `name` seeds its prompt."""
    prompt = random_tokens(prompt_tokens, f"{name}/{tenant.key}")
    return LiveRequest(at_s, tenant, prompt, output_tokens, adapter)


def asked(
    seed: str,
    tenant: Tenant = QUIET,
    prompt_tokens: int = PROMPT_TOKENS,
    adapters: Sequence[AdapterRef | None] = (None,) * REQUESTS,
    every_s: float = EVERY_S,
) -> list[LiveRequest]:
    """One request for each of `adapters`."""
    return [
        ask(
            tenant,
            f"{seed}/asked/{number}",
            prompt_tokens,
            OUTPUT_TOKENS,
            adapter,
            HEAD_START_S + number * every_s,
        )
        for number, adapter in enumerate(adapters)
    ]


def alone(seed: str) -> Run:
    return Run(asked(seed))


# Pages. Under strict isolation a share is all that a tenant has, so a full one stays full.

ARENA_PAGES = 900
EMPTY_SHARE, OWN_STREAMS, OWN_TOKENS = 0.35, 6, 400
"""With streams of its own the tenant gets more service than one that fills a small share can have:
so the other's turn is before its own."""

ONE_SHARE, ONE_PROMPT, ONE_OUTPUT, ONE_REQUESTS = 0.035, 250, 230, 40
"""31 pages, of which each request takes more than half with its prompt: one runs and 39 wait."""

MANY, MANY_SHARE, MANY_STREAM_TOKENS = 20, 0.03, 400
MANY_WAITING, MANY_PROMPT = 3, 410
"""27 pages each, with a stream that takes a few of them first and all in the end, and prompts
that take 26."""

MANY_WAITING_S = 0.2  # when those come

ALONE_BUSY = "6 streams of its own"


def page_cases() -> list[Case]:
    quiet = tenant_of("quiet", min_memory_share=EMPTY_SHARE)
    one = tenant_of("full", min_memory_share=ONE_SHARE)
    many = [tenant_of(f"full-{n}", min_memory_share=MANY_SHARE) for n in range(MANY)]

    def beside_own(seed: str, others: int) -> Run:
        own = [ask(quiet, f"{seed}/own/{n}", CROWD_PROMPT, OWN_TOKENS) for n in range(OWN_STREAMS)]
        crowd = [ask(one, f"{seed}/{n}", ONE_PROMPT, ONE_OUTPUT) for n in range(others)]
        return Run(asked(seed, quiet), own + crowd)

    def beside_many(seed: str) -> Run:
        streams = [ask(each, f"{seed}/stream", 17, MANY_STREAM_TOKENS) for each in many]
        waiting = [
            ask(each, f"{seed}/{n}", MANY_PROMPT, CROWD_OUTPUT, at_s=MANY_WAITING_S)
            for n in range(MANY_WAITING)
            for each in many
        ]
        return Run(asked(seed, quiet), streams + waiting)

    return [
        Case(ALONE, lambda seed: Run(asked(seed, quiet))),
        Case("20 full shares", beside_many, ALONE),
        Case(ALONE_BUSY, lambda seed: beside_own(seed, 0)),
        Case("39 in a full share", lambda seed: beside_own(seed, ONE_REQUESTS), ALONE_BUSY),
    ]


def measure_pages(options: Options) -> Outcome:
    arena_bytes = ARENA_PAGES * page_bytes(options.model)
    return measure(options, page_cases(), strict_isolation=True, arena_bytes=arena_bytes)


# Loads. What waits for its adapter stands in the queue until that has come.

ANSWER_S = 0.1
"""Of the object store; a load takes two answers."""

ALONE_IN_CROWD = "400 of the base model"
"""The control: the same 40 tenants, without adapters to load. Their requests alone leave a 41st
tenant a 41st of the machine, which is no part of what cold adapters cost."""


def crowd_of(
    seed: str, tenants: int, adapters: Sequence[AdapterRef | None], each: int = 1, at_s: float = 0.0
) -> list[LiveRequest]:
    """`each` requests on each of the adapters, which the tenants divide among them."""
    return [
        ask(
            tenant_of(f"crowd-{number % tenants}"),
            f"{seed}/{number}/{n}",
            CROWD_PROMPT,
            CROWD_OUTPUT,
            adapter,
            at_s,
        )
        for n in range(each)
        for number, adapter in enumerate(adapters)
    ]


def load_cases(store: SlowStore) -> list[Case]:
    def beside_hanging(seed: str) -> Run:
        return Run(asked(seed), crowd_of(seed, 4, store.hanging(4), each=64))

    def beside_crowd(seed: str, adapters: Sequence[AdapterRef | None]) -> Run:
        return Run(asked(seed), crowd_of(seed, 40, adapters))

    def beside_own(seed: str) -> Run:
        (adapter,) = store.hanging(1)
        own = [
            ask(QUIET, f"{seed}/own/{n}", CROWD_PROMPT, CROWD_OUTPUT, adapter) for n in range(64)
        ]
        return Run(asked(seed), own)

    return [
        Case(ALONE, alone),
        Case("256 on loads that hang", beside_hanging, ALONE),
        Case(ALONE_IN_CROWD, lambda seed: beside_crowd(seed, [None] * 400)),
        Case(
            "400 cold adapters",
            lambda seed: beside_crowd(seed, store.fresh(400)),
            ALONE_IN_CROWD,
        ),
        Case("64 of its own that hang", beside_own, ALONE),
    ]


def measure_loads(options: Options) -> Outcome:
    with slow_store(options.model, options.scratch, ANSWER_S) as store:
        return measure(options, load_cases(store), store, object_store=URL)


# Slots. All are in use, for longer than a run takes.

SLOTS = 4
STREAM_TOKENS = 1900
IN_NEED_S = 0.5  # when those without a slot come
ALONE_RESIDENT = "in a slot: nobody"


def slot_cases(store: SlowStore) -> list[Case]:
    def stream(seed: str, tenant: Tenant, adapter: AdapterRef) -> LiveRequest:
        return ask(tenant, f"{seed}/stream", CROWD_PROMPT, STREAM_TOKENS, adapter)

    def crowd(seed: str, holders: int) -> list[LiveRequest]:
        held = [
            stream(seed, tenant_of(f"holder-{n}"), adapter)
            for n, adapter in enumerate(store.fresh(holders))
        ]
        return held + crowd_of(seed, 8, store.fresh(16), each=8, at_s=IN_NEED_S)

    def resident(seed: str, holders: int) -> Run:
        (adapter,) = store.fresh(1)
        beside = crowd(seed, holders) if holders else []
        requests = asked(seed, adapters=(adapter,) * REQUESTS)
        return Run(requests, [stream(seed, QUIET, adapter), *beside])

    return [
        Case(ALONE, alone),
        Case(
            "128 without a slot",
            lambda seed: Run(asked(seed), crowd(seed, SLOTS)),
            ALONE,
        ),
        Case(ALONE_RESIDENT, lambda seed: resident(seed, 0)),
        Case(
            "in a slot: 128 without",
            lambda seed: resident(seed, SLOTS - 1),
            ALONE_RESIDENT,
        ),
    ]


def measure_slots(options: Options) -> Outcome:
    with slow_store(options.model, options.scratch, 0.0) as store:
        return measure(options, slot_cases(store), store, object_store=URL, max_adapters=SLOTS)


# Tiers. The tenant's own adapters have to come, from host memory or from the store.

HOST_REQUESTS = 12
HOST_BYTES = 512 * 1024**2
COLD_REQUESTS, COLD_EVERY_S = 5, 1.0
COLD_AHEAD, COLD_AHEAD_S = 8, 0.05
"""Before each of its cold adapters so many of another tenant, which take most of the time until its
next one."""

CHARGED_TOKENS = 16  # of a prompt; with its answer, 24 tokens of service
CHARGES_AT_MOST = 1.5
ALONE_HOST, ALONE_COLD = "host hit: nobody", "cold: nobody"


def tier_cases(store: SlowStore) -> list[Case]:
    kept = store.fresh(HOST_REQUESTS)

    def from_host(seed: str, hanging: int) -> Run:
        requests = asked(seed, adapters=kept)
        before = [ask(QUIET, f"{seed}/before", CROWD_PROMPT, 1, adapter) for adapter in kept]
        return Run(requests, crowd_of(seed, 5, store.hanging(hanging)), before)

    def cold(seed: str, ahead: int) -> Run:
        requests = asked(seed, QUIET, CHARGED_TOKENS, store.fresh(COLD_REQUESTS), COLD_EVERY_S)
        crowd: list[LiveRequest] = []
        for number, request in enumerate(requests):
            before_s = request.at_s - COLD_AHEAD_S
            crowd += crowd_of(f"{seed}/{number}", 1, store.fresh(ahead), at_s=before_s)
        return Run(requests, crowd)

    return [
        Case(ALONE_HOST, lambda seed: from_host(seed, 0)),
        Case("host hit: 40 loads that hang", lambda s: from_host(s, 40), ALONE_HOST),
        Case(ALONE_COLD, lambda seed: cold(seed, 0)),
        Case(
            "cold: behind 8 of one tenant",
            lambda seed: cold(seed, COLD_AHEAD),
            ALONE_COLD,
            CHARGES_AT_MOST,
        ),
    ]


def measure_tiers(options: Options) -> Outcome:
    with slow_store(options.model, options.scratch, ANSWER_S) as store:
        made = tier_cases(store)
        return measure(options, made, store, object_store=URL, host_adapter_bytes=HOST_BYTES)


# Work. Here the crowd waits for nothing but its turn: it is served meanwhile.

CONTEXT_TOKENS = 8192
LONG_ARENA_BYTES = 800 * 1024**2
LONG_PROMPTS, LONG_TOKENS = 4, 7600
STREAMS, STREAMED_TOKENS = 64, 300
TTFT_MS, TPOT_MS = 500.0, 50.0
TOLD_S = 0.3
"""When the streams come: after a first request of the tenant with the promise, so that it is known
that there is one."""


def work_cases() -> list[Case]:
    busy = tenant_of("busy")
    promised = tenant_of("promised", ttft_ms=TTFT_MS, tpot_ms=TPOT_MS)

    def beside_prompts(seed: str) -> Run:
        crowd = [ask(busy, f"{seed}/{n}", LONG_TOKENS, 16) for n in range(LONG_PROMPTS)]
        return Run(asked(seed), crowd)

    def streams(seed: str) -> list[LiveRequest]:
        return [ask(busy, f"{seed}/{n}", 32, STREAMED_TOKENS, at_s=TOLD_S) for n in range(STREAMS)]

    def beside_streams_promised(seed: str) -> Run:
        first = ask(promised, f"{seed}/first", PROMPT_TOKENS, OUTPUT_TOKENS)
        return Run(asked(seed, promised), [first, *streams(seed)])

    return [
        Case(ALONE, alone),
        Case("4 prompts of 7,600 tokens", beside_prompts, ALONE),
        Case("64 streams", lambda seed: Run(asked(seed), streams(seed)), ALONE),
        Case(
            "64 streams, TPOT promised",
            beside_streams_promised,
            ALONE,
            ttft_ms=TTFT_MS,
            tpot_ms=TPOT_MS,
        ),
    ]


def measure_work(options: Options) -> Outcome:
    return measure(
        options,
        work_cases(),
        max_context_tokens=CONTEXT_TOKENS,
        arena_bytes=LONG_ARENA_BYTES,
    )


_PARTS = {
    "pages": (measure_pages, "requests that wait in full shares"),
    "loads": (measure_loads, "requests whose adapters do not come"),
    "slots": (measure_slots, "requests that wait for an adapter slot"),
    "tiers": (measure_tiers, "others' adapter loads, with an adapter of one's own to come"),
    "work": (measure_work, "long prompts and streams"),
}
EXPERIMENTS = tuple(
    Experiment(f"starvation-{name}", f"another's first token beside {help}", run)
    for name, (run, help) in _PARTS.items()
)
