"""Scorer: has schemas compiled and answers scored, beside the event loop and, where a tenant's text
could make it slow, in a process apart. One piece of work of a tenant's at a time."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from tenora_platform.apart.client import Apart, ApartUnavailableError
from tenora_platform.apart.tasks import SCORING
from tenora_platform.errors import BadRequestError, UnavailableError
from tenora_platform.evaluations.apart import Compile, Score, Verdict
from tenora_platform.evaluations.scoring import SchemaError, Scoring, contains, exact
from tenora_platform.turns import Turns

PLACES = 2
"""Pieces of work at once in one process."""
TENANT_WAITING_MAX = 32
_COST = f"{SCORING.cpu_s} s of processor time or {SCORING.memory_bytes // 1024**2} MiB of memory"


class Scorer:
    """Of one process."""

    def __init__(self, apart: Apart) -> None:
        self._apart = apart
        self._turns = Turns(
            PLACES,
            tenant_waiting_max=TENANT_WAITING_MAX,
            what="evaluations waiting to be checked",
            too_many="too_many_evaluations",
        )

    async def check(self, tenant_id: str, schemas: Sequence[str]) -> tuple[int, str] | None:
        """The first that is no schema, by its place, and why. Raises SchemaError where all of them
        take too long to compile, RateLimitedError, UnavailableError."""
        verdict = await self._ask(tenant_id, Compile(list(schemas)))
        if verdict is None:
            raise SchemaError(f"they take more than {_COST} to compile; use fewer, or simpler ones")
        return None if verdict.place is None else (verdict.place, verdict.error or "")

    async def score(
        self, tenant_id: str, scoring: Scoring, item: Mapping[str, Any], answer: str
    ) -> float:
        """1.0 or 0.0 of an answer in words; loglikelihood has none. Raises BadRequestError where
        it takes too long, RateLimitedError, UnavailableError."""
        if scoring == "json_schema":
            asked = Score(answer, schema=schema_text(item["schema"]))
        elif scoring == "choice":
            asked = Score(answer, choices=item["choices"], expected=item["expected"])
        else:
            expected = str(item["expected"])
            return float((exact if scoring == "exact" else contains)(answer, expected))
        verdict = await self._ask(tenant_id, asked)
        if verdict is None or verdict.score is None:
            raise BadRequestError(
                f"Scoring this answer takes more than {_COST}. Simplify the schema or the choices."
            )
        return verdict.score

    async def _ask(self, tenant_id: str, asked: Compile | Score) -> Verdict | None:
        question = msgspec.msgpack.encode(asked)
        try:
            raw = await self._turns.run(tenant_id, partial(self._apart.ask, SCORING, question))
        except ApartUnavailableError as error:
            raise UnavailableError("Answers cannot be scored right now; try again.") from error
        try:
            return msgspec.msgpack.decode(raw, type=Verdict)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None


def schema_text(schema: Any) -> str:
    """The same text for the same schema."""
    return json.dumps(schema, sort_keys=True)
