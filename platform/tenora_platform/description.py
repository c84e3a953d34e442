"""What the OpenAPI document says beyond the routes: which key each takes, and of which roles."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.routing import APIRoute, iter_route_contexts

from tenora_platform.auth import declared_roles
from tenora_platform.operators.roles import ROLES, Role
from tenora_platform.people.sessions import COOKIE

_SCHEMES = {
    "tenantKey": {
        "type": "http",
        "scheme": "bearer",
        "description": "A tenant's API key: `Authorization: Bearer tn_...`.",
    },
    "adminKey": {
        "type": "http",
        "scheme": "bearer",
        "description": "An admin key.",
    },
    "session": {
        "type": "apiKey",
        "in": "cookie",
        "name": COOKIE,
        "description": (
            "The cookie of a signed-in session. Every request except GET and HEAD also "
            "needs the header x-csrf-token."
        ),
    },
}
_OPEN = ("/auth/methods", "/auth/login", "/auth/callback")


class DescribedApi(FastAPI):
    """FastAPI with `securitySchemes` in its description, and the roles that may use a route of the
    operator's as `x-tenora-roles`."""

    _text: bytes | None = None

    def setup(self) -> None:
        """The route of the description alone. It is made once, in a thread: it takes seconds."""
        making = asyncio.Lock()

        async def description(_: Request) -> Response:
            async with making:
                if self._text is None:
                    self._text = await asyncio.to_thread(
                        lambda: msgspec.json.encode(self.openapi())
                    )
            return Response(self._text, media_type="application/json")

        self.add_route("/openapi.json", description, include_in_schema=False)

    def openapi(self) -> dict[str, Any]:
        document = super().openapi()
        document["components"]["securitySchemes"] = _SCHEMES
        for path, operations in document["paths"].items():
            for operation in operations.values():
                operation["security"] = _security(path)
        for (method, path), roles in roles_of_routes(self).items():
            if method in document["paths"].get(path, {}):
                document["paths"][path][method]["x-tenora-roles"] = [*roles]
        return document


def roles_of_routes(app: FastAPI) -> dict[tuple[str, str], tuple[Role, ...]]:
    """Of each method and path that declares any, the roles that may use it. Raises LookupError for
    a route of the operator's that declares none: every admin key could use it."""
    found: dict[tuple[str, str], tuple[Role, ...]] = {}
    for context in iter_route_contexts(app.routes):
        route, path = context.original_route, str(context.path)
        if not isinstance(route, APIRoute):
            continue
        declared = [declared_roles(each.call) for each in route.dependant.dependencies]
        roles = next((each for each in declared if each is not None), None)
        if roles is None and path.startswith("/admin/"):
            raise LookupError(f"{path} does not declare its roles; see auth.require_role")
        if roles is not None:
            of_route = tuple(role for role in ROLES if role in roles)
            found |= {(method.lower(), path): of_route for method in route.methods or ()}
    return found


def _security(path: str) -> list[dict[str, list[str]]]:
    """OpenAPI's form: any one of these; an empty one is no key at all."""
    session: dict[str, list[str]] = {"session": []}
    if path == "/v1/me":
        return [{"tenantKey": []}, {"adminKey": []}, session]
    if path.startswith(("/v1/people", "/v1/invitations")):
        return [session]
    if path.startswith("/v1/"):
        return [{"tenantKey": []}, session]
    if path.startswith("/admin/"):
        return [{"adminKey": []}, session]
    if path.startswith("/auth/"):
        return [] if path in _OPEN else [session]
    return [{}, {"adminKey": []}, session] if path == "/metrics" else []
