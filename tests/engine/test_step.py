"""Plans and results as values: they cross to another process whole, and a plan alone is enough to
execute a step, drafts included."""

from __future__ import annotations

from array import array
from pathlib import Path

import hypothesis.strategies as st
import msgspec
import numpy as np
import pytest
from hypothesis import given

from engine_fakes import make_config
from tenora_engine.config import EngineConfig
from tenora_engine.engine import build_engine
from tenora_engine.executor.batch import BatchBuilder, result_of
from tenora_engine.executor.device_memory import allocate_table
from tenora_engine.executor.executor import ModelExecutor
from tenora_engine.executor.sampling import Sampled
from tenora_engine.request import GenerationRequest, SamplingParams, Tenant
from tenora_engine.step import (
    Draws,
    Entries,
    LogitChanges,
    Rows,
    Sampling,
    StepPlan,
    StepResult,
    decode_plan,
    decode_result,
    encode,
)
from tiny_folder import write_tiny_folder

BLOCK_TOKENS = 4


def rows_of(parts: list[tuple[list[int], int, list[int], int]]) -> Rows:
    """Of (tokens in the step, tokens before them, pages, samples) each."""
    return Rows(
        sequence=list(range(len(parts))),
        query_len=array("i", [len(tokens) for tokens, *_ in parts]),
        context_len=array("i", [len(tokens) + before for tokens, before, *_ in parts]),
        adapter_slot=array("i", [-1] * len(parts)),
        num_samples=array("i", [samples for *_, samples in parts]),
        token_ids=array("i", [token for tokens, *_ in parts for token in tokens]),
        pages=array("i", [page for _, _, pages, _ in parts for page in pages]),
    )


ints = st.lists(st.integers(0, 2**31 - 1), max_size=20).map(lambda values: array("i", values))
int64s = st.none() | st.lists(st.integers(0, 2**62), max_size=9).map(
    lambda values: np.array(values, np.int64)
)
float32s = st.lists(st.floats(width=32, allow_nan=False), max_size=9).map(
    lambda values: np.array(values, np.float32)
)
entries = st.none() | st.builds(Entries, int64s.filter(lambda value: value is not None), float32s)
plans = st.builds(
    StepPlan,
    number=st.integers(0, 2**63 - 1),
    rows=st.builds(
        Rows,
        sequence=st.lists(st.integers(0, 2**63 - 1), max_size=9),
        query_len=ints,
        context_len=ints,
        adapter_slot=ints,
        num_samples=ints,
        token_ids=ints,
        pages=ints,
    ),
    sampling=st.none()
    | st.builds(
        Sampling,
        changes=st.none()
        | st.builds(LogitChanges, entries, entries, entries, int64s, int64s, int64s),
        draws=st.none()
        | st.builds(
            Draws,
            int64s.filter(lambda value: value is not None),
            float32s,
            float32s,
            int64s,
            st.none() | float32s,
            st.none() | float32s,
            st.integers(0, 99),
        ),
        num_top=st.dictionaries(st.integers(0, 99), st.integers(0, 20), max_size=4),
        named=st.dictionaries(
            st.integers(0, 99), st.lists(st.integers(0, 99), max_size=3), max_size=4
        ),
    ),
    is_preemptible=st.booleans(),
)


def plain(value: object) -> object:
    """A plan as lists, which compare."""
    if isinstance(value, msgspec.Struct):
        return [plain(each) for each in msgspec.structs.astuple(value)]
    return value.tolist() if isinstance(value, array | np.ndarray) else value


@given(plan=plans)
def test_a_plan_is_the_same_in_another_process(plan: StepPlan) -> None:
    assert plain(decode_plan(encode(plan))) == plain(plan)


def test_a_result_is_the_same_in_another_process() -> None:
    result = StepResult([[1], [], [2, 3]], [None, None, None], 0.25)
    assert decode_result(encode(result)) == result


def test_what_is_no_plan_is_refused() -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_plan(b"\x93\x01\x02")


@pytest.mark.parametrize(
    ("drafts", "sampled", "accepted"),
    [
        ([], [7], [7]),
        ([7, 8], [7, 8, 9], [7, 8, 9]),
        ([7, 5], [7, 8, 9], [7, 8]),
        ([5, 8], [7, 8, 9], [7]),
    ],
)
def test_drafts_are_accepted_up_to_the_first_that_is_wrong(
    drafts: list[int], sampled: list[int], accepted: list[int]
) -> None:
    """Beside a row that samples nothing and one without drafts."""
    config = make_config(block_tokens=BLOCK_TOKENS)
    table = allocate_table(config)
    rows = rows_of(
        [
            ([1, 2, 3], 0, [4], 0),
            ([6, *drafts], 4, [9, 8], 1 + len(drafts)),
            ([2], 1, [5], 1),
        ]
    )
    batch = BatchBuilder(BLOCK_TOKENS, table).build(StepPlan(1, rows))
    first = 3
    assert batch.sample_rows.tolist() == [first + i for i in range(len(drafts) + 2)]
    tokens = [*sampled[: len(drafts) + 1], 11]
    result = result_of(rows, Sampled(tokens, [None] * len(tokens)), 0.0)
    assert result.token_ids == [[], accepted, [11]]


def test_an_executor_needs_nothing_but_the_plan(tmp_path: Path) -> None:
    """The step of a prompt, written by hand, gives what the engine gives; with right drafts it
    gives as many tokens at once, with wrong ones those that are right."""
    write_tiny_folder(tmp_path)
    config = EngineConfig(
        model=str(tmp_path),
        served_name="tiny",
        load_format="dummy",
        memory_bytes=64 << 20,
        max_adapters=2,
    )
    engine = build_engine(config)
    prompt = [5, 9, 3, 7, 11]
    engine.submit(
        GenerationRequest(
            request_id="r",
            tenant=Tenant(key="t", namespace="n"),
            prompt_token_ids=prompt,
            sampling=SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True),
        )
    )
    output: list[int] = []
    while engine.has_work:
        output += [t for e in engine.step() for t in getattr(e, "token_ids", [])]
    executor = engine._executor
    assert isinstance(executor, ModelExecutor)
    pages = [engine.config.num_pages - 1]

    def execute(tokens: list[int], before: int, samples: int) -> list[int]:
        plan = StepPlan(1 << 40, rows_of([(tokens, before, pages, samples)]))
        result = executor.execute(decode_plan(encode(plan)))
        assert result is not None
        return result.token_ids[0]

    assert execute(prompt, 0, 1) == output[:1]
    assert execute(output[:4], 5, 4)[:3] == output[1:4]
    wrong = [output[0], output[1], (output[2] + 1) % 50, 1]
    assert execute(wrong, 5, 4) == output[1:3]
    engine.close()
