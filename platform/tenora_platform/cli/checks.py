"""What can be found wrong before anything is started, each with what to do about it."""

from __future__ import annotations

import os
import tempfile
from concurrent.futures import ProcessPoolExecutor
from ipaddress import ip_address
from multiprocessing import get_context
from pathlib import Path

from tenora_engine.machine import raise_open_files
from tenora_engine.private_folders import make_private
from tenora_platform.cli.errors import CliError, plain_words
from tenora_platform.ownership import require_own
from tenora_platform.processes.listening import listen
from tenora_platform.settings import Settings

_CONNECTIONS_WANTED = 512


def check_address(host: str, port: int) -> None:
    """Raises CliError if the address cannot be listened on."""
    listen(host, port).close()


def check_device(settings: Settings) -> None:
    """Raises CliError when a GPU is asked for that this torch cannot use."""
    if settings.device != "cuda":
        return
    import torch

    if torch.cuda.is_available():
        return
    if torch.version.cuda is None:
        why = f"torch {torch.__version__} is built without CUDA"
        hint = "Install a build of torch with CUDA, or leave --device out to run on the CPU."
    else:
        why = f"torch {torch.__version__} (CUDA {torch.version.cuda}) finds no GPU"
        hint = "Does nvidia-smi see one? Leave --device out to run on the CPU."
    raise CliError(f"--device cuda is not possible: {why}.", hint)


def check_model_folder(settings: Settings) -> None:
    """Raises CliError for what is plainly not a model folder, ModelLoadError where its text files
    cannot be used, which API processes need. The engine looks closer at the others."""
    if settings.model is None:
        return
    folder, dummy = Path(settings.model), settings.load_format == "dummy"
    if not folder.is_dir():
        raise CliError(
            f"The model folder {folder} does not exist.",
            "--model must be a Hugging Face folder (config.json, *.safetensors, "
            "tokenizer.json). Leave it out for the default model.",
        )
    if not (folder / "config.json").is_file():
        raise CliError(f"{folder} has no config.json, so it is not a Hugging Face model folder.")
    if not dummy and not any(folder.glob("*.safetensors")) and not any(folder.glob("*.gguf")):
        raise CliError(
            f"{folder} has no weights (*.safetensors).",
            "With a config only, --load-format dummy runs it on random weights.",
        )
    # In a process that ends: a tokenizer takes 50 MB, and who checks lives long.
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        pool.submit(_read_texts, settings.model).result()


def _read_texts(folder: str) -> None:
    from tenora_engine.text.processor import TextProcessor

    TextProcessor(folder)


_WRITTEN = ("postgres", "valkey", "outbox", "engine", "metrics", "models", "kernels")
"""In the data directory, by whichever part; each makes its own."""
_PROBE_BYTES = 64 * 1024


def check_data_dir(settings: Settings) -> None:
    """The data directory is there, or made now, and can be written to. Raises CliError,
    and ForeignOwnerError where it is another user's."""
    require_own(settings.data_dir)
    _check_folder(settings.data_dir)
    for name in _WRITTEN:
        folder = settings.data_dir / name
        if folder.exists():
            _check_folder(folder)


def open_to_others(folder: Path) -> str | None:
    """What to do about a data directory that other users can read or write."""
    mode = folder.stat().st_mode & 0o077
    if not mode:
        return None
    what = "write to" if mode & 0o022 else "read"
    return f"other users can {what} {folder}; close it with: chmod 700 {folder}"


def few_files() -> str | None:
    """What to do about a limit of open files that leaves few connections."""
    # Imported late: a supervisor, which lives as long as the platform, has no use for a server.
    from tenora_platform.connections import FILES_KEPT
    from tenora_platform.serving import CONNECTIONS_MIN

    files = raise_open_files()
    left = files - FILES_KEPT
    if left >= _CONNECTIONS_WANTED:
        return None
    return (
        f"the limit of {files} open files leaves {max(left, CONNECTIONS_MIN)} connections for each "
        f"API process; raise it with: ulimit -n {FILES_KEPT + _CONNECTIONS_WANTED}"
    )


def plain_http(settings: Settings) -> str | None:
    """What to do about keys and sessions that other machines send unencrypted."""
    if settings.base_url.startswith("https://") or _is_loopback(settings.host):
        return None
    return (
        "keys and sessions travel unencrypted over http; put a proxy with TLS in front and set "
        "TENORA_PUBLIC_URL to its https address"
    )


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_folders(settings: Settings) -> None:
    """And so are the folders of uploads and objects. Raises CliError."""
    check_data_dir(settings)
    _check_folder(settings.spool_folder)
    if "://" not in settings.object_store_url:
        _check_folder(Path(settings.object_store_url))


def _check_folder(folder: Path) -> None:
    try:
        make_private(folder)
        with tempfile.TemporaryFile(dir=folder, buffering=0) as probe:
            probe.write(bytes(_PROBE_BYTES))
            os.fsync(probe.fileno())
    except OSError as error:
        raise CliError(
            f"The folder {folder} cannot be written to: {plain_words(error)}."
        ) from error
