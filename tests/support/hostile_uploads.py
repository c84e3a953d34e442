"""Uploads that mean harm or went wrong, by name: what is sent, the code it is refused with, words
of the sentence. All but the part they are about is a good adapter of the base model's."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from adapter_files import adapter_config, adapter_tensors, encode, file_of, header_of, safetensors
from tenora_engine.config import ModelInfo

Tensors = dict[str, tuple[str, tuple[int, ...], bytes]]
Header = dict[str, Any]
FIRST = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"


@dataclass(frozen=True)
class Hostile:
    """`files(model)` is (config, weights)."""

    name: str
    files: Callable[[ModelInfo], tuple[bytes, bytes]]
    code: str
    words: str

    def __str__(self) -> str:
        return self.name


def weights(name: str, make: Callable[[bytes], bytes], code: str, words: str) -> Hostile:
    """Of the bytes of a good file."""

    def files(model: ModelInfo) -> tuple[bytes, bytes]:
        return json.dumps(adapter_config()).encode(), make(safetensors(adapter_tensors(model)))

    return Hostile(name, files, code, words)


def header(name: str, change: Callable[[Header], Any], code: str, words: str) -> Hostile:
    """The header changed, or what is returned in its place (bytes as they are)."""

    def files(model: ModelInfo) -> tuple[bytes, bytes]:
        tensors = adapter_tensors(model)
        made = header_of(tensors)
        other = change(made)
        raw = other if isinstance(other, bytes) else json.dumps(other or made).encode()
        return json.dumps(adapter_config()).encode(), file_of(raw, data_of(tensors))

    return Hostile(name, files, code, words)


def tensors(name: str, change: Callable[[Tensors], None], code: str, words: str) -> Hostile:
    def files(model: ModelInfo) -> tuple[bytes, bytes]:
        made = adapter_tensors(model)
        change(made)
        return json.dumps(adapter_config()).encode(), safetensors(made)

    return Hostile(name, files, code, words)


def config(name: str, made: Mapping[str, Any] | bytes, code: str, words: str) -> Hostile:
    """Fields changed, or the bytes of the whole file."""

    def files(model: ModelInfo) -> tuple[bytes, bytes]:
        raw = made if isinstance(made, bytes) else json.dumps(adapter_config(**made)).encode()
        return raw, safetensors(adapter_tensors(model))

    return Hostile(name, files, code, words)


def data_of(made: Tensors) -> bytes:
    return b"".join(data for _, _, data in made.values())


def first(**fields: Any) -> Callable[[Header], None]:
    """Change the first tensor's entry."""

    def change(made: Header) -> None:
        made[FIRST].update(fields)

    return change


def renamed(name: str) -> Callable[[Header], Header]:
    def change(made: Header) -> Header:
        return {name if key == FIRST else key: entry for key, entry in made.items()}

    return change


def value(number: float, dtype: str = "F32") -> Callable[[Tensors], None]:
    """One such number in the last place of the first tensor."""

    def change(made: Tensors) -> None:
        _, shape, _ = made[FIRST]
        values = np.zeros(shape, "<f4")
        with np.errstate(over="ignore"):
            values[-1, -1] = number
            made[FIRST] = (dtype, shape, encode(values, dtype))

    return change


def twice(made: Header) -> bytes:
    entry = json.dumps(made[FIRST])
    return json.dumps(made).encode()[:-1] + f', "{FIRST}": {entry}}}'.encode()


def shifted(by: int) -> Callable[[Header], None]:
    """The second tensor begins so many bytes later, and is as long as before."""

    def change(made: Header) -> None:
        second = list(made)[1]
        begin, end = made[second]["data_offsets"]
        made[second]["data_offsets"] = [begin + by, end + by]

    return change


def zip_bomb(_: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", bytes(8 * 2**20))
    return out.getvalue()


def tar_with_links(_: bytes) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        link = tarfile.TarInfo("adapter_model.safetensors")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    return out.getvalue()


def deep(opening: str, closing: str, count: int = 100_000) -> bytes:
    return (opening * count + closing * count).encode()


def many_tensors(_: Header) -> Header:
    entry = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    return {f"a.{number}": entry for number in range(8193)}


BOMB = "(" * 40 + "a+" + ")+" * 40 + "$"

HOSTILE = [
    # The file
    weights("empty file", lambda _: b"", "truncated", "shorter than a safetensors header"),
    weights("seven bytes", lambda file: file[:7], "truncated", "shorter than a safetensors"),
    weights("cut in the header", lambda file: file[:100], "truncated", "too short for its header"),
    weights("cut in the data", lambda file: file[:-1], "size_mismatch", "but the file has"),
    weights("bytes behind", lambda file: file + b"x", "size_mismatch", "but the file has"),
    weights("a second file behind", lambda file: file * 2, "size_mismatch", "but the file has"),
    weights(
        "header of 2**63 bytes",
        lambda file: b"\xff" * 7 + b"\x7f" + file[8:],
        "header_too_large",
        "at most 1048576",
    ),
    weights(
        "header of a gigabyte",
        lambda file: (2**30).to_bytes(8, "little") + file[8:],
        "header_too_large",
        "the header has 1073741824 bytes",
    ),
    weights("header of nothing", lambda _: bytes(8), "truncated", "header of 0 bytes"),
    weights("zip bomb", zip_bomb, "pickle_refused", "a zip archive"),
    weights("pickle", lambda _: pickle.dumps({"a": 1}), "pickle_refused", "a Python pickle"),
    weights("GGUF", lambda _: b"GGUF" + b"\xff" * 40, "format_refused", "a GGUF file"),
    weights("gzip", lambda file: gzip.compress(file), "format_refused", "a gzip archive"),
    weights("HDF5", lambda _: b"\x89HDF\r\n\x1a\n" + bytes(40), "format_refused", "an HDF5 file"),
    weights("tar with a link", tar_with_links, "header_too_large", "are allowed"),
    weights("HTML", lambda _: b"<!DOCTYPE html><p>404</p>", "header_too_large", "are allowed"),
    # The header
    header("no JSON", lambda _: b"{not json}", "invalid_json", "not valid JSON"),
    header("a list", lambda _: b"[1, 2]", "invalid_json", "does not start with '{'"),
    header("spaces first", lambda _: b"   {}", "invalid_json", "does not start with '{'"),
    header("NaN", lambda _: b'{"a": NaN}', "invalid_json", "NaN is not allowed in JSON"),
    header("no UTF-8", lambda _: b'{"\xff": 1}', "invalid_json", "not valid JSON"),
    header("lone surrogate", lambda _: b'{"\\ud800": {}}', "invalid_json", "lone surrogate"),
    header("nested lists", lambda _: b'{"a":' + deep("[", "]"), "invalid_json", "too deeply"),
    header("nested objects", lambda _: deep('{"a":', "}"), "invalid_json", "too deeply"),
    header(
        "number of many digits", lambda _: b'{"a":' + b"9" * 5000 + b"}", "invalid_json", "digits"
    ),
    header("duplicate tensor", twice, "duplicate_key", "appears twice"),
    header(
        "duplicate field",
        lambda _: b'{"a": {"dtype": "F32", "dtype": "F16"}}',
        "duplicate_key",
        "'dtype' appears twice",
    ),
    header("no tensors", lambda _: b"{}", "no_tensors", "contains no tensors"),
    header("too many tensors", many_tensors, "too_many_tensors", "has 8193 tensors"),
    header(
        "metadata a list", lambda made: {"__metadata__": [], **made}, "invalid_metadata", "strings"
    ),
    header(
        "metadata nested",
        lambda made: {"__metadata__": {"a": {"b": "c"}}, **made},
        "invalid_metadata",
        "an object of strings",
    ),
    # Names
    header("name upwards", renamed("../../../etc/passwd"), "invalid_name", "letters, digits"),
    header("name with NUL", renamed("a\0b"), "invalid_name", "a\\x00b"),
    header("name of nothing", renamed(""), "invalid_name", "letters, digits"),
    header("name of markup", renamed("<img src=x>"), "invalid_name", "letters, digits"),
    header("name too long", renamed("a" * 257), "invalid_name", "letters, digits"),
    header("name of a module nobody has", renamed("model.rm.weight"), "unknown_tensor", "model.rm"),
    header(
        "name of layer 99",
        renamed(FIRST.replace("layers.0", "layers.99")),
        "layer_out_of_range",
        "99",
    ),
    # Entries
    header("entry a text", lambda made: {**made, FIRST: "F32"}, "invalid_entry", "have exactly"),
    header("entry with more", first(path="/etc/passwd"), "invalid_entry", "have exactly"),
    header("dtype of 64 bits", first(dtype="F64"), "unsupported_dtype", "use one of"),
    header("dtype of integers", first(dtype="I8"), "unsupported_dtype", "'I8' is not allowed"),
    header("dtype a list", first(dtype=["F32"]), "unsupported_dtype", "is not allowed"),
    header("shape of nothing", first(shape=[]), "invalid_shape", "is empty"),
    header("shape with zero", first(shape=[0, 4]), "invalid_shape", "[0, 4]"),
    header("shape of 9 dimensions", first(shape=[1] * 9), "invalid_entry", "array of at most"),
    header("shape below zero", first(shape=[-4, -16]), "invalid_entry", "integers >= 0"),
    header("shape of fractions", first(shape=[4.0, 16.0]), "invalid_entry", "array of integers"),
    header("shape of truths", first(shape=[True, True]), "invalid_entry", "array of integers"),
    header("shape of 2**96", first(shape=[2**47, 2**47]), "invalid_offsets", "do not match shape"),
    header("shape beyond 48 bits", first(shape=[2**70, 1]), "invalid_json", "more than 64 bits"),
    header("shape turned", first(shape=[16, 4]), "shape_mismatch", "[16, 4]"),
    header("offsets turned", first(data_offsets=[256, 0]), "invalid_offsets", "begin < end"),
    header("offsets of three", first(data_offsets=[0, 1, 2]), "invalid_offsets", "[begin, end]"),
    header(
        "offsets beyond the file",
        first(data_offsets=[2**40, 2**40 + 256]),
        "offsets_not_contiguous",
        "leaves a gap",
    ),
    header("offsets overlap", shifted(-4), "offsets_not_contiguous", "overlaps another tensor"),
    header("offsets with a gap", shifted(4), "offsets_not_contiguous", "leaves a gap"),
    header(
        "offsets of nothing", first(data_offsets=[0, 0]), "invalid_offsets", "begin < end"
    ),
    # Values
    tensors("NaN in float32", value(float("nan")), "not_finite", "NaN or infinity"),
    tensors("NaN in float16", value(float("nan"), "F16"), "not_finite", "NaN or infinity"),
    tensors("NaN in bfloat16", value(float("nan"), "BF16"), "not_finite", "NaN or infinity"),
    tensors("infinity", value(float("-inf")), "not_finite", "NaN or infinity"),
    tensors("beyond 16 bits", value(1e30), "value_out_of_range", "65504"),
    tensors("a tensor missing", lambda made: made.pop(FIRST) and None, "tensor_missing", "missing"),
    # The config
    config("config no JSON", b"r = 4", "invalid_json", "not valid JSON"),
    config("config a list", b"[]", "invalid_json", "must be a JSON object"),
    config("config twice", b'{"r": 4, "r": 400}', "duplicate_key", "'r' appears twice"),
    config("config NaN", b'{"lora_alpha": NaN}', "invalid_json", "NaN is not allowed in JSON"),
    config("config nested", deep('{"a":', "}", 20_000), "invalid_json", "too deeply"),
    config("config YAML", b"!!python/object/apply:os.system [id]", "invalid_json", "not valid"),
    config("rank of nothing", {"r": 0}, "invalid_config", "positive integer, not 0"),
    config("rank below zero", {"r": -4}, "invalid_config", "not -4"),
    config("rank beyond all", {"r": 10**9}, "rank_too_large", "rank 1000000000 is above"),
    config("rank a text", {"r": "4"}, "invalid_config", "positive integer, not '4'"),
    config("rank a truth", {"r": True}, "invalid_config", "not True"),
    config("alpha beyond all", b'{"peft_type": "LORA", "r": 4, "lora_alpha": 1e999, '
           b'"target_modules": ["q_proj"]}', "invalid_json", "not a finite number"),
    config("no modules", {"target_modules": []}, "invalid_config", "module names"),
    config("a pattern that never ends", {"target_modules": BOMB}, "invalid_config", "several ways"),
    config("ranks by such a pattern", {"rank_pattern": {BOMB: 4}}, "invalid_config", "several"),
    config(
        "ten thousand patterns",
        {"alpha_pattern": {f"layers.{number}.q_proj": 1 for number in range(8000)}},
        "invalid_config", "at most 4096 entries",
    ),
    config("another method", {"peft_type": "../IA3"}, "unsupported_peft_type", "only LoRA"),
    config("another task", {"task_type": "SEQ_CLS"}, "unsupported_task_type", "CAUSAL_LM"),
]  # fmt: skip
