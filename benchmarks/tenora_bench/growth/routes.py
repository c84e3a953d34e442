"""Every GET route of a platform as its OpenAPI document lists them: ids are taken from the lists
that name them, and each is asked a few times, one after the other."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import httpx

from tenora_bench.growth.size import Asker

TIMES = 5
"""After the first answer."""
_PLACE = re.compile(r"\{(\w+)\}")
_EXPORTS = ("export", "cloudevents")
"""Answers that are as long as what there is: until their first bytes."""
_QUERIES = {
    "/v1/timeseries": {"metric": "output_tokens"},
    "/admin/v1/timeseries": {"metric": "output_tokens"},
    "/admin/v1/ledger/accounts": {"account": "receivable"},
}
_SENDS_ON = ("/auth/",)  # to an identity provider that is not there
_DEARER = (
    "/v1/audit_logs?action=api_key.*",
    "/v1/requests?min_cost=1",
    "/v1/requests?sort=-cost",
    "/v1/timeseries?metric=output_tokens&group_by=adapter",
    "/v1/usage?bucket=1h&group_by=api_key,adapter",
    "/admin/v1/audit_logs?operator=true",
    "/admin/v1/costs?group_by=api_key,adapter",
    "/admin/v1/requests?min_cost=1",
    "/admin/v1/timeseries?metric=output_tokens&group_by=tenant",
    "/admin/v1/usage?group_by=api_key,adapter",
)
"""The same with what makes them read more than they do by themselves."""


@dataclass
class Asked:
    """The times of one route by asker; `skipped` says why there are none."""

    path: str
    asker: str
    skipped: str = ""
    status: int = 0
    first_ms: float = 0.0
    median_ms: float = 0.0
    bytes: int = 0


@dataclass
class Routes:
    """Asks as one tenant, and as the operator about that tenant."""

    http: httpx.Client
    admin_key: str
    tenant: Asker
    asker: str
    times: int = TIMES
    _first: dict[str, Mapping[str, Any] | None] = field(default_factory=dict)

    def tenants(self) -> list[Asked]:
        return [self._ask(path) for path in self._paths() if path.startswith("/v1/")]

    def operators(self) -> list[Asked]:
        return [self._ask(path) for path in self._paths() if not path.startswith("/v1/")]

    def _paths(self) -> list[str]:
        document = self.http.get("/openapi.json").raise_for_status().json()
        listed = (
            path
            for path, methods in document["paths"].items()
            if "get" in methods and not path.startswith(_SENDS_ON)
        )
        return sorted((*listed, *_DEARER))

    def _ask(self, path: str) -> Asked:
        asked = Asked(path, self.asker)
        filled = self._filled(path)
        if filled is None:
            asked.skipped = "nothing of it there"
            return asked
        times = []
        for _ in range(self.times + 1):
            began = time.perf_counter()
            asked.status, asked.bytes = self._answer(path, filled)
            times.append((time.perf_counter() - began) * 1000)
            if asked.bytes < 0:
                asked.skipped = "a stream"
                return asked
        asked.first_ms, asked.median_ms = times[0], median(times[1:])
        return asked

    def _answer(self, path: str, filled: str) -> tuple[int, int]:
        """Status and length; -1 of a stream, which has no end."""
        query = _QUERIES.get(path)  # None: what the path has
        with self.http.stream("GET", filled, headers=self._headers(path), params=query) as answer:
            if answer.headers.get("content-type", "").startswith("text/event-stream"):
                return answer.status_code, -1
            if any(each in path for each in _EXPORTS):
                return answer.status_code, len(next(answer.iter_bytes(), b""))
            return answer.status_code, len(answer.read())

    def _headers(self, path: str) -> dict[str, str]:
        key = self.tenant.key if path.startswith("/v1/") else self.admin_key
        return {"authorization": f"Bearer {key}"}

    def _filled(self, path: str) -> str | None:
        """With an id at each place, of the first that is listed there. None: there is none."""
        while place := _PLACE.search(path):
            value = self._value(path[: place.start()].rstrip("/"), place[1])
            if value is None:
                return None
            path = f"{path[: place.start()]}{value}{path[place.end() :]}"
        return path

    def _value(self, listed: str, name: str) -> str | None:
        if name == "tenant_id":
            return self.tenant.id
        if name == "no":
            return "1"
        if listed not in self._first:
            answer = self.http.get(listed, headers=self._headers(listed), params={"limit": 1})
            rows = answer.json().get("data") if answer.status_code == 200 else None
            self._first[listed] = rows[0] if rows else None
        row = self._first[listed]
        if row is None and name == "version":
            return "1"  # each adapter has it; nothing lists them
        if row is None:
            return None
        return str(row[name] if name in row else row["id"])
