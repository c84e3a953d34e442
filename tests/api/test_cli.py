"""The command line: every setting is an option, mistakes read as one line, and the management
commands speak to a server that listens."""

from __future__ import annotations

import json
import re
import socket
import time
from functools import partial
from pathlib import Path

import httpx
import psycopg
import pytest
from pydantic import ValidationError

from api_harness import ADMIN_KEY
from platform_fixtures import plain_url
from shell import Listening, run
from tenora_engine.machine import Machine
from tenora_kernels import backend
from tenora_platform.admin_key import make_admin_key
from tenora_platform.app import openapi_document
from tenora_platform.cli import run as run_module
from tenora_platform.cli.adapters import parse_target, reasons
from tenora_platform.cli.doctor import check_compiler, check_cpus, check_kernels, check_memory
from tenora_platform.cli.errors import CliError
from tenora_platform.cli.run import base_url, with_model
from tenora_platform.demo import kept_admin_key, read_manifest
from tenora_platform.embedded.process import free_port
from tenora_platform.resources import default_draft_layer, examples_folder
from tenora_platform.settings import Settings, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("2GiB", 2 * 1024**3),
        ("512 MiB", 512 * 1024**2),
        ("1.5g", 1_500_000_000),
        ("2GB", 2_000_000_000),
        ("100", 100),
        (7, 7),
        ("1k", 1000),
    ],
)
def test_sizes(text: str | int, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1", "2 apples", "1e9"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        parse_size(text)


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENORA_MEMORY", "3GiB")
    monkeypatch.setenv("TENORA_PREFIX_CACHING", "false")
    monkeypatch.setenv("TENORA_MODEL", "/models/one")
    config = Settings(device="cpu").to_engine_config()
    assert config.memory_bytes == 3 * 1024**3
    assert config.prefix_caching is False
    assert config.served_name == "one"
    with pytest.raises(ValidationError):
        Settings(port=0)


def test_the_default_model_has_a_draft_layer_unless_told_otherwise(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(run_module, "default_model_folder", lambda _: tmp_path)
    monkeypatch.setattr(run_module, "check_model_folder", lambda _: None)
    ours = with_model(Settings(device="cpu")).to_engine_config()
    assert ours.draft_layer == str(default_draft_layer())
    assert ours.draft_layer_optional
    none = with_model(Settings(device="cpu", draft_layer="none")).to_engine_config()
    assert none.draft_layer is None
    assert with_model(Settings(device="cpu", model="m")).to_engine_config().draft_layer is None
    named = Settings(device="cpu", model="m", draft_layer=tmp_path / "layer").to_engine_config()
    assert named.draft_layer == str(tmp_path / "layer")
    assert not named.draft_layer_optional
    monkeypatch.setenv("TENORA_DRAFT_LAYER", "none")
    assert Settings().draft_layer == "none"


def test_what_bounds_a_step_is_the_devices_unless_said() -> None:
    cpu = Settings(device="cpu", model="m").to_engine_config()
    assert (cpu.max_running, cpu.max_step_tokens, cpu.max_prefill_chunk) == (64, 512, 256)
    gpu = Settings(device="cuda", model="m", max_step_tokens=600).to_engine_config()
    assert (gpu.max_running, gpu.max_step_tokens, gpu.max_prefill_chunk) == (256, 600, 1024)
    assert cpu.memory_bytes is None
    assert gpu.memory_bytes is None


def test_every_setting_is_an_option_with_help() -> None:
    for command in ("serve", "up", "doctor"):
        code, text = run(command, "--help")
        assert code == 0
        for name, field in Settings.model_fields.items():
            assert f"--{name.replace('_', '-')}" in text, (command, name)
            assert field.description, name


def test_mistakes_are_one_line(tmp_path: Path) -> None:
    data = ("--data-dir", str(tmp_path / "data"))
    code, text = run("serve", *data, "--memory", "lots")
    assert (code, "--memory" in text, "2GiB" in text) == (1, True, True)
    code, text = run("serve", *data, "--port", "0")
    assert (code, "--port" in text) == (1, True)
    code, text = run("serve", *data, "--model", str(tmp_path / "none"))
    assert (code, "does not exist" in text) == (1, True)
    (tmp_path / "empty").mkdir()
    code, text = run("serve", *data, "--model", str(tmp_path / "empty"))
    assert (code, "config.json" in text) == (1, True)
    (tmp_path / "empty" / "config.json").write_text("{}")
    code, text = run("serve", *data, "--model", str(tmp_path / "empty"))
    assert (code, "--load-format dummy" in text) == (1, True)
    assert not (tmp_path / "data").exists(), "nothing was started"


def test_a_taken_port_is_noticed_first(tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = str(holder.getsockname()[1])
        code, text = run("serve", "--port", port, "--data-dir", str(tmp_path / "data"))
    assert code == 1
    assert f"127.0.0.1:{port}" in text
    assert "hint:" in text
    assert "Traceback" not in text
    assert not (tmp_path / "data").exists()


def test_an_unreachable_database_is_one_line(tmp_path: Path, redis_url: str) -> None:
    url = f"postgresql://u:hidden@127.0.0.1:{free_port()}/d"
    code, text = run(
        "serve",
        *("--data-dir", str(tmp_path), "--port", str(free_port())),
        *("--database-url", url, "--redis-url", redis_url),
    )
    assert code == 1
    assert "TENORA_DATABASE_URL" in text
    assert "hidden" not in text
    assert "Traceback" not in text


def test_base_urls() -> None:
    assert base_url(Settings(host="0.0.0.0", port=80)) == "http://127.0.0.1:80"
    assert base_url(Settings(host="::", port=80)) == "http://[::1]:80"


def test_doctor(tmp_path: Path, database_url: str, redis_url: str, settings: Settings) -> None:
    assert settings.secret is not None
    environment = {
        "TENORA_DATABASE_URL": database_url,
        "TENORA_REDIS_URL": redis_url,
        "TENORA_SECRET": settings.secret.get_secret_value(),
        "TENORA_DATA_DIR": str(tmp_path),
        "TENORA_PORT": str(free_port()),
    }
    code, text = run("doctor", **environment)
    assert code == 0, text
    for word in (
        "torch",
        "device",
        "kernels",
        "compiler",
        "one API process",
        "migrated to",
        "portal",
        "chromium",
    ):
        assert word in text, word
    broken = environment | {"TENORA_REDIS_URL": f"redis://127.0.0.1:{free_port()}"}
    code, text = run("doctor", **broken)
    assert code == 1
    assert "wrong redis" in text
    (tmp_path / "a file").write_text("")
    broken = environment | {"TENORA_OBJECT_STORE": str(tmp_path / "a file")}
    code, text = run("doctor", **broken)
    assert (code, "wrong store" in text) == (1, True), text
    code, text = run("doctor", **environment, TENORA_MODEL=str(tmp_path / "none"))
    assert code == 1
    assert "wrong model" in text


def test_doctor_says_what_the_machine_lets_the_process_use(
    monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    gib = 1024**3
    machine = Machine(64, 16, 2.5, 32 * gib, 2 * gib)
    monkeypatch.setattr("tenora_platform.cli.doctor.this_machine", lambda: machine)
    asked = settings.model_copy(update={"device": "cpu", "threads": 3, "memory": gib})
    cpus = check_cpus(asked)
    assert cpus.verdict == "ok"
    for word in ("3 to be used", "64 installed", "affinity to 16", "a quota of 2.5", "3 compute"):
        assert word in cpus.text, word
    cpus = check_cpus(asked.model_copy(update={"threads": 4}))
    assert cpus.verdict == "note"
    assert "4 compute threads (TENORA_THREADS) share 3 CPUs" in cpus.text
    memory = check_memory(asked)
    assert memory.verdict == "ok"
    assert memory.text.startswith("budget 1.00 GiB; ")
    assert memory.text.endswith("32.0 GiB installed, limited to 2.00 GiB")
    verdicts = [
        check_memory(asked.model_copy(update=update)).verdict
        for update in ({"memory": 2 * gib}, {"memory": 3 * gib}, {"host_kv_memory": gib})
    ]
    assert verdicts == ["note", "wrong", "note"], "tiers on the host come on top"


def test_doctor_says_when_plain_torch_serves(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, settings: Settings
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    compiler = check_compiler(settings)
    assert (compiler.verdict, "plain torch" in compiler.text) == ("note", True)
    monkeypatch.setenv("TENORA_KERNELS", "torch")
    backend.compiled_implementation.cache_clear()
    kernels = check_kernels(settings)
    assert kernels.verdict == "note"
    assert re.search(r"cpu: torch, torch 2.*; compiled kernels: TENORA_KERNELS=torch", kernels.text)
    monkeypatch.setenv("TENORA_KERNELS", "compield")
    kernels = check_kernels(settings)
    assert kernels.verdict == "wrong"
    assert kernels.text.startswith("TENORA_KERNELS=compield is none of: compiled, torch")


def test_openapi(tmp_path: Path) -> None:
    file = tmp_path / "openapi.json"
    code, _ = run("openapi", "--out", str(file))
    assert code == 0
    document = json.loads(file.read_text())
    assert document == json.loads(json.dumps(openapi_document()))
    names = [
        operation["operationId"]
        for path in document["paths"].values()
        for operation in path.values()
    ]
    assert len(names) == len(set(names)), "operation ids are the names in generated clients"
    assert "api_keys_list_keys" in names
    assert "422" not in {
        status
        for path in document["paths"].values()
        for operation in path.values()
        for status in operation["responses"]
    }, "a bad body is 400"


def test_targets() -> None:
    assert parse_target("3") == {"version": 3, "weight": 100}
    assert parse_target("3=90") == {"version": 3, "weight": 90}
    for bad in ("", "x", "3=", "3=x", "@1"):
        if bad == "3=":
            continue
        with pytest.raises(CliError):
            parse_target(bad)
    problems = [{"field": "r", "message": "too large", "code": "c"}]
    assert reasons({"validation": {"problems": problems}}) == "r: too large"


def test_the_demo_remembers_its_admin_key(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    made = partial(make_admin_key, settings, settings.server_secret())
    first, again = kept_admin_key(settings, made), kept_admin_key(settings, made)
    assert first.admin_key is not None
    assert first.admin_key == again.admin_key
    assert (tmp_path / "admin_key").stat().st_mode & 0o777 == 0o600
    assert first.admin_key.get_secret_value() not in (tmp_path / "admin_keys").read_text()


def test_the_demo_gives_both_tenants_one_name() -> None:
    adapters = read_manifest()
    assert examples_folder().is_dir()
    by_tenant = {
        tenant: {adapter.name for adapter in adapters if adapter.tenant == tenant}
        for tenant in ("acme", "globex")
    }
    assert by_tenant["acme"] & by_tenant["globex"]


def test_managing_from_a_shell(listening: Listening, tmp_path: Path) -> None:
    where = ("--url", listening.url)
    admin = {"TENORA_ADMIN_KEY": ADMIN_KEY}
    code, text = run("tenant", "create", "shell", "--json", *where, **admin)
    assert code == 0, text
    tenant = json.loads(text)
    code, text = run("tenant", "list", *where, **admin)
    assert tenant["id"] in text, "ids are printed whole"
    code, text = run("tenant", "delete", tenant["id"], "--grace-days", "3", *where, **admin)
    assert (code, "suspended" in text) == (0, True), text
    code, text = run("tenant", "restore", tenant["id"], *where, **admin)
    assert (code, "active" in text) == (0, True), text
    code, text = run("tenant", "update", tenant["id"], "--plan", "premium", *where, **admin)
    assert "premium" in text

    own = {"TENORA_API_KEY": tenant["key"]}
    code, text = run("key", "create", "ci", "--scope", "usage", "--json", *where, **own)
    made = json.loads(text)
    assert made["scopes"] == ["usage"]
    assert made["key"].startswith("tn_")
    code, text = run("key", "list", "--tenant", tenant["id"], *where, **admin)
    assert made["id"] in text
    code, text = run("key", "revoke", made["id"], *where, **own)
    assert code == 0
    code, text = run("adapter", "list", "--json", *where, **own)
    assert (code, json.loads(text)) == (0, [])
    code, text = run("usage", "show", "--json", *where, **own)
    assert code == 0, text
    days = ("--start", "2026-01-01", "--end", "2026-03-15")  # more than a page has
    code, text = run("usage", "show", "--json", *days, *where, **own)
    assert (code, len(json.loads(text)["data"])) == (0, 73), text

    code, text = run("adapter", "push", str(tmp_path), "--name", "a", *where, **own)
    assert (code, "adapter_config.json" in text) == (1, True)
    code, text = run("tenant", "list", "--key", "wrong", *where)
    assert (code, "[401]" in text, "hint:" in text) == (1, True, True)
    code, text = run("tenant", "list", "--key", tenant["key"], *where)
    assert (code, "[403]" in text) == (1, True)
    code, text = run("tenant", "list", *where)
    assert (code, "the admin key" in text) == (1, True)
    code, text = run("tenant", "list", "--url", f"http://127.0.0.1:{free_port()}", **admin)
    assert (code, "cannot be reached" in text) == (1, True)


def test_costs_say_each_meter(listening: Listening) -> None:
    where = ("--url", listening.url)
    code, text = run("tenant", "create", "paying", "--json", *where, TENORA_ADMIN_KEY=ADMIN_KEY)
    assert code == 0, text
    key = json.loads(text)["key"]
    asked = httpx.post(
        f"{listening.url}/v1/completions",
        headers={"authorization": f"Bearer {key}"},
        json={"model": "fake-base", "prompt": "abcd", "max_tokens": 3},
    )
    assert asked.status_code == 200, asked.text
    deadline = time.monotonic() + 30
    while "output" not in text and time.monotonic() < deadline:
        code, text = run("usage", "costs", "--bucket", "1mo", *where, TENORA_API_KEY=key)
        assert code == 0, text
    assert re.search(r"output 3: 0\.0000012", text), text


def test_proofs_end_with_1_when_something_is_wrong(listening: Listening, database_url: str) -> None:
    where, admin = ("--url", listening.url), {"TENORA_ADMIN_KEY": ADMIN_KEY}
    assert run("tenant", "create", "proved", *where, **admin)[0] == 0
    code, text = run("audit", "verify", *where, **admin)
    assert (code, "True" in text) == (0, True), text
    assert run("usage", "reconcile", *where, **admin)[0] == 0
    with psycopg.connect(plain_url(database_url), autocommit=True) as owner:
        owner.execute("INSERT INTO usage_dead_letters VALUES ('lost:0', '{}', 'a surprise')")
        owner.execute("ALTER TABLE audit_logs DISABLE TRIGGER append_only")
        owner.execute("UPDATE audit_logs SET actor = 'nobody' WHERE seq = 1")
        owner.execute("ALTER TABLE audit_logs ENABLE TRIGGER append_only")
    code, text = run("usage", "reconcile", *where, **admin)
    assert (code, "lost:0 set aside a surprise" in text) == (1, True), text
    code, text = run("audit", "verify", *where, **admin)
    assert (code, "was changed" in text) == (1, True), text


def test_an_adapter_that_is_refused_says_why(listening: Listening, tmp_path: Path) -> None:
    where = ("--url", listening.url)
    _, text = run("tenant", "create", "pusher", "--json", *where, TENORA_ADMIN_KEY=ADMIN_KEY)
    key = json.loads(text)["key"]
    (tmp_path / "adapter_config.json").write_text("{}")
    (tmp_path / "adapter_model.safetensors").write_bytes(b"\0" * 16)
    code, text = run("adapter", "push", str(tmp_path), "--name", "bad", *where, TENORA_API_KEY=key)
    assert code == 1
    assert "rejected" in text or "[400]" in text
    assert "Traceback" not in text
