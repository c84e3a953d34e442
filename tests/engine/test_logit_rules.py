"""Penalties and tokens that may not come: bit for bit what their definition over the whole sequence
gives, however its tokens came, and what transformers' own processors give."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import (
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    PrefixConstrainedLogitsProcessor,
)

from tenora_engine.config import EngineConfig
from tenora_engine.engine import build_engine
from tenora_engine.events import FinishEvent, TokenEvent
from tenora_engine.executor.sampling import Changes, changed, sample
from tenora_engine.request import GenerationRequest, SamplingParams, Tenant
from tenora_engine.scheduling.sampling import plan_sampling
from tenora_engine.sequence import Sequence

CPU = torch.device("cpu")
VOCAB = 60
EOS = 5


def sequence(
    params: SamplingParams, prompt: list[int], output: list[int], request_id: str = "r"
) -> Sequence:
    request = GenerationRequest(
        request_id=request_id,
        tenant=Tenant(key="t", namespace="n"),
        prompt_token_ids=prompt,
        sampling=params,
    )
    ends = frozenset({EOS, *params.stop_token_ids})
    return Sequence(request, 0, prompt + output, len(prompt), stop_ids=ends)


def applied(logits: Tensor, sequences: list[Sequence]) -> Tensor:
    asked = plan_sampling(sequences, logits.shape[1], 0)
    return (
        logits
        if asked is None or asked.changes is None
        else changed(logits, Changes.of(asked.changes, torch.from_numpy))
    )


def by_definition(logits: Tensor, one: Sequence) -> Tensor:
    """Hugging Face's repetition penalty, then the bias, then OpenAI's penalties, token by token
    over the whole sequence, in float32."""
    params, out = one.request.sampling, logits.clone()
    output = Counter(one.token_ids[one.num_prompt :])
    for token in range(len(out)):
        if token in one.token_ids and params.repetition_penalty != 1.0:
            penalty = torch.tensor(params.repetition_penalty)
            out[token] = out[token] * penalty if out[token] < 0 else out[token] / penalty
        out[token] += torch.tensor(params.logit_bias.get(token, 0.0))
        if output[token]:
            sums = params.presence_penalty + params.frequency_penalty * output[token]
            out[token] -= torch.tensor(sums)
    return out


penalties = st.builds(
    SamplingParams,
    temperature=st.just(0.0),
    repetition_penalty=st.sampled_from([1.0, 1.0, 0.01, 0.8, 1.3, 10.0]),
    presence_penalty=st.sampled_from([0.0, 0.0, 1.1, -2.0]),
    frequency_penalty=st.sampled_from([0.0, 0.0, 0.3, -0.7]),
    logit_bias=st.dictionaries(st.integers(0, VOCAB - 1), st.floats(-100, 100, width=32)),
)
tokens = st.lists(st.integers(0, VOCAB - 1), max_size=30)


@settings(max_examples=80)
@given(
    rows=st.lists(st.tuples(penalties, tokens, st.lists(tokens, max_size=6)), min_size=1),
    seed=st.integers(0, 1000),
)
def test_penalties_kept_from_step_to_step_equal_their_definition(
    rows: list[tuple[SamplingParams, list[int], list[list[int]]]], seed: int
) -> None:
    """However many tokens come at once, also none, and if the sequence is computed again."""
    logits = torch.randn(len(rows), VOCAB, generator=torch.Generator().manual_seed(seed)) * 4
    ours = [sequence(params, prompt, []) for params, prompt, _ in rows]
    for step in range(7):
        together = applied(logits, ours)
        for row, one in enumerate(ours):
            assert torch.equal(together[row], by_definition(logits[row], one))
            anew = sequence(one.request.sampling, one.request.prompt_token_ids, [])
            anew.token_ids = list(one.token_ids)
            assert torch.equal(applied(logits[row : row + 1], [anew])[0], together[row])
        for one, (_, _, pieces) in zip(ours, rows, strict=True):
            one.num_computed = 0  # as preemption leaves it
            one.token_ids += pieces[step] if step < len(pieces) else []


def test_a_step_does_not_look_at_the_whole_sequence_again(monkeypatch: pytest.MonkeyPatch) -> None:
    params = SamplingParams(temperature=0.0, repetition_penalty=1.2, frequency_penalty=0.5)
    one = sequence(params, [7] * 5000, [])
    logits = torch.zeros(1, VOCAB)
    applied(logits, [one])
    for name in ("unique", "asarray", "sort"):
        monkeypatch.setattr(np, name, None)
    one.token_ids.append(9)
    assert torch.equal(applied(logits, [one])[0], by_definition(logits[0], one))


def logits_of(seed: int) -> Tensor:
    return torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(seed)) * 4


@given(
    words=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), min_size=1, max_size=6),
    output=st.lists(st.integers(0, 3), max_size=8),
)
def test_bad_words_equal_transformers(words: list[list[int]], output: list[int]) -> None:
    """Its processor looks at the prompt too, so it is shown the output alone."""
    logits = logits_of(1)
    params = SamplingParams(temperature=0.0, bad_words=tuple(map(tuple, words)))
    theirs = NoBadWordsLogitsProcessor(words, eos_token_id=VOCAB - 1)
    expected = theirs(torch.tensor([output], dtype=torch.int64), logits.clone())
    ours = applied(logits, [sequence(params, [0, 1, 2, 3], output)])
    barred = expected.isinf()
    assert torch.equal(ours < -1e29, barred)
    assert torch.equal(ours[~barred], logits[~barred])


@pytest.mark.parametrize("made", [0, 2, 3, 4])
def test_min_tokens_equals_transformers(made: int) -> None:
    logits = logits_of(2)
    params = SamplingParams(temperature=0.0, min_tokens=3, stop_token_ids=(9, 11), max_tokens=8)
    one = sequence(params, [1, 2], [3] * made)
    theirs = MinNewTokensLengthLogitsProcessor(2, 3, [EOS, 9, 11])
    expected = theirs(torch.tensor([one.token_ids]), logits.clone())
    ours = applied(logits, [one])
    assert torch.equal(ours < -1e29, expected.isinf())
    # From then on nothing is changed any more, and the shortcut for plain rows may be taken.
    assert (plan_sampling([one], VOCAB, 0) is None) == (made >= 3)


def test_allowed_token_ids_equal_transformers() -> None:
    logits, allowed = logits_of(3), [4, 9, 30]
    params = SamplingParams(allowed_token_ids=(30, 9, 4, 9), logit_bias={2: 100.0})
    theirs = PrefixConstrainedLogitsProcessor(lambda _, __: allowed, 1)
    expected = theirs(torch.tensor([[1]]), logits.clone())
    others = [sequence(SamplingParams(temperature=0.0), [1], [])]
    ours = applied(logits.expand(2, -1), [sequence(params, [1], []), *others])
    assert torch.equal(ours[0] < -1e29, expected[0].isinf())
    assert torch.equal(ours[0, allowed], logits[0, allowed])
    assert torch.equal(ours[1], logits[0])
    drawn = {
        sample(logits, plan_sampling([row], VOCAB, 0)).token_ids[0]
        for row in (sequence(params, [1], [], f"r{number}") for number in range(60))
    }
    assert drawn <= set(allowed)


@pytest.mark.parametrize("temperature", [0.0, 1e-6, 1.0])
def test_where_nothing_is_left_what_is_allowed_still_comes(temperature: float) -> None:
    params = SamplingParams(
        temperature=temperature,
        allowed_token_ids=(EOS, 8),
        bad_words=((8,),),
        min_tokens=4,
        max_tokens=9,
    )
    rows = [sequence(params, [1], [], f"r{number}") for number in range(10)]
    chosen = sample(logits_of(4).expand(10, -1), plan_sampling(rows, VOCAB, 0))
    assert set(chosen.token_ids) <= {EOS, 8}


SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}


def test_the_engine_generates_what_transformers_does(tmp_path: Path) -> None:
    """Every rule at once beside plain rows, in an arena so small that sequences are preempted."""
    torch.manual_seed(3)
    config = transformers.LlamaConfig(**SIZES, eos_token_id=None)
    model: Any = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    for parameter in model.parameters():
        parameter.data.normal_(0.0, 0.3)
    model.save_pretrained(tmp_path)
    prompts = [[(7 * row + place) % 97 for place in range(10 + row)] for row in range(8)]

    def theirs(prompt: list[int], **rules: Any) -> list[int]:
        made = model.generate(
            input_ids=torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            do_sample=False,
            max_new_tokens=24,
            pad_token_id=0,
            **rules,
        )
        output: list[int] = made[0, len(prompt) :].tolist()
        return output

    params, expected = [], []
    for row, prompt in enumerate(prompts):
        plain = theirs(prompt)
        stop, word = plain[3], plain[7:9]
        allowed = sorted({*range(0, 97, 2), *plain[:4]})
        rules: list[tuple[dict[str, Any], dict[str, Any]]] = [
            ({}, {}),
            ({"repetition_penalty": 1.4}, {"repetition_penalty": 1.4}),
            ({"bad_words": (tuple(word), (plain[0],))}, {"bad_words_ids": [word, plain[:1]]}),
            (
                {"min_tokens": 6, "stop_token_ids": (stop,)},
                {"min_new_tokens": 6, "eos_token_id": stop},
            ),
        ]
        mine, hf = rules[row % 4]
        if row >= 4:
            mine = {**mine, "allowed_token_ids": tuple(allowed)}
            hf = {**hf, "prefix_allowed_tokens_fn": lambda _, __, allowed=allowed: allowed}
        params.append(SamplingParams(temperature=0.0, max_tokens=24, **mine))
        expected.append(theirs(prompt, **hf))

    engine = build_engine(
        EngineConfig(
            model=str(tmp_path),
            served_name="m",
            dtype="float32",
            arena_bytes=14 * 2 * 2 * 12 * 2 * 8 * 4,
            block_tokens=12,
            max_context_tokens=64,
            max_step_tokens=32,
            max_adapters=0,
        )
    )
    try:
        for row, prompt in enumerate(prompts):
            engine.submit(
                GenerationRequest(
                    request_id=str(row),
                    tenant=Tenant(key="t", namespace="n"),
                    prompt_token_ids=prompt,
                    sampling=params[row],
                )
            )
        found: dict[str, list[int]] = {str(row): [] for row in range(8)}
        finished, until_s = 0, time.monotonic() + 120
        while finished < 8:
            assert time.monotonic() < until_s
            for event in engine.step():
                if isinstance(event, TokenEvent):
                    found[event.request_id] += event.token_ids
                elif isinstance(event, FinishEvent):
                    finished += 1
                    stop_token = event.stop_token_id
                    found[event.request_id] += [] if stop_token is None else [stop_token]
        assert engine.stats().counters["preemptions"] > 0
    finally:
        engine.close()
    assert list(found.values()) == expected
