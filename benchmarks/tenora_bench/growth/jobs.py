"""The jobs of a platform that are linear in its books: started over HTTP, polled to their end, with
what they took and how much memory."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from tenora_bench.client import BenchError
from tenora_bench.growth.processes import peak_of, resident_kb

_POLL_S = 0.1
_MOST_S = 3600.0
_RECONCILIATION = "tenora_platform.reconciliation.proof"
_INVOICES = "/admin/v1/invoices/runs"
_VERIFICATIONS = "/admin/v1/audit_logs/verifications"
_RECONCILIATIONS = "/admin/v1/reconciliation/runs"


@dataclass
class Jobs:
    """`http` speaks as the operator; `server` and `worker` are processes."""

    http: httpx.Client
    server: int
    worker: int

    def all(self, period: str) -> list[dict[str, Any]]:
        """Raises BenchError for a job that fails and for books that do not agree."""
        return [
            self._reconcile("full"),
            self._invoices(period),
            self._reconcile("recent"),
            self._verify("full"),
            self._verify("recent"),
        ]

    def _reconcile(self, mode: str) -> dict[str, Any]:
        with peak_of(self.server, _RECONCILIATION) as peak:
            run, found = self._done(_RECONCILIATIONS, {"mode": mode})
        if not run["agrees"]:
            raise BenchError(f"the books do not agree: {run['differences']} {run['named'][:5]}")
        return {"job": f"reconciliation, {mode}", **found, "mb": peak.mb, "looked": run["looked"]}

    def _invoices(self, period: str) -> dict[str, Any]:
        run, found = self._done(_INVOICES, {"period": period, "draft": False})
        if run["failures"]:
            raise BenchError(f"invoices failed: {run['failed'][:3]}")
        return {"job": "invoices of a month", **found, "made": run["made"]}

    def _verify(self, mode: str) -> dict[str, Any]:
        run, found = self._done(_VERIFICATIONS, {"mode": mode})
        if not run["valid"]:
            raise BenchError(f"the audit log is not as it was written: {run['problems'][:5]}")
        return {"job": f"audit verification, {mode}", **found, "entries": run["total"]}

    def _done(self, path: str, body: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        """The job at its end; seconds, steps of progress that were seen, MB of the worker."""
        began, steps, mb = time.perf_counter(), set[int](), 0.0
        run = self._json(self.http.post(path, json=body))
        while run["state"] in ("waiting", "running"):
            if time.perf_counter() - began > _MOST_S:
                raise BenchError(f"{path} was not done after {_MOST_S:.0f} s: {run}")
            time.sleep(_POLL_S)
            run = self._json(self.http.get(f"{path}/{run['id']}"))
            steps.add(run.get("done", 0))
            mb = max(mb, resident_kb(self.worker) / 1024)
        if run["state"] != "done":
            raise BenchError(f"{path} failed: {run['error']}")
        seconds = time.perf_counter() - began
        return run, {"seconds": seconds, "steps": len(steps), "mb": mb}

    def _json(self, answer: httpx.Response) -> Any:
        if answer.is_error:
            raise BenchError(f"{answer.request.url} answered {answer.status_code}: {answer.text}")
        return answer.json()
