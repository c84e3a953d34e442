"""`tenora admin-key` and `tenora key` against a server, as a shell runs them."""

from __future__ import annotations

import json

from api_harness import ADMIN_KEY
from shell import Listening, run


def test_admin_keys_from_a_shell(listening: Listening) -> None:
    where, admin = ("--url", listening.url), {"TENORA_ADMIN_KEY": ADMIN_KEY}
    code, text = run("admin-key", "create", "books", "--role", "billing", "--json", *where, **admin)
    assert code == 0, text
    made = json.loads(text)
    code, text = run("tenant", "create", "acme", *where, TENORA_ADMIN_KEY=made["key"])
    assert (code, "billing" in text) == (1, True)
    code, text = run("tenant", "list", *where, TENORA_ADMIN_KEY=made["key"])
    assert code == 0
    code, text = run("admin-key", "rotate", made["id"], "--overlap-s", "0", *where, **admin)
    assert (code, "tna_" in text, made["key"] in text) == (0, True, False)
    code, text = run("admin-key", "list", *where, **admin)
    assert (code, "configured" in text, "books" in text) == (0, True, True)
    code, text = run("admin-key", "revoke", made["id"], *where, **admin)
    assert (code, text.strip()) == (0, f"revoked {made['id']}")
    code, text = run("admin-key", "create", "x", "--role", "king", *where, **admin)
    assert (code, "role" in text) == (1, True)


def test_rotating_a_tenants_key_from_a_shell(listening: Listening) -> None:
    where, admin = ("--url", listening.url), {"TENORA_ADMIN_KEY": ADMIN_KEY}
    code, text = run("tenant", "create", "shell", "--json", *where, **admin)
    own = {"TENORA_API_KEY": json.loads(text)["key"]}
    limits = ("--limit", "budget=1.5", "--limit", "tokens_per_min=9")
    models = ("--model", "a", "--model", "b@1", *limits)
    code, text = run("key", "create", "ci", *models, "--json", *where, **own)
    made = json.loads(text)
    assert made["models"] == ["a", "b@1"]
    assert (made["limits"]["tokens_per_min"], float(made["limits"]["budget"])) == (9, 1.5)
    code, text = run("key", "create", "bad", "--limit", "budget", *where, **own)
    assert (code, "is not a limit" in text) == (1, True)
    code, text = run("key", "create", "bad", "--limit", "speed=1", *where, **own)
    assert (code, "limits.speed" in text) == (1, True)
    code, text = run("key", "rotate", made["id"], "--json", *where, **own)
    assert (code, json.loads(text)["previous"]["prefix"]) == (0, made["prefix"])
    code, text = run("key", "list", *where, **own)
    assert (code, "a, b@1" in text) == (0, True)
