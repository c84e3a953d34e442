"""An object store over HTTP that takes its time: adapters that come after a while, and some that
never do. It speaks as much of Azure's protocol as a GET takes, since that is the one whose emulator
obstore talks to without TLS."""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from threading import Condition, Thread
from typing import Any

from tenora_bench.adapters import ATTENTION, AdapterSpec, write_adapter
from tenora_engine.adapters.identity import (
    adapter_digest,
    config_key,
    normalise_config,
    weights_key,
)
from tenora_engine.request import AdapterRef

RANK = 8
URL = "az://adapters"
_RANGE = re.compile(r"bytes=(\d+)-(\d+)")


class SlowStore:
    """Adapters of RANK that share one file of weights and differ in alpha, so that there may be any
    number of them. Every answer takes `delay_s`; a load of one asks for two objects."""

    def __init__(self, weights: bytes, fields: Mapping[str, Any], delay_s: float) -> None:
        self.delay_s = delay_s
        self._weights, self._fields = weights, fields
        self._sha256 = hashlib.sha256(weights).hexdigest()
        self._numbers = count(1)
        self._objects: dict[str, bytes] = {}
        self._hanging: set[str] = set()
        self._changed = Condition()

    def fresh(self, number: int) -> list[AdapterRef]:
        """So many adapters that nobody has asked for yet."""
        return [self._make() for _ in range(number)]

    def hanging(self, number: int) -> list[AdapterRef]:
        """So many adapters that do not come: whoever asks for one waits until `release`."""
        made = self.fresh(number)
        with self._changed:
            self._hanging |= {config_key(adapter.digest) for adapter in made}
        return made

    def release(self) -> None:
        """Those that hang are told that there is no such adapter."""
        with self._changed:
            for key in self._hanging:
                del self._objects[key]
            self._hanging.clear()
            self._changed.notify_all()

    def answer(self, key: str) -> bytes | None:
        """An object, after a while; None: there is none."""
        with self._changed:
            self._changed.wait_for(lambda: key not in self._hanging)
        time.sleep(self.delay_s)
        return self._objects.get(key)

    def _make(self) -> AdapterRef:
        alpha = 2 * RANK + next(self._numbers) / 1024
        config = normalise_config({**self._fields, "lora_alpha": alpha})
        digest = adapter_digest(config, self._sha256)
        self._objects |= {config_key(digest): config, weights_key(digest): self._weights}
        return AdapterRef(digest, RANK)


@contextmanager
def slow_store(model: Path, scratch: Path, delay_s: float) -> Iterator[SlowStore]:
    """One that engines which start meanwhile find at URL."""
    folder = scratch / "slow-adapter"
    write_adapter(folder, model, AdapterSpec("slow", RANK, seed=0, modules=ATTENTION))
    fields = {"peft_type": "LORA", "r": RANK, "target_modules": list(ATTENTION)}
    weights = (folder / "adapter_model.safetensors").read_bytes()
    store = SlowStore(weights, fields, delay_s)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(store))
    server.daemon_threads = True
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    settings = {
        "AZURE_STORAGE_USE_EMULATOR": "true",
        "AZURITE_BLOB_STORAGE_URL": f"http://127.0.0.1:{server.server_port}",
        "NO_PROXY": "127.0.0.1",
    }
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield store
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        store.release()
        server.shutdown()
        server.socket.close()
        thread.join()


def _handler(store: SlowStore) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            """`/account/container/key`."""
            data = store.answer(self.path.split("/", 3)[-1])
            body = data or b""
            headers = {"last-modified": "Mon, 23 Nov 2026 00:00:00 GMT", "etag": '"0"'}
            wanted = _RANGE.fullmatch(self.headers.get("range", ""))
            if data is not None and wanted is not None:
                first = int(wanted[1])
                body = data[first : int(wanted[2]) + 1]
                last = first + len(body) - 1
                headers["content-range"] = f"bytes {first}-{last}/{len(data)}"
            self.send_response(404 if data is None else 206 if wanted else 200)
            for name, value in (*headers.items(), ("content-length", str(len(body)))):
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    return Handler
