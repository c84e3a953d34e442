"""What n sequences of one request cost while they wait: their prompt is kept once, and compared and
hashed as often as that of two, however many they are."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from engine_fakes import Rig, expected_output, make_config, make_request, run
from tenora_engine.events import TokenEvent
from tenora_engine.memory import host_kv, salts
from tenora_engine.memory.prefix import PrefixTree

SEQUENCES = 32
PROMPT = list(range(3, 35))


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Calls of what takes time by the prompt's length."""
    counted: Counter[str] = Counter()

    def count(module: Any, name: str) -> None:
        function = getattr(module, name)

        def counting(*args: Any) -> Any:
            counted[name] += 1
            return function(*args)

        monkeypatch.setattr(module, name, counting)

    count(salts, "encode_tokens")
    count(host_kv, "_hash")
    count(PrefixTree, "match")
    return counted


def rig_with_host() -> Rig:
    config = make_config(max_waiting=1000, max_tenant_waiting=1000, num_pages=20, host_pages=64)
    return Rig.build(config)


def work_of_submitting(rig: Rig, work: Counter[str], n: int) -> Counter[str]:
    request = make_request(f"of {n}", PROMPT, n=n)
    work.clear()
    rig.engine.submit(request)
    done = work.copy()
    waiting = rig.engine._requests.flights[request.request_id].sequences
    assert len(waiting) == n
    assert all(each.token_ids is request.prompt_token_ids for each in waiting)
    assert len({id(each.prefix.encoded) for each in waiting}) <= 2
    assert len({each.service.work for each in waiting}) == 1
    run(rig)
    assert request.prompt_token_ids == PROMPT
    return done


def push_to_the_host(rig: Rig) -> None:
    """What is cached of the prompt."""
    for token_id in range(8):
        rig.engine.submit(make_request(f"{rig.now_s} {token_id}", [token_id] * 33, max_tokens=2))
        run(rig, 1.0)


def test_submitting_many_is_the_work_of_two(work: Counter[str]) -> None:
    rig = rig_with_host()
    work_of_submitting(rig, work, 1)
    push_to_the_host(rig)
    done = work_of_submitting(rig, work, SEQUENCES)
    assert done["encode_tokens"] == 1
    assert 0 < done["match"] <= 2 * 2  # on the device, and what of it the host has
    assert 0 < done["_hash"] <= 2 * len(PROMPT) // rig.config.engine.block_tokens


def test_each_has_an_output_of_its_own(work: Counter[str]) -> None:
    rig = rig_with_host()
    request = make_request("many", PROMPT, n=SEQUENCES, max_tokens=6, ignore_eos=True)
    rig.engine.submit(request)
    said: dict[int, list[int]] = {}
    for event in run(rig):
        if isinstance(event, TokenEvent):
            said.setdefault(event.index, []).extend(event.token_ids)
    for index in range(SEQUENCES):
        assert said[index] == expected_output(request, index, 64, eos_every=11)[0]
    assert request.prompt_token_ids == PROMPT
