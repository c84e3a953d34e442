"""Migrations of a database whose owner is no superuser, as an operator's own server has it."""

from __future__ import annotations

import psycopg
import pytest
from sqlalchemy import make_url

from platform_fixtures import Servers, plain_url, with_database
from tenora_platform.bootstrap import database_urls, prepare_database
from tenora_platform.installation import DEFAULT


@pytest.fixture
def owned_url(servers: Servers) -> str:
    """An empty database of a role that row-level security binds."""
    servers.execute("CREATE ROLE {} LOGIN CREATEROLE PASSWORD 'secret'", "plain_owner")
    servers.execute("CREATE DATABASE {} OWNER {}", "owned", "plain_owner")
    url = make_url(with_database(servers.postgres_url, "owned"))
    owner = url.set(username="plain_owner", password="secret")
    return owner.render_as_string(hide_password=False)


def test_the_order_of_completed_uploads_is_kept(servers: Servers, owned_url: str) -> None:
    urls = database_urls(owned_url, servers.secret, DEFAULT)
    prepare_database(urls, "0004")
    as_superuser = plain_url(with_database(servers.postgres_url, "owned"))
    with psycopg.connect(as_superuser, autocommit=True) as superuser:
        superuser.execute(
            """
            INSERT INTO tenants (id, name, plan) VALUES ('t', 't', 'free');
            INSERT INTO uploads (id, tenant_id, status, bytes, expires_at) VALUES
              ('done', 't', 'completed', 2, now()), ('open', 't', 'pending', 2, now());
            INSERT INTO upload_parts (id, tenant_id, upload_id, bytes, sha256, position) VALUES
              ('b', 't', 'done', 1, '', 0), ('a', 't', 'done', 1, '', 1),
              ('c', 't', 'open', 1, '', NULL);
            """
        )
        prepare_database(urls)
        kept = superuser.execute("SELECT id, part_ids FROM uploads ORDER BY id").fetchall()
        assert kept == [("done", ["b", "a"]), ("open", None)]
        unforced = superuser.execute(
            "SELECT relname FROM pg_class WHERE relrowsecurity AND NOT relforcerowsecurity"
        ).fetchall()
        assert unforced == []
