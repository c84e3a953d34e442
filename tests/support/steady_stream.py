"""A tenant who asks the same few things again and again, alone and then beside whatever others do:
no answer may differ in a bit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

SAID = [{"role": "user", "content": "Name three colours."}]
LOGPROBS = {"logprobs": True, "top_logprobs": 5}
BODIES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": SAID, "temperature": 0, **LOGPROBS}),
    ("/v1/chat/completions", {"messages": SAID, "temperature": 1, "seed": 7, "n": 2, **LOGPROBS}),
    ("/v1/chat/completions", {"messages": SAID, "temperature": 0, "guided_regex": "(red|blue)+"}),
    ("/v1/completions", {"prompt": "One, two,", "temperature": 0, "logprobs": 5, "echo": True}),
    ("/v1/completions", {"prompt": "One, two,", "n": 2, "use_beam_search": True, "temperature": 0}),
    ("/v1/completions", {"prompt": "A list:", "seed": 3, "repetition_penalty": 1.2, "top_p": 0.9}),
]
Send = Callable[[str, dict[str, Any]], Any]
"""To a path, by the tenant; the answer's JSON. Raises for any but a good one."""


class SteadyStream:
    """Use `beside` while others ask, at least one round; `problems` says what changed."""

    def __init__(self, send: Send, models: list[str]) -> None:
        self._send = send
        self._asked = [
            (path, {"model": model, "max_tokens": 8, **body})
            for model in models
            for path, body in BODIES
        ]
        self.quiet = [self._ask(number) for number in range(len(self._asked))]
        self.problems: list[str] = []
        self.waits_s: list[float] = []
        self._over = threading.Event()

    @contextmanager
    def beside(self) -> Iterator[None]:
        thread = threading.Thread(target=self._go_on)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()

    def _go_on(self) -> None:
        while True:
            for number in range(len(self._asked)):
                began_s = time.monotonic()
                try:
                    found = self._ask(number)
                except Exception as error:
                    self.problems.append(f"{self._asked[number]}: {error}")
                    return
                self.waits_s.append(time.monotonic() - began_s)
                if found != self.quiet[number]:
                    self.problems.append(f"{found} instead of {self.quiet[number]}")
            if self._over.is_set():
                return

    def _ask(self, number: int) -> Any:
        return self._send(*self._asked[number])["choices"]
