"""What an adapter does, as a platform that really runs reports it: against transformers + peft; an
evaluation whose worker is killed on the way; and books that agree with all of it."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from peft_reference import Reference
from running_platform import make_tenant
from tenora_bench.adapters import AdapterSpec, write_adapter
from tenora_bench.server import ServerUnderTest, serve
from tenora_platform.probing.asking import KL_NOISE, POSITIONS

PATIENCE_S = 240.0
WORKS, IDLE = "works", "idle"


@dataclass(frozen=True)
class Platform:
    server: ServerUnderTest
    key: str
    reference: Reference

    def call(self, method: str, path: str, *, admin: bool = False, **more: Any) -> Any:
        key = self.server.admin_key if admin else self.key
        headers = {"authorization": f"Bearer {key}"}
        answer = httpx.request(
            method, f"{self.server.url}{path}", headers=headers, timeout=60, **more
        )
        assert answer.is_success, answer.text
        return answer.json()

    def wait(self, path: str, until: Callable[[Any], bool], *, admin: bool = False) -> Any:
        deadline_s = time.monotonic() + PATIENCE_S
        while not until(found := self.call("GET", path, admin=admin)):
            assert time.monotonic() < deadline_s, found
            time.sleep(0.2)
        return found


@pytest.fixture(scope="module")
async def made(
    base_model_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Platform]:
    root = tmp_path_factory.mktemp("report")
    folders = {}
    for number, (name, strength) in enumerate({WORKS: 0.3, IDLE: 0.0}.items()):
        folders[name] = root / name
        write_adapter(folders[name], base_model_dir, AdapterSpec(name, 8, number, strength))
    options = ["--dtype", "float32", "--workers", "2", "--probe-adapters"]
    with serve(root / "data", base_model_dir, options) as server:
        tenant = await make_tenant(server, "acme", folders)
        yield Platform(server, tenant.key, Reference(base_model_dir, folders))


@pytest.fixture
def platform(made: Platform) -> Platform:
    return made


def exact_kl(reference: Reference, adapter: str, prompt: str) -> list[float]:
    """KL(base || adapter) of the whole distributions at each of the first tokens of the base's
    greedy answer."""
    tokenizer, model = reference.tokenizer, reference.model
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": prompt}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )["input_ids"]
    model.set_adapter(adapter)
    found = []
    with torch.inference_mode():
        for _ in range(POSITIONS):
            theirs = torch.log_softmax(model(ids).logits[0, -1].double(), -1)
            with model.disable_adapter():
                base = torch.log_softmax(model(ids).logits[0, -1].double(), -1)
            found.append(float((base.exp() * (base - theirs)).sum()))
            ids = torch.cat([ids, base.argmax().reshape(1, 1)], 1)
    return found


def test_the_report_against_transformers(platform: Platform) -> None:
    path = f"/v1/adapters/{WORKS}/versions/1/report"
    found = platform.wait(path, lambda report: report["probe"] == "done")
    assert found["warnings"] == []
    findings = found["findings"]
    assert findings["differs"] is True
    assert findings["footprint"]["pages"] > 0
    assert any(load["how"] == "measured" and load["ms"] for load in findings["loads"])
    for sample in findings["samples"][:2]:
        exact = exact_kl(platform.reference, WORKS, sample["prompt"])
        for bound, true in zip(sample["kl"], exact, strict=False):
            assert 0.3 * true - 1e-3 <= bound <= true + 1e-3, (sample["kl"], exact)
        short = platform.reference.chat(None, sample["prompt"], 24)
        assert sample["base_answer"].startswith(short)
        theirs = platform.reference.chat(WORKS, sample["prompt"], 24)
        assert sample["answer"].startswith(theirs)


def test_one_of_zeros_is_warned_of(platform: Platform) -> None:
    path = f"/v1/adapters/{IDLE}/versions/1/report"
    found = platform.wait(path, lambda report: report["probe"] == "done")
    assert found["state"] == "active"
    assert {each["code"] for each in found["warnings"]} >= {"no_effect_measured"}
    assert found["findings"]["kl_max"] < KL_NOISE / 10
    assert {value for row in found["picture"]["product"] for value in row} == {0.0}
    assert found["storage"] is None or found["storage"]["kb_hours"] > 0


def test_loglikelihood_against_transformers(platform: Platform) -> None:
    prompt, expected = "The capital of France is", " Paris, of course."
    items = [{"prompt": prompt, "expected": expected}]
    body: dict[str, Any] = {"adapter": WORKS, "versions": ["base", 1], "items": items}
    body["scoring"] = "loglikelihood"
    run = platform.call("POST", "/v1/evaluations", json=body)
    ended = platform.wait(f"/v1/evaluations/{run['id']}", lambda run: run["ended_at"])
    assert ended["state"] == "completed", ended
    tokenizer, model = platform.reference.tokenizer, platform.reference.model
    before = tokenizer(prompt)["input_ids"]
    wanted = tokenizer(expected, add_special_tokens=False)["input_ids"]
    ids = torch.tensor([before + wanted])
    model.set_adapter(WORKS)
    with torch.inference_mode():
        theirs = torch.log_softmax(model(ids).logits[0].double(), -1)
        with model.disable_adapter():
            base = torch.log_softmax(model(ids).logits[0].double(), -1)
    for result, logprobs in zip(ended["results"], (base, theirs), strict=True):
        places = range(len(before) - 1, len(before) + len(wanted) - 1)
        sums = sum(float(logprobs[at, token]) for at, token in zip(places, wanted, strict=True))
        assert result["score"] == pytest.approx(sums, abs=2e-3)


def test_a_killed_worker_goes_on_and_nobody_pays_twice(platform: Platform) -> None:
    lines = [
        json.dumps({"prompt": f"{number} plus one is", "expected": str(number + 1)})
        for number in range(24)
    ]
    body = {"adapter": WORKS, "versions": ["base", 1], "scoring": "contains", "max_tokens": 16}
    run = platform.call("POST", "/v1/evaluations", json={**body, "items": "\n".join(lines)})
    path = f"/v1/evaluations/{run['id']}"

    def answered(found: Any) -> int:
        return sum(result["answered"] for result in found["results"])

    platform.wait(path, lambda found: answered(found) >= 4)
    processes = platform.call("GET", "/admin/v1/processes", admin=True)["data"]
    [worker] = [each for each in processes if each["role"] == "worker"]
    os.kill(worker["pid"], signal.SIGKILL)
    platform.wait(path, lambda found: found["ended_at"] is not None)
    ended = platform.call("GET", path)
    assert ended["state"] == "completed", ended
    assert answered(ended) == 48
    request_ids: list[str] = []
    for after in (-1, 11):
        page = platform.call("GET", f"{path}/items?limit=12&after={after}")
        for item in page["data"]:
            assert len(item["answers"]) == 2
            for each in item["answers"]:
                request_ids += each["request_ids"]
    assert 44 <= len(set(request_ids)) == len(request_ids) <= 48, "at most four were cut off"
    reconcile = platform.call("POST", "/admin/v1/reconciliation/runs", admin=True, json={})
    proof = platform.wait(
        f"/admin/v1/reconciliation/runs/{reconcile['id']}",
        lambda run: run["state"] not in ("waiting", "running"),
        admin=True,
    )
    assert proof["agrees"] is True, proof
