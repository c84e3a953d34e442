"""An engine on fakes whose device is lost at its first step, for tests of the process around it."""

from __future__ import annotations

import msgspec

from engine_fakes import Rig, make_config
from tenora_engine.config import EngineConfig
from tenora_engine.engine import Engine


def build(config: EngineConfig) -> Engine:
    resolved = make_config()
    engine = msgspec.structs.replace(resolved.engine, outbox_dir=config.outbox_dir)
    rig = Rig.build(msgspec.structs.replace(resolved, engine=engine))
    rig.executor.fail_next = RuntimeError("CUDA error: an illegal memory access was encountered")
    return rig.engine
