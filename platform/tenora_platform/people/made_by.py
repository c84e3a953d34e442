"""What was made on the operator's side, by people and by admin keys: it ends with who made it.
Admin keys and invitations end elsewhere; here are tenants' API keys and the operator's webhooks."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import exists, literal, select
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.kept_keys import known_to
from tenora_platform.people.tables import MembershipRow
from tenora_platform.state import AppState
from tenora_platform.tenants.key_service import ApiKeyService
from tenora_platform.tenants.tables import ApiKeyRow
from tenora_platform.webhooks.service import disable_made_by


async def end_made_by(
    state: AppState, session: AsyncSession, makers: Collection[str], actor: str
) -> None:
    """Revoke the keys that these actors made, or have by a rotation, at any tenant that they do not
    belong to themselves, disable their webhooks, and commit."""
    ended = await _revoked(state, session, makers, actor) if makers else []
    await state.auth.commit_change(session)
    for key_id in ended:
        await state.flights.key_revoked(key_id)


async def _revoked(
    state: AppState, session: AsyncSession, makers: Collection[str], actor: str
) -> list[str]:
    await disable_made_by(session, state.audit, makers, tenant_id=None, actor=actor)
    ended: list[str] = []
    for tenant_id, maker in await _made_at(session, makers):
        keys = ApiKeyService(
            session, tenant_id=tenant_id, audit=state.audit, secret=state.secret, actor=actor
        )
        ended += await keys.revoke_made_by(maker)
    return ended


async def _made_at(session: AsyncSession, makers: Collection[str]) -> list[tuple[str, str]]:
    """By tenant, in the order in which their rights are taken away (`asking.take`)."""
    found: list[tuple[str, str]] = []
    for maker in makers:
        belongs = exists().where(
            MembershipRow.tenant_id == ApiKeyRow.tenant_id,
            literal("person:") + MembershipRow.person_id == maker,
        )
        query = select(ApiKeyRow.tenant_id).where(known_to(ApiKeyRow, [maker]), ~belongs)
        found += [(tenant_id, maker) for tenant_id in await session.scalars(query.distinct())]
    return sorted(found)
