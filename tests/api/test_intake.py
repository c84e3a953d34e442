"""The intake check on good adapters, on hostile files made by hand, and on corrupted headers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adapter_files import (
    adapter_config,
    adapter_tensors,
    encode,
    file_of,
    header_of,
    safetensors,
)
from fake_engine import FakeEngine
from tenora_engine.adapters.peft_format import tensor_name
from tenora_engine.config import ModelInfo
from tenora_platform.intake.check import CheckedAdapter, check_adapter
from tenora_platform.intake.header import IntakeError, read_header

Check = Callable[..., CheckedAdapter]
Q0A = tensor_name(0, "q_proj", "A")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelInfo:
    return FakeEngine(tmp_path_factory.mktemp("model")).model


@pytest.fixture
def check(model: ModelInfo, tmp_path: Path) -> Check:
    """Examines a config (an object or raw bytes) and the bytes of a weights file."""

    def run(config: dict[str, Any] | bytes, weights: bytes, max_rank: int = 16) -> CheckedAdapter:
        path = tmp_path / "weights"
        path.write_bytes(weights)
        raw = config if isinstance(config, bytes) else json.dumps(config).encode()
        return check_adapter(raw, path, model, max_rank)

    return run


def codes(checked: CheckedAdapter) -> set[str]:
    return {problem.code for problem in checked.report.problems}


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_good_adapter(check: Check, model: ModelInfo, dtype: str) -> None:
    tensors = adapter_tensors(model, dtype=dtype)
    checked = check(adapter_config(), safetensors(tensors))
    assert checked.report.problems == []
    assert checked.digest is not None
    assert checked.rank == 4
    assert checked.target_modules == ("q_proj", "v_proj")
    facts = checked.report.facts
    assert facts is not None
    assert facts.tensors == facts.tensors_applied == 8
    assert facts.scaling == 2
    assert facts.layers == [0, 1]
    assert facts.dtypes == [dtype]
    assert facts.parameters == 2 * (4 * 16 + 16 * 4 + 4 * 16 + 8 * 4)


def test_norms_are_those_of_numpy(check: Check, model: ModelInfo) -> None:
    tensors = adapter_tensors(model)
    facts = check(adapter_config(), safetensors(tensors)).report.facts
    assert facts is not None
    values = [
        np.frombuffer(data, "<f4")
        for name, (_, _, data) in tensors.items()
        if "q_proj.lora_A" in name
    ]
    expected = float(np.linalg.norm(np.concatenate(values).astype(np.float64)))
    assert facts.modules[0].module == "q_proj"
    assert facts.modules[0].norm_a == pytest.approx(expected, rel=1e-9)


def test_rank_and_alpha_patterns(check: Check, model: ModelInfo) -> None:
    tensors = adapter_tensors(model, ["q_proj"], rank=4) | adapter_tensors(
        model, ["v_proj"], rank=9
    )
    config = adapter_config(rank_pattern={"v_proj": 9}, alpha_pattern={"v_proj": 3})
    checked = check(config, safetensors(tensors))
    assert checked.report.problems == []
    assert checked.rank == 9
    assert "shape_mismatch" in codes(check(adapter_config(), safetensors(tensors)))


def test_header_length_that_looks_like_a_pickle(check: Check, model: ModelInfo) -> None:
    """A header of 0x0280 bytes starts with the bytes of a pickle of protocol 2."""
    tensors = adapter_tensors(model)
    header = json.dumps(header_of(tensors)).encode()
    data = b"".join(item[2] for item in tensors.values())
    for length in (0x280, 0x380, 0x480, 0x580):
        if length >= len(header):
            checked = check(adapter_config(), file_of(header.ljust(length), data))
            assert checked.report.problems == []
            return
    pytest.fail("no such length fits")


def test_same_content_same_digest(check: Check, model: ModelInfo) -> None:
    weights = safetensors(adapter_tensors(model))
    first = check(adapter_config(), weights)
    again = check(adapter_config(["v_proj", "q_proj"], inference_mode=True), weights)
    other = check(adapter_config(lora_alpha=16), weights)
    assert first.digest == again.digest
    assert first.digest != other.digest


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"use_dora": True}, "unsupported_dora"),
        ({"modules_to_save": ["lm_head"]}, "unsupported_modules_to_save"),
        ({"bias": "some"}, "unsupported_bias"),
        ({"lora_bias": True}, "unsupported_bias"),
        ({"trainable_token_indices": [1]}, "unsupported_embeddings"),
        ({"layer_replication": [[0, 1]]}, "unsupported_layer_replication"),
        ({"target_parameters": ["x"]}, "unsupported_target_parameters"),
        ({"peft_type": "IA3"}, "unsupported_peft_type"),
        ({"task_type": "SEQ_CLS"}, "unsupported_task_type"),
        ({"init_lora_weights": "pissa"}, "unsupported_initialisation"),
        ({"something_new": 1}, "invalid_config"),
        ({"r": 0}, "invalid_config"),
        ({"r": True}, "invalid_config"),
        ({"lora_alpha": "8"}, "invalid_config"),
        ({"rank_pattern": {"(a+)+$": 4}}, "invalid_config"),
        ({"target_modules": ["embed_tokens"]}, "invalid_config"),
        ({"target_modules": ["conv1"]}, "no_module_matches"),
        ({"r": 32}, "rank_too_large"),
        ({"r": 5}, "shape_mismatch"),
        ({"target_modules": ["q_proj"]}, "module_not_targeted"),
        ({"target_modules": ["q_proj", "v_proj", "k_proj"]}, "tensor_missing"),
    ],
)
def test_refused_configs(
    check: Check, model: ModelInfo, changes: dict[str, Any], code: str
) -> None:
    checked = check(adapter_config(**changes), safetensors(adapter_tensors(model)))
    assert code in codes(checked)
    assert checked.digest is None
    assert all(problem.message and problem.field for problem in checked.report.problems)


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (b"", "invalid_json"),
        (b"[]", "invalid_json"),
        (b'{"r": NaN}', "invalid_json"),
        (b'{"r": 4, "r": 8}', "duplicate_key"),
        (b"\xff\xfe", "invalid_json"),
        (b"[" * 100_000, "invalid_json"),
        (b'{"r": ' + b"9" * 5000 + b"}", "invalid_json"),
        (b" " * 300_000, "config_too_large"),
    ],
)
def test_refused_config_files(check: Check, model: ModelInfo, raw: bytes, code: str) -> None:
    assert code in codes(check(raw, safetensors(adapter_tensors(model))))


def _renamed(tensors: dict[str, Any], new: str) -> dict[str, Any]:
    return {(new if name == Q0A else name): tensor for name, tensor in tensors.items()}


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("../../etc/passwd", "invalid_name"),
        ("a\0b", "invalid_name"),
        ("a//b", "invalid_name"),
        ("x" * 300, "invalid_name"),
        ("", "invalid_name"),
        ("base_model.model.lm_head.lora_A.weight", "unsupported_lm_head"),
        ("base_model.model.model.embed_tokens.lora_embedding_A", "unsupported_embeddings"),
        (Q0A.replace("lora_A", "lora_magnitude_vector"), "unsupported_dora"),
        (Q0A.replace("lora_A.weight", "lora_B.bias"), "unsupported_bias"),
        (Q0A.replace("layers.0", "layers.7"), "layer_out_of_range"),
        (Q0A.replace("q_proj", "z_proj"), "unknown_tensor"),
        ("something.else", "unknown_tensor"),
    ],
)
def test_refused_names(check: Check, model: ModelInfo, name: str, code: str) -> None:
    tensors = _renamed(adapter_tensors(model), name)
    assert code in codes(check(adapter_config(), safetensors(tensors)))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_not_finite(check: Check, model: ModelInfo, value: float, dtype: str) -> None:
    tensors = adapter_tensors(model, dtype=dtype)
    values = np.zeros((4, 16), "<f4")
    values[3, 15] = value
    tensors[Q0A] = (dtype, (4, 16), encode(values, dtype))
    checked = check(adapter_config(), safetensors(tensors))
    assert codes(checked) == {"not_finite"}
    assert [problem.field for problem in checked.report.problems] == [Q0A]


def test_too_large_value_and_no_effect(check: Check, model: ModelInfo) -> None:
    tensors = adapter_tensors(model)
    tensors[Q0A] = ("F32", (4, 16), np.full((4, 16), 1e6, "<f4").tobytes())
    assert codes(check(adapter_config(), safetensors(tensors))) == {"value_out_of_range"}
    zero_b = {
        name: (dtype, shape, bytes(len(data)) if "lora_B" in name else data)
        for name, (dtype, shape, data) in adapter_tensors(model).items()
    }
    report = check(adapter_config(), safetensors(zero_b)).report
    assert report.accepted
    assert [warning.code for warning in report.warnings] == ["no_effect"]


@pytest.mark.parametrize(
    ("value", "alpha", "beyond"),
    [(60000.0, 4e9, {"may_overflow"}), (60000.0, 8, set()), (200.0, 8e15, {"may_overflow"})],
)
def test_what_may_overflow_is_said(
    check: Check, model: ModelInfo, value: float, alpha: float, beyond: set[str]
) -> None:
    """With values that 16 bits can hold, each by itself."""
    tensors = {
        name: (dtype, shape, np.full(shape, value, "<f4").tobytes())
        for name, (dtype, shape, _) in adapter_tensors(model).items()
    }
    report = check(adapter_config(lora_alpha=alpha), safetensors(tensors)).report
    assert report.accepted
    assert {warning.code for warning in report.warnings} == beyond


def _patched(model: ModelInfo, change: Callable[[dict[str, Any]], None]) -> bytes:
    tensors = adapter_tensors(model)
    header = header_of(tensors)
    change(header)
    return file_of(json.dumps(header).encode(), b"".join(item[2] for item in tensors.values()))


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda h: h[Q0A].update(dtype="I64"), "unsupported_dtype"),
        (lambda h: h[Q0A].update(dtype=["F32"]), "unsupported_dtype"),
        (lambda h: h[Q0A].update(dtype="F8_E4M3"), "unsupported_dtype"),
        (lambda h: h[Q0A].update(shape=[0, 16]), "invalid_shape"),
        (lambda h: h[Q0A].update(shape=[]), "invalid_shape"),
        (lambda h: h[Q0A].update(shape=[-4, 16]), "invalid_entry"),
        (lambda h: h[Q0A].update(shape=[4.0, 16]), "invalid_entry"),
        (lambda h: h[Q0A].update(shape=[True, 16]), "invalid_entry"),
        (lambda h: h[Q0A].update(shape=[2**62, 16]), "invalid_entry"),
        (lambda h: h[Q0A].update(shape=[16, 4]), "shape_mismatch"),
        (lambda h: h[Q0A].update(data_offsets=[0, 2**40]), "invalid_offsets"),
        (lambda h: h[Q0A].update(data_offsets=[256, 0]), "invalid_offsets"),
        (lambda h: h[Q0A].update(data_offsets=[0]), "invalid_offsets"),
        (lambda h: h[Q0A].update(extra=1), "invalid_entry"),
        (lambda h: h.update({Q0A: []}), "invalid_entry"),
        (lambda h: h[Q0A].update(data_offsets=[4, 260]), "offsets_not_contiguous"),
        (lambda h: h.pop(Q0A), "offsets_not_contiguous"),
        (lambda h: h.clear(), "no_tensors"),
        (lambda h: h.update(__metadata__={"format": 1}), "invalid_metadata"),
        (lambda h: h.update(__metadata__=[]), "invalid_metadata"),
    ],
)
def test_refused_headers(
    check: Check, model: ModelInfo, change: Callable[[dict[str, Any]], None], code: str
) -> None:
    assert code in codes(check(adapter_config(), _patched(model, change)))


def test_refused_files(check: Check, model: ModelInfo) -> None:
    good = safetensors(adapter_tensors(model))
    many = {
        f"t{n}": {"dtype": "F32", "shape": [1], "data_offsets": [4 * n, 4 * n + 4]}
        for n in range(9000)
    }
    doubled = good[8:].replace(b'{"', b'{"' + Q0A.encode() + b'": {}, "', 1)
    cases = {
        "truncated": b"",
        "size_mismatch": good + b"\0",
        "pickle_refused": b"PK\x03\x04" + good,
        "format_refused": b"GGUF\x03\0\0\0" + good,
        "header_too_large": (2**21).to_bytes(8, "little") + b"{" + b" " * 2**21,
        "too_many_tensors": file_of(json.dumps(many).encode(), bytes(36_000)),
        "duplicate_key": file_of(doubled[: doubled.index(b"}}") + 2], b""),
        "invalid_json": file_of(b"[1]", b""),
    }
    for code, weights in cases.items():
        assert code in codes(check(adapter_config(), weights)), code
    assert codes(check(adapter_config(), b"\x80\x04\x95" + bytes(100))) <= {
        "pickle_refused",
        "header_too_large",
        "truncated",
    }
    assert codes(check(adapter_config(), b"\x80\x02}q\0(X\1\0\0\0a")) == {"pickle_refused"}
    assert codes(check(adapter_config(), good[:-1])) == {"size_mismatch"}


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_corrupted_headers(model: ModelInfo, tmp_path: Path, data: st.DataObject) -> None:
    """Whatever is done to the header: it is refused by name, or what is accepted covers the file
    exactly and lies within it."""
    raw = bytearray(safetensors(adapter_tensors(model)))
    length = int.from_bytes(raw[:8], "little")
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, 7 + length))
        raw[position : position + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    path = tmp_path / "corrupted"
    path.write_bytes(raw)
    try:
        with path.open("rb") as file:
            header = read_header(file, len(raw))
    except IntakeError:
        return
    position = header.data_begin
    for entry in header.tensors:
        assert entry.begin == position
        position = entry.end
    assert position == len(raw)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    header=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(
                st.sampled_from(["dtype", "shape", "data_offsets", Q0A, "__metadata__"]), inner
            )
        ),
        max_leaves=20,
    ),
    body=st.binary(max_size=64),
)
def test_arbitrary_json(model: ModelInfo, tmp_path: Path, header: Any, body: bytes) -> None:
    path = tmp_path / "arbitrary"
    path.write_bytes(file_of(json.dumps(header).encode(), body))
    checked = check_adapter(json.dumps(adapter_config()).encode(), path, model, 16)
    assert checked.report.problems
