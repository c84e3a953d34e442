"""docs/money.md is followed as it stands, against a platform that runs: each command works, and the
sums of each step are those of the step before, down to the signed receipt of one request."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path
from typing import Any

from running_platform import Running, RunningTenant, make_tenant

PAGE = Path(__file__).resolve().parents[2] / "docs/money.md"
_BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_EXPORT = re.compile(r"export (\w+)=")
_ROUTE = re.compile(r"\$TENORA/([^\s\"]+)")
_TENORA = f'tenora() {{ {sys.executable} -m tenora_platform.cli.main "$@"; }}\n'


def total(rows: Iterable[Any], name: str = "amount") -> Fraction:
    return sum((Fraction(row[name]) for row in rows), Fraction(0))


class Reader:
    """Who does what the page says, line after line, and reads what `export` is to be from the
    answers so far. `answers` are by route, as the page writes it."""

    def __init__(self, running: Running, tenant: RunningTenant, folder: Path) -> None:
        self.running = running
        self.tenant = tenant
        self.folder = folder
        self.known = {
            "TENORA": running.server.url,
            "ADMIN": running.server.admin_key,
            "ACME": tenant.key,
            "MONTH": f"{datetime.now(UTC):%Y-%m}",
        }
        self.answers: dict[str, Any] = {}

    def follow(self, page: str) -> None:
        for block in _BLOCK.findall(page):
            for line in block.splitlines():
                export = _EXPORT.match(line)
                if export:
                    self.known[export[1]] = self.choose(export[1])
                else:
                    self.run(line)

    def run(self, line: str) -> None:
        ran = subprocess.run(
            ["bash", "-ec", _TENORA + line],
            env={**os.environ, **self.known},
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert ran.returncode == 0, (line, ran.stdout, ran.stderr)
        if not ran.stdout.startswith("{"):
            return
        answer = json.loads(ran.stdout)
        assert "error" not in answer, (line, answer)
        route = _ROUTE.search(line)
        assert route is not None, line
        self.answers[route[1]] = answer
        if route[1] == "v1/chat/completions":
            self.wait_for_usage(answer["usage"]["completion_tokens"])

    def choose(self, name: str) -> str:
        if name == "TENANT":
            return str(self.answers["v1/me"]["tenant"]["id"])
        if name == "INVOICE":
            return str(self.answers["admin/v1/invoices/run"]["invoices"][0]["id"])
        if name == "LINE":
            return next(str(line["no"]) for line in self.lines if line["meter"] == "output")
        if name == "REQUEST":
            return str(self.behind("request")[0]["x_request_id"])
        return self.known[name]

    def wait_for_usage(self, output_tokens: int) -> None:
        """A worker stores what the engine has metered: within the second, on an idle machine."""
        for _ in range(600):
            answer = self.running.call(self.tenant.key, "GET", "/v1/usage").json()
            stored = [row for bucket in answer["data"] for row in bucket["results"]]
            if sum(row["output_tokens"] for row in stored) >= output_tokens:
                return
            time.sleep(0.1)
        raise AssertionError("what was used is not stored after a minute")

    @property
    def lines(self) -> list[Any]:
        found: list[Any] = self.answers["admin/v1/invoices/$INVOICE"]["lines"]
        return found

    def behind(self, group: str) -> list[Any]:
        route = f"admin/v1/invoices/$INVOICE/lines/$LINE?group_by={group}"
        found: list[Any] = self.answers[route]["data"]
        return found


async def test_the_page_is_true(running: Running, tmp_path: Path) -> None:
    folders = {"support": running.acme.adapters["support"]}
    tenant = await make_tenant(running.server, "reader", folders)
    reader = Reader(running, tenant, tmp_path)
    reader.follow(PAGE.read_text())
    answers = reader.answers

    costs = [
        row
        for bucket in answers["v1/costs?bucket=1mo&group_by=adapter"]["data"]
        for row in bucket["results"]
    ]
    assert {row["adapter"] for row in costs} == {"support"}
    used = total(costs)
    assert used > 0
    assert total(meter for row in costs for meter in row["meters"]) == used

    of_usage = [line for line in reader.lines if line["kind"] == "usage"]
    assert total(of_usage, "exact_amount") == used
    line = next(line for line in of_usage if line["meter"] == "output")
    for group in ("day", "adapter", "api_key", "request"):
        rows = reader.behind(group)
        assert total(rows) == Fraction(line["exact_amount"]), group
        assert sum(row["quantity"] for row in rows) == line["quantity"], group

    receipt = answers["v1/requests/$REQUEST"]
    behind = [row for row in reader.behind("request") if row["request_id"] == receipt["id"]]
    charged = [meter for meter in receipt["meters"] if meter["meter"] == "output"]
    assert total(charged) == total(behind) > 0
    assert total(receipt["meters"]) == Fraction(receipt["amount"]) == used
    assert receipt["ran"]["adapter"]["name"] == "support"

    for transaction in answers["v1/ledger"]["data"]:
        assert total(transaction["entries"]) == 0
    balances = answers["admin/v1/tenants/$TENANT/balances"]["data"]
    of = {row["account"]: Fraction(row["balance"]) for row in balances}
    assert of["unbilled"] == used
    assert sum(of.values()) == 0
    assert -of["revenue:output"] == Fraction(line["exact_amount"])
