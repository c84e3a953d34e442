"""An engine whose steps go the way of CUDA's (`CudaSteps`, Triton kernels, `batch_invariant`), in
Triton's interpreter, answers the same requests with drafts and without. A program of its own:
TRITON_INTERPRET=1 must be set before triton is imported. Prints what came of drafts, as JSON."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import msgspec
import torch

from drafted_requests import Answers, World, answers, engine_of, make_world
from tenora_engine.engine import Engine
from tenora_engine.executor.cuda import CudaSteps
from tenora_engine.executor.executor import ModelExecutor
from tenora_engine.executor.graphs import again
from tenora_engine.model import loader
from tenora_engine.model.decoder import Decoder
from tenora_engine.model.linear import FixedLinear
from tenora_engine.request import GenerationRequest, SamplingParams, Tenant
from tenora_engine.scheduling.drafts import StepTimes
from tenora_kernels import backend
from tenora_kernels.segments import fixed_tile_queries

TOKENS = 11


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name, as_on_cuda():
        world = make_world(Path(name))
        expected, none = run(world, 0)
        found, counters = run(world, 16)
    assert not none["drafts_accepted"]
    assert found.tokens == expected.tokens
    assert found.logprobs == expected.logprobs  # and so the bits of what they were drawn from
    assert found.ends == expected.ends
    names = ("drafts_accepted", "drafts_rejected")
    json.dump({name: counters[name] for name in names}, sys.stdout)


def run(world: World, drafts: int) -> tuple[Answers, dict[str, float]]:
    engine = engine_of(
        world,
        batch_invariant=True,
        max_draft_tokens=drafts,
        max_running=6,
        max_rank=8,
        max_context_tokens=64,
    )
    on_cuda(engine)
    found, counters = answers(engine, requests(world)), engine.stats().counters
    engine.close()
    return found, counters


def requests(world: World) -> list[GenerationRequest]:
    """Texts that go round, and such as go on at random with one of two or three tokens. A step of
    them takes the interpreter half a second."""
    drawn = SamplingParams(temperature=0.6, seed=3, max_tokens=TOKENS, ignore_eos=True)
    samplings = [
        SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True),
        msgspec.structs.replace(drawn, allowed_token_ids=(8, 9)),
        msgspec.structs.replace(drawn, logit_bias={11: 9.0, 12: 9.0, 13: 8.0}, logprobs=1),
        msgspec.structs.replace(drawn, allowed_token_ids=(20, 21), frequency_penalty=0.2),
    ]
    tenant = Tenant(key="t", namespace="t")
    return [
        GenerationRequest(
            request_id=str(number),
            tenant=tenant,
            prompt_token_ids=[5, 6, 7, 8, 9] * 2 + [number + 3],
            sampling=sampling,
            adapter=its,
        )
        for number, (sampling, its) in enumerate(zip(samplings, (None, *world.refs), strict=True))
    ]


@contextmanager
def as_on_cuda() -> Iterator[None]:
    ops = mock.patch.object(backend, "_chosen", return_value=backend.triton_implementation())
    form = mock.patch.object(loader, "choose_form", return_value=FixedLinear)
    # In the interpreter every row takes its time, and no draft would be worth it.
    worth = mock.patch.object(StepTimes, "worth", return_value=0.05)
    with ops, form, worth:
        yield


def on_cuda(engine: Engine) -> None:
    """Its steps are a GPU's; a graph is replayed by calling what was captured again."""
    executor, model = engine._executor, engine.config.model
    assert isinstance(executor, ModelExecutor)
    assert isinstance(executor._decoder, Decoder)
    executor._cuda = CudaSteps(
        executor._decoder,
        executor._arena,
        parts=4,
        max_seqs=engine.config.engine.max_running,
        max_tokens=engine.config.engine.max_step_tokens,
        max_context=model.context_tokens,
        fixed_tile=fixed_tile_queries(model.heads, model.kv_heads),
        capture=again,
    )


if __name__ == "__main__":
    main()
