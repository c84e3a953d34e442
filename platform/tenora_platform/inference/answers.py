"""What was answered, as it is compared with what another version answers. It knows pieces, not who
asked."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from tenora_platform.inference.generation import Piece
from tenora_platform.secret import ServerSecret


@dataclass
class Answer:
    """Of one request. `begin` when the engine is asked."""

    began_s: float = field(default_factory=time.perf_counter)
    first_s: float | None = None
    ended_s: float | None = None  # None: it did not come to its end
    output_tokens: int = 0
    _texts: dict[int, list[str]] = field(default_factory=dict)
    _ends: dict[int, str] = field(default_factory=dict)

    def begin(self) -> None:
        self.began_s = time.perf_counter()

    def add(self, piece: Piece) -> None:
        if self.first_s is None:
            self.first_s = time.perf_counter()
        self.output_tokens += len(piece.token_ids)
        self._texts.setdefault(piece.choice, []).append(piece.text)
        if piece.finish_reason is not None:
            self._ends[piece.choice] = piece.finish_reason

    def end(self) -> None:
        self.ended_s = time.perf_counter()

    def told(self, secret: ServerSecret, tenant_id: str) -> dict[str, Any]:
        """As it is kept. The digest is keyed: a short answer cannot be guessed from it."""
        choices = sorted(self._texts.items())
        text = "\0".join(f"{at}:{''.join(texts)}" for at, texts in choices)
        safe = text.encode("utf-8", errors="replace").decode()
        ended_s, first_s = self.ended_s or time.perf_counter(), self.first_s
        return {
            "digest": secret.mac("shadow-answers", f"{tenant_id}/{safe}")[:32],
            "output_tokens": self.output_tokens,
            "finish_reasons": [reason for _, reason in sorted(self._ends.items())],
            "first_token_ms": None if first_s is None else _ms(first_s - self.began_s),
            "total_ms": _ms(ended_s - self.began_s),
        }


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 1)
