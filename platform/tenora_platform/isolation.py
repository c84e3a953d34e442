"""What every migration calls so that a tenant's rows stay the tenant's: row-level security that
binds the table's owner too, policies for both roles, and grants. It knows roles, not tables."""

from __future__ import annotations

from alembic import op

from tenora_platform.installation import Installation
from tenora_platform.secret import ServerSecret

# After a transaction the setting is '' and not NULL, hence NULLIF.
CURRENT_TENANT = "NULLIF(current_setting('app.tenant', true), '')"


def roles() -> Installation:
    """Whose schema is being migrated: `roles().app_role`, `roles().admin_role`."""
    config = op.get_context().config
    assert config is not None
    found = config.attributes["installation"]
    assert isinstance(found, Installation)
    return found


def secret() -> ServerSecret:
    """Whose keys the rows of this installation are sealed by."""
    config = op.get_context().config
    assert config is not None
    found = config.attributes["secret"]
    assert isinstance(found, ServerSecret)
    return found


def enable_tenant_isolation(
    table: str, *, column: str = "tenant_id", append_only: bool = False
) -> None:
    """ENABLE and FORCE row-level security on `table`. The app role sees and writes the rows of the
    session's tenant only; the admin role all rows. `append_only` leaves both SELECT and INSERT. A
    `column` called tenant_no holds the tenant's number."""
    app, admin = roles().app_role, roles().admin_role
    mine = f"(SELECT no FROM tenants WHERE id = {CURRENT_TENANT})"
    own = f"{column} = {mine if column == 'tenant_no' else CURRENT_TENANT}"
    op.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
    op.execute(f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY")
    op.execute(f"CREATE POLICY tenant_rows ON {table} TO {app} USING ({own}) WITH CHECK ({own})")
    op.execute(f"CREATE POLICY operator_rows ON {table} TO {admin} USING (true) WITH CHECK (true)")
    rights = "SELECT, INSERT" if append_only else "SELECT, INSERT, UPDATE, DELETE"
    op.execute(f"GRANT {rights} ON {table} TO {app}, {admin}")
    if append_only:
        refuse_changes(table)


def refuse_changes(table: str) -> None:
    """No UPDATE, DELETE or TRUNCATE of `table`, by anyone, the owner included."""
    both = f"{roles().app_role}, {roles().admin_role}"
    op.execute(f"REVOKE UPDATE, DELETE, TRUNCATE ON {table} FROM {both}")
    op.execute(
        f"CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} "
        "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
    )


def grant_shared(table: str, *, append_only: bool = False) -> None:
    """A table of the operator's that tenants may read, with no tenant in it (plans, prices)."""
    rights = "SELECT, INSERT" if append_only else "SELECT, INSERT, UPDATE, DELETE"
    op.execute(f"GRANT SELECT ON {table} TO {roles().app_role}")
    op.execute(f"GRANT {rights} ON {table} TO {roles().admin_role}")
    if append_only:
        refuse_changes(table)


def only_the_operator_writes(table: str, *, deletes: bool = False) -> None:
    """After `enable_tenant_isolation`: tenants only read theirs. `deletes`: the operator may."""
    op.execute(f"REVOKE INSERT, UPDATE, DELETE ON {table} FROM {roles().app_role}")
    if not deletes:
        op.execute(f"REVOKE DELETE ON {table} FROM {roles().admin_role}")
