"""Two installations must not share one Redis database or object store: what one uses is marked, and
the second is told so."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from pydantic import SecretStr
from redis.asyncio import Redis

from api_harness import SECRET, Api, running_api
from platform_fixtures import MakeApi, Servers
from shell import run
from tenora_platform import marks
from tenora_platform.bootstrap import database_urls, prepare_database
from tenora_platform.cli.doctor import check_redis
from tenora_platform.embedded.process import free_port
from tenora_platform.installation import DEFAULT, Installation
from tenora_platform.marks import KEY, OBJECT, TakenError, claim_redis, claim_store, look, mark_of
from tenora_platform.redis_client import open_redis
from tenora_platform.secret import ServerSecret
from tenora_platform.settings import Settings

OURS = mark_of(DEFAULT, ServerSecret(SECRET.encode()))
GREEN = mark_of(Installation("green"), ServerSecret(b"other" * 7))
NAMESAKE = mark_of(DEFAULT, ServerSecret(b"other" * 7))


def numbered(url: str, number: int) -> str:
    """The same server's database of that number."""
    return f"{url}?db={number}" if url.startswith("unix:") else f"{url.rstrip('/')}/{number}"


async def marked(redis: Redis, mark: str) -> None:
    """Waits until the database has the mark, which a process puts there beside its requests."""
    async with asyncio.timeout(20):
        while await redis.get(KEY) != mark.encode():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.fixture
def second(servers: Servers, settings: Settings, tmp_path: Path) -> Settings:
    """Another installation, with a database and a secret of its own, on the same Redis."""
    changes = {
        "installation": "green",
        "secret": SecretStr("other" * 7),
        "data_dir": tmp_path / "data",
    }
    url = servers.new_database()
    prepare_database(database_urls(url, ServerSecret(b"other" * 7), Installation("green")))
    return settings.model_copy(update={**changes, "database_url": url})


async def test_the_second_on_a_redis_is_not_ready(
    api: Api, second: Settings, tmp_path: Path
) -> None:
    await marked(api.state.redis, OURS)
    async with running_api(second, tmp_path / "engine") as other:
        async with asyncio.timeout(20):
            while (answer := await other.http.get("/readyz")).status_code == 200:
                pass  # the mark is looked at beside requests
        said = answer.json()["reason"]
        assert "another Tenora installation" in said
        assert "TENORA_REDIS_URL" in said
        assert await other.state.redis.get(KEY) == OURS.encode()
    assert second.redis_url is not None
    alone = second.model_copy(update={"redis_url": numbered(second.redis_url, 1)})
    async with running_api(alone, tmp_path / "another") as other:
        await marked(other.state.redis, GREEN)
        assert (await other.http.get("/readyz")).status_code == 200
    assert (await api.http.get("/readyz")).status_code == 200


async def test_a_redis_that_was_emptied_is_marked_again(
    make_api: MakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(marks, "_EVERY_S", 0.02)
    async with make_api() as api:
        await marked(api.state.redis, OURS)
        await api.state.redis.delete(KEY)
        await marked(api.state.redis, OURS)


async def test_a_redis_that_is_away_says_nothing(redis_url: str) -> None:
    gone = Redis.from_url("redis://127.0.0.1:1", socket_connect_timeout=1)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await marks.keep(gone, OURS)
    claim_redis(f"redis://127.0.0.1:{free_port()}", OURS)
    await gone.aclose()


async def test_marks(servers: Servers) -> None:
    url = numbered(servers.redis_url, 2)
    async with open_redis(url) as redis:
        await redis.delete(KEY)
        claim_redis(url, GREEN)
        claim_redis(url, GREEN)
        await look(redis, GREEN)
        assert 0 < await redis.ttl(KEY) <= 7 * 24 * 3600, "it is anybody's after the last process"
        with pytest.raises(TakenError, match="'green'"):
            claim_redis(url, OURS)
        await redis.delete(KEY)
        claim_redis(url, NAMESAKE)
        with pytest.raises(TakenError, match="also named 'tenora', with another secret"):
            await look(redis, OURS)
        await redis.delete(KEY)


def test_an_object_store_is_one_installations(tmp_path: Path) -> None:
    """Two on one would each remove the other's adapters after an hour."""
    store = tmp_path / "objects"
    claim_store(str(store), OURS)
    claim_store(str(store), OURS)
    assert (store / OBJECT).read_text() == OURS
    with pytest.raises(TakenError, match=r"object store.*'tenora'.*TENORA_OBJECT_STORE"):
        claim_store(str(store), GREEN)
    claim_store(f"file://{tmp_path}/objects/green", GREEN)
    (store / OBJECT).write_bytes(b"")
    with pytest.raises(TakenError, match="the mark is empty"):
        claim_store(str(store), OURS)


def test_an_object_store_that_is_away_is_found_out_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "none")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "none")
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    claim_store("s3://bucket/prefix", OURS)


@pytest.mark.parametrize("command", ["serve", "worker", "api", "engine"])
def test_a_command_says_so_in_a_line(
    servers: Servers, base_model_dir: Path, tmp_path: Path, command: str
) -> None:
    url = numbered(servers.redis_url, 3)
    claim_redis(url, GREEN)
    options = ["--data-dir", str(tmp_path / "data"), "--redis-url", url, "--secret", SECRET]
    options += ["--database-url", servers.new_database()]
    options += ["--port", str(free_port()), "--model", str(base_model_dir), "--device", "cpu"]
    code, printed = run(command, *options)
    assert code == 1, printed
    assert "another Tenora installation, 'green'" in printed
    assert "Traceback" not in printed


def test_doctor_tells(servers: Servers, tmp_path: Path) -> None:
    url = numbered(servers.redis_url, 4)
    claim_redis(url, GREEN)
    finding = check_redis(Settings(data_dir=tmp_path, redis_url=url))
    assert finding.verdict == "wrong"
    assert "'green'" in finding.text
