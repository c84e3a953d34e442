"""The load generator of `tenora bench api` before the least of upstreams, and its clock."""

from __future__ import annotations

import asyncio
import os
import time
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenora_bench.api import upstream
from tenora_bench.api.load import Target, load
from tenora_bench.api.measure import chat, processor_s
from tenora_bench.api.run import medians
from tenora_bench.api.stamps import UNIT_NS, Stamps, stamp_tokens
from tenora_bench.client import BenchError

WORDS = [f" w{number}" for number in range(1000)]


@given(
    made_ns=st.integers(0, 10**15),
    under_way_ns=st.integers(0, (len(WORDS) - 2) * UNIT_NS),
    count=st.integers(1, 3),
)
def test_a_word_says_how_old_it_is(made_ns: int, under_way_ns: int, count: int) -> None:
    stamps = Stamps(WORDS)
    ages = stamps.ages_ms(stamps.word_at(made_ns) * count, made_ns + under_way_ns)
    assert len(ages) == count
    for age in ages:
        # Two floats of up to 1e5 ms: their difference is off by up to 1e-10 either way.
        assert -1e-6 <= age - under_way_ns / 1e6 <= UNIT_NS / 1e6 + 1e-6


def test_stamps_of_a_vocabulary() -> None:
    texts = {0: "<s>", 1: " a", 2: " a", 3: " b,", 4: "b", 5: " B7", 6: " ", 7: " c d"}
    assert stamp_tokens(texts) == {2: " a", 5: " B7"}


async def test_load_sees_every_word() -> None:
    stamps = Stamps(WORDS)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: upstream._Connection(stamps), "127.0.0.1", 0)
    target = Target(server.sockets[0].getsockname()[1], ("a", "b"), "m")
    for stream in (True, False):
        seen, took_s = await load(
            target,
            partial(chat, tokens=7, stream=stream, pace_us=1000),
            connections=5,
            requests=23,
            stamps=stamps,
        )
        assert (seen.requests, seen.words, seen.errors) == (23, 23 * 7, [])
        assert 0 < took_s < 60
    server.close()


async def test_load_tells_of_a_refusal() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(b"HTTP/1.1 503 No\r\ncontent-length: 5\r\nconnection: close\r\n\r\nno no")
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    target = Target(server.sockets[0].getsockname()[1], ("a",), "m")
    with pytest.raises(BenchError, match="503"):
        await load(
            target,
            lambda number: chat(number, 1, stream=True),
            connections=1,
            requests=1,
            stamps=Stamps(WORDS),
        )
    server.close()


def test_medians_and_ratios() -> None:
    def figures(rate: float) -> dict[str, dict[str, dict[str, float]]]:
        return {"rates": {"whole": {"requests_per_s": rate}}}

    rounds = [
        {"tenora-1": figures(300), "litellm-1": figures(100)},
        {"tenora-1": figures(900), "litellm-1": figures(200)},
        {"tenora-1": figures(600), "litellm-1": figures(150)},
    ]
    merged = medians(rounds)
    assert merged["tenora-1"]["rates"]["whole"]["requests_per_s"] == 600
    assert merged["tenora-1"]["rates_over_litellm-1"] == {"whole": 4.0}
    assert "rates_over_litellm-1" not in merged["litellm-1"]


def test_processor_time_rises() -> None:
    before_s = processor_s([os.getpid()])
    until_s = time.process_time() + 0.05
    while time.process_time() < until_s:
        continue
    assert 0.02 < processor_s([os.getpid()]) - before_s < 5
