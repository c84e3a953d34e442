"""What a token event costs a client of the engine in processor time, from the socket to the reader
of its stream. `python -m tenora_bench.engine_events --streams 16`; the sender is a process."""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from typing import cast

import uvloop
import zmq

from tenora_engine.config import ModelInfo
from tenora_engine.events import SequenceEvent, TokenEvent
from tenora_engine.request import GenerationRequest, SamplingParams, Tenant
from tenora_engine.text.processor import TextProcessor
from tenora_engine.transport import messages as m
from tenora_engine.transport.address import EngineAddress
from tenora_engine.transport.remote import RemoteEngineClient
from tenora_engine.transport.wire import decode_to_engine, encode

_MODEL = ModelInfo(
    id="base",
    architecture="llama",
    num_layers=1,
    hidden=8,
    intermediate=8,
    heads=1,
    kv_heads=1,
    head_dim=8,
    vocab=1000,
    context_tokens=512,
    dtype="float32",
    weight_bytes=0,
    modules={},
    eos_token_ids=(0,),
)


def send_tokens(endpoint: str, step_ms: float, batch: int) -> None:
    """One token for each stream a step, `batch` of them a message, as an engine without a model."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.bind(endpoint)
        streams: list[str] = []
        client, next_s = b"", time.monotonic()
        while True:
            wait_ms = max(0.0, (next_s - time.monotonic()) * 1000)
            while router.poll(int(wait_ms + 0.999)):
                client, data = router.recv_multipart()
                message = decode_to_engine(data)
                if isinstance(message, m.Hello):
                    router.send_multipart([client, encode(m.Ready(_MODEL))])
                elif isinstance(message, m.Submit):
                    streams.append(message.request.request_id)
                elif isinstance(message, m.Bye):
                    return
                else:
                    router.send_multipart([client, encode(m.Pong())])
                wait_ms = max(0.0, (next_s - time.monotonic()) * 1000)
            next_s += step_ms / 1000
            events: list[SequenceEvent] = [TokenEvent(stream, 0, [17]) for stream in streams]
            for first in range(0, len(events), batch):
                router.send_multipart([client, encode(m.Events(events[first : first + batch]))])


async def measure(streams: int, seconds: float, endpoint: str) -> dict[str, float]:
    address = EngineAddress(endpoint, "token")
    client = RemoteEngineClient(address, "", lambda folder: cast(TextProcessor, None))
    await client.start()
    tokens = 0

    async def read(number: int) -> None:
        nonlocal tokens
        request = GenerationRequest(
            request_id=f"01J0000000000000000000{number:04d}",
            tenant=Tenant(key="t", namespace="ns"),
            prompt_token_ids=[1],
            sampling=SamplingParams(max_tokens=10**9),
        )
        async for _ in client.submit(request):
            tokens += 1

    tasks = [asyncio.create_task(read(number)) for number in range(streams)]
    await asyncio.sleep(1)
    before, cpu_s, began_s = tokens, time.process_time(), time.monotonic()
    await asyncio.sleep(seconds)
    cpu_s, took_s, read_tokens = (
        time.process_time() - cpu_s,
        time.monotonic() - began_s,
        tokens - before,
    )
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await client.stop()
    return {"cpu_us_per_token": 1e6 * cpu_s / read_tokens, "tokens_per_s": read_tokens / took_s}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--step-ms", type=float, default=10.0)
    parser.add_argument("--batch", type=int, default=1000, help="tokens in one message")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--send", help="be the sender, at this endpoint")
    given = parser.parse_args()
    if given.send:
        send_tokens(given.send, given.step_ms, given.batch)
        return
    with tempfile.TemporaryDirectory() as folder:
        endpoint = f"ipc://{folder}/s"
        command = [sys.executable, "-m", "tenora_bench.engine_events", "--send", endpoint]
        command += ["--step-ms", str(given.step_ms), "--batch", str(given.batch)]
        with subprocess.Popen(command) as sender:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                found = runner.run(measure(given.streams, given.seconds, endpoint))
            sender.wait()
    print(json.dumps({"streams": given.streams, "batch": given.batch, **found}))


if __name__ == "__main__":
    main()
