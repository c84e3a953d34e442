"""Where the parts of one supervisor count together; one folder for each supervisor that lives."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tenora_engine.private_folders import make_private
from tenora_platform.embedded.process import is_alive


def fresh_metrics_dir(data_dir: Path) -> Path:
    """An empty folder of our own; those of supervisors that have ended are removed."""
    folder = data_dir / "metrics"
    make_private(folder)
    for old in folder.iterdir():
        if not old.name.isdigit():
            continue  # not made here: the data directory may be shared
        if old.name == str(os.getpid()) or not is_alive(int(old.name)):
            shutil.rmtree(old, ignore_errors=True)
    own = folder / str(os.getpid())
    make_private(own)
    return own
