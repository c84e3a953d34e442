"""A Tenora served from its own environment, for clients installed in another (`make clients`)."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from client_checks import Tenora


@pytest.fixture(scope="session")
def tenora() -> Iterator[Tenora]:
    python = os.environ.get("TENORA_CLIENTS_SERVER")
    if python is None:
        pytest.skip("run `make clients`")
    here = Path(__file__).parent
    paths = [str(here.parent / "support"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    with subprocess.Popen(
        [python, str(here / "serve.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as server:
        assert server.stdout is not None
        said = server.stdout.readline()
        assert said, "the server ended before it was ready"
        yield Tenora(**json.loads(said))
        server.communicate()  # its input ends, and it with it
