"""What choosing tokens costs a step whose rows ask for penalties, by context: `python -m
tenora_bench.sampling`. The same steps with the rows' counts made anew each time stand beside it."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch

from tenora_engine.executor.sampling import sample
from tenora_engine.request import GenerationRequest, SamplingParams, Tenant
from tenora_engine.scheduling.sampling import plan_sampling
from tenora_engine.sequence import Sequence

VOCAB = 49_152
ROWS = 16
STEPS = 60
CONTEXTS = (1024, 8192, 32_768)
PLAIN = SamplingParams(temperature=0.0)
PENALISED = SamplingParams(
    temperature=0.0, repetition_penalty=1.1, presence_penalty=0.2, frequency_penalty=0.1
)


def rows(params: SamplingParams, context: int) -> list[Sequence]:
    """Half of the context is output, drawn from as many tokens as a text of it has."""
    generator = torch.Generator().manual_seed(0)
    made = []
    for row in range(ROWS):
        tokens = torch.randint(0, context // 3, (context,), generator=generator).tolist()
        request = GenerationRequest(
            request_id=str(row),
            tenant=Tenant(key="t", namespace="n"),
            prompt_token_ids=tokens[: context // 2],
            sampling=params,
        )
        made.append(Sequence(request, 0, tokens, context // 2))
    return made


def measure(context: int) -> dict[str, float]:
    """Median milliseconds of a step, the three kinds in turns."""
    logits = torch.randn(ROWS, VOCAB).bfloat16()

    def step(sequences: list[Sequence], anew: bool) -> None:
        for sequence in sequences:
            sequence.token_ids.append(7)
            if anew:
                sequence.sampler = None
        sample(logits, plan_sampling(sequences, VOCAB, 0))

    plain, kept, anew = rows(PLAIN, context), rows(PENALISED, context), rows(PENALISED, context)
    kinds: dict[str, Callable[[], None]] = {
        "plain": lambda: step(plain, False),
        "kept": lambda: step(kept, False),
        "anew": lambda: step(anew, True),
    }
    found: dict[str, list[float]] = {name: [] for name in kinds}
    for number in range(STEPS):
        for name, run in kinds.items():
            started = time.perf_counter()
            run()
            if number:  # the first step counts the prompt
                found[name].append((time.perf_counter() - started) * 1000)
    return {name: median(times) for name, times in found.items()}


def main() -> None:
    print(f"{ROWS} rows, vocabulary {VOCAB}: ms a step, median of {STEPS - 1}")
    for context in CONTEXTS:
        ms = measure(context)
        text = "  ".join(f"{name} {value:.2f}" for name, value in ms.items())
        print(f"context {context}: {text}  anew/kept {ms['anew'] / ms['kept']:.1f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
