"""HTTP routes of webhooks: the same for a tenant's endpoints and for the operator's, which are told
of every tenant's events."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Depends, Query

from tenora_platform.auth import CurrentAdmin, TenantContext, require_role, require_scope
from tenora_platform.edge import EdgeRoute
from tenora_platform.operators.roles import READERS
from tenora_platform.paging import Asked
from tenora_platform.schemas import After, Deleted, Limit, Order, Rotation
from tenora_platform.state import AdminSession, State
from tenora_platform.webhooks import schemas
from tenora_platform.webhooks.repository import DeliveriesWanted
from tenora_platform.webhooks.service import WebhookService
from tenora_platform.webhooks.signing import SecretBox

KeysTenant = Annotated[TenantContext, Depends(require_scope("keys"))]
OfState = Annotated[
    schemas.State | None,
    Query(alias="state", description="Only deliveries in this state, such as dead"),
]
OfType = Annotated[
    str | None,
    Query(
        alias="type", description="Only deliveries of events of this type, such as invoice.final"
    ),
]


async def wanted_deliveries(
    state: OfState = None, type: OfType = None, asked: Asked = None, order: Order = "desc"
) -> DeliveriesWanted:
    return DeliveriesWanted(state=state, type=type, asked=asked, oldest_first=order == "asc")


Deliveries = Annotated[DeliveriesWanted, Depends(wanted_deliveries)]


async def tenants_service(state: State, tenant: KeysTenant) -> AsyncIterator[WebhookService]:
    async with state.db.tenant_session(tenant.tenant_id) as session:
        yield WebhookService(
            session,
            audit=state.audit,
            box=SecretBox(state.secret),
            actor=tenant.actor,
            tenant_id=tenant.tenant_id,
            private=state.settings.webhook_private_addresses,
        )


async def operators_service(
    session: AdminSession, state: State, admin: CurrentAdmin
) -> WebhookService:
    return WebhookService(
        session,
        audit=state.audit,
        box=SecretBox(state.secret),
        actor=admin.actor,
        tenant_id=None,
        private=state.settings.webhook_private_addresses,
    )


Own = Annotated[WebhookService, Depends(tenants_service, scope="function")]
Operators = Annotated[WebhookService, Depends(operators_service, scope="function")]
Reader = Depends(require_role(*READERS))
Writer = Depends(require_role("operator"))

router = APIRouter(tags=["webhooks"], route_class=EdgeRoute)
_OWN, _ALL = "/v1/webhook_endpoints", "/admin/v1/webhook_endpoints"


@router.get(_OWN)
async def list_webhook_endpoints(
    service: Own, asked: Asked = None, after: After = None, limit: Limit = 20
) -> schemas.WebhookEndpointPage:
    """List webhook endpoints, newest first, without their secrets."""
    return await service.page(asked, after, limit)


@router.post(_OWN, status_code=201)
async def create_webhook_endpoint(
    body: schemas.EndpointCreate, service: Own
) -> schemas.NewWebhookEndpoint:
    """Create a webhook endpoint. Events from now on are sent to it, signed as in Standard Webhooks;
    the secret is only in this answer."""
    return await service.create(body)


@router.get(_OWN + "/{endpoint_id}")
async def get_webhook_endpoint(endpoint_id: str, service: Own) -> schemas.WebhookEndpoint:
    return await service.get(endpoint_id)


@router.patch(_OWN + "/{endpoint_id}")
async def change_webhook_endpoint(
    endpoint_id: str, body: schemas.EndpointChange, service: Own
) -> schemas.WebhookEndpoint:
    return await service.change(endpoint_id, body)


@router.post(_OWN + "/{endpoint_id}/rotate")
async def rotate_webhook_secret(
    endpoint_id: str, service: Own, body: Rotation | None = None
) -> schemas.NewWebhookEndpoint:
    """Create a new secret. For `overlap_s` (one day by default) deliveries carry both
    signatures."""
    return await service.rotate(endpoint_id, (body or Rotation()).overlap_s)


@router.delete(_OWN + "/{endpoint_id}")
async def delete_webhook_endpoint(endpoint_id: str, service: Own) -> Deleted:
    await service.delete(endpoint_id)
    return Deleted(id=endpoint_id, object="webhook_endpoint")


@router.get(_OWN + "/{endpoint_id}/deliveries")
async def list_webhook_deliveries(
    endpoint_id: str, service: Own, wanted: Deliveries, after: After = None, limit: Limit = 20
) -> schemas.WebhookDeliveryPage:
    """List the deliveries to an endpoint, newest first by default; `state=dead` selects those given
    up after a day. `q` searches types, ids and errors."""
    return await service.deliveries(endpoint_id, wanted, after, limit)


@router.post(_OWN + "/{endpoint_id}/deliveries/{delivery_id}/resend")
async def resend_webhook_delivery(
    endpoint_id: str, delivery_id: str, service: Own
) -> schemas.WebhookDelivery:
    """Send a delivery again, now, with retries for a day."""
    return await service.resend(endpoint_id, delivery_id)


@router.post(_OWN + "/{endpoint_id}/resend_dead")
async def resend_dead_webhooks(endpoint_id: str, service: Own) -> schemas.Resent:
    """Send the endpoint's dead deliveries again, the oldest thousand first."""
    return schemas.Resent(resent=await service.resend_dead(endpoint_id))


@router.get(_ALL, dependencies=[Reader])
async def list_operator_webhook_endpoints(
    service: Operators, asked: Asked = None, after: After = None, limit: Limit = 20
) -> schemas.WebhookEndpointPage:
    """List the operator's own endpoints, newest first; tenants' endpoints are not included."""
    return await service.page(asked, after, limit)


@router.post(_ALL, status_code=201, dependencies=[Writer])
async def create_operator_webhook_endpoint(
    body: schemas.EndpointCreate, service: Operators
) -> schemas.NewWebhookEndpoint:
    """Create an endpoint that receives every tenant's events from now on (`tenant_id` says
    whose)."""
    return await service.create(body)


@router.get(_ALL + "/{endpoint_id}", dependencies=[Reader])
async def get_operator_webhook_endpoint(
    endpoint_id: str, service: Operators
) -> schemas.WebhookEndpoint:
    return await service.get(endpoint_id)


@router.patch(_ALL + "/{endpoint_id}", dependencies=[Writer])
async def change_operator_webhook_endpoint(
    endpoint_id: str, body: schemas.EndpointChange, service: Operators
) -> schemas.WebhookEndpoint:
    return await service.change(endpoint_id, body)


@router.post(_ALL + "/{endpoint_id}/rotate", dependencies=[Writer])
async def rotate_operator_webhook_secret(
    endpoint_id: str, service: Operators, body: Rotation | None = None
) -> schemas.NewWebhookEndpoint:
    return await service.rotate(endpoint_id, (body or Rotation()).overlap_s)


@router.delete(_ALL + "/{endpoint_id}", dependencies=[Writer])
async def delete_operator_webhook_endpoint(endpoint_id: str, service: Operators) -> Deleted:
    await service.delete(endpoint_id)
    return Deleted(id=endpoint_id, object="webhook_endpoint")


@router.get(_ALL + "/{endpoint_id}/deliveries", dependencies=[Reader])
async def list_operator_webhook_deliveries(
    endpoint_id: str,
    service: Operators,
    wanted: Deliveries,
    after: After = None,
    limit: Limit = 20,
) -> schemas.WebhookDeliveryPage:
    return await service.deliveries(endpoint_id, wanted, after, limit)


@router.post(_ALL + "/{endpoint_id}/deliveries/{delivery_id}/resend", dependencies=[Writer])
async def resend_operator_webhook_delivery(
    endpoint_id: str, delivery_id: str, service: Operators
) -> schemas.WebhookDelivery:
    return await service.resend(endpoint_id, delivery_id)


@router.post(_ALL + "/{endpoint_id}/resend_dead", dependencies=[Writer])
async def resend_dead_operator_webhooks(endpoint_id: str, service: Operators) -> schemas.Resent:
    return schemas.Resent(resent=await service.resend_dead(endpoint_id))
