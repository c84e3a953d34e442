"""Grammars that take as long as they are let, sent one after the other by a tenant of its own."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tenora_engine.engine import Engine
from tenora_engine.errors import InvalidRequestError, QueueFullError
from tenora_engine.request import GenerationRequest, Grammar, SamplingParams, Tenant


def hostile_schemas() -> Iterator[dict[str, Any]]:
    """Without end, no two alike."""
    for number in itertools.count(1_000_003, 2):
        yield {"type": "integer", "multipleOf": number}
        length = 8 + number % 7
        patterns = [{"pattern": f"(a|b)*a(a|b){{{length}}}[{chr(99 + k)}]?"} for k in range(20)]
        yield {"type": "string", "allOf": patterns, "title": str(number)}
        nested: dict[str, Any] = {"type": "string", "maxLength": number % 5000}
        for _ in range(9):
            nested = {"anyOf": [nested, {"type": "array", "items": nested}]}
        yield nested


@contextmanager
def sending(engine: Engine) -> Iterator[dict[str, int]]:
    """Meanwhile they are sent, as many as the engine takes; yields what came of them."""
    ended, outcomes = threading.Event(), {"refused": 0, "compiled": 0}

    def send() -> None:
        for number, schema in enumerate(hostile_schemas()):
            if ended.is_set():
                return
            try:
                engine.grammars.guides(_request(number, schema)).result()
            except (InvalidRequestError, RecursionError):
                outcomes["refused"] += 1
            except QueueFullError:
                time.sleep(0.01)
            else:
                outcomes["compiled"] += 1

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    try:
        yield outcomes
    finally:
        ended.set()
        thread.join()


def _request(number: int, schema: dict[str, Any]) -> GenerationRequest:
    return GenerationRequest(
        request_id=f"hostile{number}",
        tenant=Tenant(key="hostile", namespace="hostile"),
        prompt_token_ids=[1],
        sampling=SamplingParams(grammar=Grammar("json_schema", json.dumps(schema))),
    )
