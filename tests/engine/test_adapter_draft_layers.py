"""Draft layers that adapters bring: each proposes to its own adapter's sequences, no answer shows
that there is one, and none costs anybody but its adapter anything."""

from __future__ import annotations

import hashlib
import json
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from transformers import AutoModelForCausalLM

from adapter_files import adapter_config, adapter_tensors, safetensors
from adapter_store import publish
from draft_engines import (
    Recorder,
    answers,
    engine_of,
    prompts,
    request,
    write_likely_llama,
)
from example_scripts import load_script
from tenora_engine.adapters.identity import draft_key
from tenora_engine.adapters.tiers import StoreTier
from tenora_engine.config import EngineConfig
from tenora_engine.engine import Engine
from tenora_engine.executor.draft_layers import LOADING_MAX, RETRY_S, STAY_S, DraftLayers
from tenora_engine.memory.budget import describe, plan_memory
from tenora_engine.model.draft_layer import DraftMaker, MadeLayer
from tenora_engine.model.loader import read_model_info
from tenora_engine.pace import Work
from tenora_engine.request import AdapterRef, GenerationRequest
from tenora_engine.scheduling.drafts import StepTimes
from tenora_kernels.backend import has_compiled_ops
from tiny_llama import VOCAB

pytestmark = pytest.mark.skipif(not has_compiled_ops(), reason="the kernels are not compiled")
train_draft = load_script("train_draft")
EVERY = torch.arange(VOCAB)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_likely_llama(tmp_path_factory.mktemp("own"))


@pytest.fixture(autouse=True)
def times_of_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts are worth their time here, however busy the machine is."""
    monkeypatch.setattr(StepTimes, "worth", lambda *_: 0.05)
    monkeypatch.setattr(StepTimes, "proposed_part", 1 / 32)


class Store:
    """Of adapters of the model and draft layers of theirs, which nobody trained."""

    def __init__(self, model: Path, folder: Path) -> None:
        config = EngineConfig(model=str(model), served_name="tiny", dtype="float32")
        self.info, self.folder = read_model_info(config), folder
        self.base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)

    def adapter(self, seed: int, draft_layer: str | None = None) -> AdapterRef:
        folder = self.folder / f"peft-{seed}"
        folder.mkdir()
        (folder / "adapter_config.json").write_text(json.dumps(adapter_config(rank_pattern={})))
        weights = safetensors(adapter_tensors(self.info, seed=seed))
        (folder / "adapter_model.safetensors").write_bytes(weights)
        return msgspec.structs.replace(publish(folder, self.folder), draft_layer=draft_layer)

    def layer(self, vocabulary: torch.Tensor) -> str:
        path = self.folder / "made.safetensors"
        train_draft.save(train_draft.DraftLayer(self.base, vocabulary), path)
        return self.put(path.read_bytes())

    def put(self, content: bytes) -> str:
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        (self.folder / draft_key(digest)).parent.mkdir(parents=True)
        (self.folder / draft_key(digest)).write_bytes(content)
        return digest

    def engine(self, model: Path, draft_layer: Path | None, own_bytes: int = 1024**2) -> Engine:
        url = str(self.folder)
        return engine_of(model, draft_layer, object_store=url, adapter_draft_bytes=own_bytes)


@pytest.fixture
def store(model: Path, tmp_path: Path) -> Store:
    return Store(model, tmp_path)


def requests_of(adapters: list[AdapterRef | None], count: int) -> list[GenerationRequest]:
    return [
        msgspec.structs.replace(request(f"{n}", prompt), adapter=adapters[n % len(adapters)])
        for n, prompt in enumerate(prompts(count))
    ]


def by_fours(engine: Engine, requests: list[GenerationRequest]) -> dict[str, list[int]]:
    """Their answers; beside four there is room for drafts."""
    found: dict[str, list[int]] = {}
    for first in range(0, len(requests), 4):
        found |= answers(engine, requests[first : first + 4])
    return found


def settled(engine: Engine) -> DraftLayers:
    """Once all loads that have been asked for are done."""
    layers = engine._scheduler.drafts._layers
    assert isinstance(layers, DraftLayers)
    wait_for(layers)
    return layers


def wait_for(layers: DraftLayers) -> None:
    """The loads of a tenant run one after the other."""
    for tenant_key in list(layers._num_loading):
        done = threading.Event()
        layers._threads.submit(tenant_key, done.set)
        assert done.wait(20)


@pytest.mark.parametrize("has_base_layer", [True, False])
def test_adapters_are_drafted_by_their_own_layers(
    model: Path, store: Store, tmp_path: Path, has_base_layer: bool
) -> None:
    """And those without one by the base's, if there is one, in the same steps."""
    file = tmp_path / "base.safetensors"
    train_draft.save(train_draft.DraftLayer(store.base, EVERY), file)
    first, second = store.layer(EVERY[::2].clone()), store.layer(EVERY[1::2].clone())
    adapters = [store.adapter(1, first), store.adapter(2, second), store.adapter(3), None]
    requests = requests_of(adapters, 24)
    plain = engine_of(model, None, max_draft_tokens=0, object_store=str(store.folder))
    expected = by_fours(plain, requests)
    plain.close()
    engine = store.engine(model, file if has_base_layer else None)
    recorder = Recorder(engine)
    assert by_fours(engine, requests) == expected  # while they come
    settled(engine)
    begun = len(recorder.seen)
    assert by_fours(engine, requests) == expected
    (meter,) = engine.stats().telemetry.meters
    loads = engine.stats().counters["draft_layer_loads"]
    engine.close()
    proposed: dict[str | None, set[int]] = {}
    num_together = 0
    for plan, result in recorder.seen[begun:]:
        layers = {} if plan.proposals is None else plan.proposals.layers
        for row, chain in result.proposals.items():
            proposed.setdefault(layers.get(row), set()).update(chain)
        num_together += len({layers.get(row) for row in result.proposals}) > 1
    assert proposed.keys() == ({first, second, None} if has_base_layer else {first, second})
    assert {token % 2 for token in proposed[first]} == {0}
    assert {token % 2 for token in proposed[second]} == {1}
    assert num_together > 10
    assert loads == 2
    assert meter.drafts_rejected["layer"] > 20


def test_a_broken_layer_costs_its_own_adapter_drafts_only(
    model: Path, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    good, bad, missing = store.layer(EVERY), store.put(b"no safetensors"), f"sha256:{7:064x}"
    digests = (good, bad, missing)
    requests = requests_of([store.adapter(n, digest) for n, digest in enumerate(digests)], 6)
    engine = store.engine(model, None)
    recorder = Recorder(engine)
    expected = by_fours(engine, requests)
    settled(engine)
    assert by_fours(engine, requests) == expected
    settled(engine)
    counters = engine.stats().counters
    engine.close()
    asked = [plan.proposals for plan, _ in recorder.seen if plan.proposals is not None]
    assert {layer for each in asked for layer in each.layers.values()} == {good}
    assert counters["draft_layer_failures"] == 2  # each once: it is asked for again in a while
    assert counters["draft_layer_loads"] == 1
    assert caplog.text.count("is not used") == 2


def test_a_layer_that_fails_in_a_step_fails_nobody(model: Path, store: Store) -> None:
    digest = store.layer(EVERY)
    requests = requests_of([store.adapter(1, digest)], 2)
    engine = store.engine(model, None)
    expected = answers(engine, requests)
    layers = settled(engine)

    def broken(*_: Any) -> list[list[int]]:
        raise RuntimeError("tensors do not fit together")

    made: Any = layers.get(digest)
    made.propose = broken
    assert answers(engine, requests) == expected
    assert engine.stats().counters["draft_layer_failures"] == 1
    assert layers.get(digest) is None
    engine.close()


def test_a_layer_goes_with_its_adapter(model: Path, store: Store) -> None:
    layer = store.layer(EVERY)
    alone, other = store.adapter(1, layer), store.adapter(2, layer)
    engine = store.engine(model, None)
    answers(engine, requests_of([alone, other], 4))
    layers = settled(engine)
    answers(engine, requests_of([alone, other], 4))
    engine.forget_adapter("t", other.digest, device_only=True)
    engine.forget_adapter("t", alone.digest)
    assert layers.get(layer) is not None  # it is the other's too
    engine.forget_adapter("t", other.digest)
    assert layers.get(layer) is None
    assert engine.stats().counters["draft_layer_bytes"] == 0
    engine.close()


def test_without_memory_for_them_none_is_fetched(model: Path, store: Store) -> None:
    engine = store.engine(model, None, own_bytes=0)
    answers(engine, requests_of([store.adapter(1, store.layer(EVERY))], 2))
    assert "draft_layer_loads" not in engine.stats().counters
    assert engine.config.draft_bytes == 0
    engine.close()


def test_they_are_part_of_the_budget(model: Path) -> None:
    config = EngineConfig(
        model=str(model),
        served_name="tiny",
        dtype="float32",
        memory_bytes=1024**3,
        adapter_draft_bytes=32 * 1024**2,
    )
    info = read_model_info(config)
    with_layers = plan_memory(config, info)
    without = plan_memory(msgspec.structs.replace(config, adapter_draft_bytes=0), info)
    taken = (without.num_pages - with_layers.num_pages) * without.page_bytes
    buffers = with_layers.workspace_bytes - without.workspace_bytes  # of a layer that runs
    assert buffers > 0
    assert abs(taken - buffers - 32 * 1024**2) <= without.page_bytes
    assert "draft layers     32.0 MiB  of adapters" in describe(with_layers)
    assert "draft layers" not in describe(without)
    for changes in ({"strict_isolation": True}, {"max_draft_tokens": 0}):
        assert plan_memory(msgspec.structs.replace(config, **changes), info).draft_bytes == 0


class Shelf:
    """A store of layers of ten bytes each, and who makes them."""

    def __init__(self) -> None:
        self.hangs: set[str] = set()  # until it answers
        self.answers = threading.Event()

    def read_draft_layer(self, digest: str, work: Work) -> dict[str, torch.Tensor]:
        if digest in self.hangs:
            with work.waiting():
                assert self.answers.wait(20)
        return {}

    def make(self, name: str, tensors: dict[str, torch.Tensor]) -> MadeLayer:
        layer: Any = name
        return MadeLayer(layer, num_bytes=100 if name == "large" else 10)


def test_the_least_recently_used_layer_leaves_first() -> None:
    now = [0.0]
    shelf: Any = Shelf()
    maker: DraftMaker = shelf
    tier: StoreTier = shelf
    layers = DraftLayers(maker, tier, 20, clock=lambda: now[0])

    def want(digest: str) -> bool:
        is_there = layers.want(AdapterRef(f"of {digest}", 4, digest), "t0")
        wait_for(layers)
        return is_there

    assert [want(each) for each in ("a", "b", "a", "b")] == [False, False, True, True]
    now[0] = STAY_S / 2
    assert want("a")
    assert not want("c")  # both are in use
    assert not want("c")
    assert layers.counters()["draft_layer_evictions"] == 0
    now[0] = RETRY_S + STAY_S
    assert want("a")
    assert not want("c")
    assert want("c")
    assert layers.get("a") is not None
    assert layers.get("b") is None
    assert not want("large")
    assert not want("large")
    assert layers.counters() == {
        "draft_layer_bytes": 20,
        "draft_layer_loads": 3,
        "draft_layer_failures": 1,
        "draft_layer_evictions": 1,
    }
    layers.close()
    assert not layers.want(AdapterRef("of d", 4, "d"), "t0")


def of_tenant(tenant: str, number: int) -> AdapterRef:
    return AdapterRef(f"{tenant}/{number}", 4, f"layer {tenant}/{number}")


def test_a_tenants_cold_layers_delay_no_other_tenants() -> None:
    """Its loads hang, and fill what it may have on its way."""
    shelf: Any = Shelf()
    layers = DraftLayers(shelf, shelf, 10_000)
    for number in range(2 * LOADING_MAX):
        shelf.hangs.add(f"layer many/{number}")
        assert not layers.want(of_tenant("many", number), "many")
    assert not layers.want(of_tenant("one", 0), "one")
    done = threading.Event()
    layers._threads.submit("one", done.set)
    assert done.wait(20)
    assert layers.want(of_tenant("one", 0), "one")
    assert layers.counters()["draft_layer_loads"] == 1
    shelf.answers.set()
    layers.close()


def test_a_tenant_with_many_layers_leaves_others_their_shares() -> None:
    """There is room for four, and both use all of theirs all the time."""
    shelf: Any = Shelf()
    layers = DraftLayers(shelf, shelf, 40, clock=lambda: 0.0)

    def use(tenant: str, count: int) -> list[bool]:
        there = [layers.want(of_tenant(tenant, number), tenant) for number in range(count)]
        wait_for(layers)
        return there

    use("many", 8)
    assert sum(use("many", 8)) == 4
    use("few", 2)
    for _ in range(3):
        assert use("few", 2) == [True, True]
        assert sum(use("many", 8)) == 2
    layers.close()
