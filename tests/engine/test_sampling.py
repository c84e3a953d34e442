"""Sampling against Hugging Face's logits processors and against its own distribution."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from tenora_engine.executor.logprobs import _on_device, _on_host
from tenora_engine.executor.sampling import (
    OPEN,
    Changes,
    Draws,
    Sampled,
    _drawn_again,
    changed,
    draw,
    filtered_weights,
    sample,
)
from tenora_engine.request import GenerationRequest, SamplingParams, Tenant
from tenora_engine.scheduling.sampling import plan_sampling, uniform
from tenora_engine.sequence import Sequence
from tenora_kernels.compiled.decoder import NO_NUMBER

CPU = torch.device("cpu")


def sequence(
    params: SamplingParams,
    prompt: list[int] | None = None,
    output: list[int] | None = None,
    request_id: str = "r",
    index: int = 0,
) -> Sequence:
    prompt = prompt if prompt is not None else [1, 2, 3]
    request = GenerationRequest(
        request_id=request_id,
        tenant=Tenant(key="t", namespace="n"),
        prompt_token_ids=prompt,
        sampling=params,
    )
    return Sequence(request, index, prompt + (output or []), len(prompt))


def run(logits: Tensor, sequences: list[Sequence], engine_seed: int = 0) -> Sampled:
    return sample(logits, plan_sampling(sequences, logits.shape[1], engine_seed))


def distribution(logits: Tensor, sequences: list[Sequence]) -> Tensor:
    """What each row, none of them greedy, is drawn from."""
    asked = plan_sampling(sequences, logits.shape[1], 0)
    assert asked is not None
    assert asked.draws is not None
    weights = filtered_weights(logits.float(), Draws.of_plan(asked.draws, torch.from_numpy))
    return weights / weights.sum(dim=1, keepdim=True)


def hugging_face(logits: Tensor, params: SamplingParams) -> Tensor:
    warpers = LogitsProcessorList([TemperatureLogitsWarper(params.temperature)])
    if params.top_k:
        warpers.append(TopKLogitsWarper(params.top_k))
    if params.top_p < 1.0:
        warpers.append(TopPLogitsWarper(params.top_p))
    if params.min_p > 0.0:
        warpers.append(MinPLogitsWarper(params.min_p))
    scores: Tensor = warpers(torch.zeros(1, 1, dtype=torch.int64), logits.clone())
    return scores.softmax(dim=1)


@st.composite
def drawn_params(draw: Any) -> SamplingParams:
    return SamplingParams(
        temperature=draw(st.sampled_from([0.3, 0.7, 1.0, 1.7])),
        top_k=draw(st.sampled_from([0, 2, 5, 40, 400, 10_000])),
        top_p=draw(st.sampled_from([1.0, 0.99, 0.9, 0.5, 0.05])),
        min_p=draw(st.sampled_from([0.0, 0.0, 0.05, 0.3])),
    )


@settings(max_examples=60)
@given(
    params=st.lists(drawn_params(), min_size=1, max_size=5),
    seed=st.integers(0, 2**31),
    # A spread of 0.1 leaves a flat distribution, where top_p keeps more than its candidates.
    spread=st.sampled_from([0.1, 2.0, 6.0]),
)
def test_filters_equal_hugging_face(params: list[SamplingParams], seed: int, spread: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(len(params), 1500, generator=generator) * spread
    ours = distribution(logits, [sequence(each) for each in params])
    for row, each in enumerate(params):
        theirs = hugging_face(logits[row : row + 1], each)[0]
        # Sums of 1500 float32 weights round differently: the border token may fall either way.
        differing = ((ours[row] > 0) != (theirs > 0)).sum()
        assert differing <= 1
        if not differing:
            torch.testing.assert_close(ours[row], theirs, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("penalty", [1.3, 0.8])
def test_repetition_penalty_equals_hugging_face(penalty: float) -> None:
    logits = torch.randn(1, 50, generator=torch.Generator().manual_seed(3)) * 3
    params = SamplingParams(temperature=0.0, repetition_penalty=penalty, logprobs=50)
    one = sequence(params, prompt=[4, 7, 7, 9], output=[11, 4, 12])
    processor = RepetitionPenaltyLogitsProcessor(penalty)
    expected = processor(torch.tensor([one.token_ids]), logits.clone())
    asked = plan_sampling([one], 50, 0)
    assert asked is not None
    assert asked.changes is not None
    got = changed(logits, Changes.of(asked.changes, torch.from_numpy))
    torch.testing.assert_close(got, expected, atol=0, rtol=0)
    for entry in range(50):  # bring each token to the top in turn, by its distance to the best
        lift = (expected.max() - expected[0, entry] + 1e-3).item()
        params = SamplingParams(
            temperature=0.0, repetition_penalty=penalty, logit_bias={entry: lift}
        )
        assert run(logits, [sequence(params, [4, 7, 7, 9], [11, 4, 12])]).token_ids == [entry]
        params = SamplingParams(
            temperature=0.0, repetition_penalty=penalty, logit_bias={entry: lift - 2e-3}
        )
        best = int(expected.argmax())
        assert run(logits, [sequence(params, [4, 7, 7, 9], [11, 4, 12])]).token_ids == [best]


def test_presence_and_frequency_count_the_output_only() -> None:
    logits = torch.tensor([[5.0, 4.9, 4.0, 0.0]])

    def best(**penalties: Any) -> int:
        params = SamplingParams(temperature=0.0, **penalties)
        return run(logits, [sequence(params, prompt=[0, 0, 0], output=[1, 1])]).token_ids[0]

    assert best(presence_penalty=1.0) == 0  # the prompt's zeros are not counted
    logits[0, 1] = 6.4
    assert best(presence_penalty=1.0) == 1  # 6.4 - 1.0
    assert best(presence_penalty=1.5) == 0  # 6.4 - 1.5
    assert best(frequency_penalty=0.6) == 1  # 6.4 - 2 * 0.6
    assert best(frequency_penalty=0.8) == 0  # 6.4 - 2 * 0.8
    assert best(frequency_penalty=-1.0) == 1


def test_logit_bias_bans_and_forces() -> None:
    logits = torch.tensor([[5.0, 4.0, 3.0], [5.0, 4.0, 3.0], [5.0, 4.0, 3.0]])
    biases: list[dict[int, float]] = [{0: -100.0}, {2: 100.0}, {}]
    rows = [sequence(SamplingParams(temperature=0.0, logit_bias=bias)) for bias in biases]
    assert run(logits, rows).token_ids == [1, 2, 0]
    beyond = sequence(SamplingParams(temperature=0.0, logit_bias={99: 100.0, -1: 100.0}))
    assert run(logits[:1], [beyond]).token_ids == [0]


def test_greedy_is_argmax_and_leaves_logits_alone() -> None:
    logits = torch.randn(6, 300, generator=torch.Generator().manual_seed(1)).bfloat16()
    before = logits.clone()
    rows = [
        sequence(SamplingParams(temperature=0.0, logit_bias={5: 1.0} if row % 2 else {}))
        for row in range(6)
    ]
    tokens = run(logits, rows).token_ids
    assert torch.equal(logits, before)
    assert tokens[::2] == logits[::2].argmax(dim=1).tolist()
    one = sequence(SamplingParams(temperature=1.3, top_k=1))
    assert run(logits[:1], [one]).token_ids == [int(logits[0].argmax())]


def mixed_params() -> list[SamplingParams]:
    return [
        SamplingParams(temperature=1.0, seed=7),
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=0.8, top_p=0.9, seed=7, logprobs=3),
        SamplingParams(temperature=1.5, top_k=20, min_p=0.01, repetition_penalty=1.2),
        SamplingParams(temperature=1.0, top_p=0.3, presence_penalty=0.5, logit_bias={3: 2.0}),
        SamplingParams(temperature=2.0, top_p=0.999),
    ]


@given(order=st.permutations(range(6)), keep=st.integers(1, 6), seed=st.integers(0, 1000))
@settings(max_examples=60)
def test_a_row_does_not_depend_on_the_batch(order: list[int], keep: int, seed: int) -> None:
    logits = torch.randn(6, 1000, generator=torch.Generator().manual_seed(seed)) * 3
    rows = [
        sequence(params, output=[5, 5, 9], request_id=f"r{row}", index=row % 2)
        for row, params in enumerate(mixed_params())
    ]
    alone = [run(logits[row : row + 1], [rows[row]]) for row in range(6)]
    chosen = order[:keep]
    together = run(logits[chosen], [rows[row] for row in chosen])
    assert together.token_ids == [alone[row].token_ids[0] for row in chosen]
    assert together.logprobs == [alone[row].logprobs[0] for row in chosen]


@pytest.mark.parametrize("temperature", [1e-45, 1e-39, 1.17e-38, 1.2e-38, 1e-30, 1e-6])
@pytest.mark.parametrize("spread", [1e-3, 1.0, 50.0])
def test_the_smallest_temperatures_take_the_likeliest(temperature: float, spread: float) -> None:
    """Below float32's normal numbers as greedy; above, what is scaled may not overflow."""
    logits = torch.randn(1, 400, generator=torch.Generator().manual_seed(6)) * spread
    logits[0, 7] = logits.max() + spread
    for more in ({}, {"top_p": 0.9}, {"top_k": 30, "min_p": 0.1}, {"repetition_penalty": 1.1}):
        params = SamplingParams(temperature=temperature, seed=1, **more)  # type: ignore[arg-type]
        assert run(logits, [sequence(params)]).token_ids == [7]


def test_seeds() -> None:
    logits = torch.zeros(1, 5000)

    def token(params: SamplingParams, engine_seed: int = 0, **changes: Any) -> int:
        return run(logits, [sequence(params, **changes)], engine_seed).token_ids[0]

    seeded = SamplingParams(seed=42)
    assert token(seeded) == token(seeded, engine_seed=9, request_id="other")
    assert token(seeded) != token(SamplingParams(seed=43))
    assert token(seeded) != token(seeded, index=1)
    assert token(seeded) != token(seeded, output=[1])
    free = SamplingParams()
    assert token(free) == token(free)
    assert token(free) != token(free, request_id="other")
    assert token(free) != token(free, engine_seed=1)


def test_negative_and_huge_seeds_are_fine() -> None:
    seeds = [-1, 0, 2**63, 2**64 + 5]
    drawn = uniform(seeds, [0] * 4, [0] * 4)
    assert all(0.0 <= value < 1.0 for value in drawn)
    assert len(set(drawn.tolist())) == 4


def splitmix(seed: int, index: int, position: int) -> float:
    """The same number by arithmetic on Python's own integers."""
    state, mask = 0, (1 << 64) - 1
    for part in (seed, index, position):
        state = ((state ^ (part & mask)) + 0x9E3779B97F4A7C15) & mask
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & mask
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & mask
        state ^= state >> 31
    return (state >> 40) / (1 << 24)


@given(
    st.lists(
        st.tuples(st.integers(-(2**65), 2**65), st.integers(0, 20), st.integers(0, 10**6)),
        min_size=1,
        max_size=5,
    )
)
def test_uniform_is_splitmix64(keys: list[tuple[int, int, int]]) -> None:
    seeds, indices, positions = zip(*keys, strict=True)
    assert uniform(seeds, indices, positions).tolist() == [splitmix(*key) for key in keys]


def test_uniform_is_uniform() -> None:
    """Kolmogorov-Smirnov: with 20,000 draws D < 1.95 / sqrt(n) holds with probability 0.999; the
    draws are fixed by their seeds, so this passes always or never."""
    keys = itertools.product(range(20), range(2), range(500))
    draws = sorted(uniform(*zip(*keys, strict=True)).tolist())
    count = len(draws)
    distance = max(
        max((order + 1) / count - value, value - order / count) for order, value in enumerate(draws)
    )
    assert distance < 1.95 / math.sqrt(count)


def test_frequencies_follow_the_distribution() -> None:
    """Chi-square over 12 tokens that the filters leave of 40: with 11 degrees of freedom the
    statistic stays under 31.3 with probability 0.999. Fixed seeds: passes always or never."""
    params = SamplingParams(temperature=1.4, top_k=12, seed=5)
    logits = torch.randn(1, 40, generator=torch.Generator().manual_seed(8)) * 2
    expected = distribution(logits, [sequence(params)])[0]
    assert int((expected > 0).sum()) == 12
    count = 6000
    rows = [sequence(params, output=[0] * position) for position in range(count)]
    tokens = Counter(run(logits.expand(count, -1), rows).token_ids)
    statistic = sum(
        (tokens[token] - count * p) ** 2 / (count * p)
        for token, p in enumerate(expected.tolist())
        if p > 0
    )
    assert set(tokens) <= set(expected.nonzero().squeeze(1).tolist())
    assert statistic < 31.3


@pytest.mark.parametrize("vocab", [1, 255, 256, 257, 3000])
def test_draws_invert_the_cumulative_distribution(vocab: int) -> None:
    """Blocks or not, a row's token is the one in whose part of [0, 1) its number lies."""
    params = SamplingParams(temperature=0.9, min_p=0.001, seed=3)
    logits = torch.randn(40, vocab, generator=torch.Generator().manual_seed(vocab)) * 2
    asked = plan_sampling(
        [sequence(params, output=[0] * position) for position in range(40)], vocab, 0
    )
    assert asked is not None
    assert asked.draws is not None
    draws = Draws.of_plan(asked.draws, torch.from_numpy)
    weights = filtered_weights(logits, draws).double()
    bounds = weights.cumsum(dim=1) / weights.sum(dim=1, keepdim=True)
    tokens = torch.tensor(sample(logits, asked).token_ids).unsqueeze(1)
    number = draws.uniform.double()
    end, part = bounds.gather(1, tokens), weights.gather(1, tokens) / weights.sum(1, keepdim=True)
    assert bool((part > 0).all())
    # Sums of 3000 float32 weights of at most 1 are off by less than 1e-5 of the total.
    assert bool((number < end + 1e-5).all())
    assert bool((number >= end - part - 1e-5).all())


def test_of_equal_logits_the_first_is_taken() -> None:
    logits = torch.zeros(20, 700, dtype=torch.bfloat16)
    logits[:, 300:] = 1.0
    rows = [sequence(SamplingParams(temperature=0.0)) for _ in range(20)]
    assert run(logits, rows).token_ids == [300] * 20


@pytest.mark.parametrize("value", [0.0, 1.0 - 2.0**-24])
def test_the_ends_of_the_unit_interval_draw_tokens_that_are_left(
    value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "tenora_engine.scheduling.sampling._unit", lambda _: np.array([value], np.float32)
    )
    logits = torch.randn(1, 49152, generator=torch.Generator().manual_seed(8))
    params = SamplingParams(temperature=1.0, top_k=50)
    kept = distribution(logits, [sequence(params)])[0].nonzero().squeeze(1).tolist()
    assert run(logits, [sequence(params)]).token_ids == [kept[0] if value == 0.0 else kept[-1]]


def test_logprobs_are_of_the_unmodified_distribution() -> None:
    logits = torch.randn(3, 200, generator=torch.Generator().manual_seed(2)) * 4
    rows = [
        sequence(SamplingParams(temperature=3.0, top_k=2, logit_bias={9: 50.0}, logprobs=4)),
        sequence(SamplingParams(temperature=0.0)),
        sequence(SamplingParams(temperature=0.0, logprobs=0)),
    ]
    sampled = run(logits, rows)
    expected = logits.log_softmax(dim=1)
    first, second, third = sampled.logprobs
    assert second is None
    assert first is not None
    assert third is not None
    assert first.token_id == sampled.token_ids[0] == 9
    assert first.logprob == pytest.approx(expected[0, 9].item(), abs=1e-6)
    best = expected[0].topk(4)
    assert [token for token, _ in first.top] == best.indices.tolist()
    assert [value for _, value in first.top] == pytest.approx(best.values.tolist(), abs=1e-6)
    assert third.top == []
    assert third.logprob == pytest.approx(expected[2].max().item(), abs=1e-6)


def test_logprobs_of_tokens_by_name() -> None:
    logits = torch.randn(2, 200, generator=torch.Generator().manual_seed(2)) * 4
    rows = [
        sequence(SamplingParams(temperature=0.0, logprobs=0, logprob_token_ids=(7, 199, 3))),
        sequence(SamplingParams(temperature=0.0, logprobs=1)),
    ]
    first, second = run(logits, rows).logprobs
    expected = logits.log_softmax(dim=1)
    assert first is not None
    assert second is not None
    assert {token for token, _ in first.top} == {3, 7, 199}
    for token, value in first.top:
        assert value == pytest.approx(expected[0, token].item(), abs=1e-6)
    assert [value for _, value in first.top] == sorted((v for _, v in first.top), reverse=True)
    assert [token for token, _ in second.top] == [int(logits[1].argmax())]


def test_logits_that_are_not_numbers_harm_only_their_row() -> None:
    logits = torch.randn(3, 100, generator=torch.Generator().manual_seed(4))
    logits[1] = float("nan")
    params = SamplingParams(temperature=1.0, top_p=0.9, seed=1)
    rows = [sequence(params, request_id=str(row)) for row in range(3)]
    tokens = run(logits, rows).token_ids
    assert [token == NO_NUMBER for token in tokens] == [False, True, False]
    assert tokens[0] == run(logits[:1], rows[:1]).token_ids[0]
    assert tokens[2] == run(logits[2:], rows[2:]).token_ids[0]


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("is_drawn_at_once", [True, False])
def test_one_logit_that_is_no_number_is_enough(
    value: float, temperature: float, is_drawn_at_once: bool
) -> None:
    """Also where rules change others of the row, and where its logprobs are asked for."""
    logits = torch.randn(2, 700, generator=torch.Generator().manual_seed(4))
    logits[1, 300] = value
    for more in ({}, {"logprobs": 3}, {"logit_bias": {3: 50.0}}, {"top_p": 0.5}, {"top_k": 9}):
        params = SamplingParams(temperature=temperature, seed=1, **more)
        got = run(logits, [sequence(params), sequence(params)])
        assert got.token_ids[0] != NO_NUMBER == got.token_ids[1]
    asked = plan_sampling([sequence(SamplingParams(seed=1))] * 2, 700, 0)
    assert asked is not None
    assert asked.draws is not None
    draws = Draws.of_plan(asked.draws, torch.from_numpy)
    assert draw(logits, draws, wait=is_drawn_at_once).tolist()[1] == NO_NUMBER


@given(
    seed=st.integers(0, 1000),
    vocab=st.sampled_from([1, 5, 255, 256, 600, 6000]),
    counts=st.lists(st.integers(0, 20), min_size=1, max_size=6),
)
@settings(max_examples=60)
def test_the_likeliest_of_equals_are_those_with_the_lowest_ids(
    seed: int, vocab: int, counts: list[int]
) -> None:
    """Whatever the other rows ask for; on the host as on a device."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(-4, 3, (len(counts), vocab), generator=generator) / 2.0
    values[values == 0] *= -1  # there are two zeros, which are equal
    expected = [
        sorted(enumerate(row), key=lambda each: (-each[1], each[0]))[:count]
        for row, count in zip(values.tolist(), counts, strict=True)
    ]
    assert _on_host(values, counts) == expected
    assert _on_device(values, counts) == expected


@pytest.mark.parametrize("vocab", [1000, 33_000, 50_257])
def test_the_bits_of_a_row_do_not_depend_on_how_many_there_are(vocab: int) -> None:
    """Torch divides long tensors among threads, and their ends are computed otherwise."""
    logits = torch.randn(17, vocab, generator=torch.Generator().manual_seed(5)) * 4
    filters: list[dict[str, Any]] = [{}, {"top_p": 0.9}, {"top_k": 30, "top_p": 0.7}]
    for asked in filters:
        rows = [sequence(SamplingParams(**asked, logprobs=5), request_id=f"{n}") for n in range(17)]
        planned = plan_sampling(rows, vocab, 0)
        assert planned is not None
        assert planned.draws is not None
        draws = Draws.of_plan(planned.draws, torch.from_numpy)
        weights, together = filtered_weights(logits, draws), run(logits, rows)
        for row in range(17):
            one = draws.of(torch.tensor([row]))
            assert torch.equal(filtered_weights(logits[row : row + 1], one)[0], weights[row])
            alone = run(logits[row : row + 1], rows[row : row + 1])
            assert alone.token_ids[0] == together.token_ids[row]
            assert alone.logprobs[0] == together.logprobs[row]


def test_what_a_draw_leaves_open_is_drawn_again() -> None:
    """Where the device is not to be waited for, a row whose top_p reaches beyond the candidates
    says so instead of a token, and only such a row."""
    logits = torch.randn(3, 5000, generator=torch.Generator().manual_seed(4))
    logits[1, 7] = 30.0  # one token holds all of the mass
    params = [SamplingParams(temperature=1.0, top_p=top_p, seed=3) for top_p in (0.9, 0.9, 0.01)]
    asked = plan_sampling([sequence(each) for each in params], 5000, 0)
    assert asked is not None
    assert asked.draws is not None
    draws = Draws.of_plan(asked.draws, torch.from_numpy)
    at_once = draw(logits, draws, wait=False).tolist()
    in_the_end = draw(logits, draws).tolist()
    assert at_once == [OPEN, *in_the_end[1:]]
    token_ids = torch.tensor(at_once)
    assert _drawn_again(logits, draws, token_ids).tolist() == in_the_end
