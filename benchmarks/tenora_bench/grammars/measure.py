"""What grammars cost and whether they hold, over the schemas of a folder such as MaskBench's: how
many compile and how fast, whether what they made is valid, and what a guided step takes over one
that is free; behind `tenora bench grammars`."""

from __future__ import annotations

import json
import random
import re
import statistics
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jsonschema_rs
import torch

from tenora_bench.client import BenchError
from tenora_bench.grammars.hostile import sending
from tenora_bench.machine import machine
from tenora_engine.config import EngineConfig
from tenora_engine.engine import Engine, build_engine
from tenora_engine.errors import InvalidRequestError
from tenora_engine.events import FinishEvent, TokenEvent
from tenora_engine.grammar.guide import Guide
from tenora_engine.request import GenerationRequest, Grammar, SamplingParams, Tenant
from tenora_engine.text.processor import TextProcessor
from tenora_engine.threads import call_in_ending_thread

STREAMS = 16
DRAFTS = 16
NEW_TOKENS = 96
"""Of the timed answers; those that are looked at may be longer."""

_WHITESPACE = re.compile(r"\s{20}")


@dataclass
class Asked:
    """One schema, what was compiled of it, and the answer."""

    name: str
    schema: Any
    guides: list[Guide] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    reason: str = ""


def schemas(folder: Path, count: int, seed: int) -> list[Asked]:
    """So many of the files, drawn; a schema is in `schema`, or is all of the file. Raises
    BenchError where there are none."""
    files = sorted(folder.rglob("*.json"))
    if not files:
        raise BenchError(f"{folder} has no *.json")
    drawn = random.Random(seed).sample(files, min(count, len(files)))
    asked = []
    for file in drawn:
        found = json.loads(file.read_text())
        schema = found["schema"] if isinstance(found, dict) and "tests" in found else found
        asked.append(Asked(file.stem, schema))
    return asked


def request(name: str, schema: Any, prompt: list[int], **sampling: Any) -> GenerationRequest:
    """Of a tenant of its own, so that nothing is compiled before."""
    grammar = None if schema is None else Grammar("json_schema", json.dumps(schema))
    return GenerationRequest(
        request_id=name,
        tenant=Tenant(key=name, namespace=name),
        prompt_token_ids=prompt,
        sampling=SamplingParams(grammar=grammar, **sampling),
    )


def compile_all(engine: Engine, asked: list[Asked], prompt: list[int]) -> dict[str, Any]:
    """One after the other; those that are refused lose their place in `asked`."""
    times_ms, refusals = [], Counter[str]()
    for each in list(asked):
        started = time.perf_counter()
        try:
            each.guides = engine.grammars.guides(request(each.name, each.schema, prompt)).result()
        except InvalidRequestError as error:
            refusals[_kind(str(error))] += 1
            asked.remove(each)
        else:
            times_ms.append((time.perf_counter() - started) * 1000)
    count = len(times_ms) + refusals.total()
    return {
        "schemas": count,
        "compiled": len(times_ms),
        "coverage": len(times_ms) / count,
        "compile_p50_ms": statistics.median(times_ms),
        "compile_p99_ms": statistics.quantiles(times_ms, n=100)[98],
        "compile_max_ms": max(times_ms),
        "refusals": dict(refusals.most_common(20)),
    }


def answer_all(
    engine: Engine, text: TextProcessor, asked: list[Asked], prompt: list[int], most: int
) -> dict[str, Any]:
    """STREAMS at a time, drawn at temperature 0.8 of at most `most` tokens; each that ends by stop
    is held against its schema by a library of its own (jsonschema-rs)."""
    waiting, by_name = iter(asked), {each.name: each for each in asked}
    running = sum(_start(engine, waiting, prompt, most) for _ in range(STREAMS))
    while running:
        for event in engine.step():
            if isinstance(event, TokenEvent):
                by_name[event.request_id].tokens += event.token_ids
            elif isinstance(event, FinishEvent):
                by_name[event.request_id].reason = event.reason
                by_name[event.request_id].guides = []  # up to megabytes
                running += _start(engine, waiting, prompt, most) - 1
    reasons = Counter(each.reason for each in asked)
    wrong, spaced = [], []
    for each in asked:
        said = text.decode(each.tokens)
        if each.reason == "stop" and not _is_valid(each.schema, said):
            wrong.append({"schema": each.name, "answer": said[:500]})
        if _WHITESPACE.search(said):
            spaced.append({"schema": each.name, "answer": said[:500]})
    return {
        "reasons": dict(reasons),
        "valid": reasons["stop"] - len(wrong),
        "invalid": wrong,
        "whitespace_runs": spaced,
        "tokens": sum(len(each.tokens) for each in asked),
    }


def _start(engine: Engine, waiting: Iterator[Asked], prompt: list[int], most: int) -> bool:
    each = next(waiting, None)
    if each is None:
        return False
    seed = zlib.crc32(each.name.encode())
    asked = request(each.name, each.schema, prompt, max_tokens=most, temperature=0.8, seed=seed)
    engine.submit(asked, each.guides)
    return True


def _is_valid(schema: Any, text: str) -> bool:
    try:
        return bool(jsonschema_rs.validator_for(schema).is_valid(json.loads(text)))
    except ValueError:  # the text is no JSON, or the validator refuses the schema
        return False


def compare(engine: Engine, asked: list[Asked], prompt: list[int], rounds: int) -> dict[str, Any]:
    """Ratios of tokens a second, in turns: guided rows over free ones without drafts, and guided
    ones with forced tokens as drafts over those without."""
    cases = {1: asked[:1], STREAMS: asked[:STREAMS]}
    ratios: dict[str, list[float]] = {}
    for number in range(rounds):
        for streams, some in cases.items():
            some = [asked[(number * streams + place) % len(asked)] for place in range(len(some))]
            free = _rate(engine, some, prompt, is_guided=False)
            guided = _rate(engine, some, prompt, is_guided=True)
            forced = _rate(engine, some, prompt, is_guided=True, drafts=DRAFTS)
            of = f"{streams} stream{'s' * (streams > 1)}"
            ratios.setdefault(f"TPOT guided over free, {of}", []).append(free / guided)
            ratios.setdefault(f"forced tokens as drafts over none, {of}", []).append(
                forced / guided
            )
    return {
        name: {"median": statistics.median(all_), "least": min(all_), "most": max(all_)}
        for name, all_ in ratios.items()
    }


def beside_hostile(engine: Engine, prompt: list[int], rounds: int) -> dict[str, Any]:
    """Of eight free rows, the time between two tokens while another tenant sends grammars without
    end, over that time alone."""
    p50, p99 = [], []
    for _ in range(rounds):
        alone = _gaps_ms(engine, prompt)
        with sending(engine) as outcomes:
            beside = _gaps_ms(engine, prompt)
        if not outcomes["refused"]:
            raise BenchError("no hostile grammar was refused: the comparison says nothing")
        p50.append(statistics.median(beside) / statistics.median(alone))
        p99.append(statistics.quantiles(beside, n=100)[98] / statistics.quantiles(alone, n=100)[98])
    return {
        f"TPOT {name} beside hostile grammars over alone, 8 streams": {
            "median": statistics.median(all_),
            "least": min(all_),
            "most": max(all_),
        }
        for name, all_ in (("P50", p50), ("P99", p99))
    }


def _gaps_ms(engine: Engine, prompt: list[int]) -> list[float]:
    """Between the steps in which all of the rows run."""
    engine._scheduler.drafts.most = 0
    for place in range(8):
        sampling = {"max_tokens": 3 * NEW_TOKENS, "temperature": 0.0, "ignore_eos": True}
        engine.submit(request(f"free{place}", None, prompt, **sampling))
    gaps, before, left = [], 0.0, 8
    while left:
        events = engine.step()
        now = time.perf_counter()
        left -= sum(isinstance(event, FinishEvent) for event in events)
        if before and sum(isinstance(event, TokenEvent) for event in events) == 8:
            gaps.append((now - before) * 1000)
        before = now
    return gaps


def _rate(
    engine: Engine, asked: list[Asked], prompt: list[int], *, is_guided: bool, drafts: int = 0
) -> float:
    """Tokens a second of answers that do not end before NEW_TOKENS: lists of what fits a schema."""
    engine._scheduler.drafts.most = drafts
    guides: dict[str, list[Guide]] = {}
    requests = []
    for place, each in enumerate(asked):
        schema = {"type": "array", "items": each.schema, "minItems": 1000} if is_guided else None
        name = f"{place}:{each.name}"
        made = request(
            name, schema, prompt, max_tokens=NEW_TOKENS, temperature=0.0, ignore_eos=True
        )
        guides[name] = engine.grammars.guides(made).result() if is_guided else []
        requests.append(made)
    for made in requests:
        engine.submit(made, guides[made.request_id])
    left, tokens, started = len(requests), 0, time.perf_counter()
    while left:
        for event in engine.step():
            if isinstance(event, TokenEvent):
                tokens += len(event.token_ids)
            elif isinstance(event, FinishEvent):
                left -= 1
    return tokens / (time.perf_counter() - started)


def measure(
    model: Path, folder: Path, count: int, most: int, rounds: int, threads: int
) -> dict[str, Any]:
    """Of `count` schemas of the folder, answers of at most `most` tokens. Raises BenchError."""
    asked = schemas(folder, count, seed=0)
    torch.set_num_threads(threads)
    engine = _engine(model)
    text = TextProcessor(model)
    prompt = text.encode_chat([{"role": "user", "content": "Write an example, as JSON."}])
    engine.grammars.prepare()
    result: dict[str, Any] = {"machine": machine(), "rounds": rounds, "folder": folder.name}
    result |= compile_all(engine, asked, prompt)
    result["answers"] = answer_all(engine, text, asked, prompt, most) if most else {}
    result["ratios"] = {}
    if rounds:
        result["ratios"] |= compare(engine, _lists(engine, asked, prompt), prompt, rounds)
        result["ratios"] |= beside_hostile(engine, prompt, rounds)
    engine.close()
    return result


def _lists(engine: Engine, asked: list[Asked], prompt: list[int]) -> list[Asked]:
    """Some whose lists compile too."""
    found: list[Asked] = []
    for each in asked:
        schema = {"type": "array", "items": each.schema, "minItems": 1000}
        try:
            engine.grammars.guides(request(f"list of {each.name}", schema, prompt)).result()
        except InvalidRequestError:
            continue
        found.append(each)
        if len(found) == 4 * STREAMS:
            break
    return found


def _kind(message: str) -> str:
    """Messages that differ in names alone are one kind."""
    return re.sub(r"[\"'`].*?[\"'`]|\d+", "_", message)[:100]


def _engine(model: Path) -> Engine:
    config = EngineConfig(
        model=str(model),
        served_name=model.name,
        memory_bytes=2 * 1024**3,
        arena_bytes=400 * 1024**2,
        max_context_tokens=2048,
        max_adapters=1,
        max_draft_tokens=DRAFTS,
    )
    return call_in_ending_thread(lambda: build_engine(config))
