"""Entries that are missing at the end of a chain are missed, whoever took them out and whatever was
put back with them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import psycopg
import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from api_harness import Api
from platform_fixtures import MakeApi, Servers, plain_url
from tenora_platform.audit import repository
from tenora_platform.audit.tables import AuditRow
from tenora_platform.audit.verification import BEGINNING
from tenora_platform.audit.witness import Witness
from verification import problems_of

PATIENCE_S = 30.0  # only a hang takes as long


async def verdict(api: Api) -> str | None:
    return next(iter(await problems_of(api.state)), None)


def changed_by_hand(database_url: str, statement: str, *values: object) -> Any:
    """As somebody whom no trigger and no policy stops. The first value of what is asked for."""
    with psycopg.connect(plain_url(database_url), autocommit=True) as link:
        link.execute("SET session_replication_role = replica")
        found = link.execute(statement.encode(), values)
        row = found.fetchone() if found.description else None
    return None if row is None else row[0]


@pytest.fixture
async def own(make_api: MakeApi, servers: Servers) -> AsyncIterator[tuple[Api, str]]:
    """A platform of its own, whose log nobody mends afterwards."""
    url = servers.new_database()
    async with make_api(database_url=url) as api:
        yield api, url


REMOVED = "DELETE FROM audit_logs WHERE chain = %s AND seq > %s"


async def test_entries_that_are_missing_at_the_end_are_missed(own: tuple[Api, str]) -> None:
    """Also once others have been written after them."""
    api, url = own
    tenant = await api.new_tenant("cut")
    changed_by_hand(url, REMOVED, tenant.id, 1)
    problem = f"chain {tenant.id} ends with entry 1, and entry 2 was written"
    assert await verdict(api) == problem
    await api.admin("PATCH", f"/admin/v1/tenants/{tenant.id}", json={"name": "cut off"})
    assert await verdict(api) == f"entry 2 of chain {tenant.id} is missing: found 3"


async def test_a_chain_that_is_missing_is_missed(own: tuple[Api, str]) -> None:
    """With what is kept of its end, too: a tenant has one."""
    api, url = own
    tenant = await api.new_tenant("gone")
    changed_by_hand(url, REMOVED, tenant.id, 0)
    assert f"chain {tenant.id} ends with entry 0" in str(await verdict(api))
    changed_by_hand(url, "DELETE FROM audit_heads WHERE chain = %s", tenant.id)
    assert await verdict(api) == f"tenant {tenant.id} has no audit log"


async def test_an_end_that_is_moved_is_noticed(own: tuple[Api, str]) -> None:
    api, url = own
    tenant = await api.new_tenant("moved")
    changed_by_hand(url, REMOVED, tenant.id, 1)
    changed_by_hand(
        url,
        "UPDATE audit_heads SET seq = 1, hash = (SELECT hash FROM audit_logs WHERE chain = %s) "
        "WHERE chain = %s",
        tenant.id,
        tenant.id,
    )
    assert await verdict(api) == f"the kept end of chain {tenant.id} was modified"
    await api.admin("PATCH", f"/admin/v1/tenants/{tenant.id}", json={"name": "moved on"})
    assert await verdict(api) == f"the kept end of chain {tenant.id} was modified"


async def test_what_is_written_while_the_log_is_verified_is_no_fault(
    own: tuple[Api, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a later entry nor a chain that has begun meanwhile."""
    api, _ = own
    tenant = await api.new_tenant("meanwhile")
    read = repository.next_entries

    async def read_slowly(session: AsyncSession, chain: str, *args: Any) -> list[AuditRow]:
        if chain == "operator":
            await api.new_tenant("begun meanwhile")
        rows = await read(session, chain, *args)
        await api.admin("PATCH", f"/admin/v1/tenants/{tenant.id}", json={"name": "later"})
        return rows

    monkeypatch.setattr(repository, "next_entries", read_slowly)
    assert await api.state.audit.verify(api.state.db.admin_session) == []


async def verified(api: Api, mode: str = "full") -> dict[str, Any]:
    """A verification by a worker, once it is done."""
    path = "/admin/v1/audit_logs/verifications"
    asked = await api.admin("POST", path, json={"mode": mode})
    assert asked.status_code == 202, asked.text
    job: dict[str, Any] = asked.json()
    async with asyncio.timeout(PATIENCE_S):
        while job["state"] in ("waiting", "running"):
            await asyncio.sleep(0.05)
            job = (await api.admin("GET", f"{path}/{job['id']}")).json()
    assert job["state"] == "done", job
    return job


async def test_a_worker_verifies_in_parts(
    own: tuple[Api, str], witness: Witness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chain at a time, in batches: what is wrong is found as by one walk."""
    monkeypatch.setattr("tenora_platform.audit.verify_job.STEP_S", 0.0)
    monkeypatch.setattr("tenora_platform.audit.verify_job.TENANTS_AT_ONCE", 2)
    monkeypatch.setattr("tenora_platform.audit.verification.BATCH", 2)
    api, url = own
    tenants = [await api.new_tenant(f"t{number}") for number in range(4)]
    right = await verified(api)
    assert (right["valid"], right["problems"]) == (True, [])
    assert right["done"] == right["total"], "all entries and all tenants' ledgers"
    changed = "UPDATE audit_logs SET actor = 'nobody' WHERE chain = %s AND seq = %s"
    changed_by_hand(url, changed, tenants[2].id, 2)
    changed_by_hand(url, REMOVED, tenants[3].id, 1)
    found = await verified(api)
    assert (found["valid"], found["problem_count"]) == (False, 2)
    assert found["problem"] == found["problems"][0]
    assert "was changed after it was written" in found["problem"]
    assert tenants[3].id in found["problems"][1]


async def test_a_recent_verification_reads_what_is_new(
    own: tuple[Api, str], witness: Witness
) -> None:
    """Up to where a chain was found right is remembered under a seal; a full one reads it all."""
    api, url = own
    tenant = await api.new_tenant("grows")
    assert (await verified(api))["valid"]
    assert (await verified(api, "recent"))["done"] == 0
    await api.admin("PATCH", f"/admin/v1/tenants/{tenant.id}", json={"name": "grown"})
    assert (await verified(api, "recent"))["done"] == 1
    await api.admin("PATCH", f"/admin/v1/tenants/{tenant.id}", json={"name": "again"})
    changed_by_hand(
        url, "UPDATE audit_logs SET actor = 'x' WHERE chain = %s AND seq = 1", tenant.id
    )
    assert (await verified(api, "recent"))["valid"], "an entry of before"
    assert not (await verified(api))["valid"]

    other = await api.new_tenant("pretends")
    changed_by_hand(url, "UPDATE audit_logs SET actor = 'x' WHERE chain = %s AND seq = 1", other.id)
    changed_by_hand(
        url,
        "INSERT INTO audit_verified SELECT chain, seq, hash, seal FROM audit_heads WHERE chain = "
        "%s",
        other.id,
    )
    found = await verified(api, "recent")
    assert other.id in found["problem"], "nobody else can say that a chain was verified"


async def test_a_verification_keeps_nobody_from_writing(
    own: tuple[Api, str], witness: Witness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it is behind the operator's chain and within a tenant's, both are written to."""
    api, _ = own
    await api.put_plan("before", {})
    tenant = await api.new_tenant("busy")
    inside, may_go_on = asyncio.Event(), asyncio.Event()
    read = repository.next_entries

    async def read_slowly(session: AsyncSession, chain: str, *args: Any) -> list[AuditRow]:
        rows = await read(session, chain, *args)
        if chain == tenant.id:
            inside.set()
            await may_go_on.wait()
        return rows

    monkeypatch.setattr(repository, "next_entries", read_slowly)
    verification = asyncio.create_task(verified(api))
    await asyncio.wait_for(inside.wait(), PATIENCE_S)
    await api.put_plan("meanwhile", {})
    path = f"/admin/v1/tenants/{tenant.id}"
    assert (await api.admin("PATCH", path, json={"name": "busier"})).status_code == 200
    may_go_on.set()
    assert (await verification)["valid"]


async def test_a_verification_goes_on_within_a_chain(
    own: tuple[Api, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch at a time, without reading one twice; only where a seal says how far it was."""
    api, url = own
    monkeypatch.setattr("tenora_platform.audit.verification.BATCH", 2)
    tenant = await api.new_tenant("long")
    for number in range(6):
        await api.admin("PATCH", f"/admin/v1/tenants/{tenant.id}", json={"name": f"n{number}"})
    verifier, sessions = api.state.audit.verifier, api.state.db.admin_session

    async def walk(place: Mapping[str, Any]) -> tuple[list[Mapping[str, Any]], int, list[str]]:
        places, entries, problems = list[Mapping[str, Any]](), 0, list[str]()
        at: Mapping[str, Any] | None = place
        while at is not None:
            part = await verifier.part(sessions, at, 0.0)
            at, entries = part.place, entries + part.entries
            problems += part.problems
            places += [] if at is None else [at]
        return places, entries, problems

    count = int(changed_by_hand(url, "SELECT count(*) FROM audit_logs"))
    places, entries, problems = await walk(BEGINNING)
    assert (entries, problems) == (count, [])
    within = [each for each in places if each.get("chain") == tenant.id]
    assert [each["seq"] for each in within] == [2, 4, 6, 8], "8 entries: the tenant, its key, 6"
    changed = "UPDATE audit_logs SET actor = 'x' WHERE chain = %s AND seq = %s"
    changed_by_hand(url, changed, tenant.id, 3)
    _, entries, problems = await walk(BEGINNING)
    assert (entries, len(problems)) == (count, 1), "named once, and counted to its end"
    _, entries, problems = await walk({**within[1], "seal": within[0]["seal"]})
    assert (entries, len(problems)) == (8, 1), "from its beginning, where the place is not ours"


@pytest.fixture
async def witness(own: tuple[Api, str]) -> AsyncIterator[Witness]:
    """Works by hand: the store is not this database's, and no worker copies."""
    api, _ = own
    witness = Witness(api.state.objects, api.state.secret)
    await witness.forget()
    yield witness
    await witness.forget()


async def test_what_is_put_back_as_it_was_before_is_noticed(
    own: tuple[Api, str], witness: Witness
) -> None:
    """Entries and their end from an hour ago, seal and all: the object store has a later end."""
    api, url = own
    tenant = await api.new_tenant("put back")
    put_back = end_of(url, tenant.id)
    await api.admin("PATCH", f"/admin/v1/tenants/{tenant.id}", json={"name": "a deed"})
    assert await witness.copy_once(api.state.db) == []
    put_back()
    other = await api.new_tenant("meanwhile")
    assert await witness.copy_once(api.state.db) == [], "its entries are there"
    seq = int(changed_by_hand(url, "SELECT max(seq) FROM audit_logs WHERE chain = %s", tenant.id))
    changed_by_hand(url, REMOVED, tenant.id, seq - 1)
    problem = f"entry {seq} of chain {tenant.id} is missing, which was copied"
    assert await verdict(api) == problem
    assert await witness.copy_once(api.state.db) == [problem], "and the copy stays"
    changed_by_hand(url, REMOVED, other.id, 0)
    assert len(await witness.copy_once(api.state.db)) == 2, "others' ends go on"


async def test_an_end_that_is_removed_stays_in_the_copy(
    own: tuple[Api, str], witness: Witness
) -> None:
    api, url = own
    await api.put_plan("kept", {})
    assert await witness.copy_once(api.state.db) == []
    changed_by_hand(url, "DELETE FROM audit_heads WHERE chain = 'operator'")
    problem = "the kept end of chain operator is missing"
    assert await witness.copy_once(api.state.db) == [problem]
    assert await verdict(api) == problem
    changed_by_hand(url, REMOVED, "operator", 0)
    assert "of chain operator is missing, which was copied" in str(await verdict(api))


async def test_a_copy_of_another_database_is_said_to_be_one(
    own: tuple[Api, str], witness: Witness
) -> None:
    """Whoever can write to the database can say that it is another: that takes no copy away."""
    api, url = own
    await api.new_tenant("elsewhere")
    assert await witness.copy_once(api.state.db) == []
    changed_by_hand(url, "UPDATE database_identity SET id = id || 'x'")
    changed_by_hand(url, "TRUNCATE audit_logs, audit_heads, tenants CASCADE")
    assert "is of the database" in str(await verdict(api))


def end_of(url: str, chain: str) -> Callable[[], object]:
    """What puts the chain's kept end back as it is now."""
    with psycopg.connect(plain_url(url)) as link:
        query = "SELECT seq, hash, seal FROM audit_heads WHERE chain = %s"
        kept = link.execute(query, (chain,)).fetchone()
    assert kept is not None
    statement = "UPDATE audit_heads SET seq = %s, hash = %s, seal = %s WHERE chain = %s"
    return lambda: changed_by_hand(url, statement, *kept, chain)
