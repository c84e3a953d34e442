"""The engines that stand in for the real one are called as it is: no type checker sees the calls of
its loop, which was given a cast."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from bad_engine import BadEngine
from fake_step_engine import FakeStepEngine
from tenora_bench.api.pretend_engine import PretendEngine
from tenora_engine.engine import Engine

OF_EACH_REQUEST = ("prepare", "submit", "release", "discard", "sender_of", "abort", "step")


@pytest.mark.parametrize("stand_in", [PretendEngine, BadEngine, FakeStepEngine])
def test_a_stand_in_takes_what_the_real_engine_takes(stand_in: type[Any]) -> None:
    for name in OF_EACH_REQUEST:
        assert hasattr(stand_in, name), name
    for name, real in inspect.getmembers(Engine, inspect.isfunction):
        own = getattr(stand_in, name, None)
        if not name.startswith("_") and inspect.isfunction(own):
            wanted = list(inspect.signature(real).parameters)
            assert list(inspect.signature(own).parameters) == wanted, name
