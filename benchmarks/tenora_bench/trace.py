"""The trace file of CONTRACT.md, read and checked, and its prompts made real: equal prefix hashes
become equal token blocks, within one tenant and adapter only."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from tenora_bench.client import BenchError

FIRST_TOKEN = 1000  # below lie special tokens and single bytes
TOKENS = 40_000


@dataclass(frozen=True)
class TraceRequest:
    t_s: float
    tenant: str
    adapter: str | None
    rank: int
    prompt_tokens: int
    output_tokens: int
    prefix_blocks: tuple[str, ...]
    sla_class: str


def read_trace(path: Path) -> list[TraceRequest]:
    """Requests by time. Raises BenchError naming the line that is not one."""
    requests = []
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise BenchError(f"{path} cannot be read: {error}") from error
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            requests.append(
                TraceRequest(
                    t_s=float(row["t_s"]),
                    tenant=str(row["tenant"]),
                    adapter=row["adapter"],
                    rank=int(row.get("rank") or 8),
                    prompt_tokens=int(row["prompt_tokens"]),
                    output_tokens=int(row["output_tokens"]),
                    prefix_blocks=tuple(row.get("prefix_blocks", ())),
                    sla_class=str(row.get("class", "default")),
                )
            )
        except (KeyError, TypeError, ValueError) as error:
            raise BenchError(f"{path}:{number} is not a trace request: {error!r}") from error
    if not requests:
        raise BenchError(f"{path} holds no requests")
    return sorted(requests, key=lambda request: request.t_s)


def write_trace(path: Path, requests: Iterable[TraceRequest]) -> None:
    """The trace file that `read_trace` reads."""
    rows = ({"class" if k == "sla_class" else k: v for k, v in asdict(r).items()} for r in requests)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def random_tokens(count: int, seed: str) -> list[int]:
    draw = random.Random(seed)
    return [FIRST_TOKEN + draw.randrange(TOKENS) for _ in range(count)]


def prompt_of(request: TraceRequest, number: int, block_tokens: int) -> list[int]:
    """Token ids of a trace request: its prefix blocks, then tokens no one else has."""
    scope = f"{request.tenant}/{request.adapter}"
    tokens: list[int] = []
    for block in request.prefix_blocks:
        key = hashlib.sha256(f"{scope}/{block}".encode()).hexdigest()
        tokens += random_tokens(block_tokens, key)
    tokens = tokens[: request.prompt_tokens]
    return tokens + random_tokens(request.prompt_tokens - len(tokens), f"{scope}/{number}")
