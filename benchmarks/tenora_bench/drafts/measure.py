"""What drafts bring: tokens a second with them over those without, on one engine, in turns; behind
`tenora bench drafts`."""

from __future__ import annotations

import json
import random
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch

from tenora_bench.adapters import publish, publish_adapters
from tenora_bench.client import BenchError
from tenora_bench.machine import machine
from tenora_engine.config import EngineConfig
from tenora_engine.engine import Engine, build_engine
from tenora_engine.events import FinishEvent, TokenEvent
from tenora_engine.request import AdapterRef, GenerationRequest, SamplingParams, Tenant
from tenora_engine.text.processor import TextProcessor
from tenora_engine.threads import call_in_ending_thread

TOPICS = ("rain", "bread", "trains", "the sea", "winter", "a library", "bees", "maps")
NEW_TOKENS = 128
CHATS_MOST = 40  # of a file, spread over it
STREAMS = 16
ALONE = 8  # requests of a case of one stream, one after the other
AGAIN = 2  # times that a case of more streams is run in a round
GREEDY = {"temperature": 0.0}


def chats(text: TextProcessor, count: int) -> list[list[int]]:
    return [
        _chat(text, f"Write four sentences about {TOPICS[n % len(TOPICS)]}.") for n in range(count)
    ]


def first_turns(file: Path) -> list[str]:
    """Of its chats. Raises BenchError when it holds none."""
    try:
        chats = [json.loads(line) for line in file.read_text().splitlines()]
        return [str(each["question"] if "question" in each else each["turns"][0]) for each in chats]
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        wanted = '{"turns": ["..."]} or {"question": "..."}'
        raise BenchError(f"{file}: want JSON lines of {wanted}: {error!r}") from error


def chats_of(file: Path, text: TextProcessor) -> list[list[int]]:
    """The first turns of its chats, at most CHATS_MOST or so."""
    asked = first_turns(file)
    return [_chat(text, each) for each in asked[:: max(len(asked) // CHATS_MOST, 1)]]


def _chat(text: TextProcessor, asked: str) -> list[int]:
    return text.encode_chat([{"role": "user", "content": asked}])


def random_prompts(vocab: int, count: int, seed: int) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(3, vocab) for _ in range(64)] for _ in range(count)]


def request(name: str, prompt: list[int], **more: Any) -> GenerationRequest:
    asked = {"max_tokens": NEW_TOKENS, "ignore_eos": True, **more.pop("sampling", {})}
    sampling = SamplingParams(**asked)
    key = more.pop("tenant", "t")
    tenant = Tenant(key=key, namespace=key, keeps_answers=more.pop("keeps_answers", False))
    return GenerationRequest(
        request_id=name, tenant=tenant, prompt_token_ids=prompt, sampling=sampling, **more
    )


@dataclass
class Run:
    """What came of some requests, those of a batch at once, then the next batch."""

    answers: dict[str, list[int]] = field(default_factory=dict)
    seconds: float = 0.0  # from the first token of a batch to its last
    num_tokens: int = 0  # that came meanwhile
    gaps_s: list[float] = field(default_factory=list)  # between the tokens of a stream
    tpots_s: list[float] = field(default_factory=list)  # of the streams

    @property
    def tokens_per_s(self) -> float:
        return self.num_tokens / self.seconds

    def p99s_over(self, other: Run) -> dict[str, float]:
        """Of the time per output token (from a stream's first to its last, over how many came
        meanwhile), and between two tokens."""
        pairs = {
            "P99 TPOT": (self.tpots_s, other.tpots_s),
            "P99 between tokens": (self.gaps_s, other.gaps_s),
        }
        return {
            name: float(np.percentile(mine, 99) / np.percentile(others, 99))
            for name, (mine, others) in pairs.items()
        }

    def take(self, engine: Engine, batch: list[GenerationRequest]) -> None:
        self.answers |= {each.request_id: [] for each in batch}
        for each in batch:
            engine.submit(each)
        left, last_s, first_s = len(batch), dict[str, float](), None
        begun: dict[str, tuple[float, int]] = {}  # with so many tokens at once
        while left:
            events = engine.step()
            now_s = time.perf_counter()
            for event in events:
                if isinstance(event, FinishEvent):
                    left -= 1
                    self._finish(event.request_id, begun, last_s)
                elif isinstance(event, TokenEvent):
                    self.answers[event.request_id] += event.token_ids
                    if first_s is not None:
                        self.num_tokens += len(event.token_ids)
                    if event.request_id in last_s:
                        self.gaps_s.append(now_s - last_s[event.request_id])
                    last_s[event.request_id] = now_s
                    begun.setdefault(event.request_id, (now_s, len(event.token_ids)))
            if last_s and first_s is None:
                first_s = now_s
        self.seconds += time.perf_counter() - (first_s or 0.0)

    def _finish(
        self, request_id: str, begun: dict[str, tuple[float, int]], last_s: dict[str, float]
    ) -> None:
        begin_s, already = begun.get(request_id, (0.0, 0))
        num_later = len(self.answers[request_id]) - already
        if num_later > 0:
            self.tpots_s.append((last_s[request_id] - begin_s) / num_later)


class Mode(NamedTuple):
    drafts: bool
    layer: bool = True


@dataclass
class Bench:
    """One engine for both, so that they have the same memory: with drafts and without."""

    engine: Engine
    most: int  # drafts of a sequence, where there are any
    most_proposed: int  # by the trained layer, where there is one

    def run(self, batches: list[list[GenerationRequest]], mode: Mode) -> Run:
        found = Run()
        for batch in batches:
            self._take(found, batch, mode)
        return found

    def _take(self, found: Run, batch: list[GenerationRequest], mode: Mode) -> None:
        self.engine._scheduler.drafts.most = self.most if mode.drafts else 0
        proposed = self.most_proposed if mode.drafts and mode.layer else 0
        self.engine._scheduler.drafts.most_proposed = proposed
        found.take(self.engine, batch)

    def compare(
        self, name: str, batches: list[list[GenerationRequest]], modes: list[Mode], in_turn: int
    ) -> list[Run]:
        """One for each of the modes: a batch in all of them before the next one, so that they have
        the same machine. Raises BenchError where an answer differs."""
        found = [Run() for _ in modes]
        for number, batch in enumerate(batches, in_turn):
            pairs = list(zip(found, modes, strict=True))
            for run, mode in pairs if number % 2 else pairs[::-1]:
                self._take(run, batch, mode)
            if any(run.answers != found[0].answers for run in found):
                raise BenchError(f"{name}: answers differ with drafts and without")
        return found


def measure(
    model: Path,
    rounds: int,
    threads: int,
    layer: Path | None,
    chats: list[Path],
    adapter: Path | None = None,
) -> dict[str, Any]:
    """Of files of chats, answered with the `adapter`, or where there are none of the usual cases.
    Raises BenchError where an answer differs, or the `adapter` is no PEFT folder."""
    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory(prefix="tenora-bench-") as folder:
        store = Path(folder) / "store"
        refs = publish_adapters(Path(folder) / "adapters", store, model, STREAMS, [8])
        ref = None if adapter is None else _published(adapter, store)
        engine, text = _engine(model, store, layer), TextProcessor(model)
        drafts, has_layer = engine._scheduler.drafts, layer or (ref and ref.draft_layer)
        bench = Bench(engine, drafts.most, drafts.most_proposed if has_layer else 0)
        asked = {file.stem: _answered(file, text, ref) for file in chats}
        if ref is not None:  # it is there before anything is measured, its layer too
            for requests in (*asked.values(), *asked.values()):
                bench.run(_alone(requests[:4]), Mode(drafts=True))
        ratios: dict[str, list[float]] = {}
        for number in range(rounds):
            found: dict[str, float] = {}
            for name, requests in asked.items():
                found |= _source_ratios(bench, name, requests, number)
            for name, ratio in (found or _ratios(bench, text, refs, number)).items():
                ratios.setdefault(name, []).append(ratio)
        counters = engine.stats().counters
        engine.close()
    return {
        "machine": machine(),
        "rounds": rounds,
        "accepted": counters["drafts_accepted"],
        "rejected": counters["drafts_rejected"],
        "ratios": {
            name: {"median": statistics.median(all_), "least": min(all_), "most": max(all_)}
            for name, all_ in ratios.items()
        },
    }


def _published(adapter: Path, store: Path) -> AdapterRef:
    try:
        return publish(adapter, store)
    except (OSError, ValueError, KeyError) as error:
        raise BenchError(f"{adapter}: want a PEFT folder: {error!r}") from error


def _answered(
    file: Path, text: TextProcessor, adapter: AdapterRef | None
) -> list[GenerationRequest]:
    chat = {"temperature": 0.0, "ignore_eos": False}
    prompts = enumerate(chats_of(file, text))
    return [request(f"{n}", prompt, sampling=chat, adapter=adapter) for n, prompt in prompts]


def _ratios(
    bench: Bench, text: TextProcessor, refs: list[AdapterRef], number: int
) -> dict[str, float]:
    """Of round `number`."""
    vocab = bench.engine.config.model.vocab
    prompts = chats(text, STREAMS)
    # A tenant of its own: what one that keeps none is answered ends what is kept of it.
    again = request("again", prompts[1], sampling=GREEDY, keeps_answers=True, tenant="again")
    bench.run([[again]], Mode(drafts=True))
    chat = [request(f"{n}", p, sampling=GREEDY) for n, p in enumerate(prompts)]
    mixed = [
        msgspec.structs.replace(each, adapter=ref, request_id=f"a{each.request_id}")
        for each, ref in zip(chat, refs, strict=True)
    ]
    predicted = [_predicted(each, bench) for each in (chat, mixed)]
    cases = {
        "answers as predicted, 1 stream": _alone(predicted[0][:ALONE]),
        "answers as predicted, 16 streams": [predicted[0]] * AGAIN,
        "answers as predicted, 16 streams of 16 adapters": [predicted[1]] * AGAIN,
        "the tenant's answer again, 1 stream": [[again]] * ALONE,
        "greedy chats, 1 stream": _alone(chat[:ALONE]),
        "greedy chats, 16 streams": [chat] * AGAIN,
    }
    for streams in (1, STREAMS, 64):
        random_ = random_prompts(vocab, max(streams, ALONE), number)
        drawn = [
            request(f"{n}", prompt, sampling={"temperature": 1.0, "seed": n})
            for n, prompt in enumerate(random_)
        ]
        cases[f"drawn at temperature 1 after random tokens, {streams} streams"] = (
            _alone(drawn) if streams == 1 else [drawn] * AGAIN
        )
    found: dict[str, float] = {}
    for name, batches in cases.items():
        without, with_ = bench.compare(
            name, batches, [Mode(drafts=False), Mode(drafts=True)], number
        )
        found[name] = with_.tokens_per_s / without.tokens_per_s
        p99s = with_.p99s_over(without)
        found |= {f"{name}: {what}": ratio for what, ratio in p99s.items()}
    return found


def _source_ratios(
    bench: Bench, name: str, requests: list[GenerationRequest], number: int
) -> dict[str, float]:
    """One request after the other: with what is looked up over none, and with the layer too, if
    there is one."""
    modes = {"looked up": Mode(drafts=True, layer=False)}
    if bench.most_proposed:
        modes["and the layer"] = Mode(drafts=True)
    none, *others = bench.compare(
        name, _alone(requests), [Mode(drafts=False), *modes.values()], number
    )
    return {
        f"{name}, 1 stream, {mode}": each.tokens_per_s / none.tokens_per_s
        for mode, each in zip(modes, others, strict=True)
    }


def _alone(requests: list[GenerationRequest]) -> list[list[GenerationRequest]]:
    return [[each] for each in requests]


def _predicted(requests: list[GenerationRequest], bench: Bench) -> list[GenerationRequest]:
    """With what they are answered as what is predicted."""
    said = bench.run([requests], Mode(drafts=False)).answers
    return [
        msgspec.structs.replace(each, prediction_token_ids=said[each.request_id])
        for each in requests
    ]


def _engine(model: Path, store: Path, layer: Path | None) -> Engine:
    config = EngineConfig(
        model=str(model),
        served_name=model.name,
        memory_bytes=3 * 1024**3,
        arena_bytes=800 * 1024**2,
        max_context_tokens=2048,
        max_adapters=STREAMS,
        max_rank=8,
        prefix_caching=False,
        object_store=str(store),
        draft_layer=None if layer is None else str(layer),
    )
    return call_in_ending_thread(lambda: build_engine(config))
