"""Every list of token ids that a request can carry is checked before anything is done with it,
whoever sends it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from engine_fakes import VOCAB, Rig, make_config, make_request, run
from tenora_engine.errors import InvalidRequestError
from tenora_engine.request import Grammar, SamplingParams
from tenora_engine.scheduling.drafts import Drafts
from tenora_engine.token_ids import are_token_ids, known_tokens

NO_TOKENS: list[Any] = [-1, VOCAB, 2**31 - 1, 2**31, 2**63, -(2**31) - 1, 10**400]
NO_TOKENS += [True, False, 1.0, float("nan"), float("inf"), "1", None]
PLACES: dict[str, Callable[[list[Any]], dict[str, Any]]] = {
    "prompt": lambda ids: {"prompt_token_ids": ids},
    "prediction": lambda ids: {"prediction_token_ids": ids},
    "logit_bias": lambda ids: {"logit_bias": dict.fromkeys(ids, 1.0)},
    "bad_words": lambda ids: {"bad_words": ((1,), tuple(ids))},
    "allowed_token_ids": lambda ids: {"allowed_token_ids": tuple(ids)},
    "stop_token_ids": lambda ids: {"stop_token_ids": tuple(ids)},
}


def test_what_a_token_id_is() -> None:
    assert are_token_ids([], VOCAB)
    assert are_token_ids([0, VOCAB - 1], VOCAB)
    assert not any(are_token_ids([1, wrong, 2], VOCAB) for wrong in NO_TOKENS)


@pytest.mark.parametrize("wrong", NO_TOKENS, ids=lambda wrong: str(wrong)[:12])
@pytest.mark.parametrize("param", PLACES)
def test_what_is_no_token_is_refused_by_the_name_of_its_place(param: str, wrong: Any) -> None:
    rig = Rig.build(make_config())
    request = make_request("r", [1, 2], max_tokens=4)
    changes = PLACES[param]([3, wrong])
    if param in ("prompt", "prediction"):
        request = replace(request, **changes)
    else:
        request = replace(request, sampling=replace(request.sampling, **changes))
    with pytest.raises(InvalidRequestError) as refused:
        rig.engine.submit(request)
    assert refused.value.param == param
    assert not rig.engine.has_work


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"n": 10**6}, "n"),
        ({"logit_bias": {1: float("nan")}}, "logit_bias"),
        ({"logit_bias": {1: float("-inf")}}, "logit_bias"),
        ({"logit_bias": dict.fromkeys(range(9000), 1.0)}, "logit_bias"),
        ({"bad_words": ((1,) * 9000,)}, "bad_words"),
    ],
)
def test_huge_counts_and_no_numbers_are_refused_before_a_grammar_is_compiled(
    changes: dict[str, Any], param: str
) -> None:
    rig = Rig.build(make_config())
    rig.engine.grammars.guides = None  # type: ignore[assignment,method-assign]
    sampling = SamplingParams(grammar=Grammar("regex", "a"), max_tokens=2, **changes)
    with pytest.raises(InvalidRequestError) as refused:
        rig.engine.submit(replace(make_request("r", [1]), sampling=sampling))
    assert refused.value.param == param


def test_a_prediction_is_no_longer_than_an_answer() -> None:
    rig = Rig.build(make_config(context_tokens=64))
    with pytest.raises(InvalidRequestError) as refused:
        rig.engine.submit(replace(make_request("r", [1]), prediction_token_ids=[1] * 65))
    assert refused.value.param == "prediction"


def test_drafts_end_before_what_is_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever they come from: text, answers, a grammar, a layer that an adapter brought."""
    assert known_tokens([1, VOCAB - 1, VOCAB, 2], VOCAB) == [1, VOCAB - 1]
    assert known_tokens([2**31, 1], VOCAB) == []
    rig = Rig.build(make_config(), eos_every=10**9)
    found = [VOCAB, 2**40, -1]
    fitting = Drafts._fitting
    monkeypatch.setattr(
        Drafts, "_fitting", lambda self, sequence, _, *more: fitting(self, sequence, found, *more)
    )
    rig.engine.submit(make_request("r", [1, 2, 3], max_tokens=12))
    run(rig)
    assert len(rig.executor.plans) == 12
    assert rig.engine.stats().counters["step_failures"] == 0
