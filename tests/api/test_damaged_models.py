"""A model folder of which a file is missing, cut short or something else: each start says so in one
sentence, with exit code 1, before anything is served."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from api_harness import SECRET
from platform_fixtures import Servers
from shell import run
from tenora_engine.model.families import read_spec
from tenora_platform.embedded.process import free_port
from tiny_folder import write_tiny_folder

Damage = Callable[[Path], None]
INDEX = "model.safetensors.index.json"


def remove(name: str) -> Damage:
    return lambda folder: (folder / name).unlink()


def cut(name: str, share: float = 0.5) -> Damage:
    """As a copy that was broken off leaves it."""

    def damage(folder: Path) -> None:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: int(len(content) * share)])

    return damage


def put(name: str, content: str | bytes) -> Damage:
    text = content.encode() if isinstance(content, str) else content

    def damage(folder: Path) -> None:
        (folder / name).write_bytes(text)

    return damage


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with weights in two shards."""
    folder = tmp_path_factory.mktemp("whole")
    write_tiny_folder(folder)
    shapes = read_spec(str(folder)).tensor_shapes()
    shards = {name: f"model-{place % 2}.safetensors" for place, name in enumerate(shapes)}
    for file in set(shards.values()):
        tensors = {name: torch.zeros(shapes[name]) for name in shapes if shards[name] == file}
        save_file(tensors, folder / file)
    (folder / INDEX).write_text(json.dumps({"weight_map": shards}))
    return folder


@pytest.fixture
def model(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "model"))


def started(command: str, model: Path, *, begins: str = "", **environment: str) -> str:
    """What it says, of an engine after it `begins` to load: one sentence."""
    data, port = str(model.parent / "data"), str(free_port())
    named = {"TENORA_DATA_DIR": data, "TENORA_MODEL": str(model), "TENORA_PORT": port}
    code, text = run(command, **named, **environment)
    assert code == 1, text
    assert "Traceback" not in text
    told = text.partition(begins)[2] if begins else text
    assert told.count("tenora:") == 1, text
    return told


TEXT: list[tuple[Damage, str]] = [
    (remove("config.json"), "has no config.json"),
    (cut("config.json"), "config.json is not"),
    (put("config.json", ""), "config.json is not"),
    (put("config.json", "[]"), "config.json is not"),
    (put("config.json", b"\xff\xfe"), "config.json is not"),
    (remove("tokenizer.json"), "has no tokenizer.json"),
    (cut("tokenizer.json"), "tokenizer.json could not be read"),
    (put("tokenizer.json", ""), "tokenizer.json could not be read"),
    (put("tokenizer.json", "{}"), "tokenizer.json could not be read"),
    (cut("tokenizer_config.json"), "tokenizer_config.json is not valid JSON"),
    (put("tokenizer_config.json", "[]"), "tokenizer_config.json is not a JSON object"),
    (put("tokenizer_config.json", b"\xff"), "tokenizer_config.json could not be read"),
    (put("tokenizer_config.json", '{"chat_template": [{}]}'), "chat templates"),
    (put("tokenizer_config.json", '{"chat_template": 7}'), "chat template"),
    (put("chat_template.jinja", ""), "chat_template.jinja is empty"),
    (put("chat_template.jinja", b"\xff"), "chat_template.jinja could not be read"),
    (put("chat_template.jinja", "{% for message in"), "chat template is broken"),
    (put("chat_template.json", "{"), "chat_template.json is not valid JSON"),
    (put("special_tokens_map.json", ""), "special_tokens_map.json is not valid JSON"),
    (put("generation_config.json", "{"), "generation_config.json is not"),
]


@pytest.mark.parametrize(("damage", "words"), TEXT)
def test_what_every_part_reads(damage: Damage, words: str, model: Path) -> None:
    damage(model)
    assert words in started("serve", model)
    data = model.parent / "data"
    assert not data.exists() or not any(data.iterdir()), "nothing has been started for it"


@pytest.mark.parametrize("command", ["up", "api", "worker", "engine"])
def test_each_part_alone(command: str, model: Path) -> None:
    cut("tokenizer.json")(model)
    assert "tokenizer.json could not be read" in started(command, model)


WEIGHTS: list[tuple[Damage, str]] = [
    (remove("model-1.safetensors"), "could not be read"),
    (cut("model-1.safetensors"), "could not be read"),
    (cut("model-0.safetensors", 0.999), "could not be read"),
    (put("model-1.safetensors", ""), "could not be read"),
    (cut(INDEX), "could not be read"),
    (put(INDEX, "[]"), "could not be read"),
    (put(INDEX, '{"weight_map": ["model-0.safetensors"]}'), "could not be read"),
    (remove(INDEX), "neither model.safetensors nor"),
    (put(INDEX, '{"weight_map": {"a": "model-1.safetensors"}}'), "lack"),
]


@pytest.mark.parametrize(("damage", "words"), WEIGHTS)
def test_what_the_engine_reads(damage: Damage, words: str, model: Path) -> None:
    damage(model)
    told = started("engine", model, begins="tenora: loading the model")
    assert words in told


def test_the_whole_platform_ends_with_its_engine(model: Path, servers: Servers) -> None:
    cut("model-1.safetensors")(model)
    told = started(
        "serve",
        model,
        begins="(the engine is loading its model)",
        TENORA_DATABASE_URL=servers.new_database(),
        TENORA_REDIS_URL=servers.redis_url,
        TENORA_SECRET=SECRET,
    )
    assert "could not be read" in told


def test_the_doctor_says_so(model: Path) -> None:
    cut("tokenizer.json")(model)
    code, text = run("doctor", TENORA_DATA_DIR=str(model.parent), TENORA_MODEL=str(model))
    assert code == 1
    assert "tokenizer.json could not be read" in text
