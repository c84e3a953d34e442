"""What processes tell each other through Redis and shared files, one by one; the e2e tests have
them all together."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest
from pydantic import SecretStr
from redis.asyncio import Redis

from api_harness import SEAL, Api
from platform_fixtures import MakeApi
from tenora_engine.transport.address import CurveKeys
from tenora_platform.background import doing
from tenora_platform.bell import Bell
from tenora_platform.cli.errors import CliError
from tenora_platform.embedded.process import EmbeddedServerError
from tenora_platform.embedded.servers import found_servers, running_servers
from tenora_platform.processes import presence as presence_module
from tenora_platform.processes.engine_address import default_endpoint, engine_address
from tenora_platform.processes.handover import Handover
from tenora_platform.processes.metrics_dir import fresh_metrics_dir
from tenora_platform.processes.presence import Presence, Process, this_process
from tenora_platform.redis_client import open_redis
from tenora_platform.secret import ServerSecret
from tenora_platform.settings import Settings


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[Redis]:
    async with open_redis(redis_url) as client:
        await client.delete("tenora:processes")
        yield client


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_who_says_nothing_any_more_is_gone(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presence_module, "SAID_S", 0.02)
    monkeypatch.setattr(presence_module, "KEPT_S", 0.5)
    worker = msgspec.structs.replace(this_process("worker"), unbilled=(3, 1))
    api = this_process("api", "api-1")
    its, ours = Presence(redis, SEAL, lambda: [worker]), Presence(redis, SEAL, lambda: [api])
    alone = asyncio.create_task(its.keep())
    keeping = asyncio.create_task(ours.keep())
    try:
        await until(lambda: [each.role for each in ours.others or []] == ["api", "worker"])
        assert ours.others == await ours.read() == [api, worker]
        alone.cancel()  # it ends in order, and says so
        await until(lambda: ours.others == [api])
        its._said = lambda: [this_process("worker", "killed")]
        await its._once()
        await until(lambda: len(ours.others or []) == 2)
        await until(lambda: ours.others == [api])
        assert ours.unbilled == (3, 1), "what a worker said last is still known"
        assert not ours.workers_missing
        monkeypatch.setattr(presence_module, "_MISSED_S", 0.0)
        assert ours.workers_missing
    finally:
        keeping.cancel()
        await asyncio.gather(alone, keeping, return_exceptions=True)


async def test_what_another_version_says_is_passed_over(redis: Redis) -> None:
    ours = Presence(redis, SEAL, lambda: [this_process("api")])
    await ours._run("x", b'{"role": "of the future"}')
    assert await ours.read() == []
    assert await redis.hlen("tenora:processes") == 1


async def test_a_worker_that_fails_or_is_missing_is_a_warning(
    make_api: MakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Presence, "_note", lambda self, others: None)
    async with make_api() as api:
        presence = api.state.presence
        ill = msgspec.structs.replace(this_process("worker"), outages={"usage": "a surprise"})
        presence.others = [ill]
        warnings = (await ready(api))["warnings"]
        assert warnings == ["Background tasks of a worker are failing: usage (a surprise)"]
        monkeypatch.setattr(presence_module, "_MISSED_S", -1.0)
        presence.others = []
        assert "No worker is running" in (await ready(api))["warnings"][0]
        presence.others = None  # Redis is away: nothing is known, and nothing is said
        assert (await ready(api))["warnings"] == []
        listed = (await api.admin("GET", "/admin/v1/processes")).json()["data"]
        assert [(each["role"], each["pid"]) for each in listed if each["pid"] == os.getpid()]


async def test_what_failed_is_told_by_its_kind() -> None:
    """Its words are for the log: `/readyz` needs no key."""
    outages: dict[str, str] = {}

    async def fails() -> None:
        raise OSError("/var/lib/tenora/objects/adapters: permission denied")

    async with doing({"collector": fails}, outages):
        async with asyncio.timeout(5):
            while not outages:  # noqa: ASYNC110 - a dictionary tells nobody
                await asyncio.sleep(0)
    assert outages == {"collector": "OSError, see the log"}


async def ready(api: Api) -> dict[str, list[str]]:
    answer = await api.http.get("/readyz")
    assert answer.status_code == 200, answer.text
    found: dict[str, list[str]] = answer.json()
    return found


async def test_a_bell_is_heard_in_another_process(redis: Redis) -> None:
    rung, heard = Bell(redis, "tenora:test"), Bell(redis, "tenora:test")
    listening = asyncio.create_task(heard.listen())
    try:
        async with asyncio.timeout(20):
            while not heard._rung.is_set():  # it may not listen yet
                rung.ring()
                await asyncio.sleep(0.02)
        heard.clear()
        await heard.wait(0.0)
        rung.ring()
        async with asyncio.timeout(20):
            await heard.wait(60)
    finally:
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)


_COUNT = """
import sys
from pathlib import Path
from tenora_platform.operations.metrics import Metrics, share_metrics
folder = Path(sys.argv[1])
share_metrics(folder, sys.argv[2])
metrics = Metrics(folder)
for _ in range(int(sys.argv[3])):
    metrics.record_request("GET", "/v1/models", 200, 0.02)
print(metrics.text().decode())
metrics.limits_local.set(1)
"""


def test_processes_count_together_and_go_on_where_they_stopped(tmp_path: Path) -> None:
    def shown(name: str, times: int) -> str:
        command = [sys.executable, "-c", _COUNT, str(tmp_path), name, str(times)]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    labels = '{method="GET",route="/v1/models",status="200"}'
    assert f"tenora_http_requests_total{labels} 3.0" in shown("api-1.0", 3)
    assert f"tenora_http_requests_total{labels} 5.0" in shown("api-2.0", 2)
    text = shown("api-1.0", 4)
    assert f"tenora_http_requests_total{labels} 9.0" in text
    assert 'tenora_http_request_seconds_count{method="GET",route="/v1/models"} 9.0' in text
    assert "tenora_engine_ready 0.0" in text
    assert "tenora_limits_local 1.0" in text, "of the other, still"
    (tmp_path / "gauge_max_api-2.0.db").unlink()
    assert "tenora_limits_local 0.0" in shown("api-1.0", 0), "its own level begins anew"
    shown("api-2.0", 0)
    kinds = {file.name.rpartition("_")[0] for file in tmp_path.iterdir()}
    assert len(list(tmp_path.iterdir())) == 2 * len(kinds), "of each kind one for each name"


def test_metrics_of_supervisors_that_ended_are_removed(tmp_path: Path) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    for name in (str(ended.pid), "1", str(os.getpid())):
        (tmp_path / "metrics" / name).mkdir(parents=True)
        (tmp_path / "metrics" / name / "counter_api-1.0.db").touch()
    (tmp_path / "metrics" / "somebody's").mkdir()
    own = fresh_metrics_dir(tmp_path)
    kept = {each.name for each in (tmp_path / "metrics").iterdir()}
    assert kept == {"1", str(os.getpid()), "somebody's"}
    assert list(own.iterdir()) == []


def test_a_part_is_given_all_settings_and_secrets_in_its_line(tmp_path: Path) -> None:
    settings = Settings(
        data_dir=tmp_path, secret=SecretStr("s3" * 16), admin_key=SecretStr("a1" * 8), memory=2**31
    )
    given = Handover("api-2", settings, engine_address(settings), tmp_path, "api-2.0", 7)
    line = given.to_line()
    assert line.count(b"\n") == 1
    taken = Handover.from_line(line)
    assert taken == given
    assert taken.settings.secret is not None
    assert taken.settings.secret.get_secret_value() == "s3" * 16


def test_parts_that_share_a_secret_find_each_other(tmp_path: Path) -> None:
    one = engine_address(Settings(data_dir=tmp_path / "a", secret=SecretStr("same" * 8)))
    two = engine_address(Settings(data_dir=tmp_path / "a", secret=SecretStr("same" * 8)))
    assert one == two
    assert one.endpoint == f"ipc://{tmp_path}/a/engine/engine.sock"
    assert (tmp_path / "a/engine").stat().st_mode & 0o777 == 0o700
    other = engine_address(Settings(data_dir=tmp_path / "a", secret=SecretStr("another" * 5)))
    assert other.token != one.token
    assert isinstance(one.keys, CurveKeys)
    assert other.keys != one.keys
    far = "tcp://gpu:7000"
    with pytest.raises(CliError, match="CURVE") as refused:
        engine_address(Settings(data_dir=tmp_path / "b", engine=far))
    assert "TENORA_SECRET" in str(refused.value.hint)
    reached = engine_address(
        Settings(data_dir=tmp_path / "b", engine=far, secret=SecretStr("s" * 32))
    )
    assert reached.endpoint == far


def test_a_long_path_has_its_socket_elsewhere_in_a_folder_of_our_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("d" * 120)
    (tmp_path / "t").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "t"))
    endpoint = default_endpoint(deep)
    assert endpoint == default_endpoint(deep)
    folder = Path(endpoint.removeprefix("ipc://")).parent
    assert folder.parent == tmp_path / "t"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    folder.chmod(0o777)
    with pytest.raises(CliError, match="to this user alone"):
        default_endpoint(deep)


def test_parts_find_the_servers_of_a_platform_that_runs(tmp_path: Path) -> None:
    secret = ServerSecret(b"k")
    settings = Settings(data_dir=tmp_path / "data")
    with pytest.raises(EmbeddedServerError, match="TENORA_DATABASE_URL"):
        found_servers(settings, secret)
    with running_servers(settings, secret) as ready:
        found = found_servers(settings, secret)
        assert found.database_url == ready.database_url
        assert found.redis_url == ready.redis_url
        named = settings.model_copy(update={"redis_url": "redis://elsewhere"})
        assert found_servers(named, secret).redis_url == "redis://elsewhere"
    with pytest.raises(EmbeddedServerError, match="TENORA_DATABASE_URL"):
        found_servers(settings, secret)


def test_records_are_json_that_others_can_read() -> None:
    record = this_process("api", "api-1")
    raw = msgspec.json.encode(record)
    assert json.loads(raw)["role"] == "api"
    assert msgspec.json.decode(raw, type=Process) == record
