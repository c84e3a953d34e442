"""An engine process that hangs: what is asked about it is answered, and says so."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from api_harness import ADMIN_KEY, Api
from tenora_engine.transport.process import ProcessEngineClient
from tenora_platform.settings import Settings
from tiny_engine_api import api_over, tiny_config

ASKED = ("/admin/v1/engine", "/admin/v1/engine/pages", "/admin/v1/engine/adapters")
SAYS_SO = ("engine_not_answering", "engine_not_ready")
"""Before and after the client has noticed by itself that it hears nothing."""


async def test_what_is_asked_of_it(settings: Settings, tmp_path: Path) -> None:
    engine = ProcessEngineClient(tiny_config(tmp_path), socket_dir=tmp_path)
    async with api_over(settings, engine) as api:
        first = await metrics(api)
        assert (first["tenora_engine_ready"], first["tenora_engine_answers"]) == (1, 1)
        assert engine.pid is not None
        os.kill(engine.pid, signal.SIGSTOP)
        try:
            missed = await metrics(api)
            assert missed["tenora_engine_answers"] == 0
            if missed["tenora_engine_ready"]:  # a scrape that it misses is no restart
                assert missed["tenora_engine_steps_total"] == first["tenora_engine_steps_total"]
            for path in ASKED:
                answer = await api.admin("GET", path)
                code = answer.json()["error"]["code"]
                assert (answer.status_code, code in SAYS_SO) == (503, True), answer.text
        finally:
            os.kill(engine.pid, signal.SIGCONT)


async def metrics(api: Api) -> dict[str, float]:
    """Those without labels."""
    headers = {"authorization": f"Bearer {ADMIN_KEY}"}
    text = (await api.http.get("/metrics", headers=headers)).text
    families = text_string_to_metric_families(text)
    samples = [sample for family in families for sample in family.samples]
    return {sample.name: sample.value for sample in samples if not sample.labels}
