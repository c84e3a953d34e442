"""Weights read in parts are what was stored, byte for byte, whatever the parts; what is no
safetensors file is refused by name."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from obstore.store import LocalStore, MemoryStore

from tenora_engine.adapters import weights_file
from tenora_engine.adapters.weights_file import DTYPES, read_object, tensors_of
from tenora_engine.pace import Pace


class CountedPace(Pace):
    def __init__(self) -> None:
        super().__init__()
        self.num_bytes = self.rests = 0

    def begin(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        super().begin(num_bytes)

    def rest(self) -> None:
        self.rests += 1
        super().rest()


@pytest.mark.parametrize("size", [1, 99, 100, 101, 1000])
@pytest.mark.parametrize("remote", [False, True])
def test_any_size_is_read_and_hashed(
    size: int, remote: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights_file, "_LOCAL_PART_BYTES", 100)
    monkeypatch.setattr(weights_file, "_REMOTE_PART_BYTES", 300)
    monkeypatch.setattr(weights_file, "_HASHED_AT_ONCE", 40)
    store = MemoryStore() if remote else LocalStore(tmp_path)
    content = torch.randint(256, (size,), dtype=torch.uint8).numpy().tobytes()
    store.put("object", content)
    pace = CountedPace()
    data, sha256 = read_object(store, "object", pace)
    assert bytes(data.numpy()) == content
    assert sha256 == hashlib.sha256(content).hexdigest()
    assert pace.num_bytes == size
    assert pace.rests >= size // 40


@given(
    st.dictionaries(
        st.text("abc.", min_size=1, max_size=8),
        st.tuples(
            st.sampled_from(sorted(DTYPES)), st.lists(st.integers(0, 5), min_size=1, max_size=3)
        ),
        min_size=1,
        max_size=5,
    )
)
def test_tensors_are_those_that_were_saved(shapes: dict[str, tuple[str, list[int]]]) -> None:
    saved = {name: torch.randn(shape).to(DTYPES[kind]) for name, (kind, shape) in shapes.items()}
    content = safetensors.torch.save(saved, metadata={"format": "pt"})
    read = tensors_of(torch.frombuffer(bytearray(content), dtype=torch.uint8))
    assert read.keys() == saved.keys()
    for name, tensor in saved.items():
        assert read[name].dtype == tensor.dtype
        assert torch.equal(read[name], tensor)


def file_of(header: object, data: bytes = b"\0" * 8, pad: str = "") -> torch.Tensor:
    text = (json.dumps(header) + pad).encode()
    content = len(text).to_bytes(8, "little") + text + data
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def test_values_that_lie_askew_are_read() -> None:
    entry = {"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}
    values = torch.tensor([1.5, -2.0])
    for pad in ("", " ", "  ", "   "):
        file = file_of(entry, values.numpy().tobytes(), pad)
        assert torch.equal(tensors_of(file)["x"], values)


@pytest.mark.parametrize(
    "header",
    [
        [],
        {"x": 1},
        {"x": {}},
        {"x": {"dtype": "I8", "shape": [8], "data_offsets": [0, 8]}},
        {"x": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}},
        {"x": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}},
        {"x": {"dtype": "F32", "shape": "2", "data_offsets": [0, 8]}},
    ],
)
def test_what_is_no_safetensors_file_is_refused(header: object) -> None:
    with pytest.raises(ValueError, match="not a safetensors file"):
        tensors_of(file_of(header))


@pytest.mark.parametrize("content", [b"x", b"\xff" * 20, b"\x04" + b"\0" * 7 + b"{..}"])
def test_other_bytes_are_refused(content: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 (json's own, or ours)
        tensors_of(torch.frombuffer(bytearray(content), dtype=torch.uint8))
