"""`tenora price` against a server, as a shell runs it."""

from __future__ import annotations

import json
from pathlib import Path

from api_harness import ADMIN_KEY
from shell import Listening, run


def test_prices_from_a_shell(listening: Listening, tmp_path: Path) -> None:
    where, admin = ("--url", listening.url), {"TENORA_ADMIN_KEY": ADMIN_KEY}
    code, text = run("tenant", "create", "priced", "--json", *where, **admin)
    own = {"TENORA_API_KEY": json.loads(text)["key"]}
    file = tmp_path / "prices.json"
    output = [{"price": "3"}, {"class": "batch", "price": "1.5"}, {"from": 1000, "price": "2"}]
    body = {
        "plan": "standard",
        "effective_from": "2043-01-01T00:00:00Z",
        "per_million": {"uncached_prefill": "1", "cached_prefill": "0", "output": output},
        "minimum": "9.5",
    }
    file.write_text(json.dumps(body))
    code, text = run("price", "preview", str(file), "--json", *where, **admin)
    assert code == 0, text
    assert json.loads(text)["object"] == "price_preview"
    code, text = run("price", "add", str(file), *where, **admin)
    assert code == 0, text
    assert "output (any: 3; any from 1000: 2; batch: 1.5)" in text
    code, text = run("price", "list", *where, **admin)
    assert (code, "plan standard" in text, "all" in text) == (0, True, True)
    code, text = run("price", "own", *where, **own)
    assert (code, "announced" in text, "in_force" in text) == (0, True, True)
    code, text = run("price", "add", str(file), *where, **admin)
    assert (code, "effective_from" in text) == (1, True)  # one begins then already
    file.write_text("{")
    code, text = run("price", "add", str(file), *where, **admin)
    assert (code, "is not JSON" in text) == (1, True)
