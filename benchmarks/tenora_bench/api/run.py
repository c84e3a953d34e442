"""One run of `tenora bench api`: systems side by side, measured in turns, medians of the rounds."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from tenora_bench.api import measure
from tenora_bench.api.litellm import DOES, install, installed_version, litellm
from tenora_bench.api.measure import System
from tenora_bench.api.platform import platform
from tenora_bench.api.pretend_engine import vocabulary
from tenora_bench.api.stamps import Stamps, stamp_tokens
from tenora_bench.machine import machine
from tenora_engine.text.processor import TextProcessor
from tenora_engine.transport.address import EngineAddress

AddressOf = Callable[[str, str], EngineAddress]
"""What the platform makes of an endpoint and the server secret."""

LIBRARIES = ("fastapi", "uvicorn", "uvloop", "redis", "pydantic", "msgspec", "pyzmq")
CONNECTIONS = 64


def measure_api(
    scratch: Path,
    model: Path,
    address_of: AddressOf,
    *,
    workers: Sequence[int],
    rounds: int,
    streams: int,
    litellm_folder: Path | None,
) -> dict[str, Any]:
    """`workers`: a platform for each of these numbers of API processes, and, where a folder for its
    environment is given, a LiteLLM proxy of the first. Raises BenchError."""
    model = model.absolute()  # the peer's processes run in folders of their own
    stamps = Stamps(list(stamp_tokens(vocabulary(TextProcessor(model))).values()))
    python = None if litellm_folder is None else install(litellm_folder)
    with ExitStack() as stack:
        systems = []
        for count in workers:
            folder, secret = scratch / f"tenora-{count}", secrets.token_hex(32)
            folder.mkdir(parents=True)
            address = address_of(f"ipc://{folder.resolve() / 'engine.sock'}", secret)
            started = platform(folder, model, secret, address, stamps, count)
            systems.append(stack.enter_context(started))
        if python is not None:
            peer = litellm(python, scratch / "litellm", model, stamps, workers[0])
            systems.append(stack.enter_context(peer))
        turns = [asyncio.run(_round(systems, number, streams)) for number in range(rounds)]
    return {
        "machine": machine(),
        "versions": {
            **{name: version(name) for name in ("tenora", *LIBRARIES)},
            **({} if python is None else {"litellm": installed_version(python)}),
        },
        "litellm_does": None if python is None else DOES,
        "load": {
            "latency": f"{streams} streams, 20 tokens a second each, all at one moment",
            "costs": f"{CONNECTIONS} connections, streams of 1 and 257 tokens, all stored",
            "rates": f"{CONNECTIONS} connections, 16 tokens, as fast as they are answered",
        },
        "rounds": turns,
        "medians": medians(turns),
    }


async def _round(systems: Sequence[System], number: int, streams: int) -> dict[str, Any]:
    """Every other one in the reverse order."""
    found: dict[str, Any] = {}
    for system in systems if number % 2 == 0 else systems[::-1]:
        await measure.rates(system, connections=CONNECTIONS, requests=CONNECTIONS, tokens=2)  # warm
        is_peer = system.name.startswith("litellm")  # a request of its costs it 10 to 40 ms
        requests = 200 if is_peer else 800
        figures: dict[str, Any] = {
            "rates": await measure.rates(
                system, connections=CONNECTIONS, requests=requests, tokens=16
            )
        }
        if not is_peer:
            figures["costs"] = await measure.costs(
                system, connections=CONNECTIONS, requests=600, tokens=257
            )
            figures["latency"] = await measure.added_latency(
                system, streams=streams, tokens=60, turns=1
            )
        found[system.name] = figures
    return found


def medians(rounds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of each figure over the rounds, in the same shape; and the ratios of the requests a second to
    the proxy's, where it took part."""
    merged: dict[str, Any] = _median(rounds)
    peers = [name for name in merged if name.startswith("litellm")]
    for name, figures in merged.items():
        for peer in set(peers) - {name}:
            figures[f"rates_over_{peer}"] = {
                kind: round(
                    rate["requests_per_s"] / merged[peer]["rates"][kind]["requests_per_s"], 2
                )
                for kind, rate in figures["rates"].items()
            }
    return merged


def _median(values: Sequence[Any]) -> Any:
    if isinstance(values[0], dict):
        return {key: _median([value[key] for value in values]) for key in values[0]}
    return median(values)
