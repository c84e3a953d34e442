"""Adapters in the portal: an upload that a reload interrupts, what is refused before it is sent,
what is rejected after it was, and a report with pictures; each compared with what the API says."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, Locator, Page, Request, Route, expect
from safetensors.numpy import load_file, save_file

from portal_under_test import REPOSITORY, PortalUnderTest, running_portal

pytestmark = pytest.mark.browser

EXAMPLES = REPOSITORY / "examples" / "adapters"
DRAFT_LAYER = REPOSITORY / "examples" / "draft" / "SmolLM2-135M-Instruct.safetensors"
SLOW_MS = 120_000  # a check, or an answer of the base model, on a busy machine
MIB = 1024 * 1024


@pytest.fixture(scope="module")
def portal(
    chromium: Browser, base_model_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PortalUnderTest]:
    """One that asks adapters beside the base model."""
    folder = tmp_path_factory.mktemp("adapters")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TENORA_PROBE_ADAPTERS", "true")
        with running_portal(folder, base_model_dir) as made:
            yield made


@pytest.fixture
def key(portal: PortalUnderTest, page: Page) -> str:
    """Of a new tenant, who is signed in."""
    _, key = portal.new_tenant(f"Adapters {id(page)}")
    page.get_by_label("Key", exact=True).fill(key)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("button", name="Account")).to_be_visible()
    page.goto("/adapters")
    return key


def write_adapter(folder: Path, base: Path, rank: int, *, poison: bool = False) -> Path:
    """An adapter of all linears of the model at `base`; with `poison` one value is no number."""
    model = json.loads((base / "config.json").read_text())
    hidden, inner = model["hidden_size"], model["intermediate_size"]
    kv = hidden // model["num_attention_heads"] * model["num_key_value_heads"]
    sizes = {
        "self_attn.q_proj": (hidden, hidden),
        "self_attn.k_proj": (hidden, kv),
        "self_attn.v_proj": (hidden, kv),
        "self_attn.o_proj": (hidden, hidden),
        "mlp.gate_proj": (hidden, inner),
        "mlp.up_proj": (hidden, inner),
        "mlp.down_proj": (inner, hidden),
    }
    random = np.random.default_rng(rank)
    tensors = {}
    for layer in range(model["num_hidden_layers"]):
        for module, (wide, high) in sizes.items():
            name = f"base_model.model.model.layers.{layer}.{module}"
            tensors[f"{name}.lora_A.weight"] = random.normal(size=(rank, wide)) * 0.02
            tensors[f"{name}.lora_B.weight"] = random.normal(size=(high, rank)) * 0.02
    if poison:
        tensors["base_model.model.model.layers.0.mlp.up_proj.lora_A.weight"][0, 0] = np.nan
    folder.mkdir(parents=True)
    save_file(
        {name: value.astype(np.float32) for name, value in tensors.items()},
        folder / "adapter_model.safetensors",
    )
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": 2 * rank,
        "target_modules": [module.split(".")[1] for module in sizes],
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def choose(page: Page, folder: Path) -> Locator:
    page.get_by_role("button", name="Upload", exact=True).first.click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Adapter folder").set_input_files(folder)
    return dialog


def push(portal: PortalUnderTest, key: str, name: str, folder: Path) -> dict[str, Any]:
    """By the API; the version, once it has been checked."""
    files = {
        "name": (None, name),
        "adapter_config": (folder / "adapter_config.json").read_bytes(),
        "weights": (folder / "adapter_model.safetensors").read_bytes(),
    }
    made = portal.call(key, "POST", "/v1/adapters", files=files)
    path = f"/v1/adapters/{name}/versions/{made['version']}"
    while True:
        version: dict[str, Any] = portal.call(key, "GET", path)
        if version["state"] not in ("quarantined", "validating"):
            return version


def test_an_upload_survives_a_reload(
    page: Page, portal: PortalUnderTest, key: str, base_model_dir: Path, tmp_path: Path
) -> None:
    folder = write_adapter(tmp_path / "large-one", base_model_dir, rank=16)
    shutil.copy(DRAFT_LAYER, folder / "draft_layer.safetensors")
    total = -(-(folder / "adapter_model.safetensors").stat().st_size // MIB)
    assert total > 12
    sent: list[str] = []
    held: list[Route] = []

    def some(route: Route) -> None:
        if len(sent) < 7:
            sent.append(route.request.url)
            route.continue_()
        else:
            held.append(route)  # the network has gone quiet

    page.route("**/v1/uploads/*/parts", some)
    dialog = choose(page, folder)
    expect(dialog.get_by_label("Name")).to_have_value("large-one")
    expect(dialog.get_by_text("This adapter would be accepted")).to_be_visible(timeout=SLOW_MS)
    expect(dialog.get_by_text("with draft layer, 7.7 MiB")).to_be_visible()
    expect(dialog.get_by_role("table", name="Rank by module").get_by_role("row")).to_have_count(8)
    dialog.get_by_role("button", name="Upload", exact=True).click()
    expect(dialog).to_be_hidden()
    tray = page.get_by_role("complementary", name="Uploads")
    expect(tray.get_by_text(re.compile(rf"^7\.\d MiB of {total - 1}"))).to_be_visible(
        timeout=SLOW_MS
    )
    page.get_by_role("link", name="Playground").click()  # it outlives the page
    expect(tray).to_be_visible()

    page.reload()
    page.unroute("**/v1/uploads/*/parts")
    again: list[str] = []

    def note(request: Request) -> None:
        if request.method == "POST" and request.url.endswith("/parts"):
            again.append(request.url)

    page.on("request", note)
    expect(tray.get_by_text("Interrupted at")).to_be_visible()
    (open_,) = portal.call(key, "GET", "/v1/uploads")["data"]
    assert open_["parts_received"] == 7
    wrong = write_adapter(tmp_path / "another", base_model_dir, rank=8)
    tray.get_by_label("Choose the folder of large-one again").set_input_files(wrong)
    expect(tray.get_by_text("This is a different adapter")).to_be_visible()
    tray.get_by_label("Choose the folder of large-one again").set_input_files(folder)
    expect(tray.get_by_text("Active: requests can use it")).to_be_visible(timeout=SLOW_MS)
    assert len(again) == total - 7
    assert {url.split("/")[-2] for url in again} == {open_["id"]}
    version = portal.call(key, "GET", "/v1/adapters/large-one/versions/1")
    assert (version["state"], version["rank"]) == ("active", 16)
    assert version["draft_layer"]["bytes"] == DRAFT_LAYER.stat().st_size

    tray.get_by_role("link", name="Show report").click()
    expect(page.get_by_role("heading", name="Report of large-one", level=1)).to_be_visible()
    tray.get_by_role("button", name="Dismiss large-one@1").click()
    expect(tray).to_be_hidden()
    page.reload()
    expect(page.get_by_role("heading", name="Report of large-one", level=1)).to_be_visible()
    expect(tray).to_be_hidden()


def test_an_upload_is_paused_and_cancelled(
    page: Page, portal: PortalUnderTest, key: str, base_model_dir: Path, tmp_path: Path
) -> None:
    folder = write_adapter(tmp_path / "halted", base_model_dir, rank=8)
    held: list[Route] = []
    page.route("**/v1/uploads/*/parts", lambda route: held.append(route))
    dialog = choose(page, folder)
    expect(dialog.get_by_text("This adapter would be accepted")).to_be_visible(timeout=SLOW_MS)
    dialog.get_by_role("button", name="Upload", exact=True).click()
    tray = page.get_by_role("complementary", name="Uploads")
    tray.get_by_role("button", name="Pause upload of halted").click()
    expect(tray.get_by_text("Paused at")).to_be_visible()
    page.unroute("**/v1/uploads/*/parts")
    tray.get_by_role("button", name="Cancel upload of halted").click()
    expect(tray).to_be_hidden()
    expect(page.get_by_text("No adapters yet")).to_be_visible()
    deadline = time.monotonic() + SLOW_MS / 1000  # what is shown does not wait for the server
    while portal.call(key, "GET", "/v1/uploads")["data"] and time.monotonic() < deadline:
        time.sleep(0.1)
    assert portal.call(key, "GET", "/v1/uploads")["data"] == []


def test_what_would_be_rejected_is_not_sent(
    page: Page, portal: PortalUnderTest, key: str, tmp_path: Path
) -> None:
    sent: list[str] = []
    page.on("request", lambda request: sent.append(f"{request.method} {request.url}"))
    bad = tmp_path / "bad"
    shutil.copytree(EXAMPLES / "acme-json", bad)
    config = json.loads((bad / "adapter_config.json").read_text())
    (bad / "adapter_config.json").write_text(json.dumps({**config, "r": config["r"] + 1}))
    dialog = choose(page, bad)
    expect(
        dialog.get_by_text("This adapter would be rejected. Nothing has been uploaded.")
    ).to_be_visible(timeout=SLOW_MS)
    reasons = dialog.get_by_role("list", name="Reasons").get_by_role("listitem")
    expect(reasons).to_have_count(1)  # once, not for each tensor
    expect(reasons).to_contain_text("adapter_config.json asks for")
    expect(dialog.get_by_role("button", name="Upload", exact=True)).to_be_disabled()

    dora = {**config, "use_dora": True, "bias": "all", "modules_to_save": ["lm_head"]}
    (bad / "adapter_config.json").write_text(json.dumps(dora))
    dialog.get_by_label("Adapter folder").set_input_files(bad)
    for code in ("unsupported_dora", "unsupported_modules_to_save"):
        expect(dialog.get_by_text(code)).to_be_visible(timeout=SLOW_MS)

    empty = tmp_path / "notes"
    empty.mkdir()
    (empty / "readme.md").write_text("nothing")
    dialog.get_by_label("Adapter folder").set_input_files(empty)
    expect(dialog.get_by_text("This folder has no adapter")).to_be_visible()
    assert not [each for each in sent if "/v1/uploads" in each]
    assert portal.call(key, "GET", "/v1/adapters")["data"] == []


def test_of_several_checkpoints_one_is_chosen(
    page: Page, portal: PortalUnderTest, key: str, tmp_path: Path
) -> None:
    run = tmp_path / "my run"
    for step in ("checkpoint-100", "checkpoint-200"):
        shutil.copytree(EXAMPLES / "acme-json", run / step)
    (run / "trainer_state.json").write_text("{}")
    dialog = choose(page, run)
    expect(dialog.get_by_text("This folder has 2 adapters")).to_be_visible()
    expect(dialog.get_by_role("radio", name="checkpoint-200")).to_be_checked()
    dialog.get_by_role("radio", name="checkpoint-100").check()
    expect(dialog.get_by_label("Name")).to_have_value("my-run")
    expect(dialog.get_by_text("This adapter would be accepted")).to_be_visible(timeout=SLOW_MS)
    dialog.get_by_role("button", name="Upload", exact=True).click()
    tray = page.get_by_role("complementary", name="Uploads")
    expect(tray.get_by_text("my run/checkpoint-100")).to_be_visible()
    expect(tray.get_by_text("Active: requests can use it")).to_be_visible(timeout=SLOW_MS)


def test_a_rejected_version_is_a_footnote_of_what_serves(
    page: Page, portal: PortalUnderTest, key: str, base_model_dir: Path, tmp_path: Path
) -> None:
    for folder in ("acme-json", "acme-support"):
        assert push(portal, key, "support", EXAMPLES / folder)["state"] == "active"
    poisoned = write_adapter(tmp_path / "poisoned", base_model_dir, rank=2, poison=True)
    assert push(portal, key, "support", poisoned)["state"] == "rejected"
    chat = {"model": "support", "max_tokens": 4, "messages": [{"role": "user", "content": "Hi"}]}
    portal.call(key, "POST", "/v1/chat/completions", json=chat)

    page.reload()
    row = page.get_by_role("row").filter(has_text="support")
    expect(row).to_contain_text("serving", timeout=SLOW_MS)
    expect(row).to_contain_text("v2")
    expect(row).to_contain_text("v3 rejected")
    expect(row).to_contain_text("$0.0", timeout=SLOW_MS)
    (said,) = portal.call(key, "GET", "/v1/adapters")["data"]
    assert said["serving"]["versions"][0]["version"] == 2
    expect(row).to_contain_text(said["month_costs"][0]["amount"].rstrip("0"))
    row.get_by_role("link", name="support").click()

    serves = page.get_by_role("region", name="Currently serving")
    expect(serves.get_by_role("link", name="Version 2")).to_be_visible()
    expect(serves).to_contain_text(
        "Version 3 was rejected. This does not affect the serving version"
    )
    serves.get_by_role("link", name="Why version 3 was rejected").click()
    expect(page.get_by_text("Rejected: 1 problem found")).to_be_visible()
    reasons = page.get_by_role("list", name="Reasons for the rejection")
    expect(reasons).to_contain_text("contains NaN or infinity")
    expect(page.get_by_role("button", name="Copy model name")).to_have_count(0)

    page.get_by_role("tab", name="Overview").click()
    page.get_by_role("button", name="Actions for support@2").click()
    page.get_by_role("menuitem", name="Deprecate").click()
    page.get_by_label("Reason, for the audit log").fill("a better one is there")
    page.get_by_role("dialog").get_by_role("button", name="Deprecate").click()
    expect(serves.get_by_role("link", name="Version 1")).to_be_visible()


def test_a_report_shows_what_a_version_does(
    page: Page, portal: PortalUnderTest, key: str, base_model_dir: Path, tmp_path: Path
) -> None:
    folder = write_adapter(tmp_path / "odd", base_model_dir, rank=4)
    version = push(portal, key, "odd", folder)
    page.goto("/adapters/odd/report")
    answers = page.get_by_role("region", name="Responses compared with the base model")
    expect(answers.get_by_text(re.compile(r"at least [\d.e-]+ nats")).first).to_be_visible(
        timeout=3 * SLOW_MS
    )
    report = portal.call(key, "GET", "/v1/adapters/odd/versions/1/report")
    for sample in report["findings"]["samples"]:
        expect(answers.get_by_text(sample["prompt"], exact=True)).to_be_visible()
    picture = page.get_by_role("table", name=re.compile("by module and layer"))
    expect(picture.get_by_role("row")).to_have_count(8)
    cells = picture.get_by_role("row").filter(has_text="down_proj").get_by_role("cell")
    drawn = version["validation"]["facts"]["picture"]
    row = drawn["product"][drawn["modules"].index("down_proj")]
    assert [float(text) for text in cells.all_inner_texts()] == pytest.approx(row)
    tensors = load_file(folder / "adapter_model.safetensors")
    name = "base_model.model.model.layers.0.mlp.down_proj"
    product = 2 * tensors[f"{name}.lora_B.weight"] @ tensors[f"{name}.lora_A.weight"]
    assert row[0] == pytest.approx(float(np.linalg.norm(product)), rel=1e-3)
    pages = report["findings"]["footprint"]["pages"]
    expect(page.get_by_text(f"{pages:,} pages of")).to_be_visible()
