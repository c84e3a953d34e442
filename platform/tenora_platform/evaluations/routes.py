"""HTTP routes of evaluations."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request

from tenora_platform.auth import TenantContext, require_scope
from tenora_platform.bodies import body_of
from tenora_platform.edge import BeforeBody, EdgeRoute
from tenora_platform.evaluations import schemas
from tenora_platform.evaluations.service import Evaluations
from tenora_platform.inference.session import require_engine
from tenora_platform.schemas import After, Deleted, Limit
from tenora_platform.state import State, get_state

BODY_BYTES_MAX = 8 * 1024**2
VALUES_MAX = 2**17

inference_tenant = require_scope("inference")
router = APIRouter(tags=["evaluations"], route_class=EdgeRoute)
InferenceTenant = Annotated[TenantContext, Depends(inference_tenant)]


@BeforeBody
async def evaluating_tenant(request: Request) -> TenantContext:
    """Raises 401 and 403 for the key, 503 while the engine is away, 413."""
    tenant = await inference_tenant(request)
    require_engine(await get_state(request))
    body = body_of(request)
    body.allow(BODY_BYTES_MAX)
    body.values_max = VALUES_MAX
    return tenant


EvaluatingTenant = Annotated[TenantContext, Depends(evaluating_tenant)]


async def own_evaluations(state: State, tenant: InferenceTenant) -> Evaluations:
    return Evaluations(state, tenant)


Own = Annotated[Evaluations, Depends(own_evaluations)]


@router.post("/v1/evaluations", status_code=202)
async def create_evaluation(
    body: schemas.EvaluationCreate, state: State, tenant: EvaluatingTenant
) -> schemas.Evaluation:
    """Run the same items on versions of an adapter and on the base model, and score the answers. It
    runs in the lowest class of the plan, and each answer is billed as a request."""
    return await Evaluations(state, tenant).create(body)


@router.get("/v1/evaluations")
async def list_evaluations(
    evaluations: Own, after: After = None, limit: Limit = 20
) -> schemas.EvaluationPage:
    """List evaluations, newest first."""
    return await evaluations.page(after, limit)


@router.get("/v1/evaluations/{evaluation_id}")
async def get_evaluation(evaluation_id: str, evaluations: Own) -> schemas.Evaluation:
    """Get an evaluation: its progress, and the scores side by side."""
    return await evaluations.get(evaluation_id)


@router.delete("/v1/evaluations/{evaluation_id}")
async def delete_evaluation(evaluation_id: str, evaluations: Own) -> Deleted:
    """Delete an evaluation with its items and answers. Cancel it first if it has not finished."""
    await evaluations.delete(evaluation_id)
    return Deleted(id=evaluation_id, object="evaluation")


@router.get("/v1/evaluations/{evaluation_id}/items")
async def list_evaluation_items(
    evaluation_id: str,
    evaluations: Own,
    after: Annotated[int, Query(ge=-1, lt=2**31, description="Only items after this number")] = -1,
    limit: Limit = 20,
) -> schemas.ItemPage:
    """List the items with the answer of each version, side by side."""
    return await evaluations.items(evaluation_id, after, limit)


@router.post("/v1/evaluations/{evaluation_id}/cancel")
async def cancel_evaluation(evaluation_id: str, evaluations: Own) -> schemas.Evaluation:
    """Cancel an evaluation: no more requests are sent, and existing answers are kept."""
    return await evaluations.cancel(evaluation_id)
