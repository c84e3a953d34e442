"""A tiny engine that follows grammars, and requests for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tenora_engine.config import EngineConfig
from tenora_engine.engine import Engine, build_engine
from tenora_engine.request import GenerationRequest, Grammar, SamplingParams, Tenant


@contextmanager
def guided_engine(folder: Path) -> Iterator[Engine]:
    """One whose model lies in the folder (`write_tiny_folder`), for as long as the block runs."""
    engine = build_engine(
        EngineConfig(
            model=str(folder),
            served_name="tiny",
            load_format="dummy",
            dtype="float32",
            arena_bytes=8 * 1024**2,
            memory_bytes=1024**3,
            max_adapters=1,
            grammar_timeout_ms=300,
        )
    )
    try:
        yield engine
    finally:
        engine.close()


def request(
    name: str, grammar: Grammar | None, namespace: str = "a", n: int = 1, max_tokens: int = 20
) -> GenerationRequest:
    return GenerationRequest(
        request_id=name,
        tenant=Tenant(key=namespace, namespace=namespace),
        prompt_token_ids=[5, 6, 7],
        sampling=SamplingParams(grammar=grammar, n=n, max_tokens=max_tokens, seed=1),
    )
