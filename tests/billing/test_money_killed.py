"""Quarters of 50 operations whose books two workers keep at the same time, one of them killed now
and then: they agree with the plain model to the last digit. TENORA_MONEY_KILLED: how many."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from money_histories import History, histories
from money_played import FIRST, GENERAL, Played, quarters
from money_workers import WorkersMoney, two_workers
from platform_fixtures import Servers
from tenora_platform.audit.service import AuditLog
from tenora_platform.bootstrap import database_urls
from tenora_platform.db import Database
from tenora_platform.installation import DEFAULT
from tenora_platform.ledger.service import Ledger

HISTORIES = int(os.environ.get("TENORA_MONEY_KILLED", "2"))
OPERATIONS = 50


@pytest.fixture(scope="module")
async def money(servers: Servers, database_url: str) -> AsyncIterator[WorkersMoney]:
    db = Database(database_urls(database_url, servers.secret, DEFAULT))
    made = WorkersMoney(db, Ledger(servers.secret), AuditLog(servers.secret), url=database_url)
    (general,) = await made.rows("SELECT no FROM price_versions WHERE id = 'price_default'")
    made.names[general.no] = GENERAL.name
    with two_workers(made):
        yield made
    await db.close()


@settings(quarters, max_examples=HISTORIES)
@given(history=histories(FIRST, most=OPERATIONS, least=OPERATIONS), seed=st.integers(0, 2**32))
async def test_a_quarter_agrees_whoever_is_killed(
    money: WorkersMoney, history: History, seed: int
) -> None:
    money.random = Random(seed)
    played = await Played.begin(money, history)
    for step in history.steps:
        await played.step(step)
    await played.check()


async def test_workers_were_killed(money: WorkersMoney) -> None:
    assert money.killed > 0
