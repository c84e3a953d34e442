"""HTTP routes of the keys that sign receipts: published to everybody, rotated by the operator."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Response

from tenora_platform.auth import CurrentAdmin, require_role
from tenora_platform.edge import EdgeRoute
from tenora_platform.operators.roles import MONEY_READERS
from tenora_platform.receipts.keys import key_set
from tenora_platform.receipts.schemas import JsonWebKeySet, SigningKey, SigningKeyList
from tenora_platform.receipts.signing import list_keys
from tenora_platform.receipts.tables import SigningKeyRow
from tenora_platform.schemas import Deleted
from tenora_platform.state import AdminSession, State

router = APIRouter(tags=["receipts"], route_class=EdgeRoute)

KEYS_PATH = "/.well-known/tenora-keys.json"
_KEPT_S = 30  # by others: less than a new key is published before it signs


@router.get(KEYS_PATH)
async def get_keys(state: State, response: Response) -> JsonWebKeySet:
    """List the public keys of receipts, current and previous, newest first. No key is needed."""
    published = await state.signing_keys.published()
    response.headers["cache-control"] = f"public, max-age={_KEPT_S}"
    response.headers["access-control-allow-origin"] = "*"
    return JsonWebKeySet.model_validate(key_set(published))


@router.get("/admin/v1/signing_keys", dependencies=[Depends(require_role(*MONEY_READERS))])
async def list_signing_keys(session: AdminSession) -> SigningKeyList:
    """List signing keys, newest first, without revoked ones."""
    return SigningKeyList(data=[_view(row) for row in await list_keys(session)])


@router.post(
    "/admin/v1/signing_keys/rotate", status_code=201, dependencies=[Depends(require_role("owner"))]
)
async def rotate_signing_key(
    state: State, session: AdminSession, admin: CurrentAdmin
) -> SigningKey:
    """Create a new signing key. It is published at once and signs after a minute; the previous one
    stays published."""
    row = await state.signing_keys.rotate(session)
    await state.audit.append(
        session,
        actor=admin.actor,
        action="signing_key.rotate",
        target=row.kid,
        after={"signs_from": row.signs_from},
    )
    return _view(row)


@router.delete("/admin/v1/signing_keys/{kid}", dependencies=[Depends(require_role("owner"))])
async def revoke_signing_key(
    kid: str, state: State, session: AdminSession, admin: CurrentAdmin
) -> Deleted:
    """Revoke a key that somebody else may have. Receipts that it signed no longer verify and must
    be fetched again. 409 `last_signing_key` for the only key that can sign."""
    row = await state.signing_keys.revoke(session, kid)
    await state.audit.append(
        session, actor=admin.actor, action="signing_key.revoke", target=row.kid
    )
    return Deleted(id=row.kid, object="signing_key")


def _view(row: SigningKeyRow) -> SigningKey:
    return SigningKey(
        kid=row.kid,
        signs_from=row.signs_from,
        can_sign=row.sealed is not None,
        created_at=row.created_at,
    )
