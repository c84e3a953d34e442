"""A bounded cache of many tenants: nobody pushes out what others keep within their shares."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_fakes import make_ref, make_request, make_tenant
from packed_adapters import packed
from tenora_engine.adapters.tiers import HostTier, packed_bytes
from tenora_engine.fair_cache import SHARE_S, FairCache
from tenora_engine.grammar import compiler
from tenora_engine.grammar.compiler import GrammarCompiler, Refusal
from tenora_engine.request import GenerationRequest
from tenora_engine.scheduling.draft_texts import Answers
from tenora_engine.sequence import Sequence


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def held_in(cache: FairCache[str, int]) -> Counter[str]:
    held: Counter[str] = Counter()
    for key in cache:
        kept = cache.look(key)
        assert kept is not None
        held[kept.tenant] += kept.size
    return held


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 30), st.integers(1, 9))))
def test_it_is_bounded_and_takes_nothing_within_a_share(
    puts: list[tuple[str, int, int]],
) -> None:
    cache: FairCache[str, int] = FairCache(40, Clock())
    for tenant, number, size in puts:
        key = f"{tenant}{number}"
        cache.remove(key)
        held = held_in(cache)
        share = 40 / len(held | {tenant: 1})
        gone = cache.put(key, number, tenant, size)
        assert key in cache
        assert cache.used <= 40
        for other in {each[0] for each in gone} - {tenant}:
            # One that alone is larger than a share has its place all the same.
            assert held[other] > share or size > share
        assert cache.used == held_in(cache).total()


def test_who_cycles_through_many_drives_out_its_own() -> None:
    cache: FairCache[str, int] = FairCache(10)
    for number in range(4):
        cache.put(f"few{number}", number, "few")
    for number in range(100):
        cache.put(f"many{number}", number, "many")
    assert [key for key in cache if key.startswith("few")] == ["few0", "few1", "few2", "few3"]
    cache.own("few0", "many")
    cache.put("many", 0, "many")
    assert "few0" not in cache, "it is of who used it last"


def test_what_nobody_uses_keeps_no_share() -> None:
    clock = Clock()
    cache: FairCache[str, int] = FairCache(4, clock)
    cache.put("old", 0, "idle")
    cache.put("used", 0, "idle")
    clock.now_s = SHARE_S
    cache.use("used")
    cache.put_first("warmed", 0, 1)
    for number in range(9):
        cache.put(f"{number}", number, "busy")
    assert list(cache) == ["used", "6", "7", "8"]


def test_a_tenants_adapters_push_no_others_out_of_host_memory() -> None:
    size = packed_bytes(packed(1))
    tier = HostTier(4 * size)
    own = packed(1)
    assert tier.put(own, "few")
    for seed in range(2, 12):
        assert tier.put(packed(seed), "many")
    assert own.digest in tier
    assert tier.used_bytes == 4 * size
    assert tier.evict_for("many", size)
    assert own.digest in tier


def test_a_tenants_grammars_push_no_others_out(monkeypatch: pytest.MonkeyPatch) -> None:
    grammars = GrammarCompiler.__new__(GrammarCompiler)
    grammars._compiled, grammars._cached = FairCache(8 * compiler.ENTRY_BYTES), Counter()
    monkeypatch.setattr(compiler, "TENANT_CACHED_MAX", 6)
    monkeypatch.setattr(compiler, "CACHED_BYTES", grammars._compiled.capacity)
    for number in range(2):
        grammars._keep(("few", bytes([number])), Refusal(""), 1)
    for number in range(20):
        for tenant in ("many", "others"):
            grammars._keep((tenant, bytes([number])), Refusal(""), 1)
    kept = Counter(namespace for namespace, _ in grammars._compiled)
    assert kept == grammars._cached
    assert kept["few"] == 2
    assert kept.total() == 8


def test_a_tenants_answers_push_no_others_out() -> None:
    answers = Answers()

    def request(tenant: str, number: int) -> GenerationRequest:
        ref = make_ref(f"{tenant}/{number}")
        return make_request("r", [1, 2], tenant=make_tenant(tenant), adapter=ref)

    for tenant, count in (("few", 3), ("many", 2 * Answers.KEPT_TEXTS)):
        for number in range(count):
            prompt, asked = [1, 2, 3], request(tenant, number)
            answers.add(Sequence(asked, 0, prompt, 2))
    assert answers.of(request("few", 0)) is not None
    assert answers.of(request("many", 0)) is None
