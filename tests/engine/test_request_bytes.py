"""Memory of requests in flight: counted as it is, and one tenant's never refuses another."""

from __future__ import annotations

import json
import tracemalloc
from concurrent.futures import Future
from random import Random

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given, settings

from engine_fakes import Rig, make_config, make_request, make_tenant, run
from tenora_engine.errors import InvalidRequestError, QueueFullError
from tenora_engine.events import FinishEvent
from tenora_engine.grammar.counts import counted_characters
from tenora_engine.grammar.guide import Guide
from tenora_engine.grammar.limits import STATES_BYTES_MAX, TOKEN_BYTES
from tenora_engine.loop import EngineLoop
from tenora_engine.request import GenerationRequest, Grammar
from tenora_engine.scheduling.request_bytes import (
    HARD_LIMIT,
    PROMPT_TOKEN_BYTES,
    TENANT_SHARE,
    RequestBytes,
    request_bytes,
)

MIB = 1024**2


def request(number: int, tenant: str, tokens: int, n: int = 1) -> GenerationRequest:
    return make_request(f"r{number}", [1] * tokens, tenant=make_tenant(tenant), n=n)


def of_size(number: int, tenant: str, mib: float) -> GenerationRequest:
    return request(number, tenant, int(mib * MIB / PROMPT_TOKEN_BYTES))


def admits(held: RequestBytes, wanted: GenerationRequest) -> bool:
    try:
        held.reserve(wanted)
    except QueueFullError:
        return False
    return True


def test_a_long_prompt_counts_what_it_takes() -> None:
    """As it comes over the wire: each number an object of its own."""
    wire = msgspec.msgpack.encode([1000 + k for k in range(120_000)])
    tracemalloc.start()
    prompt = msgspec.msgpack.decode(wire, type=list[int])
    own = list(prompt)
    encoded = b"".join(token.to_bytes(4, "little") for token in prompt)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(own) * 4 == len(encoded)
    assert request_bytes(request(0, "a", 120_000)) == pytest.approx(taken, rel=0.1)


def test_samples_share_their_prompt_and_all_that_comes_along_counts() -> None:
    one, many = (request_bytes(request(0, "a", 30_000, n)) for n in (1, 128))
    assert many - one < 0.2 * one
    plain = request(0, "a", 10)
    bare = request_bytes(plain)
    sampling = plain.sampling
    for more in (
        msgspec.structs.replace(plain, prediction_token_ids=[5] * 10_000),
        msgspec.structs.replace(
            plain,
            sampling=msgspec.structs.replace(sampling, grammar=Grammar("regex", "x" * 60_000)),
        ),
        msgspec.structs.replace(
            plain,
            sampling=msgspec.structs.replace(sampling, logit_bias=dict.fromkeys(range(8000), 1.0)),
        ),
        msgspec.structs.replace(plain, context={"text": "y" * 50_000}),
    ):
        assert request_bytes(more) > bare + 100_000


def test_states_are_bounded_by_what_is_counted_and_by_what_the_answer_can_reach() -> None:
    """Twenty strings of maxLength 1,000 have the states of one, 8.2 MiB in Japanese; 34 MiB were
    reserved for them. Four such requests are within a tenant's part of the usual bound."""
    schema = {"properties": {f"f{each}": {"maxLength": 1_000} for each in range(20)}}
    text = json.dumps(schema)
    counted = counted_characters("json_schema", text)
    plain = request(0, "a", 40)
    sampling = msgspec.structs.replace(
        plain.sampling, grammar=Grammar("json_schema", text), max_tokens=8_000
    )
    long = msgspec.structs.replace(plain, sampling=sampling)
    short = msgspec.structs.replace(
        plain, sampling=msgspec.structs.replace(sampling, max_tokens=10)
    )
    assert 8.2 * MIB <= request_bytes(long, counted) - request_bytes(long) <= 10 * MIB
    assert request_bytes(short, counted) - request_bytes(short) == 10 * TOKEN_BYTES
    assert request_bytes(long, 10**6) - request_bytes(long) == STATES_BYTES_MAX
    held = RequestBytes(make_config().engine.max_request_bytes)
    for _ in range(4):
        held.reserve(long)
        held.add_states(long, counted)
    for _ in range(4):
        held.release(long, counted)
    assert held.total == 0


def test_states_that_have_no_room_leave_the_request_as_it_was_counted() -> None:
    """A tenant's only request always has room for its own."""
    sampling = msgspec.structs.replace(
        request(0, "a", 40).sampling, grammar=Grammar("regex", "a{9}"), max_tokens=10**6
    )
    asked = msgspec.structs.replace(request(0, "a", 40), sampling=sampling)
    held = RequestBytes(160 * MIB)
    held.reserve(asked)
    held.add_states(asked, 10**6)
    held.reserve(asked)
    before = held.total
    with pytest.raises(QueueFullError):
        held.add_states(asked, 10**6)
    assert held.total == before
    held.release(asked)
    held.release(asked, 10**6)
    assert held.total == 0


@settings(max_examples=100)
@given(
    asked=st.lists(st.tuples(st.sampled_from("abcdef"), st.floats(0.1, 40)), max_size=60),
    ended=st.randoms(use_true_random=False),
)
def test_nobody_is_refused_for_anothers_bytes(
    asked: list[tuple[str, float]], ended: Random
) -> None:
    most = 64 * MIB
    held, flying = RequestBytes(most), dict[int, GenerationRequest]()
    for number, (tenant, mib) in enumerate(asked):
        wanted = of_size(number, tenant, mib)
        own = [r for r in flying.values() if r.tenant.key == tenant]
        others = {r.tenant.key for r in flying.values()} | {tenant}
        size = request_bytes(wanted)
        share = min(most // len(others), most // TENANT_SHARE)
        is_within = not own or sum(map(request_bytes, own)) + size <= share
        total = sum(map(request_bytes, flying.values()))
        has_room = total + size <= HARD_LIMIT * most
        admitted = admits(held, wanted)
        if is_within and has_room:
            assert admitted, "it has no more than its share"
        if admitted:
            flying[number] = wanted
        assert held.total == sum(map(request_bytes, flying.values())) <= HARD_LIMIT * most
        if flying and ended.random() < 0.3:
            held.release(flying.pop(ended.choice(sorted(flying))))
    for each in flying.values():
        held.release(each)
    assert held.total == 0


def test_the_engine_refuses_with_a_sentence_and_takes_more_when_some_have_ended() -> None:
    """A quarter of the bound holds five of them."""
    size = request_bytes(request(0, "a", 40))
    config = make_config(num_pages=400, max_running=1)
    engine = msgspec.structs.replace(config.engine, max_request_bytes=20 * size + 10)
    rig = Rig.build(msgspec.structs.replace(config, engine=engine))
    for number in range(5):
        rig.engine.submit(request(number, "a", 40))
    with pytest.raises(QueueFullError, match=r"this tenant's requests in flight use .* MiB"):
        rig.engine.submit(request(5, "a", 40))
    rig.engine.submit(request(6, "b", 40))
    assert rig.engine.stats().waiting == 6, "the refused one left nothing"
    while rig.engine.has_work:
        rig.engine.step()
    rig.engine.submit(request(7, "a", 40))


def test_requests_that_wait_for_their_grammars_are_in_flight(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A quarter of the bound holds five of them. What comes of a grammar gives the memory back."""
    grammar = Grammar("regex", "a+", "guided_regex")
    sampling = msgspec.structs.replace(request(0, "a", 40).sampling, grammar=grammar)

    def guided(number: int, tenant: str = "a") -> GenerationRequest:
        return msgspec.structs.replace(request(number, tenant, 40), sampling=sampling)

    config = make_config(num_pages=400)
    most = 20 * request_bytes(guided(0)) + 10
    engine = msgspec.structs.replace(config.engine, max_request_bytes=most)
    rig = Rig.build(msgspec.structs.replace(config, engine=engine))
    compiling: list[Future[list[Guide]]] = []

    def guides(request: GenerationRequest) -> Future[list[Guide]]:
        compiling.append(Future())
        return compiling[-1]

    monkeypatch.setattr(rig.engine.grammars, "guides", guides)
    loop = EngineLoop(rig.engine, lambda events: None)
    loop.start()
    submitted = [loop.submit(guided(number)) for number in range(5)]
    refused = loop.submit(guided(5))
    with pytest.raises(QueueFullError, match="this tenant's requests in flight use"):
        refused.result(10)
    others = loop.submit(guided(6, "b"))
    assert not others.done()
    assert len(compiling) == 6
    for future in compiling:
        future.set_exception(InvalidRequestError("it is none", "guided_regex"))
    for done in (*submitted, others):
        with pytest.raises(InvalidRequestError):
            done.result(10)
    loop.submit(request(7, "a", 40)).result(10)
    loop.stop()


def test_requests_that_wait_in_the_inbox_are_in_flight() -> None:
    """A quarter of the bound holds five of them. 1.5 GiB of one tenant's waited beside a bound of
    64 MiB. The refused ones are counted, and what ends gives its memory back."""
    size = request_bytes(request(0, "a", 40))
    config = make_config(num_pages=400)
    engine = msgspec.structs.replace(config.engine, max_request_bytes=20 * size + 10)
    rig = Rig.build(msgspec.structs.replace(config, engine=engine))
    loop = EngineLoop(rig.engine, lambda events: None)
    submitted = [loop.submit(request(number, "a", 40)) for number in range(5)]
    with pytest.raises(QueueFullError, match="this tenant's requests in flight use"):
        loop.submit(request(5, "a", 40)).result(0)
    others = loop.submit(request(6, "b", 40))
    assert rig.engine._requests.bytes.total == 6 * size
    loop.abort("r0")
    loop.start()
    for done in (*submitted, others):
        done.result(10)
    stats = loop.stats().result(10)
    loop.submit(request(7, "a", 40)).result(10)
    for number in (1, 2, 3, 4, 6, 7):
        loop.abort(f"r{number}").result(10)
    loop.stats().result(10)
    loop.stop()
    assert rig.engine._requests.bytes.total == 0
    assert stats.telemetry is not None
    assert sum(each.refused.get("queue_full", 0) for each in stats.telemetry.meters) == 1


def test_what_has_no_room_is_refused_before_its_tokens_are_looked_at() -> None:
    """A prompt of 120,000 took 4 to 8 ms of the thread of the steps, over and over."""
    config = make_config(num_pages=200, context_tokens=800)
    engine = msgspec.structs.replace(config.engine, max_request_bytes=MIB)
    rig = Rig.build(msgspec.structs.replace(config, engine=engine))
    for number in range(6):
        rig.engine.submit(request(number, "a", 700))
    unknown = make_request("unknown", [config.model.vocab] * 700, tenant=make_tenant("a"))
    with pytest.raises(QueueFullError):
        rig.engine.submit(unknown)
    with pytest.raises(QueueFullError):
        rig.engine.prepare(unknown)
    with pytest.raises(InvalidRequestError):
        rig.engine.submit(msgspec.structs.replace(unknown, tenant=make_tenant("b")))
    rig.engine.check_integrity()


def test_what_was_prepared_is_found_in_the_cache() -> None:
    rig = Rig.build(make_config())
    first, second = (make_request(name, list(range(20)), max_tokens=2) for name in "ab")
    for each in (first, second):
        rig.engine.submit(each, prepared=rig.engine.prepare(each))
        finished = [event for event in run(rig) if isinstance(event, FinishEvent)]
    assert finished[0].usage.cached_tokens > 0
