"""Who reads a wall clock, and why: everything else measures by one that never jumps."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]

_OF_TIME = {"time", "time_ns", "localtime", "gmtime", "ctime", "asctime"}
_OF_DATES = {"now", "utcnow", "today"}

STORED = """a moment in a row that people read, or a day or month of the calendar that it opens"""
COMPARED = """a moment in a row beside others of the calendar: expiry dates, windows, retention"""
SHOWN = """a moment in an answer or a page"""
NAMED = """ids that sort by time, and buckets by minute in Redis, summed and never subtracted"""
FILES = """beside the times of files, which the system gives by its wall clock"""

PLATFORM = {
    STORED: """
        audit/service backup/making budgets/true_up canary/rounds cli/books cli/growth_chains
        cli/growth_fill cli/money_fill
        cli/portal_bench erasure/service evaluations/service invoices/parties invoices/runs
        invoices/service invoices/worker jobs/worker ledger/poster ledger/service live/since
        operators/service
        processes/presence receipts/service registry/damage rejections/keeper rollouts/aliases
        tenants/key_service tenants/service webhooks/delivery webhooks/service
        billing/price_book billing/prices billing/routes budgets/account budgets/alerts
        budgets/grants budgets/service forecasts/routes invoices/export_routes
        invoices/routes probing/costs tenants/routes usage/books usage/engine_totals
        usage/partitions usage/service usage/storage usage/tenant_cost_routes
        usage/tenant_costs
    """,
    COMPARED: """
        canary/tenants erasure/worker evaluations/worker history/sampler history/window kept_keys
        jobs/repository ledger/expiry people/repository people/service people/sessions
        probing/service
        probing/worker receipts/contents_repository receipts/search receipts/signing
        reconciliation/repository reconciliation/service registry/collector registry/forgetting
        registry/listing rejections/sweeper retention
        registry/service registry/store_identity registry/trash registry/uploads registry/worker
        rollouts/keeper rollouts/service tenants/repository waits/sampler waits/service
    """,
    SHOWN: """
        inference/responses/answer inference/session live/payloads live/wire
    """,
    NAMED: "ids history/answers memory/history rollouts/outcomes",
    FILES: "registry/spool",
}


def readers(package: Path) -> Iterator[str]:
    """The modules that read a wall clock, without their suffix."""
    for path in package.rglob("*.py"):
        tree = ast.parse(path.read_text())
        if any(_reads(node) for node in ast.walk(tree)):
            yield path.relative_to(package).with_suffix("").as_posix()


def _reads(node: ast.AST) -> bool:
    if isinstance(node, ast.ImportFrom):
        return node.module == "time" and any(each.name in _OF_TIME for each in node.names)
    if not isinstance(node, ast.Attribute):
        return False
    of = node.value.attr if isinstance(node.value, ast.Attribute) else ""
    of = node.value.id if isinstance(node.value, ast.Name) else of
    return (of == "time" and node.attr in _OF_TIME) or (
        of in ("datetime", "date") and node.attr in _OF_DATES
    )


def test_one_module_of_the_engine_reads_the_wall_clock() -> None:
    assert list(readers(ROOT / "engine" / "tenora_engine")) == ["clocks"]


def test_the_kernels_read_none() -> None:
    assert list(readers(ROOT / "kernels" / "tenora_kernels")) == []


def test_who_in_the_platform_reads_it_says_why() -> None:
    """A new one belongs under one of the reasons, or measures by `time.monotonic`."""
    said = [name for names in PLATFORM.values() for name in names.split()]
    assert len(said) == len(set(said)), "one reason each"
    assert sorted(readers(ROOT / "platform" / "tenora_platform")) == sorted(said)


def test_a_wall_clock_is_seen_however_it_is_read() -> None:
    for code in (
        "time.time()",
        "clock=time.time",
        "time.time_ns()",
        "datetime.now(UTC)",
        "datetime.datetime.now()",
        "date.today()",
        "from time import time",
    ):
        assert any(_reads(node) for node in ast.walk(ast.parse(code))), code
    for code in ("time.monotonic()", "from time import monotonic", "self.now(at)", "func.now()"):
        assert not any(_reads(node) for node in ast.walk(ast.parse(code))), code
