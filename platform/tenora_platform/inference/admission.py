"""Who may ask for work, and whether now: the one place where a request of inference meets its
limits and its budget, before anything of its body is read."""

from __future__ import annotations

from fastapi import Request

from tenora_platform.auth import Scope, TenantContext, require_scope
from tenora_platform.bodies import body_of
from tenora_platform.edge import BeforeBody
from tenora_platform.inference.session import require_engine
from tenora_platform.state import get_state

VALUES_MAX = 2**18
"""Of a JSON body, or twice the context's tokens: prompts may be token ids."""


def admitted(scope: Scope) -> BeforeBody[TenantContext]:
    """A dependency that gives the tenant once the request may come in. It counts from here on, also
    if it is refused later. Raises, in this order: 401, 403 for the key; 413; 503 while the engine
    is away; 429 for limits and budget."""
    scoped_tenant = require_scope(scope)

    async def admitted_tenant(request: Request) -> TenantContext:
        tenant = await scoped_tenant(request)
        state = await get_state(request)
        body = body_of(request)
        body.allow(state.settings.max_body)
        require_engine(state)
        body.values_max = max(VALUES_MAX, 2 * state.engine.model.context_tokens)
        request.state.admission = await state.limits.admit(tenant)
        await state.budgets.admit(tenant)
        return tenant

    return BeforeBody(admitted_tenant, admits=True)
