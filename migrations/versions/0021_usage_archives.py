"""Months of usage events that are kept as files, and may then leave the database.

Revision: 0021, after 0020
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

from tenora_platform.isolation import roles

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    # The operator's alone: a file has the events of all tenants.
    op.create_table(
        "usage_archives",
        sa.Column("month", sa.Date, primary_key=True),  # its first day, UTC
        sa.Column("part", sa.Integer, primary_key=True),
        sa.Column("path", sa.Text, nullable=False),  # in the object store
        sa.Column("sha256", sa.Text, nullable=False),  # of the file
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("rows", sa.BigInteger, nullable=False),
        sa.Column("sums", JSONB, nullable=False),  # of tokens and, as a text, of amounts
        sa.Column("first_event", _TIME, nullable=False),  # by event_time
        sa.Column("last_event", _TIME, nullable=False),
        sa.Column("created_at", _TIME, nullable=False, server_default=sa.func.now()),
        sa.Column("dropped_at", _TIME),  # since when the file alone has them
    )
    schema, admin = roles().schema, roles().admin_role
    op.execute(f"GRANT SELECT, INSERT, DELETE ON usage_archives TO {admin}")
    op.execute(
        f"""
        CREATE FUNCTION drop_usage_month(of date) RETURNS bigint
        LANGUAGE plpgsql SECURITY DEFINER SET search_path = {schema}, pg_temp AS $$
        DECLARE
          first date := date_trunc('month', of::timestamp);
          part text := 'usage_events_' || to_char(first, 'YYYY_MM');
          found bigint;
          waiting bigint;
          archived bigint;
        BEGIN
          SELECT sum(rows) INTO archived FROM usage_archives WHERE month = first;
          IF archived IS NULL OR to_regclass(part) IS NULL THEN
            RAISE EXCEPTION 'usage of % is not archived', first;
          END IF;
          EXECUTE format('LOCK TABLE %I IN ACCESS EXCLUSIVE MODE', part);
          EXECUTE format('SELECT count(*), count(*) FILTER (WHERE price_version_no IS NULL) '
            'FROM %I', part) INTO found, waiting;
          IF found <> archived OR waiting > 0 THEN
            RAISE EXCEPTION 'usage of % has % events, of which % wait for a price, and % archived',
              first, found, waiting, archived;
          END IF;
          EXECUTE format('ALTER TABLE usage_events DETACH PARTITION %I', part);
          EXECUTE format('DROP TABLE %I', part);
          UPDATE usage_archives SET dropped_at = now() WHERE month = first;
          RETURN found;
        END $$
        """
    )
    op.execute("REVOKE EXECUTE ON FUNCTION drop_usage_month(date) FROM PUBLIC")
    op.execute(f"GRANT EXECUTE ON FUNCTION drop_usage_month(date) TO {admin}")
