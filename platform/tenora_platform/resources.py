"""Where the files lie that Tenora needs beside its code: within an installed package, or in the
checkout. It does not know what is in them."""

from __future__ import annotations

from pathlib import Path

_BUNDLED = Path(__file__).with_name("_bundled")
_CHECKOUT = Path(__file__).resolve().parents[2]


def is_installed() -> bool:
    """Whether this is a wheel's code rather than a checkout's."""
    return _BUNDLED.is_dir()


def migrations_folder() -> Path:
    return _found("migrations", "migrations")


def portal_folder() -> Path:
    """The built portal; it may not be there."""
    return _found("portal", "admin_ui/dist")


def examples_folder() -> Path:
    """The demo's adapters; they may not be there."""
    return _found("examples", "examples/adapters")


def default_draft_layer() -> Path:
    """The default model's trained draft layer; it may not be there."""
    return _found("draft", "examples/draft") / "SmolLM2-135M-Instruct.safetensors"


def _found(bundled: str, in_checkout: str) -> Path:
    return _BUNDLED / bundled if is_installed() else _CHECKOUT / in_checkout
