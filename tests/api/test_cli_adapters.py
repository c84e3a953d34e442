"""`tenora adapter` from a shell: what would be refused is not sent, what was found is said; and the
small courtesies of the command line."""

from __future__ import annotations

import importlib.metadata
import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from adapter_files import adapter_config, adapter_tensors, safetensors
from api_harness import ADMIN_KEY, Api, TestTenant
from draft_files import draft_file, draft_tensors
from fake_engine import FakeEngine
from shell import Listening, run
from tenora_platform.cli.client import server_url
from tenora_platform.cli.errors import CliError
from trainers import sharded, with_files


@pytest.fixture
def key(listening: Listening) -> str:
    words = ("tenant", "create", "pusher", "--json", "--url", listening.url)
    code, text = run(*words, TENORA_ADMIN_KEY=ADMIN_KEY)
    assert code == 0, text
    return str(json.loads(text)["key"])


def write(folder: Path, engine: FakeEngine, zero: bool = False, **changes: Any) -> Path:
    """A PEFT folder; `zero` makes its matrices B zero."""
    tensors = adapter_tensors(engine.model)
    if zero:
        tensors = {
            name: (dtype, shape, bytes(len(data)) if "lora_B" in name else data)
            for name, (dtype, shape, data) in tensors.items()
        }
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(adapter_config(**changes)))
    (folder / "adapter_model.safetensors").write_bytes(safetensors(tensors))
    return folder


def adapter(listening: Listening, key: str, *words: str) -> tuple[int, str]:
    return run("adapter", *words, "--url", listening.url, TENORA_API_KEY=key)


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("../bad", {}, "[400]"),
        ("fake-base", {}, "base model's id"),
        ("wide", {"r": 200}, "rank 200 is above this server's maximum of 128"),
        ("dora", {"use_dora": True}, "adapter_config.use_dora"),
        ("other", {"target_modules": ["q_proj", "k_proj"]}, "4 of the 8 matrices"),
    ],
)
def test_what_would_be_refused_is_not_sent(
    listening: Listening, key: str, tmp_path: Path, name: str, changes: dict[str, Any], words: str
) -> None:
    folder = write(tmp_path / "adapter", listening.engine, **changes)
    code, text = adapter(listening, key, "push", str(folder), "--name", name)
    assert code == 1
    assert words in text, text
    assert "uploading" not in text
    assert "Traceback" not in text
    assert json.loads(adapter(listening, key, "list", "--json")[1]) == []


def test_warnings_and_reasons_are_printed(listening: Listening, key: str, tmp_path: Path) -> None:
    folder = write(
        tmp_path / "adapter", listening.engine, zero=True, base_model_name_or_path="someone/else-7b"
    )
    code, text = adapter(listening, key, "push", str(folder), "--name", "quiet")
    assert code == 0, text
    assert "quiet@1 is active" in text
    for words in (
        "warning: adapter_config.base_model_name_or_path: names the base model 'someone/else-7b'",
        "warning: weights: every product of the matrices is zero",
    ):
        assert words in text, text
    file = folder / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:-4] + b"\x00\x00\xc0\x7f")  # NaN: no header tells
    code, text = adapter(listening, key, "push", str(folder), "--name", "quiet")
    assert (code, "contains NaN or infinity" in text) == (1, True), text
    code, text = adapter(listening, key, "show", "quiet")
    assert code == 0
    assert "quiet@2 problem: " in text
    assert "quiet@1 warning: weights: every product" in text


def test_pickled_weights_can_be_converted_as_told(
    listening: Listening, key: str, tmp_path: Path
) -> None:
    folder = write(tmp_path / "adapter", listening.engine)
    file = folder / "adapter_model.safetensors"
    tensors = load_file(file)
    torch.save(tensors, folder / "adapter_model.bin")
    file.unlink()
    code, text = adapter(listening, key, "push", str(folder), "--name", "pickled")
    assert code == 1
    assert "pickled weights, which Tenora never loads" in text
    command = shlex.split(text[text.index("python -c") :])
    subprocess.run([sys.executable, *command[1:3]], check=True, timeout=120)
    converted = load_file(file)
    assert converted.keys() == tensors.keys()
    assert all(torch.equal(converted[name], tensors[name]) for name in tensors)
    assert adapter(listening, key, "push", str(folder), "--name", "pickled")[0] == 0


def test_weights_in_several_files_are_sent_as_one(
    listening: Listening, key: str, tmp_path: Path
) -> None:
    folder = write(tmp_path / "adapter", listening.engine)
    assert adapter(listening, key, "push", str(folder), "--name", "whole")[0] == 0
    sharded(folder, 3)
    with_files(folder, "README.md", "checkpoint-7/optimizer.pt")
    code, text = adapter(listening, key, "push", str(folder), "--name", "sharded")
    assert code == 0, text
    assert "not sent: README.md, checkpoint-7/" in text
    listed = json.loads(adapter(listening, key, "list", "--json")[1])
    whole, merged = (each["validation"]["facts"] for each in listed)
    assert whole.pop("weight_bytes") > 0
    assert merged.pop("weight_bytes") > 0
    assert whole == merged


def test_a_draft_layer_is_sent_with_its_adapter(
    listening: Listening, key: str, tmp_path: Path
) -> None:
    folder = write(tmp_path / "adapter", listening.engine)
    layer = draft_file(draft_tensors(listening.engine.model))
    (folder / "draft_layer.safetensors").write_bytes(layer)
    code, text = adapter(listening, key, "push", str(folder), "--name", "quick")
    assert code == 0, text
    assert "not sent" not in text
    (listed,) = json.loads(adapter(listening, key, "list", "--json")[1])
    assert listed["versions"][0]["draft_layer"]["bytes"] == len(layer)
    (folder / "draft_layer.safetensors").write_bytes(layer[:-2])
    code, text = adapter(listening, key, "push", str(folder), "--name", "quick")
    assert code == 1
    assert "draft_layer: the tensors end at byte" in " ".join(text.split())


def test_the_version_and_help() -> None:
    assert run("--version") == (0, f"tenora {importlib.metadata.version('tenora')} ")
    for words in ((), ("adapter",), ("adapter", "push"), ("serve",), ("key", "create"), ("bench",)):
        code, text = run(*words, "-h")
        assert (code, "Usage:" in text) == (0, True), words


def test_cuda_without_cuda_gets_a_hint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    data = ("--data-dir", str(tmp_path / "data"), "--port", "18765")
    code, text = run("serve", *data, "--device", "cuda")
    assert (code, "--device cuda" in text, "hint:" in text) == (1, True, True), text
    assert "torch" in text
    assert not (tmp_path / "data").exists(), "nothing was started"


def test_an_address_as_clients_of_openai_have_it(listening: Listening, key: str) -> None:
    for ending in ("/v1", "/v1/", "/"):
        code, text = run("adapter", "list", "--url", listening.url + ending, TENORA_API_KEY=key)
        assert code == 0, text
    with pytest.raises(CliError, match="not the address"):
        server_url("localhost:8000")
    code, text = run("adapter", "list", "--url", "localhost:8000", TENORA_API_KEY=key)
    assert (code, "hint:" in text) == (1, True)


@pytest.fixture
async def tenant(api: Api) -> TestTenant:
    return await api.new_tenant("preflight")


async def test_preflight_says_what_the_upload_will(api: Api, tenant: TestTenant) -> None:
    weights = safetensors(adapter_tensors(api.engine.model))
    length = 8 + int.from_bytes(weights[:8], "little")

    async def ask(**changes: Any) -> Any:
        form: dict[str, Any] = {
            "name": (None, "later"),
            "adapter_config": json.dumps(adapter_config()).encode(),
            "header": weights[:length],
            "weights_bytes": (None, str(len(weights))),
        }
        parts = {part: data for part, data in (form | changes).items() if data is not None}
        return await api.call(tenant.key, "POST", "/v1/adapters/preflight", files=parts)

    good = (await ask()).json()
    assert (good["accepted"], good["rank"]) == (True, 4)
    assert good["target_modules"] == ["q_proj", "v_proj"]
    short = (await ask(weights_bytes=(None, str(len(weights) - 1)))).json()
    assert [each["code"] for each in short["validation"]["problems"]] == ["size_mismatch"]
    cut = (await ask(header=weights[: length - 1])).json()
    assert [each["code"] for each in cut["validation"]["problems"]] == ["truncated"]
    for part, bad in (
        ("name", (None, "../x")),
        ("weights_bytes", (None, "many")),
        ("header", None),
        ("adapter_config", None),
    ):
        answer = await ask(**{part: bad})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, part)
    assert (await ask(weights_bytes=(None, str(10**14)))).status_code == 413
    assert (await api.call(tenant.key, "GET", "/v1/adapters")).json()["data"] == []
