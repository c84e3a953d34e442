"""Staged roll-outs: on by time and by requests, back by themselves where a version does worse, and
neither while Redis is away."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from redis.exceptions import ConnectionError

from adapter_files import adapter_form
from api_harness import Api, TestTenant
from fake_engine import FakeEngine, default_answer
from platform_fixtures import MakeApi
from tenora_engine.errors import InvalidRequestError
from tenora_engine.events import SequenceEvent
from tenora_engine.request import GenerationRequest
from tenora_platform.evaluations.worker import EvaluationWorker
from tenora_platform.registry.worker import IntakeWorker
from tenora_platform.rollouts.keeper import RolloutKeeper

ALIAS = "/v1/adapters/bot/aliases/prod"
CHAT = [{"role": "user", "content": "x"}]
HOUR = timedelta(hours=1)


_run = RolloutKeeper.run


@pytest.fixture(scope="module", autouse=True)
def keeper_of_its_own() -> Iterator[None]:
    """The applications' own keepers do nothing: the tests look when it is time."""

    async def nothing(_: RolloutKeeper) -> None:
        await asyncio.Event().wait()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RolloutKeeper, "run", nothing)
        yield


class Adapters:
    """Two versions of `bot`, both on their way to the engine as digests."""

    def __init__(self, tenant: TestTenant, digests: Sequence[str]) -> None:
        self.tenant, self.key = tenant, tenant.key
        self.old, self.new = digests


@pytest.fixture
async def bot(api: Api) -> Adapters:
    return await made(api, "rollouts")


async def made(api: Api, name: str) -> Adapters:
    """A tenant whose `bot@prod` is version 1, and which has a version 2."""
    tenant = await api.new_tenant(name, plan="premium")
    for seed in (1, 2):
        files = adapter_form(api.engine.model, "bot", seed=seed)
        await api.call(tenant.key, "POST", "/v1/adapters", files=files)
    digests = []
    async with asyncio.timeout(30):
        for version in (1, 2):
            path = f"/v1/adapters/bot/versions/{version}"
            while (found := (await api.call(tenant.key, "GET", path)).json())["state"] != "active":
                await IntakeWorker(api.state).run_once()
            digests.append(found["digest"])
    body = {"targets": [{"version": 1, "weight": 100}]}
    assert (await api.call(tenant.key, "PUT", ALIAS, json=body)).status_code == 200
    return Adapters(tenant, digests)


async def begin(api: Api, bot: Adapters, stages: list[Any], **guard: Any) -> Any:
    body = {"version": 2, "stages": stages, "guard": guard, "reason": "trained anew"}
    answer = await api.call(bot.key, "POST", f"{ALIAS}/rollout", json=body)
    assert answer.status_code == 201, answer.text
    return answer.json()


async def rollout(api: Api, bot: Adapters) -> Any:
    return (await api.call(bot.key, "GET", f"{ALIAS}/rollout")).json()


async def weights(api: Api, bot: Adapters) -> dict[int, int]:
    (alias,) = (await api.call(bot.key, "GET", "/v1/adapters/bot/aliases")).json()["data"]
    return {target["version"]: target["weight"] for target in alias["targets"]}


async def ask(api: Api, bot: Adapters, count: int, model: str = "bot") -> list[int]:
    """Statuses of so many requests, each of another user."""
    asked = [
        api.call(
            bot.key,
            "POST",
            "/v1/chat/completions",
            json={
                "model": model,
                "user": f"user {at}",
                "messages": [{"role": "user", "content": "x"}],
            },
        )
        for at in range(count)
    ]
    answers = [answer.status_code for answer in await asyncio.gather(*asked)]
    await api.state.outcomes.flush()
    return answers


def fails_for(engine: FakeEngine, *digests: str) -> None:
    """Sequences with these adapters fail, as they do whose weights cannot be read."""
    sound = type(engine)._sequence

    async def sequence(request: GenerationRequest, index: int) -> AsyncIterator[SequenceEvent]:
        if request.adapter is not None and request.adapter.digest in digests:
            raise RuntimeError("the fake engine fails on this adapter")
        async for event in sound(engine, request, index):
            yield event

    engine._sequence = sequence  # type: ignore[method-assign]


def slow_for(engine: FakeEngine, digest: str, seconds: float) -> None:
    """With this adapter the first token comes late."""
    sound = type(engine)._sequence

    async def sequence(request: GenerationRequest, index: int) -> AsyncIterator[SequenceEvent]:
        slow = request.adapter is not None and request.adapter.digest == digest
        await asyncio.sleep(seconds if slow else 0.005)
        async for event in sound(engine, request, index):
            yield event

    engine._sequence = sequence  # type: ignore[method-assign]


@pytest.fixture(autouse=True)
def sound_engine(api: Api) -> None:
    vars(api.engine).pop("_sequence", None)
    api.engine.refusal = None


@pytest.fixture
def keeper(api: Api) -> RolloutKeeper:
    return RolloutKeeper(api.state)


async def test_on_by_time_to_the_end(api: Api, bot: Adapters, keeper: RolloutKeeper) -> None:
    stages = [{"percent": 5, "after_s": 100}, {"percent": 25, "after_s": 100}, {"percent": 100}]
    begun = await begin(api, bot, stages)
    assert begun["state"] == "running"
    assert await weights(api, bot) == {1: 95, 2: 5}
    now = datetime.now(UTC)
    await keeper.run_once(now + timedelta(seconds=50))
    assert await weights(api, bot) == {1: 95, 2: 5}
    for after, expected in ((101, {1: 75, 2: 25}), (202, {2: 100}), (225, {2: 100})):
        await keeper.run_once(now + timedelta(seconds=after))
        assert await weights(api, bot) == expected
    assert (await rollout(api, bot))["state"] == "running"  # the last stage is watched
    await keeper.run_once(now + timedelta(seconds=270))
    ended = await rollout(api, bot)
    assert (ended["state"], ended["stage"], ended["percent"]) == ("completed", 2, 100)
    history = (await api.call(bot.key, "GET", f"{ALIAS}/history")).json()["data"]
    assert [(each["action"], each["rollout_id"] == ended["id"]) for each in history] == [
        ("rollout.advance", True),
        ("rollout.advance", True),
        ("rollout.begin", True),
        ("put", False),
    ]
    back = await api.call(bot.key, "POST", f"{ALIAS}/rollback")  # all of it, not one stage
    assert back.json()["targets"] == [{"version": 1, "weight": 100}]


async def test_on_by_requests_of_its_own(api: Api, bot: Adapters, keeper: RolloutKeeper) -> None:
    await begin(api, bot, [{"percent": 50, "after_requests": 30}, {"percent": 100}])
    later = datetime.now(UTC) + HOUR
    await ask(api, bot, 30)
    await keeper.run_once(later)
    assert await weights(api, bot) == {1: 50, 2: 50}  # half of them were its own
    await ask(api, bot, 60)
    await keeper.run_once(later)
    assert await weights(api, bot) == {2: 100}


async def test_back_when_it_fails(api: Api, bot: Adapters, keeper: RolloutKeeper) -> None:
    endpoint = {"url": "https://example.com/h", "types": ["rollout.rolled_back"]}
    await api.call(bot.key, "POST", "/v1/webhook_endpoints", json=endpoint)
    await begin(api, bot, [{"percent": 50, "after_s": 3600}, {"percent": 100}], min_requests=10)
    fails_for(api.engine, bot.new)
    statuses = await ask(api, bot, 14)
    assert 500 in statuses
    seen = (await rollout(api, bot))["numbers"]["version"]["requests"]
    await ask(api, bot, 40)
    await keeper.run_once()
    ended = await rollout(api, bot)
    assert ended["state"] == "rolled_back"
    assert "requests failed (100.0%)" in ended["reason"]
    numbers = ended["numbers"]
    assert numbers["version"]["requests"] == numbers["version"]["errors"] > seen
    assert numbers["before"]["errors"] == 0
    assert await weights(api, bot) == {1: 100}
    late = await api.call(bot.key, "POST", f"{ALIAS}/rollback")  # by who has seen it, too
    assert late.json()["error"]["code"] == "nothing_to_roll_back"
    assert await weights(api, bot) == {1: 100}
    assert set(await ask(api, bot, 30)) == {200}
    (event,) = (await api.call(bot.key, "GET", "/v1/events?type=rollout.rolled_back")).json()[
        "data"
    ]
    assert event["data"]["numbers"] == numbers
    assert event["data"]["adapter"] == "bot"
    (change, *_) = (await api.call(bot.key, "GET", f"{ALIAS}/history")).json()["data"]
    assert (change["action"], change["actor"]) == ("rollout.roll_back", "rollout")
    assert "failed" in change["reason"]
    audit = (await api.admin("GET", f"/admin/v1/audit_logs?tenant={bot.tenant.id}")).json()["data"]
    assert "rollout.roll_back" in [entry["action"] for entry in audit]


async def test_back_when_it_scores_less(api: Api, bot: Adapters, keeper: RolloutKeeper) -> None:
    """By an evaluation that ended while it was rolled out; one without both sides says nothing."""
    await begin(api, bot, [{"percent": 5, "after_s": 3600}, {"percent": 100}], score_drop=0.1)
    api.engine.answer = lambda request, _: (
        "no" if request.adapter and request.adapter.digest == bot.new else "yes"
    )
    try:
        for versions, state in ((["base", 2], "running"), ([1, 2], "rolled_back")):
            body = {"adapter": "bot", "versions": versions, "scoring": "exact"}
            items = {"items": [{"prompt": "Is it?", "expected": "yes"}]}
            made = await api.call(bot.key, "POST", "/v1/evaluations", json=body | items)
            path = f"/v1/evaluations/{made.json()['id']}"
            async with asyncio.timeout(30):
                while (await api.call(bot.key, "GET", path)).json()["ended_at"] is None:
                    await EvaluationWorker(api.state).run_once()
            await keeper.run_once()
            ended = await rollout(api, bot)
            assert ended["state"] == state, ended
    finally:
        api.engine.answer = default_answer
    assert "its score in eval_" in ended["reason"]
    assert await weights(api, bot) == {1: 100}


async def test_back_when_it_is_slow(api: Api, bot: Adapters, keeper: RolloutKeeper) -> None:
    await begin(api, bot, [{"percent": 50, "after_s": 3600}], min_requests=10, ttft_ratio=3)
    slow_for(api.engine, bot.new, 0.3)
    assert set(await ask(api, bot, 60)) == {200}
    await keeper.run_once()
    ended = await rollout(api, bot)
    assert ended["state"] == "rolled_back", ended
    assert "time to the first token" in ended["reason"]
    assert ended["numbers"]["version"]["ttft_ms"] > 270
    assert await weights(api, bot) == {1: 100}


async def test_what_the_client_did_is_no_error(
    api: Api, bot: Adapters, keeper: RolloutKeeper
) -> None:
    await begin(api, bot, [{"percent": 50, "after_s": 3600}], min_requests=1, error_rate=0)
    api.engine.refusal = InvalidRequestError("not so")
    assert set(await ask(api, bot, 20)) == {400}
    api.engine.refusal = None
    api.engine.gate = asyncio.Event()
    leaving = asyncio.create_task(ask(api, bot, 20))
    while len(api.engine.requests) < 20:  # noqa: ASYNC110 - the engine sets no event
        await asyncio.sleep(0.01)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    api.engine.gate = None
    await api.state.outcomes.flush()
    numbers = (await rollout(api, bot))["numbers"]
    assert numbers["version"]["errors"] == numbers["before"]["errors"] == 0
    await keeper.run_once()
    assert (await rollout(api, bot))["state"] == "running"


async def test_as_bad_as_before_is_no_reason(
    api: Api, bot: Adapters, keeper: RolloutKeeper
) -> None:
    await begin(api, bot, [{"percent": 50, "after_s": 3600}], min_requests=10)
    fails_for(api.engine, bot.new, bot.old)
    assert set(await ask(api, bot, 60)) == {500}
    await keeper.run_once()
    assert (await rollout(api, bot))["state"] == "running"


async def test_neither_on_nor_back_without_redis(
    api: Api, bot: Adapters, keeper: RolloutKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    await begin(api, bot, [{"percent": 50, "after_s": 60}, {"percent": 100}], min_requests=10)
    fails_for(api.engine, bot.new)
    await ask(api, bot, 60)
    now = datetime.now(UTC)

    async def away(*_: object) -> Any:
        raise ConnectionError("away")

    with monkeypatch.context() as patch:
        patch.setattr(api.state.outcomes, "between", away)
        await keeper.run_once(now + timedelta(seconds=90))
        held = await rollout(api, bot)
        assert (held["state"], held["stage"]) == ("running", 0)
        assert held["held"] == "Redis does not answer: away"
        assert held["numbers"] is None
    await keeper.run_once(now + timedelta(seconds=91))
    ended = await rollout(api, bot)
    assert (ended["state"], ended["held"]) == ("rolled_back", None)


async def test_a_stages_time_stands_still_while_it_is_held(
    api: Api, bot: Adapters, keeper: RolloutKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    await begin(api, bot, [{"percent": 50, "after_s": 60}, {"percent": 100}])
    now = datetime.now(UTC)

    async def away(*_: object) -> Any:
        raise ConnectionError("away")

    with monkeypatch.context() as patch:
        patch.setattr(api.state.outcomes, "between", away)
        await keeper.run_once(now + timedelta(seconds=30))
    await keeper.run_once(now + timedelta(seconds=200))
    assert (await rollout(api, bot))["stage"] == 0
    await keeper.run_once(now + timedelta(seconds=232))
    assert (await rollout(api, bot))["stage"] == 1


async def test_revoked_on_its_way(api: Api, bot: Adapters, keeper: RolloutKeeper) -> None:
    await begin(api, bot, [{"percent": 50, "after_s": 60}, {"percent": 100}])
    await api.call(bot.key, "DELETE", "/v1/adapters/bot/versions/2")
    await keeper.run_once()
    ended = await rollout(api, bot)
    assert (ended["state"], ended["reason"]) == ("rolled_back", "version 2 is no longer active")
    assert await weights(api, bot) == {1: 100}


async def test_nowhere_to_go_back_to(api: Api, bot: Adapters, keeper: RolloutKeeper) -> None:
    await begin(api, bot, [{"percent": 50, "after_s": 60}, {"percent": 100}])
    await api.call(bot.key, "DELETE", "/v1/adapters/bot/versions/1")
    await api.call(bot.key, "DELETE", "/v1/adapters/bot/versions/2")
    await keeper.run_once()
    assert "no earlier version is active" in (await rollout(api, bot))["held"]
    await api.call(bot.key, "DELETE", "/v1/adapters/bot")
    await keeper.run_once()


async def test_cancelled_and_in_the_way(api: Api, bot: Adapters) -> None:
    stages = [{"percent": 50, "after_s": 60}, {"percent": 100}]
    assert (await api.call(bot.key, "POST", f"{ALIAS}/rollout/cancel")).status_code == 404
    assert (await api.call(bot.key, "GET", f"{ALIAS}/rollout")).status_code == 404
    await begin(api, bot, stages)
    body: dict[str, Any] = {"version": 2, "stages": stages}
    second = await api.call(bot.key, "POST", f"{ALIAS}/rollout", json=body)
    assert second.json()["error"]["code"] == "rollout_running"
    targets = {"targets": [{"version": 2, "weight": 100}]}
    put = await api.call(bot.key, "PUT", ALIAS, json=targets)
    assert put.json()["error"]["code"] == "rollout_running"
    done = await api.call(bot.key, "POST", f"{ALIAS}/rollout/cancel", json={"reason": "not yet"})
    assert (done.json()["state"], done.json()["reason"]) == ("cancelled", "not yet")
    assert await weights(api, bot) == {1: 100}
    await begin(api, bot, stages)
    back = await api.call(bot.key, "POST", f"{ALIAS}/rollback")  # by hand, at once
    assert back.json()["targets"] == [{"version": 1, "weight": 100}]
    assert (await rollout(api, bot))["state"] == "cancelled"
    assert (await api.call(bot.key, "PUT", ALIAS, json=targets)).status_code == 200
    everybody = await api.call(bot.key, "POST", f"{ALIAS}/rollout", json=body)
    assert everybody.status_code == 409


@pytest.mark.parametrize(
    "wrong",
    [
        {"version": 9},
        {"stages": []},
        {"stages": [{"percent": 50, "after_s": 1}, {"percent": 5}]},
        {"stages": [{"percent": 5}, {"percent": 50}]},
        {"stages": [{"percent": 0, "after_s": 1}]},
        {"guard": {"ttft_ratio": 1}},
        {"guard": {"min_requests": 0}},
    ],
)
async def test_bad_plans(api: Api, bot: Adapters, wrong: dict[str, Any]) -> None:
    body = {"version": 2, "stages": [{"percent": 100}], **wrong}
    answer = await api.call(bot.key, "POST", f"{ALIAS}/rollout", json=body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"]


async def test_a_bad_version_is_taken_back_under_load(api: Api, make_api: MakeApi) -> None:
    """Two processes on one Redis, each with a keeper. Requests of another tenant's alias run beside
    it and none of them fails."""
    bot, other = await made(api, "bad"), await made(api, "other")
    async with make_api() as second:
        for process in (api, second):
            fails_for(process.engine, bot.new)
        stop = asyncio.Event()
        theirs: list[int] = []
        mine: list[tuple[float, int]] = []

        async def load(process: Api, adapters: Adapters, seen: Any) -> None:
            at = 0
            while not stop.is_set():
                at += 1
                answer = await process.call(
                    adapters.key,
                    "POST",
                    "/v1/chat/completions",
                    json={
                        "model": "bot@prod",
                        "user": f"{id(process)} {at}",
                        "messages": CHAT,
                    },
                )
                seen(answer.status_code)
                await asyncio.sleep(0.02)

        def note(status: int) -> None:
            mine.append((time.monotonic(), status))

        loads = [
            asyncio.create_task(load(process, adapters, seen))
            for process in (api, second)
            for adapters, seen in ((bot, note), (other, theirs.append))
        ]
        keepers = [asyncio.create_task(_run(RolloutKeeper(each.state))) for each in (api, second)]
        stages = [{"percent": 20, "after_s": 600}, {"percent": 100}]
        await begin(api, bot, stages, min_requests=20)
        async with asyncio.timeout(60):
            while (await rollout(api, bot))["state"] == "running":  # noqa: ASYNC110
                await asyncio.sleep(0.2)
        taken_back_s = time.monotonic()
        await asyncio.sleep(0.5)
        stop.set()
        await asyncio.gather(*loads)
        for task in keepers:
            task.cancel()
        vars(second.engine).pop("_sequence")
    failed = [at for at, status in mine if status != 200]
    assert (await rollout(api, bot))["state"] == "rolled_back"
    assert len(failed) >= 20
    assert taken_back_s - failed[19] < 30  # measured: about 3 s
    assert max(failed) < taken_back_s + 0.3
    assert set(theirs) == {200}
    assert len(theirs) > 100
