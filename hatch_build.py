"""Puts into a wheel what Tenora needs beside its code, where `tenora_platform.resources` finds it.
An editable installation has its checkout instead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

BUNDLED = {
    "migrations": "tenora_platform/_bundled/migrations",
    "admin_ui/dist": "tenora_platform/_bundled/portal",
    "examples/adapters": "tenora_platform/_bundled/examples",
    "examples/draft": "tenora_platform/_bundled/draft",
}


class BundledFiles(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        for source, target in BUNDLED.items():
            folder = Path(self.root) / source
            if folder.is_dir():
                build_data["force_include"][str(folder)] = target
            else:
                self.app.display_warning(f"{source} is not there: this wheel is without it")
