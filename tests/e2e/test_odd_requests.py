"""Whatever one tenant or the operator sends to a platform that really runs: no answer is a failure,
another tenant's next request has the same answer as ever, the engine is the one that was there, and
`/readyz` says so. TENORA_ODD_EXAMPLES asks for more examples than the suite's few, and `-s` shows
how long the other tenant waited."""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from described import document
from odd_adapters import forms, plans, preflight_of
from odd_bodies import any_requests, bodies, document_of, near, texts, values
from running_platform import Running
from steady_stream import SteadyStream
from tenora_bench.adapters import linear_shapes
from tenora_bench.client import Management
from tenora_bench.kills.platform import children

PATIENCE_S = 2.0  # how long the odd client waits before it hangs up
OTHERS_S = 20.0  # the promise is a second; the suite's cores are shared
EXAMPLES = int(os.environ.get("TENORA_ODD_EXAMPLES", "0"))
FAULTS = ("internal_error", "engine_error", "engine_unavailable")

DOCUMENT = document()


def few(examples: int) -> settings:
    """The same examples each time, and none is made smaller: each costs a request."""
    return settings(
        max_examples=EXAMPLES or examples,
        derandomize=not EXAMPLES,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


@dataclass
class Beside:
    """A tenant whose requests are odd, and one who asks the same small thing after each."""

    running: Running
    key: str
    tenant: str
    engine: list[int]
    pool: ThreadPoolExecutor
    answer: str = ""
    waits_s: list[float] = field(default_factory=list)
    statuses: dict[int, int] = field(default_factory=dict)

    def send(self, method: str, path: str, key: str = "", **request: Any) -> httpx.Response | None:
        """None: the client hung up before the answer was whole."""
        url = f"{self.running.server.url}{path}"
        headers = {"authorization": f"Bearer {key or self.key}", **request.pop("headers", {})}
        started, parts = time.monotonic(), []
        try:
            with httpx.stream(method, url, headers=headers, timeout=60, **request) as answer:
                for part in answer.iter_bytes():
                    parts.append(part)
                    if time.monotonic() - started > PATIENCE_S and answer.status_code == 200:
                        return None
                whole = httpx.Response(answer.status_code, content=b"".join(parts))
        except httpx.TimeoutException:
            return None
        self.statuses[whole.status_code] = self.statuses.get(whole.status_code, 0) + 1
        return whole

    def ask(self) -> None:
        """The other tenant's request."""
        body = {
            "model": "support",
            "messages": [{"role": "user", "content": "Name a colour."}],
            "max_tokens": 4,
            "temperature": 0,
        }
        sent = time.monotonic()
        reply = self.running.call(
            self.running.globex.key, "POST", "/v1/chat/completions", json=body
        )
        self.waits_s.append(time.monotonic() - sent)
        assert reply.status_code == 200, reply.text
        text = reply.json()["choices"][0]["message"]["content"]
        self.answer = self.answer or text
        assert text == self.answer, "the other tenant's answer changed"

    def check(self) -> None:
        """The other tenant is served, as correctly as when alone, by the same engine."""
        self.ask()
        assert self.waits_s[-1] < OTHERS_S
        ready = httpx.get(f"{self.running.server.url}/readyz", timeout=OTHERS_S)
        assert ready.status_code == 200, ready.text
        assert children(self.running.server.pid or 0, "tenora-engine") == self.engine, (
            "the engine died"
        )

    def say(self, model: str, **more: Any) -> httpx.Response | None:
        body = {"model": model, "prompt": "Once", "max_tokens": 4, **more}
        return self.send("POST", "/v1/completions", json=body)


@pytest.fixture(scope="module")
def beside(running: Running) -> Iterator[Beside]:
    with watched(running) as made:
        yield made


@contextmanager
def watched(running: Running) -> Iterator[Beside]:
    assert running.admin("PUT", "/admin/v1/plans/odd", json={}).is_success
    body = {"name": "odd", "plan": "odd"}
    tenant = running.admin("POST", "/admin/v1/tenants", json=body).json()["id"]
    path = f"/admin/v1/tenants/{tenant}/api_keys"
    key = running.admin("POST", path, json={}).json()["key"]
    engine = children(running.server.pid or 0, "tenora-engine")
    assert len(engine) == 1
    log = running.data_dir / "server.log"
    before = log.stat().st_size
    with ThreadPoolExecutor(4) as pool:
        made = Beside(running, key, tenant, engine, pool)
        made.ask()  # alone, and it loads the adapter
        made.waits_s.clear()
        yield made
    waits = sorted(made.waits_s)
    print(
        f"\nafter {len(waits)} odd requests (answers {made.statuses}) the other tenant waited"
        f" {statistics.median(waits):.2f} s (median), {waits[-1]:.2f} s (worst)"
    )
    written = log.read_text(errors="replace")[before:]
    assert "Traceback" not in written, written[-6000:]


def check_answer(answer: httpx.Response | None, sent: object) -> None:
    """Whole and well-formed, or an error of OpenAI's shape that is not the server's fault."""
    if answer is None:
        return
    about = f"{answer.status_code} {answer.text[:2000]}\nto {str(sent)[:3000]}"
    assert answer.status_code < 500 or answer.status_code in (503, 507), about
    if answer.status_code >= 400:
        check_error(answer.json(), about)
    elif answer.text.startswith("data: "):
        chunks = answer.text.removesuffix("\n\n").split("\n\n")
        for chunk in chunks[:-1]:
            said = strictly(chunk.removeprefix("data: "))
            if "error" in said:
                check_error(said, about)
        assert chunks[-1] == "data: [DONE]" or "error" in chunks[-1], about
    elif answer.text.startswith("event: "):  # of /v1/responses and /v1/messages
        events = [strictly(line[6:]) for line in answer.text.splitlines() if line[:6] == "data: "]
        if events[-1]["type"] in ("message_stop", "error"):
            if events[-1]["type"] == "error":
                check_error(events[-1], about)
            return
        last = events[-1]["response"]
        assert last["status"] in ("completed", "incomplete", "failed"), about
        assert (last["error"] or {}).get("code") not in FAULTS, about
    else:
        strictly(answer.text)


def check_error(said: Any, about: str) -> None:
    assert said["error"].keys() == {"message", "type", "param", "code"}, about
    assert said["error"]["message"], about
    assert said["error"]["code"] not in FAULTS, about


def strictly(text: str) -> Any:
    """JSON as other languages read it: no NaN."""

    def refuse(word: str) -> Any:
        raise AssertionError(f"{word} in {text[:2000]}")

    return json.loads(text, parse_constant=refuse)


MODELS = [
    "support",
    "no-such",
    "support@prod",
    "@",
    "",
    "a" * 300,
    "\0",
    "\ud800",
    "support@" + "9" * 30,
]


def asked(beside: Beside, schema: str, path: str, data: st.DataObject) -> None:
    base = beside.running.base_model
    model = st.sampled_from([base] * 12 + MODELS)
    body = document_of(data.draw(bodies(DOCUMENT, schema, model)))
    headers = {"content-type": "application/json"}
    sent = beside.pool.submit(beside.send, "POST", path, content=body, headers=headers)
    try:
        sent.exception(timeout=0.2)
    except TimeoutError:
        beside.check()  # while it runs
    check_answer(sent.result(), body)
    beside.check()


@few(10)
@given(data=st.data())
def test_any_chat(beside: Beside, data: st.DataObject) -> None:
    asked(beside, "ChatCompletionRequest", "/v1/chat/completions", data)


@few(10)
@given(data=st.data())
def test_any_completion(beside: Beside, data: st.DataObject) -> None:
    asked(beside, "CompletionRequest", "/v1/completions", data)


@few(5)
@given(data=st.data())
def test_any_adapter(beside: Beside, data: st.DataObject) -> None:
    """An upload is refused, rejected with reasons, or serves."""
    form = data.draw(forms(linear_shapes(beside.running.model_dir)))
    about = (form["name"][1], form["adapter_config"][1][:2_000])
    before = beside.send("POST", "/v1/adapters/preflight", files=preflight_of(form))
    check_answer(before, about)
    answer = beside.send("POST", "/v1/adapters", files=form)
    beside.check()
    check_answer(answer, about)
    if answer is not None and answer.status_code == 202:
        version = settled(beside, answer.json())
        assert version["state"] == "active" or version["validation"], version
        if version["state"] == "active":
            serves(beside, f"odd@{version['version']}", about)
    beside.check()


def settled(beside: Beside, version: dict[str, Any]) -> Any:
    path = f"/v1/adapters/{version['name']}/versions/{version['version']}"
    for _ in range(300):
        now = beside.send("GET", path)
        if now is not None and now.json()["state"] in ("active", "rejected"):
            return now.json()
        time.sleep(0.1)
    raise AssertionError(f"{version} is not looked at")


def serves(beside: Beside, model: str, about: object) -> None:
    for more in (
        {"temperature": 0, "logprobs": 5},
        {"temperature": 1, "stream": True, "top_p": 0.5},
    ):
        answer = beside.say(model, **more)
        check_answer(answer, (about, more))
        assert answer is None or answer.status_code == 200, (about, more, answer.text)


@few(5)
@given(data=st.data())
def test_any_plan(beside: Beside, data: st.DataObject) -> None:
    """One that is taken serves its tenant by its terms, and the others as before."""
    body = document_of(data.draw(plans(DOCUMENT)))
    admin = beside.running.server.admin_key
    headers = {"content-type": "application/json"}
    put = beside.send("PUT", "/admin/v1/plans/odd", admin, content=body, headers=headers)
    check_answer(put, body)
    try:
        for model in (beside.running.base_model, "support"):
            check_answer(beside.say(model), body)
            beside.check()
        seen = beside.send("GET", "/admin/v1/engine", admin)
        assert seen is None or seen.status_code == 200
    finally:
        assert beside.running.admin("PUT", "/admin/v1/plans/odd", json={}).is_success


@few(4)
@given(data=st.data())
def test_any_resumable_upload(beside: Beside, data: st.DataObject) -> None:
    schemas = DOCUMENT["components"]["schemas"]
    odd = near(schemas["UploadCreate"], schemas)
    size = data.draw(st.sampled_from([1, 2, 8, 9]))
    made = beside.send("POST", "/v1/uploads", json={"bytes": size})
    assert made is not None
    assert made.status_code == 200, made.text
    path, part_ids = f"/v1/uploads/{made.json()['id']}", []
    for content in data.draw(st.lists(st.sampled_from([b"", b"a", b"ab", b"x" * 8]), max_size=3)):
        part = beside.send("POST", f"{path}/parts", files={"data": ("data", content)})
        check_answer(part, content)
        part_ids += [part.json()["id"]] if part is not None and part.status_code == 200 else []
    ids = st.sampled_from([*part_ids, "part_1", "\0", "\ud800", "a" * 10_000])
    for body in (
        {"part_ids": data.draw(st.lists(ids, max_size=4) | values)},
        {"part_ids": part_ids, "sha256": data.draw(texts | values)},
    ):
        headers = {"content-type": "application/json"}
        content = document_of(body)
        check_answer(
            beside.send("POST", f"{path}/complete", content=content, headers=headers), content
        )
        create = document_of(data.draw(odd))
        opened = beside.send("POST", "/v1/uploads", content=create, headers=headers)
        check_answer(opened, create)
        if opened is not None and opened.status_code == 200:  # a tenant has room for a few
            beside.send("POST", f"/v1/uploads/{opened.json()['id']}/cancel")
    for after in ("/complete", "/cancel", "/cancel"):
        check_answer(beside.send("POST", path + after, json={"part_ids": part_ids or ["a"]}), after)
    used = {
        "name": (None, "odd"),
        "adapter_config": ("adapter_config.json", b"{}"),
        "upload_id": (None, made.json()["id"]),
    }
    check_answer(beside.send("POST", "/v1/adapters", files=used), "upload_id")
    beside.check()


RANDOM_REQUESTS = int(os.environ.get("TENORA_RANDOM_REQUESTS", "200"))
AT_ONCE = 4
ALIAS = "/v1/adapters/rolling/aliases/prod"


async def roll_out(beside: Beside) -> None:
    """A version of the odd tenant's that goes back at one failure in a hundred requests."""
    folder = beside.running.acme.adapters["support"]
    async with httpx.AsyncClient(base_url=beside.running.server.url, timeout=60) as http:
        management = Management(http, beside.running.server.admin_key)
        for _ in range(2):
            await management.upload(beside.key, "rolling", folder)
    call = beside.running.call
    targets = {"targets": [{"version": 1, "weight": 100}]}
    assert call(beside.key, "PUT", ALIAS, json=targets).is_success
    body = {
        "version": 2,
        "stages": [{"percent": 50, "after_s": 86_400}, {"percent": 100, "after_s": 1}],
        "guard": {"error_rate": 0.0, "ttft_ratio": None, "min_requests": 1},
    }
    made = call(beside.key, "POST", f"{ALIAS}/rollout", json=body)
    assert made.status_code == 201, made.text


async def test_any_request_of_any_route_beside_a_steady_stream(beside: Beside) -> None:
    """TENORA_RANDOM_REQUESTS=10000 sends as many: none fails by what it says, no version goes
    back, and the other tenant's answers are to the bit those that it has alone."""
    running = beside.running
    await roll_out(beside)

    def ask(path: str, body: dict[str, Any]) -> Any:
        answer = running.call(running.globex.key, "POST", path, json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    steady = SteadyStream(ask, [running.base_model, "support"])
    model = st.sampled_from([running.base_model] * 6 + ["rolling"] * 6 + MODELS)
    headers = {"content-type": "application/json"}
    under_way: list[tuple[Future[httpx.Response | None], str, bytes]] = []

    problems: list[str] = []

    def take_one() -> None:
        sent, path, body = under_way.pop(0)
        try:
            answer = sent.result()
            if answer is not None and answer.status_code >= 500:
                # A busy machine has no time for the process that checks grammars: said with 503.
                assert answer.json()["error"]["code"] == "grammars_unavailable", answer.text
            check_answer(answer, (path, body))
        except (AssertionError, ValueError) as problem:
            problems.append(f"{problem}\nto {path} {body[:3000]!r}")

    @settings(few(RANDOM_REQUESTS), max_examples=RANDOM_REQUESTS, derandomize=True)
    @given(asked=any_requests(DOCUMENT, model))
    def send(asked: tuple[str, dict[str, Any]]) -> None:
        path, body = asked[0], document_of(asked[1])
        sent = beside.pool.submit(beside.send, "POST", path, content=body, headers=headers)
        under_way.append((sent, path, body))
        if len(under_way) == AT_ONCE:
            take_one()

    with steady.beside():
        send()
        while under_way:
            take_one()
    assert not problems, problems[0]
    assert not steady.problems, steady.problems[0]
    assert len(steady.waits_s) >= len(steady.quiet)
    beside.check()
    rollout = running.call(beside.key, "GET", f"{ALIAS}/rollout").json()
    assert (rollout["state"], rollout["stage"]) == ("running", 0), rollout
