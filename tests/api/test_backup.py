"""A backup that was made while the platform served becomes, on an empty machine, the same
installation with the same books."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import pytest

from api_harness import SECRET, running_api, stored_objects
from books import reconcile, record, store
from platform_fixtures import Servers
from tenora_platform.embedded.servers import running_servers
from tenora_platform.receipts.document import verify
from tenora_platform.receipts.keys import read_key_set
from tenora_platform.settings import Settings
from whole_installation import check_all, fill, noon, send_part, tables, tenora


BY_THEMSELVES = {"reconciliations", "reconciled_days"}
"""Tables in which a platform that serves writes by itself."""


@pytest.fixture
def own(settings: Settings, servers: Servers, tmp_path: Path) -> Settings:
    """An installation of this test's own."""
    changes = {"data_dir": tmp_path / "data", "database_url": servers.new_database()}
    return settings.model_copy(update=changes)


@pytest.fixture
def empty(settings: Settings, tmp_path: Path) -> Settings:
    """A machine on which nothing is: it has servers of its own."""
    changes = {"data_dir": tmp_path / "restored", "database_url": None, "redis_url": None}
    return settings.model_copy(update={**changes, "secret": None})


async def test_an_installation_is_the_same_on_an_empty_machine(
    own: Settings, empty: Settings, tmp_path: Path
) -> None:
    backup = str(tmp_path / "backup")
    async with running_api(own, tmp_path / "1") as api:
        whole = await fill(api, events=1000, adapters=20)
        kept = stored_objects(api)
        code, text = await asyncio.to_thread(tenora, own, "backup", backup, "--with-secret")
        assert code == 0, text
        assert "objects" in text
    before = tables(str(own.database_url))
    code, text = await asyncio.to_thread(tenora, empty, "restore", backup, secret=None)
    assert code == 0, text
    assert "1001 events, 2 invoices" in text
    with running_servers(empty, empty.server_secret()) as ready:
        after = tables(str(ready.database_url))
        assert len(after.pop("audit_logs")) == len(before.pop("audit_logs")) + 1
        assert {name for name in before if before[name] != after[name]} <= BY_THEMSELVES
        async with running_api(ready, tmp_path / "2") as api:
            assert stored_objects(api) == kept
            run = await reconcile(api)
            assert run["agrees"], run["named"]
            assert run["looked"]["events"] == 1001
