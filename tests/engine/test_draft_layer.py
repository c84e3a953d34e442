"""A trained draft layer: what the engine proposes is what the module that is trained foretells,
what it learned comes true, and no answer shows that there is one."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from draft_chats import Chat, generate
from draft_engines import (
    Recorder,
    answers,
    engine_of,
    prompts,
    request,
    write_likely_llama,
)
from example_scripts import EXAMPLES, load_script
from tenora_engine.errors import ModelLoadError
from tenora_engine.model import loader
from tenora_engine.model.linear import PlainLinear
from tenora_engine.request import SamplingParams
from tenora_engine.scheduling.draft_texts import NOTHING, Text
from tenora_engine.scheduling.drafts import Drafts, StepTimes
from tenora_engine.text.processor import TextProcessor
from tenora_kernels.backend import has_compiled_ops
from tenora_kernels.compiled.linear import pack_weight, quantise_weight, unpack_rows
from tiny_llama import PAGE_BYTES, VOCAB

pytestmark = pytest.mark.skipif(not has_compiled_ops(), reason="the kernels are not compiled")
COMMITTED = EXAMPLES / "draft" / "SmolLM2-135M-Instruct.safetensors"


train_draft = load_script("train_draft")


@pytest.fixture(autouse=True)
def times_of_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts are worth their time here, however small the model and busy the machine is."""
    monkeypatch.setattr(StepTimes, "worth", lambda *_: 0.05)
    monkeypatch.setattr(StepTimes, "proposed_part", 1 / 32)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_likely_llama(tmp_path_factory.mktemp("draft"))


@pytest.fixture(scope="module")
def base(model: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def layer(base: Any) -> Any:
    """Weights that nothing has been learned into."""
    torch.manual_seed(1)
    made = train_draft.DraftLayer(base, torch.arange(0, VOCAB, 2))
    with torch.no_grad():
        for weight in made.parameters():
            weight += 0.02 * torch.randn_like(weight)
            weight.copy_(weight.bfloat16().float())  # as a file has it
    return made


@pytest.fixture(scope="module")
def file(layer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("layers") / "draft.safetensors"
    train_draft.save(layer, path)
    return path


@torch.inference_mode()
def chain(layer: Any, base: Any, token_ids: list[int], count: int, least: float) -> list[int]:
    """What the module that is trained foretells behind the tokens, of which the base has computed
    all but the last, as long as it is likely enough."""
    seen = base.model(input_ids=torch.tensor([token_ids[:-1]]), use_cache=True)
    last = seen.past_key_values.layers[-1]
    state, found, chance = seen.last_hidden_state[:, -1:], [token_ids[-1]], 1.0
    everything = torch.ones(1, len(token_ids) - 1, dtype=torch.bool)
    for ahead in range(count):
        at = torch.tensor([len(token_ids) - 1 + ahead])
        newest = torch.tensor([found[-1:]])
        state = layer(newest, state, at, last.keys, last.values, everything)
        chances = (state[0, 0] @ layer.head.T).softmax(dim=0)
        chance *= float(chances.max())
        if chance < least:
            break
        found.append(int(layer.vocabulary[chances.argmax()]))
    return found[1:]


def test_proposes_what_the_module_foretells(model: Path, base: Any, layer: Any, file: Path) -> None:
    """Beside one another, behind drafts that were right or wrong, and behind a prompt."""
    engine = engine_of(model, file)
    recorder = Recorder(engine)
    requests = [request(f"{n}", prompt) for n, prompt in enumerate(prompts(3))]
    found = answers(engine, requests)
    engine.close()
    said = {n: each.prompt_token_ids + found[each.request_id] for n, each in enumerate(requests)}
    known = {n: len(each.prompt_token_ids) for n, each in enumerate(requests)}
    numbers = sorted({number for plan, _ in recorder.seen for number in plan.rows.sequence})
    compared = behind_drafts = 0
    for plan, result in recorder.seen:
        for row, new in enumerate(result.token_ids):
            n = numbers.index(plan.rows.sequence[row])
            known[n] += len(new)
            if row not in result.proposals or known[n] > len(said[n]):
                continue
            proposed, asked = result.proposals[row], plan.proposals
            assert asked is not None
            expected = chain(layer, base, said[n][: known[n]], asked.most[row], asked.least_chance)
            assert proposed == expected
            compared += 1
            behind_drafts += plan.rows.num_samples[row] > 1
    assert compared > 30
    assert behind_drafts > 10


def test_answers_are_the_same_to_the_bit(model: Path, file: Path) -> None:
    draw = random.Random(2)
    requests = [
        request(
            f"{n}",
            prompt,
            temperature=draw.choice((0.0, 0.0, 0.7)),
            seed=n,
            max_tokens=draw.randrange(1, 60),
            repetition_penalty=draw.choice((1.0, 0.9)),
            logprobs=draw.choice((None, 2)),
        )
        for n, prompt in enumerate(prompts(80))
    ]
    plain = engine_of(model, None, max_draft_tokens=0)
    expected = answers(plain, requests)
    plain.close()
    drafting = engine_of(model, file, arena_bytes=20 * PAGE_BYTES)
    found = answers(drafting, requests)
    (meter,) = drafting.stats().telemetry.meters
    preemptions = drafting.stats().counters["preemptions"]
    drafting.close()
    assert found == expected
    assert preemptions > 0
    assert meter.drafts_accepted["layer"] > 0
    assert meter.drafts_rejected["layer"] > 100


def test_a_layer_that_is_wrong_is_seldom_asked(
    model: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked again now and then, less often where tokens are drawn."""
    monkeypatch.setattr(
        Drafts, "take", lambda _, sequence, __: sequence.drafting.observe_layer(False)
    )
    monkeypatch.setattr(Text, "after", lambda *_, **__: NOTHING)
    asked = {}
    for temperature in (0.0, 1.0):
        engine = engine_of(model, file)
        recorder = Recorder(engine)
        answers(engine, [request("r", prompts(1)[0], max_tokens=100, temperature=temperature)])
        engine.close()
        asked[temperature] = [plan.proposals is not None for plan, _ in recorder.seen]
    greedy, drawn = asked[0.0], asked[1.0]
    assert min(len(greedy), len(drawn)) >= 100
    assert all(greedy[1:10])
    assert all(drawn[1:6]), "as long as it may be right"
    assert sum(drawn) < 15
    assert sum(drawn) < sum(greedy) < 35
    assert any(drawn[50:]), "it may be right later"


def test_nothing_is_proposed_beyond_the_context(model: Path, file: Path) -> None:
    """Nor is anybody else's step lost for one whose prompt, or answer, ends where it does."""
    engine = engine_of(model, file, max_context_tokens=64, prefix_caching=False)
    draw = random.Random(4)
    full = [draw.randrange(3, VOCAB) for _ in range(64)]
    requests = [
        request("read", full, max_tokens=0, embeds=True),
        request("scored", full, max_tokens=0, prompt_logprobs=0),
        request("last", full[:63], max_tokens=1),
    ]
    engine.submit(request("first", full[:10], max_tokens=54))
    for _ in range(3):  # decodes in the steps of the others
        engine.step()
    found = answers(engine, requests)
    engine.close()
    assert {name: len(found[name]) for name in ("read", "scored", "last")} == {
        "read": 0,
        "scored": 0,
        "last": 1,
    }


def test_what_is_learned_comes_true(model: Path, tmp_path: Path) -> None:
    """On the chats that it was trained on: a tiny base's are as good as random."""
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    recipe = train_draft.Recipe(vocabulary=VOCAB, depth=3, epochs=30, batch_tokens=256)
    engine = engine_of(model, None, max_draft_tokens=0)
    asked = prompts(12)
    said = generate(engine, asked, [SamplingParams(temperature=0.0, max_tokens=30)] * len(asked))
    chats = [Chat(prompt + answer, len(prompt)) for prompt, answer in zip(asked, said, strict=True)]
    features = train_draft.read_features(base.bfloat16(), chats)
    base.float()
    vocabulary = train_draft.vocabulary_of(chats, recipe.vocabulary, VOCAB)
    torch.manual_seed(0)
    layer = train_draft.DraftLayer(base, vocabulary)
    before = train_draft.accepted(layer, features, recipe)
    train_draft.train(layer, features, replace(recipe, learning_rate=3e-3))
    after = train_draft.accepted(layer, features, recipe)
    print(before, after)
    assert after[0] > before[0] + 0.3
    assert after[0] > after[1] > after[2]
    train_draft.save(layer, tmp_path / "learned.safetensors")
    engine = engine_of(model, tmp_path / "learned.safetensors")
    steps = engine.stats().counters["steps"]
    again = answers(engine, [request("again", asked[0], max_tokens=30)])
    steps = engine.stats().counters["steps"] - steps
    engine.close()
    assert again["again"][: len(said[0])] == said[0]
    assert steps < 24


def test_the_committed_layer_foretells_the_default_model(base_model_dir: Path) -> None:
    """A question that it was not trained on; of chats it is right in a third of all places."""
    text = TextProcessor(base_model_dir)
    asked = text.encode_chat([{"role": "user", "content": "How are bridges built over rivers?"}])
    engine = engine_of(base_model_dir, COMMITTED, dtype="bfloat16", arena_bytes=256 * 1024**2)
    engine._scheduler.drafts._look_up = lambda *_: ("text", NOTHING)  # type: ignore[method-assign]
    found = answers(engine, [request("asked", asked, max_tokens=96)])
    (meter,) = engine.stats().telemetry.meters
    engine.close()
    assert len(found["asked"]) == 96
    assert meter.drafts_accepted["layer"] > 12  # rounding by instruction set moves it a little


def test_refuses_what_is_no_layer_of_this_base(model: Path, file: Path, tmp_path: Path) -> None:
    def refused(path: Path, match: str, **settings: Any) -> None:
        with pytest.raises(ModelLoadError, match=match):
            engine_of(model, path, **settings)

    refused(tmp_path / "none.safetensors", "could not be read")
    other = tmp_path / "other.safetensors"
    other.write_bytes(b"no safetensors")
    refused(other, "could not be read")
    save_file({"a": torch.ones(1)}, other)
    refused(other, "is not a draft layer")
    tensors = load_file(file)
    without = {name: each for name, each in tensors.items() if name != "join"}
    form = {"format": train_draft.FORMAT}
    save_file({**tensors, "down": torch.ones(64, 100)}, other, metadata=form)
    refused(
        other, r"to another base model: down is \(64, 100\), but this base model needs \(64, 96\)"
    )
    save_file(without, other, metadata=form)
    refused(other, "join is missing")
    save_file({**tensors, "vocabulary": torch.tensor([3, VOCAB])}, other, metadata=form)
    refused(other, "its vocabulary must have 1 to")


def test_is_left_out_where_it_cannot_run_if_it_may(
    model: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "choose_form", lambda *_, **__: PlainLinear)
    with pytest.raises(ModelLoadError, match="needs device cpu and the compiled kernels"):
        engine_of(model, file)
    engine = engine_of(model, file, draft_layer_optional=True)
    assert engine.config.engine.draft_layer is None
    assert len(answers(engine, [request("one", [5, 6, 7], max_tokens=4)])["one"]) == 4
    engine.close()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_come_out_of_packed_weights(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    weight, rows = torch.randn(70, 64).to(dtype), torch.tensor([69, 0, 33, 33])
    assert torch.equal(unpack_rows(pack_weight(weight), rows, dtype), weight[rows])
    rounded = unpack_rows(quantise_weight(weight), rows, dtype)
    # Half a step of 127 to a row's largest, and bfloat16's own rounding.
    torch.testing.assert_close(rounded, weight[rows], atol=4 / 127, rtol=2**-8)
