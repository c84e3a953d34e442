"""Uploads, checks, deletions and sweeps in any order, each of which may die at any touch of the
store or the database: what is active is whole at any time, and in the end registry, store, spool
and quota agree. `tenora bench uploads` does the same to processes."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import obstore
import pytest
from hypothesis import HealthCheck, Phase
from hypothesis import settings as given_settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import text

from adapter_files import adapter_config, adapter_form, adapter_tensors, safetensors
from api_harness import Api, TestTenant, running_api, stored_objects
from tenora_engine.adapters.identity import config_key, weights_key
from tenora_engine.config import ModelInfo
from tenora_platform.db import Database
from tenora_platform.intake.check import CheckedAdapter, check_open_adapter
from tenora_platform.intake.checker import Checker, CheckLostError
from tenora_platform.registry import repository
from tenora_platform.registry.collector import Collector
from tenora_platform.registry.worker import ATTEMPTS_MAX, IntakeWorker
from tenora_platform.settings import Settings
from tenora_platform.state import AppState, EngineLife

T = TypeVar("T")
PLAN_BYTES = 40_000
LATE = timedelta(seconds=-60)  # a grace time that has passed for all there is
deaths = st.none() | st.integers(0, 40)
names = st.sampled_from(["a", "b", "c"])


class DeadError(ConnectionError):
    """The process is dead: nothing that it does from here on has an effect."""


class Mortal:
    """Counts touches of store and database; dies at the one that it is told, for as long as the
    operation lasts: what would clean up after an exception has no effect either."""

    def __init__(self) -> None:
        self.left: int | None = None
        self.lose_check = False

    def touch(self) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise DeadError

    @contextlib.contextmanager
    def dying(self, after: int | None) -> Iterator[None]:
        self.left = after
        try:
            yield
        finally:
            self.left = None


def make_mortal(mortal: Mortal, patch: pytest.MonkeyPatch) -> None:
    for name in ("put_async", "get_async", "head_async", "delete_async"):
        patch.setattr(obstore, name, _touching(mortal, getattr(obstore, name)))
    for name in ("tenant_session", "admin_session"):
        patch.setattr(Database, name, _session(mortal, getattr(Database, name)))


def _touching(mortal: Mortal, plain: Callable[..., Any]) -> Callable[..., Any]:
    async def touched(*args: Any, **more: Any) -> Any:
        mortal.touch()
        answer = await plain(*args, **more)
        mortal.touch()
        return answer

    return touched


def _session(mortal: Mortal, plain: Callable[..., Any]) -> Callable[..., Any]:
    @asynccontextmanager
    async def session(*args: Any) -> AsyncIterator[Any]:
        mortal.touch()
        async with plain(*args) as found:
            yield found
            mortal.touch()  # before the commit
        mortal.touch()

    return session


class Here(Checker):
    """The check in this process; it may be lost."""

    def __init__(self, mortal: Mortal) -> None:
        super().__init__()
        self._mortal = mortal

    async def check(
        self, config: bytes, weights: BinaryIO, model: ModelInfo, max_rank: int
    ) -> CheckedAdapter:
        if self._mortal.lose_check:
            raise CheckLostError("killed")
        weights.seek(0)
        return check_open_adapter(config, weights, model, max_rank)


@dataclasses.dataclass
class World:
    """What all examples share: one application, whose own worker checks nothing."""

    runner: asyncio.Runner
    api: Api
    mortal: Mortal

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(coroutine)

    @property
    def state(self) -> AppState:
        life, checker = EngineLife(started=True), Here(self.mortal)
        return dataclasses.replace(self.api.state, engine_life=life, checker=checker)


class Crashes(RuleBasedStateMachine):
    world: World

    def __init__(self) -> None:
        super().__init__()
        self.tenant: TestTenant = self.world.run(self.world.api.new_tenant("c", plan="crashes"))
        self.taken: dict[str, bool] = {}  # version -> whether it is a good one
        self.uploads: list[str] = []
        self.interrupted = 0  # checks that may have begun and not come to their end

    async def call(self, method: str, path: str, **more: Any) -> dict[str, Any] | None:
        """The answer; None where it was refused or the process died."""
        with contextlib.suppress(DeadError):
            answer = await self.world.api.call(self.tenant.key, method, path, **more)
            return dict(answer.json()) if answer.status_code < 300 else None
        return None

    def does(self, death: int | None, doing: Coroutine[Any, Any, T]) -> T | None:
        with self.world.mortal.dying(death), contextlib.suppress(DeadError):
            return self.world.run(doing)
        return None

    @rule(name=names, seed=st.integers(0, 3), good=st.booleans(), death=deaths)
    def upload(self, name: str, seed: int, good: bool, death: int | None) -> None:
        files = adapter_form(self.world.api.engine.model, name, seed=seed)
        if not good:
            files["weights"] = ("adapter_model.safetensors", files["weights"][1][: -seed - 1])
        made = self.does(death, self.call("POST", "/v1/adapters", files=files))
        if made is not None:
            self.taken[made["id"]] = good

    @rule(seed=st.integers(0, 3), death=deaths)
    def begin(self, seed: int, death: int | None) -> None:
        weights = safetensors(adapter_tensors(self.world.api.engine.model, seed=seed))
        size = {"bytes": len(weights)}
        made = self.does(death, self.call("POST", "/v1/uploads", json=size))
        if made is not None:
            self.uploads.append(made["id"])
            path = f"/v1/uploads/{made['id']}/parts"
            self.does(death, self.call("POST", path, files={"data": weights}))

    @rule(place=st.integers(0, 9), name=names, death=deaths)
    def use(self, place: int, name: str, death: int | None) -> None:
        if not self.uploads:  # how many there are hangs on when something died
            return
        upload = self.uploads[place % len(self.uploads)]
        parts = (self.world.run(self.call("GET", f"/v1/uploads/{upload}")) or {}).get("parts", [])
        ids = {"part_ids": [part["id"] for part in parts]}
        self.does(death, self.call("POST", f"/v1/uploads/{upload}/complete", json=ids))
        form = {"name": name, "adapter_config": json.dumps(adapter_config()), "upload_id": upload}
        files = {key: (None, value) for key, value in form.items()}
        made = self.does(death, self.call("POST", "/v1/adapters", files=files))
        if made is not None:
            self.taken[made["id"]] = True

    @rule(place=st.integers(0, 9), death=deaths)
    def cancel(self, place: int, death: int | None) -> None:
        if not self.uploads:
            return
        upload = self.uploads[place % len(self.uploads)]
        self.does(death, self.call("POST", f"/v1/uploads/{upload}/cancel"))

    @rule(name=names, death=deaths)
    def delete(self, name: str, death: int | None) -> None:
        self.does(death, self.call("DELETE", f"/v1/adapters/{name}"))

    @rule(death=deaths, lost=st.booleans())
    def work(self, death: int | None, lost: bool) -> None:
        if lost or death is not None:
            self.interrupted += 1
        if self.interrupted >= ATTEMPTS_MAX:  # one more, and a good version is refused by design
            death, lost = None, False
        worker = IntakeWorker(self.world.state, release_after=LATE)
        self.world.mortal.lose_check = lost
        self.does(death, worker.run_once())
        self.world.mortal.lose_check = False

    @rule(death=deaths)
    def sweep(self, death: int | None) -> None:
        self.does(death, Collector(self.world.api.state, grace=LATE).sweep())

    @invariant()
    def what_is_active_is_whole(self) -> None:
        there = stored_objects(self.world.api)
        digests = [digest for _, state, digest, _ in self.versions() if state == "active"]
        assert {key(each) for each in digests for key in (config_key, weights_key)} <= there

    def versions(self) -> list[tuple[str, str, str, int]]:
        async def read() -> list[Any]:
            async with self.world.api.state.db.admin_session() as session:
                query = "select id, state, digest, bytes from adapter_versions"
                mine = text(f"{query} where tenant_id = :tenant")
                return list(await session.execute(mine, {"tenant": self.tenant.id}))

        return self.world.run(read())

    def teardown(self) -> None:
        """All processes live again, and time passes."""
        self.world.run(self._settle())
        versions = self.versions()
        states = {version: state for version, state, _, _ in versions}
        for version, good in self.taken.items():
            allowed = ("active", "revoked") if good else ("rejected", "revoked")
            assert states[version] in allowed, "what was taken was neither lost nor mistaken"
        counted = self.world.run(self._counted())
        assert counted == sum(size for _, state, _, size in versions if state == "active")
        there = stored_objects(self.world.api)
        digests = {digest for _, state, digest, _ in versions if state == "active"}
        owned = {key(each) for each in digests for key in (config_key, weights_key)}
        assert there == owned
        spool = self.world.api.state.settings.spool_folder
        assert not list(spool.glob("*"))
        self.world.run(self._forget())

    async def _settle(self) -> None:
        async with self.world.api.state.db.admin_session() as session:
            await session.execute(text("update uploads set expires_at = now()"))
            # Five lost checks refuse a version, as they should; here they are many on purpose.
            await session.execute(text("update adapter_versions set check_attempts = 0"))
            # And so many objects left by crashes stop a sweep.
            await session.execute(text("update database_identity set sweep_all = true"))
        worker = IntakeWorker(self.world.state, release_after=LATE)
        while await worker.run_once():
            continue
        await Collector(self.world.api.state, grace=LATE).sweep()

    async def _counted(self) -> int:
        async with self.world.api.state.db.admin_session() as session:
            return await repository.stored_bytes(session, self.tenant.id)

    async def _forget(self) -> None:
        """For the next example."""
        for name in ("a", "b", "c"):
            await self.call("DELETE", f"/v1/adapters/{name}")
        await self._settle()
        assert stored_objects(self.world.api) == set()


@pytest.fixture
def world(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    mortal = Mortal()
    make_mortal(mortal, monkeypatch)
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        api = runner.run(stack.enter_async_context(running_api(settings, tmp_path)))
        api.state.engine_life.started = False
        runner.run(api.put_plan("crashes", {"adapter_bytes": PLAN_BYTES}))
        yield World(runner, api, mortal)
        runner.run(stack.aclose())


def test_registry_store_and_quota_agree_whatever_dies(world: World) -> None:
    class Machine(Crashes):
        pass

    Machine.world = world
    run_state_machine_as_test(
        Machine,
        settings=given_settings(
            max_examples=25,
            stateful_step_count=25,
            phases=(Phase.generate,),  # to shrink what real servers do takes minutes
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
