"""An adapter's folder as trainers leave it: which of its files make the adapter, and how several
weights files become one. Knows names and headers; who reads the files is the caller's affair."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO

from tenora_platform.intake.header import Header, IntakeError, read_header, show, strict_json

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
INDEX = f"{WEIGHTS}.index.json"
DRAFT_LAYER = "draft_layer.safetensors"
TEMPLATE = "chat_template.jinja"
TOKENIZER_CONFIG = "tokenizer_config.json"
SHARDS_MAX = 256
INDEX_BYTES_MAX = 4 * 1024 * 1024


@dataclass(frozen=True)
class Piece:
    """Bytes `begin:end` of the file `name`."""

    name: str
    begin: int
    end: int


@dataclass(frozen=True)
class Merged:
    """A safetensors file made of several: `header` (with its length before it), then the pieces."""

    header: bytes
    pieces: tuple[Piece, ...]

    @property
    def bytes(self) -> int:
        return len(self.header) + sum(piece.end - piece.begin for piece in self.pieces)


def weights_files(names: Collection[str], index: bytes | None) -> list[str]:
    """The weights files of a folder with these `names`, in the order of its index, if it has one.
    Raises IntakeError, which says what is there instead."""
    if WEIGHTS in names:
        return [WEIGHTS]
    if index is not None:
        shards = shards_of(index)
        missing = [name for name in shards if name not in names]
        if missing:
            raise IntakeError(
                "weights",
                "shard_missing",
                f"{INDEX} names {show(missing[0])}, which is not in the folder",
            )
        return shards
    raise IntakeError("weights", "weights_missing", f"{WEIGHTS} does not exist; {_instead(names)}")


def _instead(names: Collection[str]) -> str:
    if any(name.endswith((".bin", ".pt", ".pth", ".ckpt")) for name in names):
        return (
            "there are pickled weights, which Tenora never loads, because they can contain "
            "code; save with save_pretrained(..., safe_serialization=True)"
        )
    if any(name.endswith(".gguf") for name in names):
        return "there is a GGUF file; upload the PEFT folder that it was converted from"
    if any(name.endswith(".safetensors") and name != DRAFT_LAYER for name in names):
        return f"there is another safetensors file; rename it to {WEIGHTS} if it is the adapter's"
    return f"an adapter's folder must contain {CONFIG} and {WEIGHTS}"


def shards_of(index: bytes) -> list[str]:
    """The files that an index names, sorted as they are numbered. Raises IntakeError."""
    parsed = strict_json(index[: INDEX_BYTES_MAX + 1], INDEX)
    places = parsed.get("weight_map") if isinstance(parsed, dict) else None
    if not isinstance(places, dict) or not all(isinstance(name, str) for name in places.values()):
        raise IntakeError(INDEX, "invalid_json", "weight_map must name a file for each tensor")
    shards = sorted(set(places.values()))
    if not 1 <= len(shards) <= SHARDS_MAX:
        raise IntakeError(
            INDEX,
            "too_many_shards",
            f"an adapter can have 1 to {SHARDS_MAX} files, not {len(shards)}",
        )
    for name in shards:
        if not name or "/" in name or "\\" in name or name.startswith("."):
            raise IntakeError(INDEX, "invalid_name", f"{show(name)} is not a file of this folder")
    return shards


def merge(files: Sequence[tuple[str, bytes, int]]) -> Merged:
    """One file of several `(name, first bytes up to the end of the header, size)`: every tensor of
    each, in their order. Raises IntakeError for headers that do not hold, and for a tensor that two
    of them have."""
    entries: dict[str, dict[str, object]] = {}
    pieces = []
    position = 0
    for name, start, size in files:
        header = read_header(BytesIO(start), size)
        _add_entries(entries, header, name, position)
        pieces.append(Piece(name, header.data_begin, size))
        position += size - header.data_begin
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the format's alignment
    return Merged(len(text).to_bytes(8, "little") + text, tuple(pieces))


def _add_entries(
    entries: dict[str, dict[str, object]], header: Header, name: str, position: int
) -> None:
    for entry in header.tensors:
        if entry.name in entries:
            raise IntakeError(
                entry.name, "duplicate_tensor", f"is both in {show(name)} and in an earlier file"
            )
        begin = position + entry.begin - header.data_begin
        entries[entry.name] = {
            "dtype": entry.dtype,
            "shape": list(entry.shape),
            "data_offsets": [begin, begin + entry.end - entry.begin],
        }


def chat_template_of(template: bytes | None, tokenizer_config: bytes | None) -> str | None:
    """The chat template of a folder, from where transformers looks: `chat_template.jinja`, else the
    tokenizer's config (of several by name, "default"). None when it has none."""
    if template is not None:
        return template.decode("utf-8", errors="replace") or None
    if tokenizer_config is None:
        return None
    try:
        parsed = json.loads(tokenizer_config)
    except (ValueError, RecursionError):
        return None  # the tokenizer is not the adapter's business
    found = parsed.get("chat_template") if isinstance(parsed, Mapping) else None
    if isinstance(found, list):
        named = [each for each in found if isinstance(each, Mapping)]
        found = {each.get("name"): each.get("template") for each in named}.get("default")
    return found if isinstance(found, str) and found else None
