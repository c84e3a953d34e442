"""What an adapter is called by its content, and where the object store keeps it. Knows no names,
tenants or versions."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping

from tenora_engine.adapters.draft_format import FILE as DRAFT_FILE
from tenora_engine.adapters.peft_format import LoraConfig, parse_adapter_config
from tenora_engine.errors import AdapterLoadError

_DOMAIN = b"tenora-adapter-v1\0"
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_HEX = re.compile(r"[0-9a-f]{64}")


def adapter_digest(normalised_config: bytes, weights_sha256: str) -> str:
    """`sha256:<hex>` over the normalised config and the weights file's own SHA-256 (64 hex digits).

    The config is part of it: the same tensors with another alpha are another adapter.
    """
    if not _HEX.fullmatch(weights_sha256):
        raise ValueError(f"weights_sha256 must be 64 lower-case hex digits, not {weights_sha256!r}")
    config = hashlib.sha256(normalised_config).digest()
    return "sha256:" + hashlib.sha256(_DOMAIN + config + bytes.fromhex(weights_sha256)).hexdigest()


def normalise_config(config: Mapping[str, object]) -> bytes:
    """Canonical JSON of the fields of an adapter_config.json that change what the adapter does.

    PEFT can still read it. Patterns keep their order, because PEFT takes the first that matches.
    Raises AdapterFormatError, as `parse_adapter_config` does.
    """
    return json.dumps(
        _canonical_fields(parse_adapter_config(config)),
        separators=(",", ":"),
        ensure_ascii=True,
        allow_nan=False,
    ).encode()


def _canonical_fields(config: LoraConfig) -> dict[str, object]:
    """Fields in one fixed order; those at PEFT's default are left out."""
    fields: dict[str, object] = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": config.r,
        "lora_alpha": _plain(config.lora_alpha),
        "target_modules": _names(config.target_modules),
    }
    if config.exclude_modules:
        fields["exclude_modules"] = _names(config.exclude_modules)
    if config.rank_pattern:
        fields["rank_pattern"] = dict(config.rank_pattern)
    if config.alpha_pattern:
        fields["alpha_pattern"] = {key: _plain(alpha) for key, alpha in config.alpha_pattern}
    if config.use_rslora:
        fields["use_rslora"] = True
    if config.layers_to_transform is not None:
        fields["layers_to_transform"] = sorted(set(config.layers_to_transform))
        if config.layers_pattern:
            fields["layers_pattern"] = list(config.layers_pattern)
    return fields


def _plain(number: float) -> float:
    return int(number) if number == int(number) else number


def _names(names: str | tuple[str, ...]) -> str | list[str]:
    return names if isinstance(names, str) else sorted(set(names))


def digest_hex(digest: str) -> str:
    """The 64 hex digits of `sha256:<hex>`. Raises AdapterLoadError for anything else, so that no
    other text ever becomes part of a path."""
    match = _DIGEST.fullmatch(digest)
    if match is None:
        raise AdapterLoadError(f"an adapter digest reads 'sha256:<64 hex digits>', not {digest!r}")
    return match.group(1)


def config_key(digest: str) -> str:
    """Where the object store keeps the normalised config."""
    return f"adapters/{digest_hex(digest)}/adapter_config.json"


def weights_key(digest: str) -> str:
    """Where the object store keeps the safetensors file, byte for byte as uploaded."""
    return f"adapters/{digest_hex(digest)}/adapter_model.safetensors"


def draft_key(digest: str) -> str:
    """Where the object store keeps an adapter's draft layer: by its own digest, `sha256:<hex>` of
    the file, which several versions may have."""
    return f"adapters/{digest_hex(digest)}/{DRAFT_FILE}"
